"""A reply's tokens as text, never half a character, and where it ends: text, cache and counts end at the same token."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from specchat.decoding.vocabulary import Vocabulary


class Stop(Enum):
    """Why a reply ended."""

    END = "end"  # the model's own end of sequence
    LENGTH = "length"
    STOP = "stop"  # a stop string
    CONTEXT = "context"  # no room for another token
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Limits:
    """Where a reply must end at the latest.

    Args:
        room: tokens the context still takes after the prompt.
        stop: strings that end the reply; they are not part of it.
    """

    max_tokens: int
    room: int
    stop: tuple[str, ...] = ()


class Emission:
    """Takes emitted tokens one by one and knows when to stop.

    Args:
        begun: tokens that the reply has already.
        spelled: control tokens that are written as text.
    """

    def __init__(
        self, vocabulary: Vocabulary, limits: Limits, begun: Sequence[int] = (), spelled: frozenset[int] = frozenset()
    ) -> None:
        self.tokens: list[int] = []
        self.ended = Stop.END if begun and begun[-1] in vocabulary.eos_ids else None
        self.limits = limits
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, spelled)
        for token in begun:
            self._detokenizer.add(token)
        self._stops = StopStrings(limits.stop)

    @property
    def stop_string(self) -> str | None:
        return self._stops.found

    def limit(self, limits: Limits) -> None:
        """Change the limits of a running reply. A shorter limit ends it at the next token."""
        self.limits = limits
        self._stops.strings = limits.stop

    def take(self, emitted: Sequence[int]) -> list[str]:
        """Take tokens until the reply ends; the text that became readable with each token taken."""
        texts: list[str] = []
        for token in emitted:
            if self.ended is not None:
                break
            self.tokens.append(token)
            texts.append(self._stops.add(self._detokenizer.add(token)))
            self.ended = self._end_at(token)
        return texts

    def finish(self) -> str:
        """Text that was held back and is due now that the reply is over."""
        if self._stops.found is not None:
            return ""
        rest = self._stops.add(self._detokenizer.finish())
        return rest + self._stops.finish()

    def _end_at(self, token: int) -> Stop | None:
        if token in self._vocabulary.eos_ids:
            return Stop.END
        if self._stops.found is not None:
            return Stop.STOP
        if len(self.tokens) >= self.limits.max_tokens:
            return Stop.LENGTH
        return Stop.CONTEXT if len(self.tokens) >= self.limits.room else None


class Detokenizer:
    """Turns a growing list of tokens into text. Bytes of an unfinished character wait for their rest."""

    def __init__(self, vocabulary: Vocabulary, spelled: frozenset[int] = frozenset()) -> None:
        self._vocabulary, self._spelled = vocabulary, spelled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waits = False  # whether bytes wait in the decoder
        self._strip_space = vocabulary.starts_with_space()

    def add(self, token: int) -> str:
        """The text that became readable with this token; may be empty."""
        table = self._vocabulary
        data = table.token_spelling(token) if token in self._spelled else table.token_bytes(token)
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
        """The text of an unfinished character at the end: a replacement character, or none."""
        return self._decoder.decode(b"", final=True)


@dataclass
class StopStrings:
    """Holds back text that may be the beginning of a stop string, and lets the rest through."""

    strings: Sequence[str]
    found: str | None = None
    _held: str = ""

    def add(self, text: str) -> str:
        """The text that may be shown now. After a stop string was found, nothing more is."""
        if self.found is not None:
            return ""
        if not self.strings and not self._held:
            return text
        self._held += text
        matches = [(place, s) for s in self.strings if (place := self._held.find(s)) >= 0]
        if matches:
            # The one complete first wins, and of several complete there the longest: so it does not depend on the
            # pieces in which the text arrives.
            place, self.found = min(matches, key=lambda match: (match[0] + len(match[1]), match[0]))
            shown, self._held = self._held[:place], ""
            return shown
        keep = max((begun_at_end(self._held, s) for s in self.strings), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The text still held back, which turned out not to be a stop string."""
        held, self._held = self._held, ""
        return held


def begun_at_end(text: str, string: str) -> int:
    """How many last characters of the text begin `string`, without all of it."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


def tokens_of(vocabulary: Vocabulary, pieces: Sequence[str]) -> list[int]:
    """The tokens that wrote these pieces of text, so that the cache knows them and the reply goes on exactly there.

    To tokenise the whole text again would join what was written apart: a model may write `sp` and `ec` where the
    tokenizer has `spec`. A piece that is not exactly one token's text is tokenised: one whose character took several
    tokens, or a text that the user wrote.
    """
    known = _tokens_by_bytes(vocabulary) if pieces else {}
    tokens: list[int] = []
    for piece in pieces:
        at_start = not tokens and vocabulary.starts_with_space()
        data = piece.encode()
        token = known.get(b" " + data, known.get(data)) if at_start else known.get(data)
        tokens += [token] if token is not None else _spelled(vocabulary, known, piece, at_start)
    return tokens


def texts_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[str]:
    """The text that becomes readable with each of the first tokens of a reply."""
    detokenizer = Detokenizer(vocabulary)
    return [detokenizer.add(token) for token in tokens]


def _tokens_by_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Of tokens with the same bytes the last: a table lists single bytes before the characters they are."""
    table = {vocabulary.token_bytes(token): token for token in range(vocabulary.size)}
    table.pop(b"", None)
    return table


def _spelled(vocabulary: Vocabulary, known: Mapping[bytes, int], piece: str, at_start: bool) -> list[int]:
    """A piece in several tokens. SentencePiece would put a space before it, unless it is spelled byte by byte."""
    parts = [known.get(bytes([byte])) for byte in piece.encode()]
    if vocabulary.starts_with_space() and not at_start and None not in parts:
        return [part for part in parts if part is not None]
    return vocabulary.encode(piece)
