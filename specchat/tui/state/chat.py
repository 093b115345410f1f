"""The state of the app without widgets: the chat on the screen, the running reply, the engine, background work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from specchat.engine.protocol.commands import Generate, Message, ReplyConstraint
from specchat.engine.protocol.events import Died, Event, Failed, Finished, Prefilled, RoundDone, Started
from specchat.errors import UsageError
from specchat.store.records import ChatRecord, new_id, title_of
from specchat.tui.state import attachments
from specchat.tui.state.engine_state import EngineState
from specchat.tui.state.message_tree import MessageTree, SentTurns
from specchat.tui.state.pair_list import Offer
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.training import Training
from specchat.tui.state.turn import COMPLETE, Reply, Turn
from specchat.tui.state.visible_reply import ServedReply, ShownRounds, VisibleReply


@dataclass
class Background:
    """What the screen says of work that is no reply of the chat."""

    fetching: str = ""  # the downloads and their progress
    fetched: str = ""  # the pair that was downloaded last, until it is loaded
    found: str = ""  # models of other programs, offered on the welcome page
    offer: Offer | None = None  # a pair that is better than the one in use
    training: Training | None = None  # of a drafter, until its verdict is answered
    serving: str = ""  # the address at which other programs may use the engine
    waiting_client: str = ""  # one of them whose reply waits until the engine is free
    replaying: bool = False  # a recording is played in place of the chat, or is about to be
    racing: bool = False  # a race or a benchmark has the engine


@dataclass
class Chat:
    background: Background = field(default_factory=Background)
    served: ServedReply | None = None  # the reply for one of them that is shown in place of the chat's last
    engine: EngineState = field(default_factory=EngineState)
    id: str = field(default_factory=new_id)
    title: str = ""
    renamed: bool = False  # the title is the user's own
    branches: MessageTree = field(default_factory=MessageTree)
    running: Reply | None = None
    shown_rounds: ShownRounds = field(default_factory=ShownRounds)
    figures: Figures | None = None  # of the reply being written, or the last one
    unsaved: bool = False  # the chat cannot be saved at present
    kept: bool = False  # what the engine reads of it may be kept on the disk, where it is erased with the chat
    queued: str | None = None
    editing: Turn | None = None  # the message that the next one is a branch beside
    sent: SentTurns = field(default_factory=SentTurns)
    system: str = ""
    first_system: str = ""  # the system message that a new chat begins with
    constraint: ReplyConstraint | None = None  # what replies are held to
    constraint_name: str = ""  # as the screen calls it
    _ids: int = 0

    @property
    def turns(self) -> Sequence[Turn]:
        return self.branches.path

    @property
    def rounds(self) -> list[RoundDone]:
        """The rounds of the newest reply, or of the last one that has any."""
        return self.shown_rounds.newest

    @property
    def written_with(self) -> str:
        """The pair that wrote the last reply; empty where none is known."""
        return next((turn.reply.facts.pair for turn in reversed(self.turns) if turn.reply is not None), "")

    @property
    def can_generate(self) -> bool:
        return self.engine.phase == "ready" and not self.writing

    @property
    def writing(self) -> bool:
        return self.running is not None or (self.served is not None and self.served.running)

    @property
    def visible(self) -> VisibleReply:
        served = None if self.shown_rounds.looks_back else self.served
        reply, last, figures = self.shown_rounds.reply, self.last_reply(), self.figures
        if served is not None:
            reply = served.reply
        if reply is not None and (served is not None or self.shown_rounds.looks_back):
            last, figures = reply, reply.figures
        loss = last.loss if last is not None and last.figures.rounds else self.engine.loss
        return VisibleReply(reply, served, figures, loss)

    @property
    def newest_reply(self) -> Reply | None:
        """The newest reply, be it for another program."""
        return self.served.reply if self.served is not None else self.last_reply()

    @property
    def context_tokens(self) -> int | None:
        """Tokens that the chat takes in the context; None where they were not counted yet."""
        last = self.last_reply()
        known = (self.figures.context_tokens if self.figures else 0) or (last.counted_context_tokens if last else 0)
        return known or (None if self.turns else 0)

    def ask(self, text: str, apart: dict[str, Any] | None = None) -> Generate:
        """The command that answers this text; the settings `apart` hold for this reply alone."""
        self.title = self.title or title_of(attachments.split(text)[0])
        turn = Turn("user", text)
        self.sent.begin_at(turn, self.turns)
        self.branches.add(turn)
        return self.generate(apart)

    def generate(self, apart: dict[str, Any] | None = None) -> Generate:
        """The command that requests a reply to the current chat; the settings `apart` hold for it alone."""
        assert self.can_generate, "a reply is asked for only when the engine is free"
        messages, reply = self.messages(), self._begin_reply()
        reply.apart = apart is not None
        reply.hold_to(None if apart else self.constraint)
        return Generate(reply.id, messages, apart=apart, constraint=reply.constraint, keep=self.keep)

    def branch_from(self, turn: Turn, tokens: list[int] | None, texts: list[str], seed: int | None) -> Generate:
        """The command that writes a reply beside this one, which begins with these tokens, or else these texts.

        Args:
            seed: with that of the other reply everything but the beginning is drawn in the same way.
        """
        assert self.can_generate, "a reply is asked for only when the engine is free"
        assert turn.reply is not None, "only a reply has a branch that begins as it does"
        constraint = turn.reply.constraint
        self.branches.cut(turn)
        messages, reply = self.messages(), self._begin_reply()
        reply.hold_to(constraint)
        if tokens is not None:
            reply.taken = tokens
            return Generate(reply.id, messages, seed, begun_tokens=tokens, constraint=constraint, keep=self.keep)
        for text in texts:
            reply.add(text, "target")
        return Generate(reply.id, messages, seed, begun=texts, constraint=constraint, keep=self.keep)

    def before_reply(self, turn: Turn) -> list[Message]:
        return self.messages(self.sent.of(self.turns[: self.branches.depth(turn)]))

    def go_on(self) -> Generate:
        """The command that goes on with the last reply, which was cut.

        Raises:
            UsageError: there is no reply, or it is complete.
        """
        assert self.can_generate, "a reply goes on only when the engine is free"
        reply = self.turns[-1].reply if self.turns else None
        if reply is None:
            raise UsageError("there is no reply yet that could go on")
        if why := COMPLETE.get(reply.stop or ""):
            raise UsageError(why)
        seed = None if reply.stop == "edited" else reply.facts.seed
        self._ids += 1
        begun = reply.go_on(self._ids)
        self.running, self.figures, self.served = reply, reply.figures, None
        messages = self.messages(self.sent.of(self.turns)[:-1])
        return Generate(self._ids, messages, seed, begun=begun, constraint=reply.constraint, keep=self.keep)

    @property
    def keep(self) -> str:
        """The name under which the engine keeps what it read of this chat; empty where it keeps nothing."""
        return self.id if self.kept and not self.unsaved else ""

    def replace_reply(self, turn: Turn, text: str) -> None:
        """Put a reply with this text, in the user's words, beside another one, as a branch."""
        self.branches.cut(turn)
        self.branches.add(Turn("assistant", reply=Reply(0, Figures(), text, [-len(text)], "edited")))
        self._use_branch()

    def messages(self, turns: Sequence[Turn] | None = None) -> list[Message]:
        messages = [Message("system", self.system)] if self.system else []
        turns = self.sent.of(self.turns) if turns is None else turns
        return messages + [m for turn in turns if (m := turn.message()).content]

    def turns_before_next(self) -> Sequence[Turn]:
        return self.sent.before_next(self.turns)

    @property
    def left_out(self) -> int:
        """How many of the oldest turns prompts no longer contain."""
        return len(self.turns) - len(self.turns_before_next())

    def cut_after_question(self, turn: Turn | None = None) -> bool:
        """End the path at a question, so that it can be answered again; False if there is none.

        The question is the turn itself, the one it answers, or the last of the chat.
        """
        turn = turn or (self.turns[-1] if self.turns else None)
        at = 0 if turn is None else self.branches.depth(turn) + (turn.reply is None)
        if at == 0:
            return False
        if at < len(self.turns):
            self.branches.cut(self.turns[at])
        return True

    def end_before(self, turn: Turn) -> None:
        self.branches.cut(turn)
        self._use_branch()

    def question(self, turn: Turn | None = None) -> Turn | None:
        """The user's message that this turn is or answers, or the last one of the chat."""
        end = self.branches.depth(turn) + 1 if turn else len(self.turns)
        return next((turn for turn in reversed(self.turns[:end]) if turn.role == "user"), None)

    def reply_turn(self, turn: Turn | None = None) -> Turn | None:
        """The reply that this turn is or that answers it, or the last one of the chat."""
        start = self.branches.depth(turn) if turn else 0
        replies = [turn for turn in self.turns[start:] if turn.reply is not None]
        return (replies[0] if turn else replies[-1]) if replies else None

    def clear(self) -> None:
        self.end_reply("cancelled")
        self.id, self.title, self.renamed, self.system = new_id(), "", False, self.first_system
        self.branches.clear()
        self.shown_rounds, self.sent = ShownRounds(), SentTurns()
        self.running = self.figures = self.queued = self.editing = None

    def open_stored(self, record: ChatRecord, turns: Iterable[Turn]) -> None:
        self.clear()
        self.id, self.title, self.renamed, self.system = record.id, record.title, record.renamed, record.system
        self.branches.restore(turns, record.leaf)
        self.sent.first = record.sent_from
        self._use_branch()

    def switch(self, turn: Turn, step: int) -> Turn | None:
        """Show another branch; None if there is none on that side."""
        other = self.branches.switch(turn, step)
        self._use_branch()
        return other

    def last_reply(self) -> Reply | None:
        return next((turn.reply for turn in reversed(self.turns) if turn.reply), None)

    def apply(self, event: Event) -> None:
        match event:
            case Started() if self.running and self._is_running(event.id):
                if not self.running.apart:
                    self.engine.use(event.settings, event.loss)
                self.running.start(event)
            case Prefilled() if self.running and self._is_running(event.id):
                self.running.prefilled = (event.done, event.total)
            case RoundDone() if self._is_running(event.id):
                self._on_round(event)
            case Finished() if self.running and self._is_running(event.id):
                self.running.add(event.tail, "target")
                self.running.figures.finish(event)
                self.end_reply(event.stop)
            case Failed(during="generate") if event.id is None or self._is_running(event.id):
                self.end_reply("failed")
            case Died():
                self.engine.apply(event)
                self.end_reply("died")
            case _:
                self.engine.apply(event)

    def replay(self, started: Started) -> list[Turn]:
        """Take over the chat of a recorded reply; returns the turns that are new on the screen."""
        spoken = [m for m in started.messages if m.role != "system"]
        told = [turn.message() for turn in self.turns]
        fresh = spoken[len(told) :] if spoken[: len(told)] == told else spoken
        if len(fresh) == len(spoken):
            self.clear()
        turns = [Turn.of(message) for message in fresh]
        for turn in turns:
            self.branches.add(turn)
        reply = self._begin_reply(started.id)
        for text in started.begun:
            reply.add(text, "target")
        return turns

    def _use_branch(self) -> None:
        reply = self.last_reply()
        self.figures = reply.figures if reply else None
        self._follow_rounds()

    def _follow_rounds(self) -> None:
        self.shown_rounds.follow([turn.reply for turn in self.turns if turn.reply is not None])

    def _begin_reply(self, id: int | None = None) -> Reply:
        if id is None:
            self._ids += 1
        if (before := self.last_reply()) is not None:
            before.drop_pieces()
        self.figures, self.served = Figures(), None
        self.running = Reply(self._ids if id is None else id, self.figures)
        self.branches.add(Turn("assistant", reply=self.running))
        return self.running

    def _is_running(self, id: int) -> bool:
        return self.running is not None and self.running.id == id

    def _on_round(self, event: RoundDone) -> None:
        assert self.running is not None, "rounds are heard only while a reply runs"
        begins = not self.running.rounds
        if not self.running.apart:
            self.running.use(self.engine.settings, self.engine.loss)
        self.running.add_round(event)
        if begins:
            self._follow_rounds()
        self.engine.effect.add(event)

    def end_reply(self, why: str) -> None:
        """End the running reply, if there is one; its text so far stays."""
        if self.running is not None:
            reply, self.running = self.running, None
            reply.stop, reply.facts = why, replace(reply.facts, stop=why)


_OF_THE_APP = ("background", "unsaved", "served")
"""What belongs to no chat and goes on while one is set aside."""


def set_aside(chat: Chat) -> dict[str, Any]:
    """Everything about the chat and its engine, which begin anew; `take_back` shows it again as it was."""
    aside = dict(chat.__dict__)
    fresh = Chat(engine=EngineState(wanted=dict(chat.engine.wanted)))
    chat.__dict__.update({name: value for name, value in fresh.__dict__.items() if name not in _OF_THE_APP})
    return aside


def take_back(chat: Chat, aside: Mapping[str, Any]) -> None:
    chat.__dict__.update({name: value for name, value in aside.items() if name not in _OF_THE_APP})
