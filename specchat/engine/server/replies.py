"""Writes replies: one, or two by turns, at full speed or at a pace that the client sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field

import msgspec

from specchat.core.constraint import Constraint, ConstraintSource
from specchat.core.request import FIRST, LIKELIEST, LOGITS
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import PromptRead, ReplyEnded, ReplyStarted, RoundWritten, Stopwatch
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, Generate, Pace, SecondReply
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.copy_sources import CopySources
from specchat.engine.server.event_conversion import (
    encode_prompt,
    finished_message,
    likely_tokens,
    round_message,
    started_message,
    stats_message,
)
from specchat.engine.server.open_pair import CurrentPair
from specchat.errors import ConstraintError, InstallationError, UsageError

SLICE_TOKENS = 16
"""Tokens before the other reply goes on: some tenths of a second. In shorter slices switching would dominate; over
longer ones the machine's speed drifts."""


class ReplyWriter:
    """Writes replies with the pair in use.

    Args:
        emit: told of every round.
        meanwhile: given what arrives while a reply is written, with the reply's clock.
    """

    def __init__(
        self,
        pair: CurrentPair,
        commands: CommandQueue,
        emit: Callable[[events.Event], None],
        meanwhile: Callable[[Command, Stopwatch], None],
    ) -> None:
        self._pair, self._commands = pair, commands
        self._emit, self._meanwhile = emit, meanwhile
        self.pacing = Pacing()

    def write(self, command: Generate) -> None:
        """Write one reply, or two by turns, and tell of it until its end."""
        self.pacing.begin(command.id)
        try:
            if command.beside is None:
                self._write_one(command)
            else:
                self._write_two(command, command.beside)
        finally:
            self.pacing.end()
            self._pair.tell_slower()
            for one in (command, command.beside):
                if one is not None:
                    self._commands.forget_cancel(one.id)

    def _write_one(self, command: Generate) -> None:
        now = self._pair.open
        now.drop_second_target()
        settings = now.conversation.settings.changed_live(command.apart or {})
        self._pair.add_drafts(settings)
        watch = Stopwatch()

        def cancelled() -> bool:
            return self._commands.cancelled(command.id)

        chat = now.conversation
        now.prompts.change(settings)
        with nullcontext(chat) if command.apart is None else chat.apart(command.apart) as conversation:
            for written in self._rounds(command, conversation, watch, cancelled):
                if not written.last:
                    self._rest(watch, cancelled)
        self._pair.used(settings)
        now.prompts.replied(command.keep, chat)
        now.idle.kept.replied()

    def _write_two(self, command: Generate, beside: SecondReply) -> None:
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
            apart = stack.enter_context(now.conversation.apart(one.apart or {}, now.second_target() if plain else None))
            watch = Stopwatch()
            written = self._rounds(one, apart, watch, cancelled)
            return AlternatingReply((len(event.round.emitted) for event in written), watch)

        with ExitStack() as stack:
            alternate(*(side(one, plain) for one, plain in zip(commands, plainly, strict=True)))
        for settings in each:
            self._pair.used(settings)

    def _rounds(
        self, command: Generate, conversation: Conversation, watch: Stopwatch, cancelled: Callable[[], bool]
    ) -> Iterator[RoundWritten]:
        """Write a reply and tell of it, round by round."""
        prompt, reference = encode_prompt(conversation, command), conversation.encode_reference(command.reference)
        begun = conversation.encode_begun(command.begun, command.begun_tokens)
        constraint = _constraint(conversation, command)
        copies = CopySources(conversation.vocabulary, command.messages, prompt)
        id, started = command.id, None

        def on_prefill(progress: PromptRead) -> None:
            self._emit(events.Prefilled(id, progress.done, progress.total, progress.at_s))

        if command.prompt_logprobs and command.top_logprobs is not None:
            for reading, tokens in conversation.teacher_forced(prompt, cancelled):
                known = likely_tokens(
                    reading, range(len(tokens)), tokens, conversation.vocabulary, command.top_logprobs
                )
                self._emit(events.PromptLogprobs(id, known))
        shown = LOGITS if command.logprobs or command.top_logprobs is not None else FIRST
        shown |= LIKELIEST if command.top_logprobs else FIRST
        for event in conversation.reply(
            prompt, command.seed, cancelled, on_prefill, watch, reference, begun, shown, constraint, command.logit_bias
        ):
            match event:
                case ReplyStarted():
                    started = event
                    self._emit(started_message(command, event, conversation, self._pair.open.loaded))
                case RoundWritten():
                    self._emit(
                        round_message(
                            id, event, conversation.vocabulary, copies, command.logprobs, command.top_logprobs
                        )
                    )
                    for waiting in self._commands.pending():
                        self._meanwhile(waiting, watch)
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

    def _rest(self, watch: Stopwatch, cancelled: Callable[[], bool]) -> None:
        """Wait as long as the pace says, answering what can be answered meanwhile."""
        told = time.monotonic()
        while (wait_s := self.pacing.wait_s(time.monotonic() - told)) != 0.0 and not cancelled():
            with watch.stopped():
                command = self._commands.next(wait_s)
            if command is not None:
                self._meanwhile(command, watch)
        self.pacing.went()


