"""One request on its way: the text of its reply as it comes, and the figures at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from specchat.drafters import REFERENCE
from specchat.engine.protocol.events import Event, Failed, Finished, RoundDone, Started
from specchat.serve.api_error import ApiError, from_engine
from specchat.serve.requests import CheckedRequest


@dataclass(eq=False)
class Ticket:
    """A request that waits for its turn, has it, or had it.

    Args:
        on_leave: called when the client leaves before the reply is complete.
    """

    asked: CheckedRequest
    on_leave: Callable[[Ticket], None]
    id: int = 0
    started: Started | None = None
    finished: Finished | None = None
    predicted: int = 0  # tokens that were proposed from the prediction
    predicted_right: int = 0  # … and accepted
    left: bool = False
    _news: asyncio.Queue[str | ApiError | None] = field(default_factory=asyncio.Queue)

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.finished is not None or self.left

    def hear(self, event: Event) -> None:
        """Take what the engine says of this reply. Trees are counted and let go: slow readers hold only text."""
        match event:
            case Started():
                self.started = event
                self._news.put_nowait("")
            case RoundDone():
                self._count(event)
                self._say("".join(piece.text for piece in event.pieces))
            case Finished():
                self._say(event.tail)
                self.finished = event
                self._news.put_nowait(None)
            case Failed():
                self.fail(from_engine(event, "messages" if self.asked.text is None else "prompt"))

    def fail(self, error: ApiError) -> None:
        """The reply ends here, with an error."""
        self._news.put_nowait(error)

    def leave(self) -> None:
        """The client no longer waits for the reply."""
        if not self.over:
            self.left = True
            self.on_leave(self)

    async def begun(self) -> None:
        """Wait until the reply begins.

        Raises:
            ApiError: it will not.
        """
        first = await self._news.get()
        if isinstance(first, ApiError):
            raise first

    async def texts(self) -> AsyncIterator[str]:
        """The reply, piece by piece, after it has begun.

        Raises:
            ApiError: it ended early.
        """
        while (news := await self._news.get()) is not None:
            if isinstance(news, ApiError):
                raise news
            yield news

    def _say(self, text: str) -> None:
        if text:
            self._news.put_nowait(text)

    def _count(self, round: RoundDone) -> None:
        nodes = {draw.child for draw in round.tree.draws if draw.proposer == REFERENCE}
        self.predicted += len(nodes)
        self.predicted_right += len(nodes.intersection(round.verdict.path))
