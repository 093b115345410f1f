"""The response to one request: waits for its turn, sends the reply, and stops it where the client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specchat.serve.answers import Answer
from specchat.serve.api_error import ApiError
from specchat.serve.ticket import Ticket

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class JsonAnswer(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _json(content)


def error_response(error: ApiError) -> Response:
    """An error as OpenAI's clients read it."""
    return JsonAnswer(error.body, error.status, error.headers)


class ReplyResponse(Response):
    """Sends what becomes of a ticket. Statuses are honest: nothing is sent before the reply has begun."""

    def __init__(self, ticket: Ticket, model: Callable[[], str]) -> None:
        self.background = None
        self._ticket = ticket
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply; when this ends early, for any reason, the engine stops writing."""
        work = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ticket.leave()
            gone.cancel()
            if not work.done():
                work.cancel()
        if work.done():
            work.result()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._ticket.begun()
            answer = Answer(self._ticket, self._model())
            if self._ticket.asked.stream:
                await self._stream(answer, send)
                return
            text = "".join([piece async for piece in self._ticket.texts()])
            response: Response = JsonAnswer(answer.whole(text))
        except ApiError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """Chunks as server-sent events. An error that comes now can only be reported inside the stream."""

        async def tell(data: bytes) -> None:
            await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        try:
            if opening := answer.opening():
                await tell(_json(opening))
            async for text in self._ticket.texts():
                await tell(_json(answer.piece(text)))
            await tell(_json(answer.closing()))
            if self._ticket.asked.usage:
                await tell(_json(answer.figures()))
            await tell(b"[DONE]")
        except ApiError as error:
            await tell(_json(error.body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    with suppress(RuntimeError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
