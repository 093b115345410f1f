"""Writes replies: one, or two by turns, at full speed or at a pace that the client sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field

import msgspec

from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import RoundWritten, Stopwatch
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, Generate, Pace, SecondReply
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.event_conversion import encode_prompt
from specchat.engine.server.joint_replies import JointReplies
from specchat.engine.server.open_pair import CurrentPair
from specchat.engine.server.told_reply import ToldReply
from specchat.errors import UsageError

SLICE_TOKENS = 16
"""Tokens before the other reply goes on: some tenths of a second. In shorter slices switching would dominate; over
longer ones the machine's speed drifts."""


class ReplyWriter:
    """Writes replies with the pair in use.

    Args:
        meanwhile: given what arrives while a reply is written, with the reply's clock.
        fails: told of the error that ended one of several replies, and of its id; raises where the engine must end.
    """

    def __init__(
        self,
        pair: CurrentPair,
        commands: CommandQueue,
        emit: Callable[[events.Event], None],
        meanwhile: Callable[[Command, Stopwatch], None],
        fails: Callable[[Exception, int], None],
    ) -> None:
        self._pair, self._commands = pair, commands
        self._emit, self._meanwhile = emit, meanwhile
        self.joint = JointReplies(pair, commands, emit, meanwhile, fails)
        self.pacing = Pacing()

    def write(self, command: Generate) -> None:
        """Write one reply, or two by turns, or several together, and tell of it until its end."""
        if command.own is not None:
            self.joint.write(command)
            return
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
        with nullcontext(chat) if command.apart is None else chat.apart(command.apart) as conversation:
            for written in self._rounds(command, conversation, watch, cancelled):
                if not written.last:
                    self._rest(watch, cancelled)
        self._pair.used(settings)
        now.prompts.replied(command.keep, chat)
        now.idle.replied()

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
        prompt = encode_prompt(conversation, command)
        told = ToldReply(command, prompt, conversation, self._pair.open, self._emit, watch, cancelled)
        for event in told.alone():
            told.tell(event)
            if isinstance(event, RoundWritten):
                for waiting in self._commands.pending():
                    self._meanwhile(waiting, watch)
                yield event

    def _rest(self, watch: Stopwatch, cancelled: Callable[[], bool]) -> None:
        """Wait as long as the pace says, answering what can be answered meanwhile."""
        told = time.monotonic()
        while (wait_s := self.pacing.wait_s(time.monotonic() - told)) != 0.0 and not cancelled():
            with watch.stopped():
                command = self._commands.next(wait_s)
            if command is not None:
                self._meanwhile(command, watch)
        self.pacing.went()


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
    """A reply that is written round by round, and its clock."""

    rounds: Iterator[int]  # does a round when asked for the next; the tokens that it emitted
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
