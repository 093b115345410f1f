"""Replies as OpenAI's clients read them, one object or a stream of chunks, and the response that sends them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specchat import __version__
from specchat.engine.protocol.events import Ready, StopReason
from specchat.serve.api_error import ApiError
from specchat.serve.scheduler import Ticket
from specchat.serve.tools import Call, CallReader

_FINISH: dict[StopReason, str] = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

FINGERPRINT = f"specchat-{__version__}"


class Answer:
    """Everything that is sent about one reply.

    Args:
        ticket: a request whose reply has begun.
        model: the name of the pair that writes.
    """

    def __init__(self, ticket: Ticket, model: str) -> None:
        self._ticket = ticket
        self._chat = ticket.asked.form == "chat.completion"
        self._calls = None if ticket.asked.tools is None else CallReader(ticket.asked.tools.names)
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, text: str) -> dict[str, Any]:
        """The reply as one object."""
        said: dict[str, Any] = {"text": text}
        if self._chat:
            pieces = [*self._read(text), *self._rest()]
            content = "".join(piece for piece in pieces if isinstance(piece, str))
            calls = [call.whole() for call in pieces if isinstance(call, Call)]
            message = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
            said = {"message": {**message, "tool_calls": calls} if calls else message}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._finish_reason()}
        return {**self._head, "object": self._ticket.asked.form, "choices": [choice], "usage": usage(self._ticket)}

    def opening(self) -> dict[str, Any] | None:
        """The chunk before any text; a completion has none."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None}) if self._chat else None

    def pieces(self, text: str | None) -> list[dict[str, Any]]:
        """The chunks that a further piece of the reply makes due; None: it is over."""
        if not self._chat:
            return [self._chunk(text)] if text else []
        chunks: list[dict[str, Any]] = []
        for piece in self._rest() if text is None else self._read(text):
            said = [{"content": piece}] if isinstance(piece, str) else [{"tool_calls": [d]} for d in piece.deltas()]
            chunks += map(self._chunk, said)
        return chunks

    def _read(self, text: str) -> list[str | Call]:
        return [text] if self._calls is None else self._calls.add(text)

    def _rest(self) -> list[str | Call]:
        return [] if self._calls is None else self._calls.finish()

    def closing(self) -> dict[str, Any]:
        """The chunk that says why the reply ended."""
        return self._chunk({} if self._chat else "", self._finish_reason())

    def figures(self) -> dict[str, Any]:
        """The chunk after the last choice, with nothing but the figures."""
        return {**self._head, "object": self._kind(), "choices": [], "usage": usage(self._ticket)}

    def _chunk(self, said: dict[str, Any] | str, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta" if self._chat else "text": said, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head, "object": self._kind(), "choices": [choice]}
        return {**chunk, "usage": None} if self._ticket.asked.usage else chunk

    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _finish_reason(self) -> str:
        finished = self._ticket.finished
        assert finished is not None, "asked after the reply"
        if self._calls is not None and self._calls.count and finished.stop in ("end", "stop"):
            return "tool_calls"
        return _FINISH.get(finished.stop, "stop")


def usage(ticket: Ticket) -> dict[str, Any]:
    """The figures of a reply that is complete: OpenAI's, and how the speculation went."""
    assert ticket.finished is not None, "figures stand at the end"
    stats = ticket.finished.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.tokens,
        "total_tokens": stats.prompt_tokens + stats.tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": ticket.predicted_right,
            "rejected_prediction_tokens": ticket.predicted - ticket.predicted_right,
        },
        "acceptance_length": round(stats.acceptance_length, 4),
        "speedup": None if stats.speedup is None else round(stats.speedup, 4),
        "drafted_tokens": stats.drafted,
        "accepted_draft_tokens": stats.accepted,
    }


def model_card(ready: Ready, name: str, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "specchat",
        "context_tokens": ready.context_tokens,
        "target": ready.target,
        "draft": ready.draft,
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
                for chunk in answer.pieces(text):
                    await tell(_json(chunk))
            for chunk in answer.pieces(None):
                await tell(_json(chunk))
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
