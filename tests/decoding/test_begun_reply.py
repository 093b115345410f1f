"""A reply that was cut goes on as if it had not been, from the tokens that its text was written with."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from contracts.kit import PROMPT, Letters, collect, converse, scripted_draft, scripted_target
from contracts.models import MODELS
from contracts.models import V as NETWORK_V
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row
from test_detokenize import CORPUS, byte_level, sentence_piece

from specchat.decoding.emission import Detokenizer, Emission, Limits, Stop, texts_of, tokens_of
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.errors import PromptTooLong

SETTINGS = {"drafter": "draft_model", "policy": "chain", "depth": 5, "nodes": 5, "width": 1, "temperature": 0.8,
            "repetition_penalty": 1.2, "presence_penalty": 0.4, "max_tokens": 24}  # fmt: skip


@each_row("kept", [1, 5, 6, 11, 23])
@each_row("name", MODELS)
def test_a_cut_reply_goes_on_as_if_it_had_not_been_cut(name, kept):
    whole = whole_reply(name)
    conversation = conversed(name, max_tokens=kept)
    first = collect(conversation.reply(PROMPT, 7))
    assert first.ended.stop is Stop.LENGTH
    assert first.tokens == whole[:kept]
    conversation.change(conversation.settings.but({"max_tokens": 24 - kept}))
    rest = collect(conversation.reply(PROMPT, 7, begun=first.tokens))
    assert [*first.tokens, *rest.tokens] == whole
    assert rest.begun.prompt_tokens == len(PROMPT) + kept
    assert rest.begun.reused_tokens >= len(PROMPT) + kept - 2, "the cache holds the reply so far"
    assert rest.rounds[0].start == len(PROMPT) + kept


def conversed(name, **changes):
    models, more = (scripted_target(), scripted_draft()), {}
    if name != "scripted":
        models, more = [MODELS[name]("llama", 256).model for _ in range(2)], {"vocabulary": Letters(NETWORK_V)}
    return converse(*models, **SETTINGS | more | changes)


@cache
def whole_reply(name):
    return collect(conversed(name).reply(PROMPT, 7)).tokens


def test_another_seed_goes_on_in_another_way():
    conversation = converse(scripted_target(), scripted_draft(), **SETTINGS)
    first = collect(conversation.reply(PROMPT, 7)).tokens
    assert (
        collect(conversation.reply(PROMPT, 8, begun=first[:6])).tokens[:18]
        != collect(conversation.reply(PROMPT, 7, begun=first[:6])).tokens[:18]
    )


def test_a_begun_reply_that_fills_the_context_is_refused():
    conversation = converse(scripted_target(), scripted_draft(), **SETTINGS)
    begun = [3] * conversation.target.context_tokens
    with pytest.raises(PromptTooLong):
        collect(conversation.reply(PROMPT, 7, begun=begun))


def test_half_a_character_that_has_begun_is_completed():
    vocabulary = TransformersVocabulary(byte_level(), frozenset({0}))
    tokens = vocabulary.encode("a \U0001f98a")
    texts = texts_of(vocabulary, tokens)
    assert "".join(texts) == "a \U0001f98a"
    assert texts[-2:] == ["", "\U0001f98a"], "its bytes are tokens of their own"
    emission = Emission(vocabulary, Limits(9, 9), tokens[:-1])
    assert emission.take(tokens[-1:]) == ["\U0001f98a"]
    assert Emission(vocabulary, Limits(9, 9), [*tokens, 0]).ended is Stop.END, "nothing follows an end token"


def pieces_of(vocabulary, tokens: list[int]) -> list[str]:
    """The text of each token as the app hears and keeps it: pieces without text are left out."""
    detokenizer = Detokenizer(vocabulary)
    return [piece for token in tokens if (piece := detokenizer.add(token))]


@pytest.mark.parametrize("tokenizer", [byte_level, sentence_piece])
@given(st.data())
def test_the_tokens_of_a_reply_are_found_from_their_texts(tokenizer, data):
    vocabulary = TransformersVocabulary(tokenizer(), frozenset({0}))
    plain = [t for t in range(vocabulary.size) if vocabulary.token_bytes(t).isascii() and vocabulary.token_bytes(t)]
    times = Counter(map(vocabulary.token_bytes, plain))
    unique = [t for t in plain if times[vocabulary.token_bytes(t)] == 1 and vocabulary.token_bytes(t) != b" "]
    tokens = data.draw(st.lists(st.sampled_from(unique), max_size=12))
    if vocabulary.starts_with_space():  # the text of the first token does not say whether it carried a space
        spaced = [t for t in unique if vocabulary.token_bytes(t).startswith(b" ")]
        tokens = [data.draw(st.sampled_from(spaced)), *tokens]
    assert tokens_of(vocabulary, pieces_of(vocabulary, tokens)) == tokens


@pytest.mark.parametrize("tokenizer", [byte_level, sentence_piece])
@pytest.mark.parametrize("text", CORPUS)
def test_a_reply_keeps_its_text_whatever_its_characters_took(tokenizer, text):
    vocabulary = TransformersVocabulary(tokenizer(), frozenset({0}))
    tokens = tokens_of(vocabulary, pieces_of(vocabulary, vocabulary.encode(text)))
    decoder = Detokenizer(vocabulary)
    assert "".join(decoder.add(token) for token in tokens) + decoder.finish() == text


def test_words_that_the_user_wrote_are_tokenised_as_usual():
    vocabulary = TransformersVocabulary(byte_level(), frozenset({0}))
    text = "the quick brown fox"
    assert tokens_of(vocabulary, [text]) == vocabulary.encode(text)
    assert tokens_of(vocabulary, []) == []
