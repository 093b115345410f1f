"""The base of every API's answers: the response that sends replies, whole or as a stream, and their figures."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specchat import __version__
from specchat.serve.api_error import ApiError, ErrorBody, openai_error
from specchat.serve.reply_reader import Piece, ReplyReader
from specchat.serve.scheduler import Ticket
from specchat.serve.tools import Call

FINGERPRINT = f"specchat-{__version__}"

Sent = tuple[str, dict[str, Any] | None]
"""The name of an event of a stream, empty where the API gives none, and its data; None: `[DONE]`."""


class Answer:
    """The messages of an API about the replies to one request.

    Args:
        readers: of replies, the first of which has begun.
        model: the name of the pair that writes.
    """

    error_body: ErrorBody = staticmethod(openai_error)

    def __init__(self, readers: Sequence[ReplyReader], model: str) -> None:
        self.readers, self.model = readers, model
        self.tickets = [reader.ticket for reader in readers]
        self.asked = self.tickets[0].asked

    def whole(self, said: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        """The replies as one object."""
        raise NotImplementedError

    def opening(self, index: int) -> list[Sent]:
        """Messages for the beginning of a reply."""
        return []

    def pieces(self, index: int, pieces: Sequence[Piece]) -> list[Sent]:
        """Messages that further pieces of a reply make due."""
        raise NotImplementedError

    def closing(self, index: int) -> list[Sent]:
        """Messages for the end of a reply."""
        return []

    def end(self) -> list[Sent]:
        """Messages for the end of all replies."""
        return []

    def broken(self, error: ApiError) -> Sent:
        """An error inside a stream."""
        return "", self.error_body(error)


class BlockAnswer(Answer):
    """Tells one reply as a list of blocks: a text, or a call."""

    kind: str
    """What ids of such answers begin with."""

    def __init__(self, readers: Sequence[ReplyReader], model: str) -> None:
        super().__init__(readers, model)
        self.id = f"{self.kind}_{secrets.token_hex(12)}"
        self.blocks = 0
        self._text: list[str] | None = None  # the block of text that is open

    @staticmethod
    def joined(pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces with neighbouring texts as one."""
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
        return found

    def pieces(self, index: int, pieces: Sequence[Piece]) -> list[Sent]:
        """The events of further text, and of calls, which come whole."""
        sent: list[Sent] = []
        for piece in self.joined(pieces):
            if isinstance(piece, str):
                sent += self._open_text()
                assert self._text is not None, "it was opened"
                self._text.append(piece)
                sent += self.text_delta(piece)
            else:
                sent += [*self._close_text(), *self.call_block(piece)]
                self.blocks += 1
        return sent

    def closing(self, index: int) -> list[Sent]:
        """The end of the last block; a reply without any has an empty text."""
        return [*([] if self.blocks else self._open_text()), *self._close_text()]

    def _open_text(self) -> list[Sent]:
        if self._text is not None:
            return []
        self._text = []
        return self.text_begins()

    def _close_text(self) -> list[Sent]:
        if self._text is None:
            return []
        text, self._text = "".join(self._text), None
        sent = self.text_ends(text)
        self.blocks += 1
        return sent

    def text_begins(self) -> list[Sent]:
        """A block of text is opened; its number is `blocks`."""
        raise NotImplementedError

    def text_delta(self, text: str) -> list[Sent]:
        """Further text of the block."""
        raise NotImplementedError

    def text_ends(self, text: str) -> list[Sent]:
        """The end of a block of text."""
        raise NotImplementedError

    def call_block(self, call: Call) -> list[Sent]:
        """A block that is a call; its number is `blocks`."""
        raise NotImplementedError


