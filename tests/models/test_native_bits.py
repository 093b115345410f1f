"""The layers in C give a row the same bits whatever is read with it, with any number of threads."""

import pytest
import torch
from native_kit import FourBitSource, native, needs_native
from test_decoder import V, branching_tree, network, prompt, read_dropping, two_rounds

from specchat.core.tree import ROOT, Guess, TokenTree


@needs_native
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3", "mistral, sliding window", "gemma3"])
def test_a_tree_gets_the_bits_of_plain_decoding(family):
    own = native(network(family))
    chain = [5, 9, 2, 33, 17, 8]
    plain = []
    own.prefill(prompt())
    for token in chain:
        plain.append(own.read(TokenTree(token, V).freeze()).logits[0].clone())
        own.keep([])
    own.prefill(prompt())
    tree, node, path = TokenTree(chain[0], V), ROOT, []
    for token in chain[1:]:
        for wrong in range(40, 43):
            tree.add(node, Guess(wrong))
        node = tree.add(node, Guess(token))
        path.append(node)
    logits = own.read(tree.freeze()).logits
    assert len(tree) > 16
    for row, expected in zip([ROOT, *path], plain, strict=True):
        assert torch.equal(logits[row], expected)
    own.keep(path[:3])
    after = own.read(TokenTree(chain[4], V).freeze()).logits[0]
    assert torch.equal(after, plain[4]), "rows moved by keeping a path keep their bits"


@needs_native
def test_a_prompt_read_in_pieces_gets_the_same_bits():
    own = native(network("llama"))
    readings = []
    for pieces in ([300], [1, 299], [7, 20, 256, 300]):
        own.prefill(())
        for length in pieces:
            own.prefill(prompt(length))
        own.prefill(prompt(300))
        readings.append(own.read(TokenTree(3, V).freeze()).logits)
        own.keep([])
    assert torch.equal(readings[0], readings[1])
    assert torch.equal(readings[0], readings[2])


def star(size):
    tree = TokenTree(5, V)
    for token in range(6, 5 + size):
        tree.add(ROOT, Guess(token))
    return tree.freeze()


@needs_native
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_every_size_of_a_tree_gives_a_row_its_bits(precision):
    net = network("llama")
    own = native(net, precision, source=FourBitSource(net.state_dict()))
    found = {}
    for size in range(1, 30):
        own.prefill(prompt())
        found[size] = own.read(star(size)).logits.clone()
    for size, logits in found.items():
        assert torch.equal(logits, found[29][:size]), size


@needs_native
def test_dropping_rows_leaves_the_bits_of_those_that_stay():
    own = native(network("llama"))
    whole, reading, staying = read_dropping(own)
    for node in staying:
        assert torch.equal(reading.after(node), whole[node])


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(threads):
    own = native(network("llama"))
    expected = two_rounds(own)
    own.prefill(())
    own.network.threads = threads
    assert torch.equal(two_rounds(own), expected)


@needs_native
@pytest.mark.parametrize("family", ["llama", "mistral, sliding window"])
def test_behind_a_long_text_the_number_of_threads_changes_no_bit(family):
    own = native(network(family), context_tokens=1024)
    tree, right, _ = branching_tree()
    said = []
    for threads in (1, 2, 3):
        own.network.threads = threads
        own.prefill(prompt(700))
        said.append(own.read(tree).logits)
        own.keep([])
        said.append(own.read(TokenTree(9, V).freeze()).logits)
    for tree_logits, plain in zip(said[::2], said[1::2], strict=True):
        assert torch.equal(tree_logits, said[0])
        assert torch.equal(plain[0], said[0][right]), "a row of a tree has the bits of plain decoding"