def _constraint(conversation: Conversation, command: Generate) -> Constraint | None:
    """What the reply is held to. Calls are free where the model writes them in another form, or they cannot be held."""
    held = command.constraint
    if held is None:
        return None
    source = ConstraintSource(held.kind, held.text)
    if held.kind != "calls":
        return conversation.compile(source)
    with suppress(ConstraintError, InstallationError):
        return conversation.compile(source) if conversation.calls_in_words(command.tools) else None
    return None


class Pacing:
    """Says how long to wait before the next round. A reply begins at full speed unless told before it began."""

    def __init__(self) -> None:
        self._pace = self._coming = Pace(id=-1)
        self._granted = 0

    def begin(self, id: int) -> None:
        self._pace = self._coming if self._coming.id == id else Pace(id=id)
        self._coming = Pace(id=-1)  # what was said of one reply is not said of a later one with its number
        self._granted = self._pace.rounds

    def end(self) -> None:
        self._pace = Pace(id=-1)

    def take(self, pace: Pace) -> None:
        """Follow this pace from now on, or from the beginning of the reply it is about."""
        if pace.id != self._pace.id:
            self._coming = pace
            return
        still = self._granted if self._pace.hold and pace.hold else 0
        self._pace, self._granted = pace, still + pace.rounds

    def wait_s(self, rested_s: float) -> float | None:
        """Seconds until the next round may begin, `rested_s` after the last one; None: until the next `Pace`."""
        if not self._pace.hold:
            return max(0.0, self._pace.gap_s - rested_s)
        return 0.0 if self._granted > 0 else None

    def went(self) -> None:
        self._granted = max(0, self._granted - 1)


@dataclass
class AlternatingReply:
    """A reply that is written round by round, and its clock.

    Args:
        rounds: does a round when asked for the next, and says how many tokens it emitted.
    """

    rounds: Iterator[int]
    watch: Stopwatch
    tokens: int = 0
    over: bool = field(default=False, init=False)

    def write_to(self, goal: int) -> None:
        """Go on until so many tokens are written. The clock runs meanwhile, and only then."""
        self.watch.go_on()
        while not self.over and self.tokens < goal:
            emitted = next(self.rounds, None)
            self.over = emitted is None
            self.tokens += emitted or 0
        self.watch.stop()


def alternate(a: AlternatingReply, b: AlternatingReply) -> None:
    """Write both to their ends: A B, B A, A B, …

    Both reach the same length before either goes on, so their contexts are equally long. The changing order cancels
    slow drifts, such as a processor that warms up.
    """
    for side in (a, b):
        side.watch.stop()
    first, second, goal = a, b, SLICE_TOKENS
    while not (a.over and b.over):
        first.write_to(goal)
        second.write_to(goal)
        first, second, goal = second, first, goal + SLICE_TOKENS
