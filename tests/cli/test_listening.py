"""Where a server listens: a port that may not be used, one that is taken, an address that is not there."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from specchat.cli.listening import listening, refuse_remote
from specchat.errors import SpecchatError, UsageError


def binding_fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def bind(door: socket.socket, address: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", type("Door", (socket.socket,), {"bind": bind}))


@pytest.mark.parametrize("port", [80, 1023])
def test_a_port_that_needs_more_rights_is_not_called_taken(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    binding_fails(monkeypatch, errno.EACCES)
    with pytest.raises(UsageError, match=f"--port {port} cannot be served on: ports below 1024 need more rights"):
        listening("127.0.0.1", port)


@pytest.mark.parametrize(
    ("port", "said"),
    [
        (8000, "no port from 8000 to 8019 is free"),
        (65530, "no port from 65530 to 65535 is free"),
        (65535, "port 65535 is taken"),
    ],
)
@pytest.mark.parametrize("number", [errno.EADDRINUSE, errno.EACCES])
def test_ports_that_are_taken_are_named(monkeypatch: pytest.MonkeyPatch, port: int, said: str, number: int) -> None:
    binding_fails(monkeypatch, number)
    with pytest.raises(SpecchatError) as caught:
        listening("127.0.0.1", port)
    assert str(caught.value) == f"{said}; --port names another"


@pytest.mark.parametrize("host", ["nope.invalid", "a" * 70, "."])
def test_a_host_that_does_not_exist_is_not_said_to_let_others_in(host: str) -> None:
    with pytest.raises(UsageError, match="is not an address of this machine"):
        refuse_remote(host, False, "it is a test")


def test_a_name_of_another_address_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.168.1.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *asked, **more: found)
    with pytest.raises(UsageError, match="would let other machines in: it is a test"):
        refuse_remote("example.org", False, "it is a test")
