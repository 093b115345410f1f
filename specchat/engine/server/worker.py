"""The engine's one working thread: answers commands, writes replies, and works for the pair when idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext

import msgspec

from specchat.core.request import FIRST, LOGITS
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import PromptRead, ReplyEnded, ReplyStarted, RoundWritten, Stopwatch
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
    SecondReply,
    Statistics,
)
from specchat.engine.server.alternation import AlternatingReply, alternate
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.copy_sources import CopySources
from specchat.engine.server.current_pair import CurrentPair
from specchat.engine.server.event_conversion import (
    changed_message,
    encode_messages,
    encode_prompt,
    failure,
    finished_message,
    ready_message,
    round_message,
    started_message,
    stats_message,
)
from specchat.engine.server.learning_report import learning_report
from specchat.engine.server.memory import no_memory_left
from specchat.engine.server.open_pair import Totals
from specchat.engine.server.pacing import Pacing
from specchat.errors import NotNumbers, SpecchatError, UsageError

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
        self._pacing = Pacing()

    def run(self) -> None:
        """Work until told to quit."""
        while not self._commands.quitting.is_set():
            command = self._deferred.pop(0) if self._deferred else self._wait()
            if command is not None and not isinstance(command, Quit):
                self._answer(command)
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

    def _answer(self, command: Command) -> None:
        """Do what the command says; a failure is an answer too, and the engine goes on.

        Raises:
            NoMemoryLeft: this is answered too, and the engine ends.
        """
        during = type(command).__struct_config__.tag or ""
        try:
            match command:
                case Load():
                    self._load(command)
                case Generate():
                    self._generate(command)
                case Change():
                    self._change(command)
                case Pace():
                    self._pacing.take(command)
                case Count():
                    self._count(command)
                case Compare():
                    self._emit(self._pair.open.compare(command))
                case Learning():
                    self._emit(learning_report(self._pair.open, command.forget))
                case Statistics():
                    self._tell_totals()
        except Exception as error:
            if not isinstance(error, SpecchatError):
                _log.exception("while answering %s", during)
            ended = no_memory_left(error)
            self._emit(failure(ended or self._naming(error), str(during), getattr(command, "id", None)))
            if ended is not None:
                raise ended from None

    def _naming(self, error: Exception) -> Exception:
        """The same error; of logits that are no numbers it says whose, which are the target's where nobody said so."""
        if isinstance(error, NotNumbers) and not error.who and self._pair.there:
            return NotNumbers(self._pair.open.loaded.target.name)
        return error

    # ------------------------------------------------------------------------------------------- replies

    def _generate(self, command: Generate) -> None:
        self._pacing.begin(command.id)
        try:
            if command.beside is None:
                self._generate_one(command)
            else:
                self._generate_two(command, command.beside)
        finally:
            self._pacing.end()
            for one in (command, command.beside):
                if one is not None:
                    self._commands.forget_cancel(one.id)

    def _generate_one(self, command: Generate) -> None:
        now = self._pair.open
        now.forget_twin()
        settings = now.conversation.settings.changed_live(command.apart or {})
        self._pair.add_drafts(settings)
        watch = Stopwatch()

        def cancelled() -> bool:
            return self._commands.cancelled(command.id)

        chat = now.conversation
        with nullcontext(chat) if command.apart is None else chat.apart(command.apart) as conversation:
            for written in self._write(command, conversation, watch, cancelled):
                if not written.last:
                    self._rest(watch, cancelled)
        self._pair.used(settings)
        now.idle.kept.replied()

    def _generate_two(self, command: Generate, beside: SecondReply) -> None:
        """Two replies by turns. The plain one has the target's weights with a cache of its own."""
        commands = (command, msgspec.structs.replace(command, id=beside.id, apart=beside.apart, beside=None))
        plainly = [(one.apart or {}).get("controller") == "off" for one in commands]
        if sorted(plainly) != [False, True]:
            raise UsageError("one of two replies by turns must be plain decoding, with controller = 'off'")
        now = self._pair.open
        each = [now.conversation.settings.changed_live(one.apart or {}) for one in commands]
        for settings in each:
            self._pair.add_drafts(settings)

        def cancelled() -> bool:
            return any(self._commands.cancelled(one.id) for one in commands)

        def side(one: Generate, plain: bool) -> AlternatingReply:
            apart = stack.enter_context(
                now.conversation.apart(one.apart or {}, now.with_new_cache() if plain else None)
            )
            watch = Stopwatch()
            written = self._write(one, apart, watch, cancelled)
            return AlternatingReply((len(event.round.emitted) for event in written), watch)

        with ExitStack() as stack:
            alternate(*(side(one, plain) for one, plain in zip(commands, plainly, strict=True)))
        for settings in each:
            self._pair.used(settings)

    def _write(
        self, command: Generate, conversation: Conversation, watch: Stopwatch, cancelled: Callable[[], bool]
    ) -> Iterator[RoundWritten]:
        """Write a reply and tell of it, round by round."""
        prompt, reference = encode_prompt(conversation, command), conversation.encode_reference(command.reference)
        begun = conversation.encode_begun(command.begun)
        copies = CopySources(conversation.vocabulary, command.messages, prompt)
        id, started = command.id, None

        def on_prefill(progress: PromptRead) -> None:
            self._emit(events.Prefilled(id, progress.done, progress.total, progress.at_s))

        shown = LOGITS if command.logprobs else FIRST
        for event in conversation.reply(prompt, command.seed, cancelled, on_prefill, watch, reference, begun, shown):
            match event:
                case ReplyStarted():
                    started = event
                    self._emit(started_message(command, event, conversation, self._pair.open.loaded))
                case RoundWritten():
                    self._emit(round_message(id, event, conversation.vocabulary, copies, command.logprobs))
                    self._answer_between_rounds(watch)
                    yield event
                case ReplyEnded():
                    assert started is not None, "a reply begins before it ends"
                    self._emit(finished_message(id, event, self._stats(started, event)))

    def _stats(self, started: ReplyStarted, ended: ReplyEnded) -> events.Stats:
        """The reply's figures. Decoding time is what passed on the clock, sending events included."""
        ledger = ended.ledger
        decode_s = ended.at_s - ended.prefill_s
        ledger.other_s = max(0.0, decode_s - ledger.draft_s - ledger.verify_s)
        totals = self._pair.open.totals
        totals.replies += 1
        totals.ledger.add_ledger(ledger)
        return stats_message(ledger, ended.prefill_s, ended.gaps, started.prompt_tokens, started.reused_tokens)

    def _answer_between_rounds(self, watch: Stopwatch) -> None:
        for command in self._commands.pending():
            self._answer_or_defer(command, watch)

    def _answer_or_defer(self, command: Command, watch: Stopwatch) -> None:
        if isinstance(command, Change):
            with watch.stopped():  # a draft model may have to be read for it
                self._answer(command)
        elif isinstance(command, Pace | Count | Statistics):
            self._answer(command)
        elif not isinstance(command, Cancel):  # that acted when it arrived
            self._deferred.append(command)

    def _rest(self, watch: Stopwatch, cancelled: Callable[[], bool]) -> None:
        """Wait as long as the pace says, answering what can be answered meanwhile."""
        told = time.monotonic()
        while (wait_s := self._pacing.wait_s(time.monotonic() - told)) != 0.0 and not cancelled():
            with watch.stopped():
                command = self._commands.next(wait_s)
            if command is not None:
                self._answer_or_defer(command, watch)
        self._pacing.went()

    # ----------------------------------------------------------------------------------------- the rest

    def _load(self, command: Load) -> None:
        now = self._pair.load(command.settings)
        self._emit(ready_message(now.loaded, now.conversation))

    def _change(self, command: Change) -> None:
        grown = self._pair.change(command.settings)
        now = self._pair.open
        self._emit(changed_message(now.loaded, now.conversation, grown=grown))

    def _count(self, command: Count) -> None:
        conversation = self._pair.open.conversation
        tokens = encode_messages(conversation, command.messages)
        self._emit(events.Counted(command.id, len(tokens), conversation.target.context_tokens))

    def _tell_totals(self) -> None:
        totals = self._pair.open.totals if self._pair.there else Totals()
        self._emit(events.Totals(totals.replies, stats_message(totals.ledger)))
