"""From one model's tokens to another's: by the text they spell, and by n-grams that were met; and its calls from C."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.vocabulary import TokenTable
from specchat.indexes.called_network import DONE, FAILED, CalledNetwork, Read
from specchat.indexes.native_suffix_tree import suffix_library

LONGEST_NGRAM = 4
"""Draft tokens that together may be one token of the target."""

_WORD_TOKENS = 8
_WORDS = 4096
"""Shorter runs of tokens are words, which return: so many are remembered. Encoding one takes 0.03 ms, and 0.25 once a
model's pass has emptied the caches."""

UNKNOWN = -2
"""What this draft token stands for has not been asked yet. Below all token numbers and −1; as in translation.h."""

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Table = TypeVar("Table", Tokens, Flags)


class TokenTranslation:
    """Which tokens of the target a draft token stands for, and the other way round.

    A draft token whose text is one token of the target is that token; otherwise it stands for several. Where several
    draft tokens together spell one token of the target, they are an n-gram, known once the target used that token.

    Args:
        tables: the tokens of the target and of the draft model; None where they are the same: then nothing changes.
    """

    def __init__(self, tables: tuple[TokenTable, TokenTable] | None) -> None:
        self._tables = tables
        # Once for a pair, since encoding a token's text takes as long as all else that is done for it.
        self._named = {} if tables is None else _by_spelling(tables[0])
        # By draft token, and −1 behind the last.
        spelt = [] if tables is None else map(tables[1].token_spelling, range(tables[1].size))
        first = [self._named.get(spelling, UNKNOWN) for spelling in spelt]
        self._first = np.array([] if tables is None else [*first, -1], dtype=np.int32)
        self._begins = np.zeros(len(self._first), dtype=np.bool_)
        self._to_own: dict[int, tuple[int, ...]] = {}
        self._to_draft: dict[int, tuple[int, ...]] = {}
        self._ngrams: dict[tuple[int, ...], int] = {}
        self._beginnings: set[tuple[int, ...]] = set()
        self._words: dict[tuple[int, ...], tuple[int, ...] | None] = {}
        self.ngrams: list[tuple[tuple[int, ...], int]] = []  # in the order in which they were learnt

    def own_tokens(self, token: int) -> tuple[int, ...]:
        """The target's tokens that spell what a draft token spells; none where no whole characters do."""
        own = self._to_own.get(token)
        if own is None:
            own = self._to_own[token] = (token,) if self.same else self._spelled_by_own(token)
        return own

    def known_first(self, count: int) -> Tokens:
        """(count,) int32, for each draft token what `first_own_tokens` would say, or `UNKNOWN` where it would ask."""
        if self.same:
            return np.arange(count, dtype=np.int32)
        return self._of(self._first, np.arange(count)).astype(np.int32)

    def first_own_tokens(self, tokens: Tokens) -> Tokens:
        """For each draft token, any shape, the first of the target's tokens that spell it; −1 where none do."""
        if self.same:
            return tokens
        first = self._of(self._first, tokens)
        if first.min(initial=0) == UNKNOWN:
            for token in set(tokens[first == UNKNOWN].tolist()):
                self._first[token] = next(iter(self.own_tokens(token)), -1)
            first = self._of(self._first, tokens)
        return first

    def draft_tokens(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """The draft tokens of a text that these tokens of the target spell; None where it ends within a character."""
        if self.same:
            return tuple(tokens)
        if len(tokens) > _WORD_TOKENS:
            return self._encoded(tokens)
        word = tuple(tokens)
        if word not in self._words:
            if len(self._words) == _WORDS:
                self._words.clear()
            self._words[word] = self._encoded(word)
        return self._words[word]

    def _encoded(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        spelt = _spell(self._own, tokens)
        return None if _ends_within_character(spelt) else tuple(self._other.encode(spelt.decode(errors="replace")))

    def learn(self, token: int) -> None:
        """The target used this token; if several draft tokens spell it, they are an n-gram from now on."""
        if self.same or token in self._to_draft:
            return
        self._to_draft[token] = ngram = self.draft_tokens([token]) or ()
        if 1 < len(ngram) <= LONGEST_NGRAM and _spell(self._other, ngram) == _spell(self._own, [token]):
            self._ngrams[ngram] = token
            self.ngrams.append((ngram, token))
            self._begins[ngram[0]] = True
            self._beginnings |= {ngram[:end] for end in range(1, len(ngram))}

    def merged(self, ngram: tuple[int, ...]) -> int | None:
        """The target's token that these draft tokens together spell, if the target used it."""
        return self._ngrams.get(ngram)

    def begin_ngrams(self, tokens: Tokens) -> Flags:
        """For each draft token, any shape, whether an n-gram goes on from it."""
        if self.same:
            return np.zeros(tokens.shape, dtype=np.bool_)
        return self._of(self._begins, tokens)

    def begins_ngram(self, tokens: tuple[int, ...]) -> bool:
        """Whether an n-gram goes on from these draft tokens."""
        return tokens in self._beginnings

    def splits_before(self, token: int) -> bool:
        """Whether a text may be cut before this token of the target without changing how either part is encoded."""
        return not self._own.token_bytes(token) or self._own.token_spelling(token)[:1] in (b" ", b"\n")

    @staticmethod
    def _of(table: Table, tokens: Tokens) -> Table:
        """What a table says of draft tokens; its last entry of those that it lacks, below 0 or beyond its end."""
        found: Table = table[np.minimum(tokens, len(table) - 1)]
        return found

    @property
    def same(self) -> bool:
        return self._tables is None

    @property
    def _own(self) -> TokenTable:
        assert self._tables is not None, "asked where there are two tables"
        return self._tables[0]

    @property
    def _other(self) -> TokenTable:
        assert self._tables is not None, "asked where there are two tables"
        return self._tables[1]

    def _spelled_by_own(self, token: int) -> tuple[int, ...]:
        if token >= len(self._first) - 1:
            return ()
        spelt = self._other.token_spelling(token)
        if (named := self._named.get(spelt)) is not None:
            return (named,)
        try:
            found = tuple(self._own.encode(spelt.decode())) if spelt else ()
        except UnicodeDecodeError:
            return ()
        if token in self._other.eos_ids and len(found) != 1:
            return (min(self._own.eos_ids),) if self._own.eos_ids else ()
        return found if _spell(self._own, found) == spelt else ()


def _by_spelling(table: TokenTable) -> dict[bytes, int]:
    """The ordinary tokens that spell whole characters, by their spelling; of equals the first."""
    found: dict[bytes, int] = {}
    for token in range(table.size):
        spelt = table.token_bytes(token)
        if spelt and _whole_characters(spelt):
            found.setdefault(spelt, token)
    return found


def _whole_characters(spelt: bytes) -> bool:
    try:
        spelt.decode()
    except UnicodeDecodeError:
        return False
    return True


def _spell(table: TokenTable, tokens: Sequence[int]) -> bytes:
    return b"".join(map(table.token_spelling, tokens))


def _ends_within_character(spelt: bytes) -> bool:
    """Whether the last bytes begin a character of UTF-8 that is not complete."""
    for back in range(1, min(4, len(spelt)) + 1):
        byte = spelt[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return length > back
    return False


_FEW = 64
"""Tokens. What is longer, a prompt, is encoded at once; in shorter texts words return."""


class TranslatedText:
    """The draft tokens of a text, encoded up to the last word, which may still grow into other tokens."""

    def __init__(self, translation: TokenTranslation) -> None:
        self._translation = translation
        self._text: list[int] = []
        self._settled: list[int] = []  # the draft tokens of its beginning
        self._first = 0  # the first of the text's tokens that are not settled

    def of(self, text: Sequence[int]) -> list[int] | None:
        """The draft tokens of this text; None where there are none or where it ends within a character."""
        if self._translation.same:
            return list(text)
        if list(text[: len(self._text)]) != self._text:
            self._settled, self._first = [], 0
        self._text = list(text)
        self._settle()
        rest = self._translation.draft_tokens(self._text[self._first :])
        return None if rest is None else [*self._settled, *rest] or None

    def _settle(self) -> None:
        """Encode for good what lies before the last place at which the text can be cut; a few tokens word by word."""
        places = range(self._first + 1, len(self._text))
        cuts = [place for place in places if self._translation.splits_before(self._text[place])]
        for place in cuts if len(places) <= _FEW else cuts[-1:]:
            tokens = self._translation.draft_tokens(self._text[self._first : place])
            if tokens is not None:
                self._settled += tokens
                self._first = place


_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int32
_SPELL = ctypes.PYFUNCTYPE(_INT, _INT, _INT, _ADDRESS)
_BYTES = 4  # of a number


class TranslatedNetwork(CalledNetwork):
    """`TranslatedNetwork` of native/translated_network.c, with a translation that it asks where it knows no answer.

    Raises:
        NativeUnavailable: when it is made, where it cannot be compiled.
    """

    def __init__(self, read: Read, translation: TokenTranslation, draft_tokens: int, vocab_size: int) -> None:
        """Nothing known and nothing read.

        Args:
            read: a method that reads draft tokens, whose drafter holds this.
            draft_tokens: so many the draft model has.
            vocab_size: the target's.
        """
        super().__init__(read)
        self._library = suffix_library()
        self._translation, self._known = translation, 0  # of its n-grams, so many are known in C
        self._spell = _SPELL(self._spelling)
        first = array("i", translation.known_first(draft_tokens).tobytes())
        self._translated = self._library.translated_new(*first.buffer_info(), vocab_size, self._spell)
        if not self._translated:
            raise MemoryError("no memory for a translation")
        weakref.finalize(self, self._library.translated_free, self._translated)
        read_rows = ctypes.cast(self._library.translated_read, _ADDRESS).value
        assert read_rows is not None, "a function has an address"
        self.network = CompiledNetwork(read_rows, self._translated, self, logits=True)

    def begin(self, root: int, room: int) -> CompiledNetwork:
        """What compiled code reads a new tree with.

        Args:
            root: the last draft token of the text.
            room: so many draft tokens the draft model can read behind it.
        """
        for ngram, token in self._translation.ngrams[self._known :]:
            tokens = array("i", ngram)
            _done(self._library.translated_learn(self._translated, *tokens.buffer_info(), token))
        self._known = len(self._translation.ngrams)
        _done(self._library.translated_begin(self._translated, root, room, self.address, None))
        return self.network

    def _spelling(self, by_draft: int, count: int, address: int) -> int:
        """`Spell` of native/translation.h."""
        try:
            tokens = array("i", ctypes.string_at(address, _BYTES * count))
            of = self._translation
            found = of.draft_tokens(tokens) if by_draft else of.own_tokens(tokens[0])
            if found is not None:
                answer = array("i", found)
                _done(self._library.translated_answer(self._translated, *answer.buffer_info()))
        except BaseException as error:
            self._error = error
            return FAILED
        return DONE


def _done(outcome: int) -> None:
    if outcome:
        raise MemoryError("no memory for a translation")
