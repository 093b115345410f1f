"""Who is let in: requests under a name of the server, from no other page, whatever port it has."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from serve.kit import KEY, ObedientEngine

from specchat.serve.access import Access
from specchat.serve.application import application
from specchat.serve.loaded_engine import LoadedEngine
from specchat.serve.scheduler import Scheduler


def here(port: int, host: str = "127.0.0.1", guarded: bool = True) -> Access:
    return Access(host, port, guarded, KEY)


async def answer(access: Access, **headers: str) -> tuple[int, dict[str, Any]]:
    """The status and the body of the answer to a request for the models, whatever is raised after it."""
    engine = LoadedEngine(ObedientEngine, {})
    await engine.load()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = {
        "type": "http", "method": "GET", "path": "/v1/models", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    with suppress(RuntimeError):
        await application(Scheduler(engine, 1), access)(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "LocalHost:80"])
@pytest.mark.parametrize("origin", [None, "http://{}", "http://{}:80"])
def test_on_port_80_the_port_may_be_left_out(host: str, origin: str | None) -> None:
    page = origin and origin.format(host.removesuffix(":80"))
    assert here(80).refuses_page(host, page) == ""


def test_on_port_80_the_name_of_an_ipv6_address_may_lack_the_port() -> None:
    assert here(80, "::1").refuses_page("[::1]", None) == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost", "", "127.0.0.1:18000"])
def test_on_another_port_the_name_must_have_it(host: str) -> None:
    assert "the same port" in here(8000).refuses_page(host, None)


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:8000", "http://[", "http://[x]", "null"])
def test_another_origin_is_refused_whatever_it_looks_like(origin: str) -> None:
    assert "from elsewhere" in here(80).refuses_page("127.0.0.1", origin)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_broken_origin_is_refused_in_openais_form(guarded: bool) -> None:
    status, body = await answer(here(8000, guarded=guarded), host="127.0.0.1:8000", origin="http://[")
    assert status == 403
    assert body["error"]["code"] == "forbidden"


async def test_a_fault_in_the_checks_themselves_is_told_in_openais_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Access, host: str, origin: str | None) -> str:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Access, "refuses_page", broken)
    status, body = await answer(here(8000), host="127.0.0.1:8000")
    assert status == 500
    assert body["error"]["code"] == "internal_error"


async def test_who_has_the_key_is_let_in() -> None:
    status, body = await answer(here(8000), host="127.0.0.1:8000", authorization=f"Bearer {KEY}")
    assert status == 200
    assert {model["id"] for model in body["data"]} == {"test", "target"}
