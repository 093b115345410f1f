"""Replies that are written together: each in a conversation of its own over the same weights, joining and leaving."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import Event, ReplyEnded, Stopwatch
from specchat.decoding.together import JoinedReply, Together
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, Generate
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.event_conversion import encode_prompt
from specchat.engine.server.open_pair import CurrentPair
from specchat.engine.server.told_reply import ToldReply
from specchat.errors import UsageError
from specchat.settings import MOST_TOGETHER, SPECULATION


@dataclass(eq=False)
class _Waiting:
    """A reply that has no place yet. Its prompt is encoded once, however long it waits for memory."""

    command: Generate
    prompt: list[int] | None = None


@dataclass(frozen=True)
class _Place:
    """A reply that is being written, where, and how many tokens its text may get."""

    command: Generate
    conversation: Conversation
    tokens: int


class JointReplies:
    """Writes replies whose commands have settings of their own, as many at once as there are places and memory for.

    Args:
        meanwhile, fails: as for `ReplyWriter`.
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
        self._emit, self._meanwhile, self._fails = emit, meanwhile, fails
        self._waiting: deque[_Waiting] = deque()
        self._places: list[_Place] = []
        self._told_of_memory = False
        self.running = False

    def join(self, command: Generate) -> None:
        """Write this reply, too, as soon as there is a place for it."""
        self._waiting.append(_Waiting(command))

    def write(self, first: Generate) -> None:
        """Write a reply and all that join, until none is left."""
        together, watch = Together(), Stopwatch()
        self._waiting.append(_Waiting(first))
        self.running = True
        try:
            self._pair.open.drop_second_target()
            while self._waiting or self._places:
                self._admit(together)
                together.turn()
                for command in self._commands.pending():
                    self._meanwhile(command, watch)
                self._pair.open.follow_settings()
        finally:
            self.running = False
            self._waiting.clear()
            self._places.clear()
        self._pair.open.idle.replied()

    def _admit(self, together: Together) -> None:
        """Begin those that wait, the oldest first, while there is a place for the next one."""
        while self._waiting and len(self._places) < MOST_TOGETHER:
            waiting = self._waiting[0]
            try:
                reply = self._reply_to(waiting)
            except Exception as error:
                self._waiting.popleft()
                self._failed(error, waiting.command.id)
                continue
            if reply is None:
                return
            self._waiting.popleft()
            together.add(reply)

    def _reply_to(self, waiting: _Waiting) -> JoinedReply | None:
        """The reply that waits, in a place of its own; None where it has to wait on for memory."""
        command, now = waiting.command, self._pair.open
        own = command.own or {}
        if fixed := [name for name in SPECULATION if name in own]:
            raise UsageError(f"{fixed[0]} is the same for all replies that are written together")
        settings = now.conversation.settings.changed_live(own)
        now.conversation.check(settings, now.loaded.offered)
        self._pair.add_drafts(now.conversation.settings)
        now.follow_settings()
        if waiting.prompt is None:
            waiting.prompt = encode_prompt(now.conversation, command)
        prompt, watch = waiting.prompt, Stopwatch()
        tokens = min(now.conversation.target.context_tokens, len(prompt) + settings.max_tokens)
        conversation = now.place_for(prompt, [(place.conversation, place.tokens) for place in self._places], tokens)
        if conversation is None:
            self._tell_of_memory()
            return None

        def cancelled() -> bool:
            return self._commands.cancelled(command.id)

        told = ToldReply(command, prompt, conversation, now, self._emit, watch, cancelled)
        place = _Place(command, conversation, tokens)
        self._places.append(place)

        def take(event: Event) -> None:
            told.tell(event)
            if isinstance(event, ReplyEnded):
                self._ended(place)

        def failed(error: Exception) -> None:
            self._ended(place)
            self._failed(error, command.id)

        return JoinedReply(told.steps(), take, failed, cancelled)

    def _ended(self, place: _Place) -> None:
        self._places.remove(place)
        self._commands.forget_cancel(place.command.id)
        now = self._pair.open
        now.prompts.replied(place.command.keep, place.conversation)
        self._pair.used(place.conversation.settings)
        self._pair.tell_slower()

    def _failed(self, error: Exception, id: int) -> None:
        self._commands.forget_cancel(id)
        self._fails(error, id)

    def _tell_of_memory(self) -> None:
        """Say once that fewer replies than were asked for are written at once."""
        if not self._told_of_memory:
            self._told_of_memory = True
            many = "one reply" if len(self._places) == 1 else f"{len(self._places)} replies"
            self._emit(events.Notice(f"there is memory for {many} at once; others wait"))
