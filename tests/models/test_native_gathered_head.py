"""Rows copied out of a head's blocks: logits of the same bits, and nothing outside the blocks is touched."""

import pytest
import torch

from specchat.errors import ModelError
from specchat.models.cpu_kernels.linear import GatheredHead, GrowingHead, small_network_kernels
from specchat.models.cpu_kernels.packing import Arena, Product, pack_into
from specchat.models.weights.weight_source import StoredRows

D, V = 96, 83


@pytest.fixture(scope="module")
def kernels():
    return small_network_kernels()


def packed(kernels, weight, bits, minima):
    product = Product.empty(*weight.shape, bits, minima, None, Arena())
    pack_into(kernels, StoredRows.of_tensor(weight), bits, product.data)
    return product


def whole(kernels, product, norm):
    head = GrowingHead(kernels, norm, 1e-5, product.bits, product.minima)
    head.room_for(product.out)[:] = product.data
    head.holds(product.out)
    return head


@pytest.mark.parametrize(("bits", "minima"), [(8, False), (4, True)])
def test_logits_have_the_bits_of_the_whole_head(kernels, bits, minima):
    torch.manual_seed(0)
    product, norm = packed(kernels, torch.randn(V, D), bits, minima), torch.rand(D) + 0.5
    states = torch.randn(5, D)
    truth = whole(kernels, product, norm).scores(states).logits
    head, tokens = GatheredHead(kernels, product, norm, 1e-5, 1), []
    for some in ([82, 0, 41], [7], [*range(10, 40)], [81, 80]):
        head.append(some)
        tokens += some
        said = head.scores(states)
        assert torch.equal(said.logits, truth[:, tokens])
        assert said.logsumexp is not None
        torch.testing.assert_close(said.logsumexp, said.logits.logsumexp(dim=-1))


def test_many_rows_are_kept_when_room_is_made_for_more(kernels):
    product, norm = packed(kernels, torch.randn(5000, 32), 8, False), torch.ones(32)
    head, states = GatheredHead(kernels, product, norm, 1e-5, 1), torch.randn(2, 32)
    truth = whole(kernels, product, norm).scores(states).logits
    order = torch.randperm(5000).tolist()
    for first in range(0, 5000, 700):
        head.append(order[first : first + 700])
    assert torch.equal(head.scores(states).logits, truth[:, order])


@pytest.mark.parametrize("token", [-1, V, 1 << 30])
def test_a_token_that_the_head_has_not_is_refused_and_nothing_changes(kernels, token):
    product, norm, states = packed(kernels, torch.randn(V, D), 8, False), torch.ones(D), torch.randn(1, D)
    head = GatheredHead(kernels, product, norm, 1e-5, 1)
    head.append([3, 4])
    before = head.scores(states).logits.clone()
    with pytest.raises(ModelError, match="an output is"):
        head.append([*range(40), *range(40), token])
    assert torch.equal(head.scores(states).logits, before)


def test_too_little_room_is_refused(kernels):
    product = packed(kernels, torch.randn(V, D), 8, False)
    room = torch.zeros(len(product.data) // 6 - 1, dtype=torch.uint8)
    with pytest.raises(ModelError, match="room for outputs"):
        kernels.gather(product.as_c(), list(range(16)), room.data_ptr(), len(room), 0)
