"""The routes of the server, behind its guard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specchat.engine.protocol.text import one_line
from specchat.errors import cut
from specchat.serve import completions, messages, responses
from specchat.serve.access import Access
from specchat.serve.answers import Answer, JsonAnswer, ReplyResponse, error_response
from specchat.serve.api_error import ApiError, anthropic_error, openai_error
from specchat.serve.completions import Completions
from specchat.serve.messages import Messages
from specchat.serve.requests import CheckedRequest
from specchat.serve.responses import Responses
from specchat.serve.scheduler import Scheduler

LARGEST_BODY_BYTES = 8 * 2**20
"""More text than any context holds, and half of what the engine takes in one message."""

_LONGEST_NAME = 40

_BODY_PATIENCE_S = 30.0
_DISCARD_PATIENCE_S, _MOST_DISCARDED_BYTES = 2.0, 8 * LARGEST_BODY_BYTES

Handler = Callable[[Request], Awaitable[Response]]

Read = Callable[[bytes, str], CheckedRequest]
"""Reads the request in a body, from a client of this name.

Raises ApiError where it is not a JSON object, or a field is missing, unknown, of a wrong kind or not supported.
"""

_APIS: list[tuple[str, Read, type[Answer]]] = [
    ("/v1/chat/completions", partial(completions.read_request, "chat.completion"), Completions),
    ("/v1/completions", partial(completions.read_request, "text_completion"), Completions),
    ("/v1/responses", responses.read_request, Responses),
    ("/v1/messages", messages.read_request, Messages),
]


def application(scheduler: Scheduler, access: Access) -> ASGIApp:
    began = int(time.time())

    def cards() -> list[dict[str, object]]:
        pair = scheduler.pair
        about = {"context_tokens": pair.context_tokens, "target": pair.target, "draft": pair.draft}
        card = {"object": "model", "created": began, "owned_by": "specchat", **about}
        return [{"id": name, **card} for name in scheduler.names]

    async def models(_: Request) -> Response:
        return JsonAnswer({"object": "list", "data": cards()})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        scheduler.check_model(name)
        return JsonAnswer(next(card for card in cards() if card["id"] == name))

    def answering(read: Read, answer: type[Answer]) -> Handler:
        async def respond(request: Request) -> Response:
            asked = read(await _body(request), _client(request))
            return ReplyResponse(scheduler.submit_each(asked), answer, lambda: scheduler.pair.pair)

        return respond

    async def count(request: Request) -> Response:
        asked = messages.read_request(await _body(request), _client(request), counts=True)
        return JsonAnswer({"input_tokens": await scheduler.count(asked)})

    routes = [Route(path, answering(read, answer), methods=["POST"]) for path, read, answer in _APIS] + [
        Route("/v1/messages/count_tokens", count, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
    ]
    handlers = {ApiError: _refused, HTTPException: _no_such_route, Exception: _failed}
    guard = Middleware(Guard, access=access)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


class Guard:
    """Passes allowed requests on to the routes; every other request gets an error."""

    def __init__(self, inner: ASGIApp, access: Access) -> None:
        self._inner = inner
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "neither lifespan nor websockets are served"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(headers)
        except ApiError as error:
            await _discard_body(receive)
            await _refusal(scope["path"], error)(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    def _check(self, headers: dict[str, str]) -> None:
        if why := self._access.refuses_page(headers.get("host", ""), headers.get("origin")):
            raise ApiError(403, why, code="forbidden")
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if "x-api-key" in headers:
            scheme, key = "bearer", headers["x-api-key"]
        if scheme.lower() != "bearer" or not self._access.knows(key.strip()):
            why = "the key is missing or wrong: send 'Authorization: Bearer KEY' with the key that specchat printed"
            raise ApiError(401, why, code="invalid_api_key")
        length = headers.get("content-length", "0")
        if len(length) > len(str(LARGEST_BODY_BYTES)) or (length.isdecimal() and int(length) > LARGEST_BODY_BYTES):
            raise _too_large()


def _client(request: Request) -> str:
    """The first word of what the program calls itself: `curl/8.5.0`."""
    return cut(one_line(request.headers.get("user-agent", "").partition(" ")[0]), _LONGEST_NAME) or "a program"


async def _body(request: Request) -> bytes:
    """The whole body, unless it is too large or does not come."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_PATIENCE_S):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST_BODY_BYTES:
                    await _discard_body(request.receive)
                    raise _too_large()
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_PATIENCE_S:g} s", code="timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "the body ended early", code="incomplete_body") from None
    return b"".join(parts)


async def _discard_body(receive: Receive) -> None:
    """Read what a client still sends, within limits: while it sends, it does not look for an answer."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_PATIENCE_S):
            while more and size < _MOST_DISCARDED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)


def _too_large() -> ApiError:
    return ApiError(413, f"the body is larger than {LARGEST_BODY_BYTES >> 20} MiB", code="body_too_large")


def _refusal(path: str, error: ApiError) -> Response:
    return error_response(error, anthropic_error if path.startswith("/v1/messages") else openai_error)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "registered for these"
    return _refusal(request.url.path, error)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    known = "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /v1/models"
    why = {
        404: f"there is no {cut(request.url.path)}; {known} are served",
        405: f"{request.method} is not allowed here",
    }
    refused = ApiError(error.status_code, why.get(error.status_code, str(error.detail)), code="unknown_url")
    response = _refusal(request.url.path, refused)
    response.headers.update(error.headers or {})
    return response


async def _failed(request: Request, error: Exception) -> Response:
    failed = ApiError(500, f"internal error: {type(error).__name__}", code="internal_error")
    return _refusal(request.url.path, failed)
