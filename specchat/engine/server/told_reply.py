"""A reply as a command asks for it, and its events as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from specchat.core.constraint import Constraint, ConstraintSource
from specchat.core.request import FIRST, LIKELIEST, LOGITS
from specchat.decoding.conversation import Conversation, PromptDue, Steps
from specchat.decoding.reply_events import Event, PromptRead, ReplyEnded, ReplyStarted, RoundWritten, Stopwatch
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Generate
from specchat.engine.server.copy_sources import CopySources
from specchat.engine.server.event_conversion import likely_tokens, round_message, started_message, stats_message
from specchat.engine.server.open_pair import OpenPair


def _constraint(conversation: Conversation, command: Generate, prompt: Sequence[int]) -> Constraint | None:
    held = command.constraint
    if held is None:
        return None
    if held.kind == "calls":
        return conversation.hold_calls(command.tools, prompt, chosen=held.chosen, single=held.single)
    return conversation.compile(ConstraintSource(held.kind, held.text))


class ToldReply:
    """A reply of a conversation that tells the client of itself.

    Raises, when it is made, what compiling its constraint raises.
    """

    def __init__(
        self,
        command: Generate,
        prompt: list[int],
        conversation: Conversation,
        pair: OpenPair,
        emit: Callable[[events.Event], None],
        watch: Stopwatch,
        cancelled: Callable[[], bool],
    ) -> None:
        self._command, self._conversation, self._pair = command, conversation, pair
        self._emit, self._watch, self._cancelled = emit, watch, cancelled
        self._prompt = prompt
        # Not a method of this reply: nothing that it holds refers to it, so it goes as soon as it ends.
        stored = partial(_stored_text, conversation)
        self._copies = CopySources(conversation.vocabulary, command.messages, self._prompt, stored)
        self._started: ReplyStarted | None = None
        shown = LOGITS if command.logprobs or command.top_logprobs is not None else FIRST
        self._asked: dict[str, Any] = {
            "seed": command.seed,
            "cancelled": cancelled,
            "watch": watch,
            "reference": conversation.encode_reference(command.reference),
            "begun": conversation.encode_begun(command.begun, command.begun_tokens),
            "shown": shown | (LIKELIEST if command.top_logprobs else FIRST),
            "constraint": _constraint(conversation, command, prompt),
            "bias": command.logit_bias,
            "own": command.own,
        }

    def alone(self) -> Iterator[Event]:
        """The reply by itself."""
        for _ in self._scored_prompt():
            pass
        return self._conversation.reply(self._prompt, on_prefill=self._tell_prefilled, **self._asked)

    def steps(self) -> Steps:
        """The reply with stops where others may go on; see `Conversation.steps`."""
        for left in self._scored_prompt():
            yield PromptDue(left)
        yield from self._conversation.steps(self._prompt, on_prefill=self._tell_prefilled, **self._asked)

    def tell(self, event: Event) -> None:
        """Tell the client of an event of the reply."""
        command, id = self._command, self._command.id
        match event:
            case ReplyStarted():
                self._started = event
                settings = self._conversation.with_own(command.own)
                self._emit(started_message(command, event, settings, self._pair.loaded))
            case RoundWritten():
                vocabulary = self._conversation.vocabulary
                self._emit(round_message(id, event, vocabulary, self._copies, command.logprobs, command.top_logprobs))
            case ReplyEnded():
                assert self._started is not None, "a reply begins before it ends"
                ended = (event.at_s, event.stop_string)
                self._emit(events.Finished(id, event.stop.value, event.tail, self._stats(self._started, event), *ended))

    def _scored_prompt(self) -> Iterator[int]:
        """Tell of the prompt's tokens where that is asked for, some at a time; after each so many are left."""
        top, left = self._command.top_logprobs, len(self._prompt)
        if not self._command.prompt_logprobs or top is None:
            return
        vocabulary = self._conversation.vocabulary
        for reading, tokens in self._conversation.teacher_forced(self._prompt, self._cancelled):
            known = likely_tokens(reading, range(len(tokens)), tokens, vocabulary, top)
            self._emit(events.PromptLogprobs(self._command.id, known))
            left -= len(tokens)
            yield left

    def _tell_prefilled(self, progress: PromptRead) -> None:
        self._emit(events.Prefilled(self._command.id, progress.done, progress.total, progress.at_s))

    def _stats(self, started: ReplyStarted, ended: ReplyEnded) -> events.Stats:
        """The reply's figures. Decoding time is what passed on the clock, sending events included."""
        ledger = ended.ledger
        decode_s = ended.at_s - ended.prefill_s
        ledger.other_s = max(0.0, decode_s - ledger.draft_s - ledger.verify_s)
        totals = self._pair.totals
        totals.replies += 1
        totals.ledger.add_ledger(ledger)
        return stats_message(ledger, ended.prefill_s, ended.gaps, started.prompt_tokens, started.reused_tokens)


def _stored_text(conversation: Conversation, source: int, most: int) -> tuple[str, int, Sequence[int]] | None:
    return conversation.speculator.drafter.stored_text(source, most)
