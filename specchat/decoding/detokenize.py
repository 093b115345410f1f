"""Tokens → text, incrementally: every token's bytes, and never half a character."""

from __future__ import annotations

import codecs

from specchat.decoding.vocabulary import Vocabulary


class Detokenizer:
    """Turns a growing list of tokens into text. Bytes of an unfinished character wait for their rest.

    `begun`: the first token is not the first of its text, so a space it carries is text.
    """

    def __init__(self, vocabulary: Vocabulary, *, begun: bool = False) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waits = False  # whether bytes wait in the decoder
        self._strip_space = vocabulary.starts_with_space() and not begun

    def add(self, token: int) -> str:
        """The text that became readable with this token; may be empty."""
        data = self._vocabulary.token_bytes(token)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        if not self._waits:
            try:
                return data.decode()  # whole characters, as nearly always
            except UnicodeDecodeError:
                self._waits = True
        text = self._decoder.decode(data)
        self._waits = self._decoder.getstate()[0] != b""
        return text

    def finish(self) -> str:
        """What an unfinished character at the end amounts to: a replacement character, or nothing."""
        return self._decoder.decode(b"", final=True)