def usage(tickets: Sequence[Ticket]) -> dict[str, Any]:
    """The figures of replies that are complete: OpenAI's, and how the speculation went. The prompt counts once."""
    every = [ticket.finished.stats for ticket in tickets if ticket.finished is not None]
    assert len(every) == len(tickets), "figures stand at the end"
    stats, tokens, rounds = every[0], sum(one.tokens for one in every), sum(one.rounds for one in every)
    right = sum(ticket.predicted_right for ticket in tickets)
    speedup = stats.speedup if len(every) == 1 else None
    length = stats.acceptance_length if len(every) == 1 else tokens / max(rounds, 1)
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": stats.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": right,
            "rejected_prediction_tokens": sum(ticket.predicted for ticket in tickets) - right,
        },
        "acceptance_length": round(length, 4),
        "speedup": None if speedup is None else round(speedup, 4),
        "drafted_tokens": sum(one.drafted for one in every),
        "accepted_draft_tokens": sum(one.accepted for one in every),
    }


_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class JsonAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _json(content)


def error_response(error: ApiError, body: ErrorBody = openai_error) -> Response:
    return JsonAnswer(body(error), error.status, error.headers)


class ReplyResponse(Response):
    """Sends what becomes of tickets. Statuses are honest: nothing is sent before the first reply has begun."""

    def __init__(self, tickets: Sequence[Ticket], answer: type[Answer], model: Callable[[], str]) -> None:
        self.background = None
        self._tickets, self._answer, self._model = tickets, answer, model
        self._readers = [ReplyReader(ticket) for ticket in tickets]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the replies; when this ends early, for any reason, the engine stops writing."""
        work = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ticket in self._tickets:
                ticket.leave()
            gone.cancel()
            if not work.done():
                work.cancel()
        if work.done():
            work.result()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._tickets[0].begun()
            answer = self._answer(self._readers, self._model())
            if answer.asked.stream:
                await self._stream(answer, send)
                return
            said: list[list[Piece]] = []
            for index, (ticket, reader) in enumerate(zip(self._tickets, self._readers, strict=True)):
                if index:
                    await ticket.begun()
                pieces = [piece async for text in ticket.texts() for piece in reader.add(text)]
                said.append([*pieces, *reader.finish()])
            response: Response = JsonAnswer(answer.whole(said))
        except ApiError as error:
            response = error_response(error, self._answer.error_body)
        await response(scope, receive, send)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """Server-sent events. An error that comes now can only be reported inside the stream."""

        async def tell(sent: Sequence[Sent]) -> None:
            for name, data in sent:
                named = f"event: {name}\n".encode() if name else b""
                line = named + b"data: " + (b"[DONE]" if data is None else _json(data)) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            async for index, text in self._texts():
                reader = self._readers[index]
                if text is None:
                    await tell([*answer.pieces(index, reader.finish()), *answer.closing(index)])
                elif text:
                    await tell(answer.pieces(index, reader.add(text)))
                else:
                    await tell(answer.opening(index))
            await tell(answer.end())
        except ApiError as error:
            await tell([answer.broken(error)])
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self) -> AsyncIterator[tuple[int, str | None]]:
        """The texts of all replies as they come, each with the reply's number: first an empty one, at the end None.

        Raises:
            ApiError: a reply ended early.
        """
        news: asyncio.Queue[tuple[int, str | ApiError | None]] = asyncio.Queue()

        async def follow(index: int, ticket: Ticket) -> None:
            try:
                if index:
                    await ticket.begun()
                news.put_nowait((index, ""))
                async for text in ticket.texts():
                    news.put_nowait((index, text))
                news.put_nowait((index, None))
            except ApiError as error:
                news.put_nowait((index, error))

        following = [asyncio.ensure_future(follow(*one)) for one in enumerate(self._tickets)]
        try:
            left = len(following)
            while left:
                index, said = await news.get()
                if isinstance(said, ApiError):
                    raise said
                yield index, said
                left -= said is None
        finally:
            for task in following:
                task.cancel()


async def _disconnected(receive: Receive) -> None:
    with suppress(RuntimeError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
