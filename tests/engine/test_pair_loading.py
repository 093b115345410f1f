"""Loading a pair: models with different tokens are refused or translated; trained drafters are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from specchat.config import load_catalog
from specchat.config.trained_drafters import TrainedDrafter, TrainedDrafters
from specchat.decoding.conversation import Conversation
from specchat.engine.far.event_conversion import ready_message
from specchat.engine.far.pair_loading import Loader
from specchat.errors import TokenizerMismatch
from specchat.models.model_loading import Loaded, load_scripted
from specchat.settings import Settings


class Table:
    """As much of a tokenizer as is compared."""

    all_special_ids = ()
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012

    def __init__(self, *words: str) -> None:
        self._table = {word: number for number, word in enumerate(words)}

    def get_vocab(self):
        return self._table


def loaded(monkeypatch, draft_words, **settings):
    def load(self, spec, device, settings, say, beside=None):
        model = load_scripted(spec, "target").model
        return Loaded(spec.name, model, Table(*(draft_words if beside else "ab")), frozenset(), 0, "float32")

    monkeypatch.setattr(Loader, "_load", load)
    loader = Loader(load_catalog(), lambda event: None, lambda: False)
    return loader.load(Settings().but({"pair": "scripted", **settings}))


@pytest.mark.parametrize("drafter", ["cross_vocabulary", "suffix", "none"])
def test_models_with_other_tokens_make_a_pair_for_drafters_that_do_not_need_the_same(monkeypatch, drafter):
    resources = loaded(monkeypatch, "ba", drafter=drafter).resources
    assert resources.differing_tables == (resources.vocabulary, resources.draft_vocabulary)
    assert not resources.same_tokens


def test_models_with_the_same_tokens_share_their_vocabulary(monkeypatch):
    resources = loaded(monkeypatch, "ab", drafter="cross_vocabulary").resources
    assert resources.draft_vocabulary is resources.vocabulary
    assert resources.same_tokens


@pytest.mark.parametrize("of", ["draft_model", "suffix,draft_model"])
def test_a_drafter_that_needs_the_same_tokens_refuses_others(monkeypatch, of):
    with pytest.raises(TokenizerMismatch, match=r"2 tokens of their tables differ, such as 'a' \(0 and 1\)"):
        loaded(monkeypatch, "ba", drafter="merge", method_options={"merge.of": of})


def test_a_pair_that_is_ready_tells_which_drafters_have_weights_for_its_target():
    pair = Loader(load_catalog(), lambda event: None, lambda: False).load(Settings(pair="scripted"))
    made = datetime(2026, 1, 1, tzinfo=UTC)
    fitting = tuple(
        TrainedDrafter(f"mine-{n}", Path("mine"), method, "scripted", "", 1, "", "MIT", made)
        for n, method in enumerate(("eagle", "hydra", "eagle"))
    )
    conversation = Conversation(pair.target.model, None, pair.vocabulary, Settings())
    assert ready_message(pair, conversation).trained == []
    pair = replace(pair, trained=TrainedDrafters("scripted", fitting))
    assert ready_message(pair, conversation).trained == ["eagle", "hydra"]
