"""Loading a pair: models with different tokens are refused or translated; trained drafters are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from specchat.config import load_catalog
from specchat.config.trained_drafters import TrainedDrafter, TrainedDrafters
from specchat.decoding.conversation import Conversation
from specchat.engine.server.event_conversion import ready_message
from specchat.engine.server.pair_loading import Loader, load_scripted
from specchat.errors import TokenizerMismatch
from specchat.models.model_loading import Loaded
from specchat.settings import Settings


class Table:
    """As much of a tokenizer as is compared."""

    all_special_ids = ()
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012

    def __init__(self, *words: str) -> None:
        self._table = {word: number for number, word in enumerate(words)}

    def get_vocab(self):
        return self._table


read: list[str] = []
"""The models that were read."""


def loaded(monkeypatch, draft_words, **settings):
    def load(self, spec, device, settings, say, beside=None, besides=0):
        read.append(spec.name)
        model = load_scripted(spec, "target").model
        return Loaded(spec.name, model, Table(*(draft_words if beside else "ab")), frozenset(), 0, "float32")

    monkeypatch.setattr(Loader, "_load", load)
    read.clear()
    loader = Loader(load_catalog(), lambda event: None, lambda: False)
    return loader.load(Settings().but({"pair": "scripted", **settings}))


def test_models_with_other_tokens_make_a_pair_for_drafters_that_do_not_need_the_same(monkeypatch):
    resources = loaded(monkeypatch, "ba", drafter="cross_vocabulary").resources
    assert resources.differing_tables == (resources.vocabulary, resources.draft_vocabulary)
    assert not resources.same_tokens


def test_models_with_the_same_tokens_share_their_vocabulary(monkeypatch):
    resources = loaded(monkeypatch, "ab", drafter="cross_vocabulary").resources
    assert resources.draft_vocabulary is resources.vocabulary
    assert resources.same_tokens


@pytest.mark.parametrize("drafter", ["suffix", "none"])
def test_a_draft_model_that_no_drafter_uses_is_not_read_whatever_its_tokens(monkeypatch, drafter):
    pair = loaded(monkeypatch, "ba", drafter=drafter)
    assert (read, pair.draft_names, pair.offered) == (["scripted"], None, ("scripted-draft",))


@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("draft_model", {}),
        ("retrieved_context", {}),
        ("fuse", {}),
        ("merge", {"merge.of": "suffix+draft_model"}),
        ("several", {"several.of": "suffix+cascade(of=suffix+draft_model)"}),
        ("cascade", {"cascade.of": "suffix,cross_vocabulary"}),
        ("sparse_context", {"sparse_context.below": "draft_model"}),
    ],
)
def test_a_draft_model_is_read_where_the_drafter_or_a_member_of_it_uses_it(monkeypatch, drafter, options):
    def used(**more):
        return loaded(monkeypatch, "ab", drafter=drafter, method_options=options, **more).draft_names

    assert used() == "scripted-draft"
    assert used(controller="off") is None


@pytest.mark.parametrize(("drafter", "options"), [("fuse", {"fuse.draft": "suffix", "fuse.lookup": "prompt_lookup"})])
def test_a_method_whose_members_need_none_reads_none(monkeypatch, drafter, options):
    assert loaded(monkeypatch, "ab", drafter=drafter, method_options=options).draft_names is None


def test_a_pair_of_several_draft_models_reads_those_that_are_used_in_its_order(monkeypatch):
    loader = two_drafts(monkeypatch)
    first = Settings().but({"pair": "scripted", "drafter": "draft_model"})
    second = first.but({"method_options": {"draft_model.model": "scripted"}})
    assert loader.load(first).draft_names == "scripted-draft"
    alone = loader.load(second)
    assert alone.draft_names == "scripted"
    both = loader.add_drafts(alone, first, fetches=False)
    assert both.draft_names == "scripted-draft + scripted"
    assert (both.target, both.drafts[1]) == (alone.target, alone.draft)
    assert loader.load(first, [second, second.but({"controller": "off"})]).draft_names == "scripted-draft + scripted"


def two_drafts(monkeypatch):
    def load(self, spec, device, settings, say, beside=None, besides=0):
        return Loaded(spec.name, load_scripted(spec, "target").model, Table(*"ab"), frozenset(), 7, "float32")

    monkeypatch.setattr(Loader, "_load", load)
    catalog = load_catalog()
    pair = replace(catalog.pair("scripted"), drafts=("scripted-draft", "scripted"))
    return Loader(replace(catalog, pairs={"scripted": pair}), lambda event: None, lambda: False)


def test_every_draft_model_that_is_used_is_known_by_its_name(monkeypatch):
    def load(self, spec, device, settings, say, beside=None, besides=0):
        model = load_scripted(spec, "draft" if beside else "target").model
        words = "ba" if spec.name == "scripted" and beside else "ab"
        return Loaded(spec.name, model, Table(*words), frozenset(), 7, "float32")

    monkeypatch.setattr(Loader, "_load", load)
    catalog = load_catalog()
    pair = replace(catalog.pair("scripted"), drafts=("scripted-draft", "scripted"))
    loader = Loader(replace(catalog, pairs={"scripted": pair}), lambda event: None, lambda: False)
    other = {"drafter": "cross_vocabulary", "method_options": {"cross_vocabulary.model": "scripted"}}
    first = Settings().but({"pair": "scripted", "drafter": "draft_model"})
    loaded_pair = loader.load(first, [first.but(other)])
    assert [draft.name for draft in loaded_pair.drafts] == ["scripted-draft", "scripted"]
    assert loaded_pair.resources.draft_models == {"scripted-draft": True, "scripted": False}
    assert loaded_pair.draft_names == "scripted-draft + scripted"
    assert ready_message(loaded_pair, spoken(loaded_pair, first)).draft == "scripted-draft"
    assert ready_message(loaded_pair, spoken(loaded_pair, Settings())).draft is None
    options = {"drafter": "draft_model", "method_options": {"draft_model.model": "scripted"}}
    settings = Settings().but({"pair": "scripted", **options})
    with pytest.raises(TokenizerMismatch, match="2 tokens"):
        loader.load(settings)


def spoken(pair, settings):
    return Conversation(pair.target.model, pair.draft.model, pair.vocabulary, settings, resources=pair.resources)


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
