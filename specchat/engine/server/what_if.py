"""Answers what the rounds of a reply would have been under other settings; what waits is answered first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from specchat.core.constraint import ConstraintSource
from specchat.core.costs import Costs
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import RoundWritten
from specchat.decoding.what_if import RedoneRound, RoundTotals, in_full, redo, text_decides
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, WhatIf
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.copy_sources import CopySources
from specchat.engine.server.event_conversion import encode_messages, round_message
from specchat.engine.server.open_pair import CurrentPair
from specchat.errors import PromptTooLong, UsageError, short
from specchat.settings import Settings


class WhatIfAnswers:
    """Does replies once more, by parts and settings that stand apart from those in use.

    Args:
        meanwhile: given each command that arrives; says whether it waits for the end.
    """

    def __init__(
        self,
        pair: CurrentPair,
        commands: CommandQueue,
        meanwhile: Callable[[Command], bool],
        emit: Callable[[events.Event], None],
    ) -> None:
        self._pair, self._commands, self._meanwhile, self._emit = pair, commands, meanwhile, emit
        self._before: tuple[object, RoundTotals] | None = None  # the last reply that was done with its own settings

    def answer(self, command: WhatIf) -> events.WouldBe:
        """The reply's rounds with its own settings, and with the others.

        Raises:
            UsageError: it is another pair's, a token is outside the vocabulary, or a setting cannot be so.
            CombinationError: parts that cannot be right together.
        """
        now = self._pair.open
        chat = now.conversation
        if command.pair != chat.settings.pair:
            raise UsageError(f"the reply was written with {short(command.pair)}, and {chat.settings.pair} is loaded")
        own = dataclasses.replace(chat.settings, method_options={}).changed_live(command.own)
        other = own.changed_live(command.changes)
        prompt, text = encode_messages(chat, command.messages), chat.encode_begun((), command.tokens)
        if len(prompt) + len(text) >= chat.target.context_tokens:
            raise PromptTooLong(
                f"the reply and what it answers take {len(prompt) + len(text)} tokens, and the context of this model "
                f"holds {chat.target.context_tokens}"
            )
        for settings in (own, other):
            chat.check(settings, now.loaded.offered)
            self._pair.add_drafts(settings)
        try:
            return self._answer(command, own, other, prompt, text)
        finally:
            self._commands.forget_cancel(command.id)

    def _answer(
        self, command: WhatIf, own: Settings, other: Settings, prompt: list[int], text: list[int]
    ) -> events.WouldBe:
        now, full = self._pair.open, in_full(own, other)
        own, other = full or (own, other)
        plain = () if full else command.plain
        chat, decided, costs = now.conversation, text_decides(own, other), now.idle.measuring.costs
        told: list[events.RoundDone] = []
        key = (own, decided, prompt, text, command.seed, command.plain, command.constraint, now.loaded.trained)
        known = self._before is not None and self._before[0] == key
        progress = _Progress(self._emit, command.id, len(prompt) + len(text), runs=1 if known else 2)

        def done(settings: Settings, boundary: int | None, *, guesses_there: bool = False) -> RoundTotals:
            totals = RoundTotals()
            held = command.constraint
            constraint = None if held is None else chat.compile(ConstraintSource(held.kind, held.text))
            with chat.apart(settings) as apart:
                for redone in redo(
                    apart, prompt, text, command.seed, decides=decided,
                    costs=costs, plain=plain,
                    constraint=constraint, boundary=boundary,
                    guesses_there=guesses_there, cancelled=lambda: self._ends(command.id),
                    on_prefill=lambda read: progress.reach(read.done + len(prompt) - read.total),
                ):  # fmt: skip
                    totals.add(redone)
                    progress.reach(len(prompt) + redone.place)
                    if redone.place == boundary:
                        told.append(self._told(command, apart, prompt, redone))
            progress.end_run()
            return totals

        if not known:
            totals = done(own, None)
            if not totals.whole:
                return events.WouldBe(command.id, stopped=True)
            self._before = key, totals
        assert self._before is not None, "it was just done, if it was not known"
        before = self._before[1]
        after = done(other, command.at, guesses_there=command.at not in before.plain_places)
        if not after.whole:
            return events.WouldBe(command.id, stopped=True)
        return events.WouldBe(
            command.id,
            _told_totals(before, costs, after),
            _told_totals(after, costs, before),
            decided,
            measured=costs is not None,
            full=full is not None,
            round=told[0] if told else None,
        )

    def _ends(self, id: int) -> bool:
        """Whether it is to end now: it was cancelled, or something else waits."""
        waits = [self._meanwhile(command) for command in self._commands.pending()]
        return any(waits) or self._commands.cancelled(id)

    def _told(
        self, command: WhatIf, chat: Conversation, prompt: Sequence[int], redone: RedoneRound
    ) -> events.RoundDone:
        vocabulary = chat.vocabulary
        texts = tuple(vocabulary.token_label(token) for token in redone.round.emitted)
        copies = CopySources(vocabulary, command.messages, list(prompt))
        return round_message(command.id, RoundWritten(redone.round, texts, 0.0), vocabulary, copies)


class _Progress:
    """Tells of every twentieth of the tokens that are done, in so many runs over prompt and reply."""

    def __init__(self, emit: Callable[[events.Event], None], id: int, tokens: int, runs: int) -> None:
        self._emit, self._id, self._tokens, self._total = emit, id, tokens, runs * tokens
        self._begun, self._told = 0, 0  # where this run begins; twentieths that were told of

    def reach(self, place: int) -> None:
        """This run has come to this token."""
        done = self._begun + place
        if (parts := 20 * done // self._total) > self._told:
            self._told = parts
            self._emit(events.Redoing(self._id, done, self._total))

    def end_run(self) -> None:
        """What comes next is of the next run."""
        self._begun += self._tokens


def _told_totals(totals: RoundTotals, costs: Costs | None, beside: RoundTotals) -> events.RedoneRounds:
    return events.RedoneRounds(totals.rounds, totals.tokens, totals.drafted, totals.round_s(costs, beside))
