"""What a reading says about its logits is what the logits say."""

from __future__ import annotations

import pytest
import torch

from specchat.core.reading import HeadTensors, Reading


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nodes", [[], [1], [3, 0, 0]])
def test_totals_are_the_logarithms_of_the_sums_of_exponentials(dtype, nodes):
    logits = (4 * torch.randn(4, 300, generator=torch.Generator().manual_seed(1))).to(dtype)
    logsumexp = Reading((0, 1, 2, 3), HeadTensors(logits), frozenset(range(4))).logsumexp_after(nodes)
    assert logsumexp.dtype == torch.float32
    torch.testing.assert_close(logsumexp, torch.logsumexp(logits[nodes].float(), dim=-1))


def test_a_total_reads_its_own_row_alone(monkeypatch):
    """The rows asked for are not copied, and no other row is looked at."""
    logits = torch.randn(5, 300)
    seen = []
    total = torch.logsumexp
    monkeypatch.setattr(torch, "logsumexp", lambda row, dim: seen.append(row) or total(row, dim=dim))
    Reading((0, 1, 2, 3, 4), HeadTensors(logits), frozenset(range(5))).logsumexp_after([4, 2])
    assert [row.data_ptr() for row in seen] == [logits[4].data_ptr(), logits[2].data_ptr()]
