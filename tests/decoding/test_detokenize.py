"""Tokens become text piece by piece: never half a character, and joined they are what decoding the whole gives."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.decoding.emission import Detokenizer
from specchat.decoding.vocabulary import TransformersVocabulary, label

CORPUS = [
    "the quick brown fox jumps over the lazy dog, the fox and the dog",
    "Grüße aus Köln, naïve café, e\u0301 and n\u0303 combine",
    "你好，世界 こんにちは 안녕하세요 שלום مرحبا",
    "👩‍👩‍👧 🎉🎉 😀 🏳️‍🌈 and then some   spaces\n\n\ttabs",
    "def f(x):\n    return x ** 2  # it's 1,000.50 €",
]

SPECIAL = "<|end|>"

texts = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from("the fox 你好👩‍🎉\u0301ée\n\t  €𝄞"), max_size=40),
    st.lists(st.sampled_from(" ".join(CORPUS).split()), max_size=12).map(" ".join),
)


def wrapped(tokenizer):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL, clean_up_tokenization_spaces=False)


@cache
def byte_level():
    """A byte-level BPE tokenizer, as GPT-2's family has."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=[SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return wrapped(tokenizer)


@cache
def sentence_piece():
    """A tokenizer like SentencePiece's: spaces are ▁, what it does not know falls apart into bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    characters = sorted(set("".join(CORPUS[:2])) - {" "})
    words = ["▁", "▁the", "▁fox", "the", "fox", "th", "▁th", "fo", "▁fo", *characters]
    pieces = ["<unk>", SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(words)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("t", "h"), ("th", "e"), ("▁", "th"), ("▁th", "e"), ("f", "o"), ("fo", "x"), ("▁", "fo"), ("▁fo", "x")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(tokenizer)


TOKENIZERS = {"byte-level": byte_level, "sentence-piece": sentence_piece}

every_tokenizer = pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def vocabulary_of(tokenizer) -> TransformersVocabulary:
    return TransformersVocabulary(tokenizer, frozenset({tokenizer.eos_token_id}))


def pieces_of(tokenizer, tokens) -> list[str]:
    detokenizer = Detokenizer(vocabulary_of(tokenizer))
    return [*(detokenizer.add(token) for token in tokens), detokenizer.finish()]


def whole(tokenizer, tokens) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@every_tokenizer
@given(text=texts)
def test_the_pieces_joined_are_the_whole_text_decoded(make, text):
    tokenizer = make()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces_of(tokenizer, tokens)) == whole(tokenizer, tokens)


@every_tokenizer
@given(text=texts.filter(lambda t: "\ufffd" not in t and "<" not in t))
def test_the_text_comes_back_and_no_piece_holds_half_a_character(make, text):
    tokenizer = make()
    pieces = pieces_of(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_token_that_only_looks_like_a_byte_is_its_own_text_and_a_long_one_is_cut_in_trees_alone():
    from tokenizers import Tokenizer, models

    odd = ["<0xZZ>", "<0x+1>", "<0x 1>", "<0x1_>", "x" * 100_000]
    tokenizer = wrapped(Tokenizer(models.WordLevel({SPECIAL: 0} | {word: n for n, word in enumerate(odd, 1)}, SPECIAL)))
    vocabulary = vocabulary_of(tokenizer)
    assert [vocabulary.token_bytes(n).decode() for n in range(1, 6)] == odd
    assert [vocabulary.token_label(n) for n in range(1, 6)] == [*odd[:-1], "x" * 1000]


@given(seed=st.integers(0, 10**6), length=st.integers(0, 30))
def test_any_tokens_at_all_decode_as_a_whole_would(seed, length):
    """A model may write bytes that are no text; both put the same replacement characters."""
    tokenizer = byte_level()
    tokens = random.Random(seed).choices(range(len(tokenizer)), k=length)
    tokens = [token for token in tokens if token != tokenizer.convert_tokens_to_ids("<tool>")]
    assert "".join(pieces_of(tokenizer, tokens)) == whole(tokenizer, tokens)


@every_tokenizer
@given(text=texts, cut=st.integers(0, 60))
def test_what_is_shown_is_never_taken_back(make, text, cut):
    tokenizer = make()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, tokens)
    assert whole(tokenizer, tokens).startswith("".join(pieces[:cut]))


@every_tokenizer
def test_a_character_split_over_tokens_waits_for_its_rest(make):
    tokenizer = make()
    tokens = tokenizer.encode("x𝄞y", add_special_tokens=False)
    pieces = pieces_of(tokenizer, tokens)
    assert "".join(pieces) == "x𝄞y"
    assert pieces.count("") >= 3
    assert "𝄞" in pieces


@every_tokenizer
def test_half_a_character_at_the_end_is_one_replacement_character(make):
    tokenizer = make()
    tokens = tokenizer.encode("x𝄞", add_special_tokens=False)[:-1]
    pieces = pieces_of(tokenizer, tokens)
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == "x\ufffd"


@every_tokenizer
def test_special_tokens_add_no_text_and_are_shown_by_name(make):
    tokenizer = make()
    vocabulary = vocabulary_of(tokenizer)
    assert vocabulary.token_bytes(tokenizer.eos_token_id) == b""
    assert vocabulary.token_label(tokenizer.eos_token_id) == SPECIAL


def test_an_added_token_that_is_not_special_is_text():
    tokenizer = byte_level()
    token = tokenizer.convert_tokens_to_ids("<tool>")
    assert vocabulary_of(tokenizer).token_bytes(token) == b"<tool>"


@every_tokenizer
def test_a_row_of_padding_is_no_text_at_all(make):
    vocabulary = vocabulary_of(make())
    assert vocabulary.token_bytes(100_000) == b""
    assert vocabulary.token_label(100_000) == ""


def test_the_first_space_of_sentence_piece_is_no_text_and_later_ones_are():
    tokenizer = sentence_piece()
    the = tokenizer.convert_tokens_to_ids("▁the")
    assert pieces_of(tokenizer, [the, the]) == ["the", " the", ""]
    assert pieces_of(tokenizer, [tokenizer.eos_token_id, the, the]) == ["", "the", " the", ""]


def test_a_byte_level_token_outside_the_alphabet_is_its_own_text():
    """Some published vocabularies hold plain words beside the encoded ones; the tokenizer's decoder takes them so."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE({"a": 0, "世界": 1, "Ġb": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer = wrapped(tokenizer)
    assert "".join(pieces_of(tokenizer, [0, 1, 2])) == whole(tokenizer, [0, 1, 2]) == "a世界 b"


def test_labels_show_broken_bytes():
    assert label("é".encode()) == "é"
    assert label("é".encode()[:1]) == "⟨c3⟩"
    assert label(b"a\xe2\x82b\xff") == "a⟨e2⟩⟨82⟩b⟨ff⟩"
