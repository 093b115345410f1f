"""The engine's working thread: answers commands one by one, and lets drafters work when none waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from specchat.decoding.reply_events import Stopwatch
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import (
    Cancel,
    Change,
    Command,
    Compare,
    Count,
    Generate,
    Learning,
    Load,
    Pace,
    Quit,
    Statistics,
    WhatIf,
)
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.event_conversion import (
    changed_message,
    compared_message,
    encode_messages,
    failure,
    ready_message,
    stats_message,
)
from specchat.engine.server.kept_drafters import learning_report
from specchat.engine.server.memory import no_memory_left
from specchat.engine.server.open_pair import CurrentPair, ReplyTotals
from specchat.engine.server.replies import ReplyWriter
from specchat.engine.server.what_if import WhatIfAnswers
from specchat.errors import NotNumbers, SpecchatError

_IDLE_S = 0.4
"""After so long without a command, passes are timed if what they cost is not known yet, and drafters may work."""

_log = logging.getLogger(__name__)


class Worker:
    """Answers commands one by one; between two rounds of a reply it answers those that can be answered then."""

    def __init__(self, commands: CommandQueue, emit: Callable[[events.Event], None]) -> None:
        self._commands = commands
        self._emit = emit
        self._pair = CurrentPair(emit, lambda: commands.cancelled(None))
        self._deferred: list[Command] = []
        fails = partial(self._fail, "generate")
        self._replies = ReplyWriter(self._pair, commands, emit, self._answer_meanwhile, fails)
        self._what_if = WhatIfAnswers(self._pair, commands, self._waits_for_end, emit)

    def run(self) -> None:
        while not self._commands.quitting.is_set():
            command = self._deferred.pop(0) if self._deferred else self._wait()
            if command is not None and not isinstance(command, Quit):
                self.answer(command)
        self._pair.close()

    def _wait(self) -> Command | None:
        """The next command; None where there was something to do meanwhile."""
        release_in_s, works = self._pair.release_in_s(), self._pair.there and self._pair.open.idle.due
        if works or release_in_s is not None:
            command = self._commands.next(_IDLE_S if works else max(_IDLE_S, release_in_s or 0.0))
            if command is None:
                self._work_idle()
            return command
        return self._commands.next()

    def _work_idle(self) -> None:
        """Give unused memory back when its time has come, or do what is due for the pair until a command arrives."""
        if self._pair.release_in_s() == 0.0:
            try:
                self._pair.release_drafts()
            except Exception:
                _log.exception("while draft models were let go")
        elif (now := self._pair.open).idle.due:
            now.idle.work(now.conversation, lambda: not self._commands.empty)

    def answer(self, command: Command) -> None:
        """Do what the command says; a failure is an answer too, and the engine goes on.

        Raises:
            NoMemoryLeft: this is answered too, and the engine ends.
        """
        during = type(command).__struct_config__.tag or ""
        try:
            match command:
                case Load():
                    now = self._pair.load(command.settings)
                    self._emit(ready_message(now.loaded, now.conversation))
                case Generate():
                    self._replies.write(command)
                case Change():
                    grown, now = self._pair.change(command.settings), self._pair.open
                    self._emit(changed_message(now.loaded, now.conversation, grown=grown))
                case Pace():
                    self._replies.pacing.take(command)
                case Count():
                    chat = self._pair.open.conversation
                    tokens = len(encode_messages(chat, command.messages, command.tools))
                    self._emit(events.Counted(command.id, tokens, chat.target.context_tokens))
                case Compare():
                    now = self._pair.open
                    self._emit(compared_message(command, now.conversation, now.comparer))
                case WhatIf():
                    self._emit(self._what_if.answer(command))
                case Learning():
                    now = self._pair.open
                    report = learning_report(now.conversation, now.loaded.trained, now.idle.kept, command.forget)
                    self._emit(report)
                case Statistics():
                    totals = self._pair.open.totals if self._pair.there else ReplyTotals()
                    self._emit(events.Totals(totals.replies, stats_message(totals.ledger)))
        except Exception as error:
            self._fail(str(during), error, getattr(command, "id", None))

    def _fail(self, during: str, error: Exception, id: int | None) -> None:
        """Tell of an error that ended what was done for a command.

        Raises:
            NoMemoryLeft: it is the last that can be told.
        """
        if not isinstance(error, SpecchatError):
            _log.error("while answering %s", during, exc_info=error)
        ended = no_memory_left(error)
        self._emit(failure(ended or self._naming(error), during, id))
        if ended is not None:
            raise ended from None

    def _naming(self, error: Exception) -> Exception:
        """The same error; of logits that are no numbers it says whose, which are the target's where nobody said so."""
        if isinstance(error, NotNumbers) and not error.who and self._pair.there:
            return NotNumbers(self._pair.open.loaded.target.name)
        return error

    def _answer_meanwhile(self, command: Command, watch: Stopwatch) -> None:
        """Answer a command that came between two rounds of a reply, whose clock this is, or put it off until later."""
        joint = self._replies.joint
        if isinstance(command, Change):
            with watch.stopped():  # a draft model may have to be read for it
                self.answer(command)
        elif isinstance(command, Generate) and command.own is not None and joint.running and not self._deferred:
            joint.join(command)  # nothing that came before it waits
        else:
            self._waits_for_end(command)

    def _waits_for_end(self, command: Command) -> bool:
        """Answer a command that came while a reply is done once more; True where it waits for the end of that."""
        if isinstance(command, Pace | Count | Statistics):
            self.answer(command)
        elif not isinstance(command, Cancel):  # that acted when it arrived
            self._deferred.append(command)
            return True
        return False
