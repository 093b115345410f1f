"""A reply as its APIs tell it, while it comes: text, calls, tokens with their log-probabilities, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from specchat.engine.protocol.round_parts import TokenLogprob
from specchat.serve.scheduler import Ticket
from specchat.serve.tools import Call, CallReader

Piece = str | Call

End = Literal["end", "stop", "length", "calls"]


def text_of(pieces: Iterable[Piece]) -> str:
    """What is said, calls apart."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


class ReplyReader:
    """Reads the reply of one ticket, piece by piece."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        tools = ticket.asked.tools
        self._calls = None if tools is None else CallReader(tools.names, single=tools.constraint.single)
        self._next = 0  # the first token that was not given out
        self._text_bytes = self._token_bytes = 0  # of text that was read, of tokens that were given out
        self._over = False

    def add(self, text: str) -> list[Piece]:
        """What is certain after this further text."""
        self._text_bytes += len(text.encode(errors="replace"))
        return [text] if self._calls is None else self._calls.add(text)

    def finish(self) -> list[Piece]:
        """The rest, when the reply is over."""
        self._over = True
        return [] if self._calls is None else self._calls.finish()

    def due_tokens(self) -> list[TokenLogprob]:
        """Further tokens whose text has begun, so that none comes that a stop string takes back."""
        found: list[TokenLogprob] = []
        known = self.ticket.tokens
        whole = self._over and self.end == "length"
        while self._next < len(known) and (whole or self._token_bytes < self._text_bytes):
            found.append(known[self._next])
            self._token_bytes += len(known[self._next].spelling)
            self._next += 1
        return found

    @property
    def end(self) -> End:
        """Why the reply ended."""
        finished = self.ticket.finished
        assert finished is not None, "asked after the reply"
        if finished.stop in ("length", "context"):
            return "length"
        if self._calls is not None and self._calls.count:
            return "calls"
        return "stop" if finished.stop == "stop" else "end"
