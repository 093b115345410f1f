"""The connection to a target's process: started through ssh, started anew where it was lost."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from os import dup
from typing import NoReturn, TypeVar

from torch import Tensor

from specchat.errors import ModelError, PlanRefused, TargetLost, os_errors_as
from specchat.models.hub.disk import Cancelled
from specchat.models.ranks.plan import MOST_BYTES
from specchat.models.remote import messages as m
from specchat.settings import parse_target_at

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
_THERE = ("specchat", "engine", "--target")

_POLL_S = 0.1
_ENDING_S = 2.0

_Answered = TypeVar("_Answered", bound=m.Answer)


class SshProcess:
    """`specchat engine --target` on another machine. Its errors come as what ssh writes to standard error."""

    def __init__(self, host: str) -> None:
        """Start it; TargetLost: there is no ssh here."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        with os_errors_as(TargetLost, "ssh cannot be started"):
            self._process = subprocess.Popen(
                [*_SSH, host, *_THERE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        assert self._process.stdin is not None, "started with pipes"
        assert self._process.stdout is not None, "started with pipes"
        with self._process.stdin as stdin, self._process.stdout as stdout:
            self.to = Connection(dup(stdin.fileno()), readable=False)
            self.answers = Connection(dup(stdout.fileno()), writable=False)

    def end(self) -> None:
        for way in (self.to, self.answers):
            with suppress(OSError):
                way.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The last output before it ended, in one line; may be empty."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        with suppress(OSError, ValueError):
            size = self._errors.seek(0, 2)
            self._errors.seek(max(0, size - 2000))
            lines = self._errors.read().decode("utf-8", "replace").split("\n")
            return next((" ".join(line.split())[:300] for line in reversed(lines) if line.strip()), "")
        return ""


class TargetLink:
    """A target's process and what it has loaded. One request at a time.

    Attributes:
        facts: about the model there.
        generation: how often the process was started; what it held is gone with each new one.
        lost: why there is none; empty while there is one.
        embedded: rows of the embedding that were fetched, by token.
        asked, sent_bytes, received_bytes: requests so far, and bytes of all messages.
    """

    def __init__(
        self,
        at: str,
        opening: m.Open,
        start: Callable[[], SshProcess],
        say: Callable[[str], None] = lambda text: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the process and have it load the model.

        Raises:
            TargetLost: it cannot be reached, or is another version.
            ModelError: it cannot load the model; says why.
            Cancelled: nobody waits any more.
        """
        self.at, self._opening, self._start = at, opening, start
        self.generation, self.lost = 0, ""
        self.embedded: dict[int, Tensor] = {}
        self.asked = self.sent_bytes = self.received_bytes = 0
        self._lock = threading.RLock()
        self._gone: list[int] = []
        self._numbers = 0

        def waiting() -> None:
            if cancelled():
                raise Cancelled(f"stopped before {opening.model} was loaded at {at}")

        self.facts = self._open(waiting, say)

    def reopen(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Start it anew where it was lost; raises as at first, and may be tried again.

        Args:
            waiting: called again and again until it has answered; what it raises ends the attempt.
        """
        with self._lock:
            if self.lost:
                facts = self._open(waiting)
                if _model_of(facts) != _model_of(self.facts):
                    self.lose("the model there is another one now; load the pair again")
                self.facts = facts

    def number(self, holder: object) -> int:
        """A number for a cache there, which is dropped some time after `holder` is gone."""
        self._numbers += 1
        weakref.finalize(holder, self._gone.append, self._numbers).atexit = False
        return self._numbers

    def let_go(self, number: int) -> None:
        """Drop this cache before its holder is gone: with the next request."""
        self._gone.append(number)

    def ask(
        self,
        request: m.Request,
        kind: type[_Answered],
        on_progress: Callable[[int, int], bool] | None = None,
        on_states: Callable[[m.States], None] | None = None,
    ) -> _Answered:
        """The answer to a request.

        Args:
            kind: what answers such a request.
            on_progress: told how far a prompt is read; False stops reading.
            on_states: given the states of what is read; may refuse them.

        Raises:
            TargetLost: the connection has ended, or something else was answered.
            ModelError: the request could not be done there.
        """
        with self._lock:
            if self.lost:
                raise TargetLost(self.lost)
            self.asked += 1
            gone = [self._gone.pop() for _ in range(len(self._gone))]
            try:
                self._send(m.Call(gone, request))
                while isinstance(answer := self._received(), m.Progress | m.States):
                    if isinstance(answer, m.States):
                        if on_states is not None:
                            on_states(answer)
                    elif on_progress is not None and not on_progress(answer.done, answer.total):
                        self._send(m.Call([], m.Stop()))
                        on_progress = None
            except (OSError, EOFError) as error:
                self.lose(self._process.last_words() or str(error) or "it has ended")
            except PlanRefused as error:
                self.lose(str(error))
            except BaseException:  # an answer is still due
                self._drop("the connection was broken off")
                raise
            if isinstance(answer, m.Failed):
                raise ModelError(f"the target at {self.at}: {answer.why}")
            if not isinstance(answer, kind):
                self.lose("it answered another question")
            return answer

    def close(self) -> None:
        """End the process; a prompt would start it anew."""
        with self._lock:
            if not self.lost:
                self._drop("the target was let go")

    def lose(self, why: str) -> NoReturn:
        """End a process that has gone, or that answered what contradicts itself; raises TargetLost."""
        self._drop(why)
        raise TargetLost(f"{self.lost}; ask again to reconnect")

    def _open(self, waiting: Callable[[], None], say: Callable[[str], None] = lambda text: None) -> m.Opened:
        self._process, self.lost = self._start(), ""
        self.generation += 1
        self._gone.clear()
        try:
            hello = self._received(waiting)
            if not isinstance(hello, m.Hello) or hello.protocol != m.PROTOCOL:
                self.lose("another version of specchat runs there")
            self._send(m.Call([], self._opening))
            while isinstance(answer := self._received(waiting), m.Said):
                say(f"{self._opening.model} at {self.at}: {answer.text}")
        except (EOFError, ConnectionError):
            self.lose(self._process.last_words() or "nothing answered there")
        except (PlanRefused, OSError):
            self.lose("what answered there is no specchat, or prints something before it")
        except TargetLost:
            raise
        except BaseException:
            self._drop("loading was stopped")
            raise
        if isinstance(answer, m.Failed):
            self._drop(answer.why)
            raise ModelError(f"the target at {self.at}: {answer.why}")
        if not isinstance(answer, m.Opened):
            self.lose("it answered something else")
        return answer

    def _send(self, call: m.Call) -> None:
        data = m.encoded(call)
        self.sent_bytes += len(data)
        self._process.to.send_bytes(data)

    def _received(self, waiting: Callable[[], None] | None = None) -> m.Answer:
        while waiting is not None and not self._process.answers.poll(_POLL_S):
            waiting()
        data = self._process.answers.recv_bytes(MOST_BYTES)
        self.received_bytes += len(data)
        return m.answer_of(data)

    def _drop(self, why: str) -> None:
        self.lost = f"the target at {self.at} is gone: {why}"
        self._process.end()


def _model_of(facts: m.Opened) -> tuple[object, ...]:
    """The facts that a model loaded anew must have in common with the one before."""
    return facts.vocab_size, facts.hidden_size, facts.layers, facts.precision, facts.ends, facts.files


def connect(at: str, opening: m.Open, say: Callable[[str], None], cancelled: Callable[[], bool]) -> TargetLink:
    """A link to the target at this place, which has loaded its model; raises as `TargetLink` does."""
    host = parse_target_at(at)
    return TargetLink(at, opening, lambda: SshProcess(host), say, cancelled)
