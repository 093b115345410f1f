"""The engine's process: speaks the protocol over standard input and output, and prints nothing else there."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NoReturn, get_args

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.bounds import LONGEST_LINE_BYTES, Id
from specchat.engine.protocol.codec import decode_command, encode, lines_of
from specchat.engine.protocol.commands import Command, Quit
from specchat.engine.protocol.describe import hello
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.events import Event, Failed, Loading
from specchat.engine.server.command_queue import CommandQueue
from specchat.errors import InstallationError, NoMemoryLeft

_LAST_CALL_S = 5.0
"""How long a running pass may take to end after the client has gone."""

_NO_MEMORY = b"the engine has no memory left\n"


def serve() -> None:
    """Run an engine until told to quit or until standard input closes."""
    _have_end_watched()
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
    try:
        emit(Loading(stage="import", item="torch", unit="steps"))
        os.environ.update(engine_environment())  # before torch is imported: it reads them once
        try:
            from specchat.engine.server.worker import Worker
        except (ImportError, OSError) as error:
            _end(InstallationError.of(error))
        Worker(commands, emit).run()
        with suppress(OSError):  # its reader has gone
            output.close()
        os._exit(0)  # no waiting for threads of libraries
    except NoMemoryLeft as error:
        _end(error)
    except MemoryError:
        os.write(2, _NO_MEMORY)
        os._exit(NoMemoryLeft.exit_code)


def _end(error: InstallationError | NoMemoryLeft) -> NoReturn:
    """End the process with a line; the thread that reads commands would keep Python from ending."""
    print(error, file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def _have_end_watched() -> None:
    """Start a process that kills this one where its client has gone and it has not ended long afterwards.

    No thread can do that: an interpreter without memory may try for ever to raise MemoryError and lets no other thread
    run meanwhile (seen in CPython 3.11, which cannot enter a `finally` then). To be called before there are threads.
    """
    if not hasattr(os, "fork"):
        return
    engine = os.getpid()
    alive, _ = os.pipe()  # the other end closes when this process ends
    try:
        if os.fork():
            os.close(alive)
            return
    except OSError:  # no process can be started: the thread that listens is there still
        return
    try:
        os.closerange(1, alive)
        os.closerange(alive + 1, 256)
        ends = select.poll()
        ends.register(sys.stdin.fileno(), 0)
        ends.register(alive, 0)
        if alive not in dict(ends.poll()):
            ends.unregister(sys.stdin.fileno())
            if not ends.poll(2000 * _LAST_CALL_S):
                os.kill(engine, signal.SIGKILL)
    finally:
        os._exit(0)


def _claim_stdout() -> BinaryIO:
    """Keep standard output for the protocol; whatever libraries print goes to standard error, which is a log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    protocol = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return protocol


def _listen(stream: BinaryIO, commands: CommandQueue, emit: Callable[[Event], None]) -> None:
    """Take commands until standard input closes; a pass that does not notice is not waited for.

    This thread waits itself: where memory has run out no other can be started.
    """
    try:
        receive(stream, commands, emit)
        commands.receive(Quit())
    except MemoryError:
        os.write(2, _NO_MEMORY)
    finally:
        time.sleep(_LAST_CALL_S)
        os._exit(0)


def receive(stream: BinaryIO, commands: CommandQueue, emit: Callable[[Event], None]) -> None:
    """Put every command of the stream into the queue; a line that is not a command is answered at once."""
    for line in lines_of(stream):
        if not line.strip():
            continue
        try:
            commands.receive(decode_command(line))
        except msgspec.DecodeError as error:
            emit(_refused(line, f"a line is not a command: {error}"))


_TYPES = frozenset(kind.__struct_config__.tag for kind in get_args(Command))


class _Address(msgspec.Struct):
    """Type and id in a line that is not a command, so that the answer names the request that was refused."""

    type: str
    id: Id | None = None


def _refused(line: bytes, why: str) -> Failed:
    try:
        command = msgspec.json.decode(line[:LONGEST_LINE_BYTES], type=_Address)
    except UNREADABLE:
        command = None
    if command is None or command.type not in _TYPES:
        return Failed(kind="UsageError", message=why, exit_code=2, during="protocol")
    return Failed(kind="UsageError", message=why, exit_code=2, id=command.id, during=command.type)
