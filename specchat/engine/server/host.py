"""The far side of the process boundary: speaks the protocol over standard input and output, and nothing else there."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Literal

import msgspec

from specchat.config.unreadable import UNREADABLE
from specchat.engine.protocol.bounds import LONGEST_LINE_BYTES, Id
from specchat.engine.protocol.codec import decode_command, encode, lines_of
from specchat.engine.protocol.commands import Quit
from specchat.engine.protocol.describe import hello
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.events import Event, Failed, Loading
from specchat.engine.server.command_queue import CommandQueue
from specchat.errors import InstallationError

_LAST_CALL_S = 5.0
"""How long a running pass may take to end after the client has gone."""


def serve() -> None:
    """Run an engine until told to quit or until standard input closes."""
    output = _claim_stdout()
    lock = threading.Lock()

    def emit(event: Event) -> None:
        with lock:
            try:
                output.write(encode(event))
                output.flush()
            except (OSError, ValueError):
                commands.quitting.set()

    commands = CommandQueue()
    emit(hello())
    threading.Thread(target=_listen, args=(sys.stdin.buffer, commands, emit), name="commands", daemon=True).start()
    emit(Loading(stage="import", item="torch", unit="steps"))
    os.environ.update(engine_environment())  # before torch is imported: it reads them once
    try:
        from specchat.engine.server.worker import Worker
    except (ImportError, OSError) as error:
        print(InstallationError.of(error), file=sys.stderr, flush=True)
        os._exit(InstallationError.exit_code)  # the thread that reads commands would keep Python from ending
    Worker(commands, emit).run()
    with suppress(OSError):  # its reader has gone
        output.close()
    os._exit(0)  # no waiting for threads of libraries


def _claim_stdout() -> BinaryIO:
    """Keep standard output for the protocol; whatever libraries print goes to standard error, which is a log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return protocol


def _listen(stream: BinaryIO, commands: CommandQueue, emit: Callable[[Event], None]) -> None:
    """Take commands until standard input closes; a pass that does not notice is not waited for."""
    receive(stream, commands, emit)
    commands.receive(Quit())
    threading.Timer(_LAST_CALL_S, os._exit, args=(0,)).start()


def receive(stream: BinaryIO, commands: CommandQueue, emit: Callable[[Event], None]) -> None:
    """Put every command of the stream into the queue; a line that is not a command is answered at once."""
    for line in lines_of(stream):
        if not line.strip():
            continue
        try:
            commands.receive(decode_command(line))
        except msgspec.DecodeError as error:
            emit(_refused(line, f"a line is not a command: {error}"))


class _Address(msgspec.Struct):
    """What is read of a line that is not a command, so that the answer names the request that was refused."""

    type: Literal["load", "generate", "cancel", "change", "pace", "count", "compare"]
    id: Id | None = None


def _refused(line: bytes, why: str) -> Failed:
    try:
        command = msgspec.json.decode(line[:LONGEST_LINE_BYTES], type=_Address)
    except UNREADABLE:
        return Failed(kind="UsageError", message=why, exit_code=2, during="protocol")
    return Failed(kind="UsageError", message=why, exit_code=2, id=command.id, during=command.type)
