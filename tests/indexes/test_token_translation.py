"""Going over from one vocabulary to another: what is spelt stays the same, and long texts are not encoded again."""

from __future__ import annotations

import numpy as np
import pytest
from two_vocabularies import COARSE, FINE, LETTERS, PAIRS, TEXT, Pieces

from specchat.indexes.token_translation import TokenTranslation, TranslatedText


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_what_is_translated_spells_the_same(own, other):
    translation = TokenTranslation((own, other))
    for token in range(other.size):
        there = translation.own_tokens(token)
        assert b"".join(map(own.token_bytes, there)) == other.token_bytes(token)
    back = translation.draft_tokens(own.encode(TEXT))
    assert b"".join(map(other.token_bytes, back)) == TEXT.encode()


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_what_a_table_lacks_is_no_token_of_the_target(own, other):
    translation = TokenTranslation((own, other))
    asked = np.array([[0, other.size - 1, -1], [other.size, 2 * other.size, 0]])
    first = [(translation.own_tokens(token) or (-1,))[0] for token in (0, other.size - 1)]
    assert translation.first_own_tokens(asked).tolist() == [[*first, -1], [-1, -1, first[0]]]
    assert not translation.begin_ngrams(asked).any()


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_a_growing_text_spells_the_same_at_every_length_and_after_an_edit(own, other):
    text = TranslatedText(TokenTranslation((own, other)))
    tokens = own.encode(TEXT + TEXT)
    for end in [*range(1, len(tokens) + 1), 5, 9, len(tokens)]:
        spelt = b"".join(map(other.token_bytes, text.of(tokens[:end])))
        assert spelt == b"".join(map(own.token_bytes, tokens[:end]))


def test_only_the_last_word_of_a_growing_text_is_encoded_again():
    encoded = []

    class Watched(Pieces):
        def encode(self, text):
            encoded.append(text)
            return super().encode(text)

    text = TranslatedText(TokenTranslation((LETTERS, Watched([" the"]))))
    tokens = LETTERS.encode(4 * TEXT)
    text.of(tokens[:100])
    encoded.clear()
    for end in range(101, len(tokens)):
        text.of(tokens[:end])
    assert max(map(len, encoded)) < 8


def test_models_with_the_same_tokens_are_not_translated():
    translation = TokenTranslation(None)
    assert (translation.own_tokens(5), translation.draft_tokens([1, 2])) == ((5,), (1, 2))
    assert TranslatedText(translation).of([1, 2, 3]) == [1, 2, 3]


def test_an_ngram_is_known_once_its_token_was_used():
    translation = TokenTranslation((COARSE, FINE))
    the = COARSE.encode(" the")[0]
    ngram = tuple(FINE.encode(" the"))
    assert translation.merged(ngram) is None
    translation.learn(the)
    assert translation.merged(ngram) == the
    assert translation.begins_ngram(ngram[:1])
    assert not translation.begins_ngram(ngram)


def test_an_end_token_without_a_counterpart_is_the_targets_own_end():
    own, other = Pieces([]), Pieces(["<stop>"])
    own.eos_ids, other.eos_ids = frozenset({3}), frozenset({0})
    own.encode = lambda text: []
    assert TokenTranslation((own, other)).own_tokens(0) == (3,)


def test_a_token_that_both_have_is_found_without_encoding_its_text():
    class Silent(Pieces):
        def encode(self, text):
            raise AssertionError(f"{text!r} was encoded")

    own, other = Silent(["th", "the "]), Pieces(["the ", "e", "th"])
    translation = TokenTranslation((own, other))
    for token in range(other.size):
        (found,) = translation.own_tokens(token)
        assert own.token_bytes(found) == other.token_bytes(token)
