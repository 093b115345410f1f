"""Ranks on other machines: they prove that they know a secret, and are then told who they are and where all meet."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import msgspec
import torch.distributed as dist

from specchat.errors import EngineError, RanksLost, UsageError, os_errors_as
from specchat.models.ranks.group import PATIENCE_S, Group
from specchat.models.ranks.leading import Ranks
from specchat.models.ranks.processes import STARTING_S

KEY_VARIABLE = "SPECCHAT_JOIN_KEY"
"""Not an option: other users of a machine can read those."""

_SHORTEST_KEY = 16
_ANSWER_S = 5
"""How long a stranger may take to answer."""

_POLL_S = 0.2
_MOST_BYTES = 4096


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    """A rank's number, and where all meet."""

    rank: int
    size: int
    port: int
    name: str
    patience_s: float


def join_key() -> bytes:
    """The secret of both sides; UsageError: there is none, or it is too short."""
    key = os.environ.get(KEY_VARIABLE, "")
    if len(key) < _SHORTEST_KEY:
        raise UsageError(
            f"ranks join with a secret: set {KEY_VARIABLE} to {_SHORTEST_KEY} or more characters, on both sides"
        )
    return key.encode()


def address_of(at: str) -> tuple[str, int]:
    """Host and port; UsageError: it is not an address."""
    host, _, port = at.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{at[:60]!r} is not an address; write it like 192.168.1.5:29500")
    return host, int(port)


def let_join(devices: list[str], at: str, cancelled: Callable[[], bool] = lambda: False) -> Ranks:
    """Wait until a rank has joined for every device but the first, which is ours.

    Raises:
        UsageError: nothing can listen there, or there is no secret.
        RanksLost: not all of them come.
    """
    key, (host, port), size = join_key(), address_of(at), len(devices)
    store = _tcp_store(host, 0, size, is_master=True)
    name, until = secrets.token_hex(), time.monotonic() + STARTING_S
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with os_errors_as(UsageError, f"device: nothing can join at {at}"):
            door.bind((host, port))
        door.listen(size)
        door.settimeout(_POLL_S)
        rank, ours = 1, host
        while rank < size:
            if cancelled() or time.monotonic() > until:
                raise RanksLost(f"{size - rank} of {size - 1} ranks did not join at {at}")
            with suppress(TimeoutError, OSError, AuthenticationError, EOFError):
                stranger, _ = door.accept()
                ours = stranger.getsockname()[0]
                _welcome(_limited(stranger), key, _Place(rank, size, store.port, name, PATIENCE_S))
                rank += 1
    group = Group(_named(name, store), 0, size, ours)
    return Ranks(group, devices, death=lambda: f"a rank that joined at {at} has gone", at=at)


def joined(at: str) -> Group:
    """Join the ranks at this address; waits until they are there.

    Raises:
        UsageError: the address is none, or there is no secret.
        EngineError: nobody is there, or the secrets differ.
    """
    key, (host, port), until = join_key(), address_of(at), time.monotonic() + STARTING_S
    while True:
        try:
            door = socket.create_connection((host, port), timeout=_ANSWER_S)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise EngineError(f"nobody lets ranks join at {at}: {error.strerror or error}") from None
            time.sleep(_POLL_S)
    ours = door.getsockname()[0]
    door.settimeout(None)
    connection = _limited(door)
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        place = msgspec.json.decode(connection.recv_bytes(_MOST_BYTES), type=_Place)
    except AuthenticationError:
        raise EngineError(f"{at} has another secret: {KEY_VARIABLE} differs") from None
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise EngineError(f"{at} does not let ranks join: {error}") from None
    finally:
        connection.close()
    store = _tcp_store(host, place.port, place.size, is_master=False)
    return Group(_named(place.name, store), place.rank, place.size, ours, place.patience_s)


def join_launched() -> Group:
    """Meet the ranks that torchrun started together with this process."""
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    here = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    return Group(_named("specchat", store), rank, size, "127.0.0.1" if here else "")


def _tcp_store(host: str, port: int, size: int, *, is_master: bool) -> Any:
    return dist.TCPStore(host, port, size, is_master, wait_for_workers=False)  # type: ignore[attr-defined]


def _named(name: str, store: Any) -> Any:
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _limited(door: socket.socket) -> Connection:
    """A connection on which nobody is waited for long."""
    door.settimeout(None)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _ANSWER_S, 0))
    return Connection(door.detach())


def _welcome(stranger: Connection, key: bytes, place: _Place) -> None:
    """Tell a stranger its place, once it has shown that it knows the secret, and we have."""
    with stranger:
        deliver_challenge(stranger, key)
        answer_challenge(stranger, key)
        stranger.send_bytes(msgspec.json.encode(place))
