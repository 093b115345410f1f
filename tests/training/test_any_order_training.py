"""The network that `specchat fill --train` makes learns to fill blanks, in any order."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.decoding.infill import Infilling
from specchat.errors import TrainingError, UsageError
from specchat.models.any_order import AnyOrderModel, load_any_order
from specchat.training import infill
from specchat.training.infill import batch_of, learn, new_network, train_any_order

TEXT = " ".join(f"{number} times {number} is {number * number}." for number in range(1000))


def test_a_network_that_learnt_a_pattern_fills_it_in_with_fewer_passes_than_tokens():
    network = new_network(8, seed=0, width=32, layers=1)
    pattern = torch.arange(8).repeat(60)
    losses: list[float] = []
    learn(network, pattern, 140, seed=0, tell=lambda _, loss: losses.append(loss), rate=1e-2)
    assert losses[0] > math.log(8) - 0.5
    assert sum(losses[-10:]) / 10 < 0.1 * losses[0]
    model = AnyOrderModel(network)
    for start in range(3):
        text = pattern[start : start + 24].tolist()
        blank = [None if 6 <= place < 12 else token for place, token in enumerate(text)]
        filling = Infilling(model, blank, Sampling(), Noise(0))
        while filling.filled < 6:
            filling.round()
        assert filling.tokens == text
    assert model.counters.passes < 3 * 6


def test_a_batch_has_runs_and_single_blanks_in_order_and_at_random():
    pieces, blanks = batch_of(torch.arange(1000), torch.Generator().manual_seed(4))
    assert torch.equal(pieces[:, 1:] - pieces[:, :-1], torch.ones_like(pieces[:, 1:]))
    rises = [bool((row[1:] > row[:-1]).all()) for row in blanks]
    assert rises == [True, True, False, False, True, True, False, False]
    assert all(len(set(row.tolist())) == len(row) for row in blanks)
    neighbours = [len({*row.tolist()} & {place + 1 for place in row.tolist()}) for row in blanks]
    assert min(neighbours[::2]) > max(neighbours[1::2])


def test_what_is_trained_is_a_folder_that_fill_reads_and_the_same_seed_makes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(infill, "WIDTH", 32)
    told: list[int] = []
    losses = [
        train_any_order(TEXT, tmp_path / name, 2, seed, lambda done, _: told.append(done))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert told == [1, 2] * 3
    assert losses[0] == losses[1] != losses[2]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    network, tokenizer = load_any_order(tmp_path / "a")
    assert network.vocab_size == len(tokenizer)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b", "c"]


def test_a_short_text_and_a_folder_that_is_there_are_refused(tmp_path: Path):
    with pytest.raises(TrainingError, match=r"^the text has \d+ tokens, too few to learn from; at least"):
        train_any_order("one word " * 20, tmp_path / "new", 1, 0, lambda *_: None)
    assert not (tmp_path / "new").exists()
    with pytest.raises(UsageError, match=r"is there already; remove it, or name another folder with --model$"):
        train_any_order(TEXT, tmp_path, 1, 0, lambda *_: None)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_learnt(tmp_path: Path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    steps: list[int] = []
    with pytest.raises(TrainingError, match="cannot be written"):
        train_any_order(TEXT, tmp_path / "file" / "new", 1, 0, lambda done, _: steps.append(done))
    assert steps == []


def test_a_tokenizer_of_a_word_without_end_learns_no_token_longer_than_a_piece(monkeypatch):
    monkeypatch.setattr(infill, "_PIECE", 8)
    tokens = infill._trained_tokenizer("ab" * 5000).get_vocab()
    assert max(map(len, tokens)) == 8
