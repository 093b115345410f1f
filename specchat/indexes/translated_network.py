"""A draft model with tokens of its own as compiled code reads the target's tokens with it."""

from __future__ import annotations

import ctypes
import weakref
from array import array

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.indexes.called_network import DONE, FAILED, CalledNetwork, Read
from specchat.indexes.native_suffix_tree import suffix_library
from specchat.indexes.token_translation import TokenTranslation

_ADDRESS, _INT = ctypes.c_void_p, ctypes.c_int32
_SPELL = ctypes.PYFUNCTYPE(_INT, _INT, _INT, _ADDRESS)
_BYTES = 4  # of a number


class TranslatedNetwork:
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
        self._library = suffix_library()
        self._translation, self._known = translation, 0  # of its n-grams, so many are known in C
        self._called = CalledNetwork(read)
        self._error: BaseException | None = None
        self._spell = _SPELL(self._answer)
        first = array("i", translation.known_first(draft_tokens).tobytes())
        self._address = self._library.translated_new(*first.buffer_info(), vocab_size, self._spell)
        if not self._address:
            raise MemoryError("no memory for a translation")
        weakref.finalize(self, self._library.translated_free, self._address)
        read_rows = ctypes.cast(self._library.translated_read, _ADDRESS).value
        assert read_rows is not None, "a function has an address"
        self._network = CompiledNetwork(read_rows, self._address, self, logits=True)

    def begin(self, root: int, room: int) -> CompiledNetwork:
        """What compiled code reads a new tree with.

        Args:
            root: the last draft token of the text.
            room: so many draft tokens the draft model can read behind it.
        """
        for ngram, token in self._translation.ngrams[self._known :]:
            tokens = array("i", ngram)
            _done(self._library.translated_learn(self._address, *tokens.buffer_info(), token))
        self._known = len(self._translation.ngrams)
        _done(self._library.translated_begin(self._address, root, room, self._called.address, None))
        return self._network

    def __enter__(self) -> None:
        self._error = None
        self._called.__enter__()

    def __exit__(self, *error: object) -> None:
        """Raise what compiled code could not hand on."""
        self._called.__exit__(*error)
        if self._error is not None:
            raise self._error

    def _answer(self, by_draft: int, count: int, address: int) -> int:
        """`Spell` of native/translation.h."""
        try:
            tokens = array("i", ctypes.string_at(address, _BYTES * count))
            of = self._translation
            found = of.draft_tokens(tokens) if by_draft else of.own_tokens(tokens[0])
            if found is not None:
                answer = array("i", found)
                _done(self._library.translated_answer(self._address, *answer.buffer_info()))
        except BaseException as error:
            self._error = error
            return FAILED
        return DONE


def _done(outcome: int) -> None:
    if outcome:
        raise MemoryError("no memory for a translation")
