"""Loading a pair whose models have different tokens: refused or translated, as the drafter has it."""

from __future__ import annotations

import pytest

from specchat.config import load_catalog
from specchat.engine.far.pair_loading import Loader
from specchat.errors import TokenizerMismatch
from specchat.models.loading import Loaded, load_scripted
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
