"""Lets `python -m specchat …` and `python -c …` become forks of a process that has imported their modules (server.py).

Python imports this first where a test has put this folder on PYTHONPATH. The process here stays: it passes its
standard streams, arguments, variables and folder on, forwards signals, and ends as the fork does. Where anything is not
as the server expects, nothing happens, and the program starts as usual.
"""

import os
import sys

ADDRESS = "SPECCHAT_TESTS_PRELOADED"
"""The variable with the server's socket."""


IN_TERMINAL = "SPECCHAT_TESTS_PRELOADED_IN_TERMINAL"
"""The variable that says that a program which owns its terminal is forwarded too; its own process is another then."""

READ_AT_START = ("LC_ALL", "PYTHONIOENCODING", "PYTHONUTF8")
"""Variables that are read at the start or by an import, and that tests set. (An app reads TEXTUAL_DRIVER too.)"""

ALONE = ("serve", "web")
"""Commands that start as usual: they import no torch, and tests look for what they started below them."""


def forward() -> None:
    """Have the server run this command; does not return where it does."""
    import pickle
    import signal
    import socket

    opened = [number for number in range(3) if _is_open(number)]
    command = "".join(sys.orig_argv[3:4])
    if len(opened) < 3 or command in ALONE or any(name in os.environ for name in READ_AT_START):
        return
    if command != "engine" and "TEXTUAL_DRIVER" in os.environ:
        return
    if on_terminal := os.isatty(0):
        if IN_TERMINAL not in os.environ or os.getsid(0) != os.getpid():
            return
        import fcntl
        import termios
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(os.environ[ADDRESS])
    except OSError:
        return
    received: list[int] = []
    names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
    numbers = [getattr(signal, name) for name in names]
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda number, _: received.append(number))
    if on_terminal:  # the fork's from now on; to give it away is answered with SIGHUP and SIGCONT
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGCONT])
        fcntl.ioctl(0, termios.TIOCNOTTY)
        for number in (signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP, signal.SIGCONT])
        for number in (signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, lambda number, _: received.append(number))
    request = pickle.dumps((sys.orig_argv[1:], os.environb.copy(), os.getcwd(), ignored, on_terminal))
    socket.send_fds(server, [len(request).to_bytes(8, "little")], opened)
    server.sendall(request)
    for number in opened:  # the fork's alone: who reads them shall see their end with it
        os.close(number)
    answer = server.makefile("rb")
    pid = int(answer.readline())

    def kill(number: int, _: object) -> None:
        os.kill(pid, number)

    for number in numbers:
        signal.signal(number, kill)
    for number in received:
        os.kill(pid, number)
    status = int(answer.readline() or "9")
    if os.WIFSIGNALED(status):
        if (number := os.WTERMSIG(status)) != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if ADDRESS in os.environ and (
    (sys.orig_argv[1] == "-m" and sys.orig_argv[2].split(".")[0] == "specchat")
    or (sys.orig_argv[1] == "-c" and "specchat" in sys.orig_argv[2])
):
    forward()
