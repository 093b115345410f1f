"""A process with the program and its libraries, which forks for each `python -m specchat …` (sitecustomize.py).

To import them takes 1 to 2 s of processor time, which was most of what a test with an engine took.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import locale
import os
import pickle
import runpy
import selectors
import signal
import socket
import sys
import termios
import threading
import traceback
import types
from contextlib import suppress
from typing import BinaryIO, NamedTuple

PRELOADED = (
    "torch",
    "specchat.cli.run",
    "specchat.engine.server.host",
    "specchat.engine.server.worker",
    "specchat.tui.app",
    "gguf",
    "transformers.models.llama.configuration_llama",
    "transformers.tokenization_utils_tokenizers",
)


class Request(NamedTuple):
    """What a new process starts with. The arguments begin with `-m specchat` or `-c` and the code."""

    arguments: list[str]
    variables: dict[bytes, bytes]
    folder: str
    ignored: list[int]
    on_terminal: bool
    streams: list[int]


def received(connection: socket.socket) -> Request:
    """Read a request and its streams."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    data = connection.makefile("rb").read(int.from_bytes(size, "little"))
    return Request(*pickle.loads(data), streams)


def next_fork(listener: socket.socket) -> Request:
    """Fork for every request and tell how the forks ended. Returns in a fork; ends once standard input is closed."""
    selector = selectors.DefaultSelector()
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for source in (listener, ended, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    running: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                try:
                    request = received(connection)
                except (EOFError, OSError, ValueError, pickle.UnpicklingError):
                    connection.close()  # its process was killed meanwhile
                    continue
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    for number in (ended, wakes, listener.detach(), connection.detach()):
                        os.close(number)
                    for other in running.values():
                        os.close(other.detach())
                    return request
                for stream in request.streams:
                    os.close(stream)
                with suppress(OSError):
                    connection.sendall(b"%d\n" % pid)
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
            elif key.fileobj == ended:
                os.read(ended, 4096)
                while running:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if not pid:
                        break
                    connection = running.pop(pid)
                    with suppress(KeyError):  # it was killed with its process
                        selector.unregister(connection)
                    with suppress(OSError):
                        connection.sendall(b"%d\n" % status)
                    connection.close()
            elif key.data in running:  # its process was killed
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)


def begin(request: Request) -> None:
    """Make this fork look like a process that was just started."""
    os.setsid()
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    for stream in request.streams:
        os.close(stream)
    if request.on_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environb.clear()
    os.environb.update(request.variables)
    os.chdir(request.folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = text_stream(0, sys.stdin, False)
    sys.stdout = sys.__stdout__ = text_stream(1, sys.stdout, unbuffered)
    sys.stderr = sys.__stderr__ = text_stream(2, sys.stderr, unbuffered)
    sys.path[0] = request.folder
    sys.argv = [request.arguments[0], *request.arguments[2:]]
    locale.setlocale(locale.LC_CTYPE, "")
    if threads := os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(int(threads))


def text_stream(number: int, like: io.TextIOWrapper, unbuffered: bool) -> io.TextIOWrapper:
    """A standard stream as Python opens it at its start."""
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    buffer: BinaryIO = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, like.encoding, like.errors, newline=None if number == 0 else "\n",
        line_buffering=number == 2 or raw.isatty(), write_through=unbuffered,
    )  # fmt: skip


def run_program(request: Request) -> int:
    """Run the module or the code; its exit code. All that Python does at its end is done, but no module is freed."""
    code = 0
    try:
        if request.arguments[0] == "-m":
            runpy.run_module(request.arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(request.arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python says it
    return code & 0xFF


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    os.environ["SPECCHAT_HOME"] = os.path.dirname(sys.argv[1])  # the user's files are none of ours
    sys.modules["specchat.config"].load_catalog()
    sys.modules["specchat.cli"]._command()
    gc.collect()
    gc.freeze()
    gc.freeze = gc.unfreeze = lambda: None  # what is shared is not searched for garbage: it would be copied
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen(64)
    asked = next_fork(listening)
    begin(asked)
    os._exit(run_program(asked))
