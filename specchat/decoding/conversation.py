"""A reply from prompt to stop: prefill what is new, rounds, live changes, cancel."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.ledger import Ledger
from specchat.core.noise import Noise
from specchat.core.round import Round
from specchat.core.seams import Model
from specchat.core.speedup import Gaps
from specchat.decoding.assemble import (
    Losslessness,
    assemble,
    choose_drafter,
    losslessness,
    sampling,
)
from specchat.decoding.emission import Emission, Limits
from specchat.decoding.plain_rounds import PlainRounds
from specchat.decoding.speculate import Speculator
from specchat.decoding.state_feed import StateFeed
from specchat.decoding.stopping import Stop
from specchat.decoding.stopwatch import Stopwatch
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.parts import Supplies
from specchat.errors import ModelError, UsageError
from specchat.settings import Settings


@dataclass(frozen=True)
class Begun:
    """The reply begins: which seed it uses and how much of the prompt the cache held."""

    prompt_tokens: int
    reused_tokens: int
    seed: int


@dataclass(frozen=True)
class Prefilled:
    """Prompt tokens read so far, of those that had to be read."""

    done: int
    total: int
    at_s: float


@dataclass(frozen=True)
class Spoken:
    """A round was done. `texts[i]` is what became readable with the i-th emitted token; `last`: none will follow."""

    round: Round
    texts: tuple[str, ...]
    at_s: float
    last: bool = False


@dataclass(frozen=True)
class Ended:
    """The reply is complete."""

    stop: Stop
    tail: str
    ledger: Ledger
    gaps: Gaps
    prefill_s: float
    at_s: float
    stop_string: str | None


Event = Begun | Spoken | Ended


class _Cancelled(Exception):
    """Raised inside a prefill that somebody stopped."""


class Conversation:
    """Replies of one loaded pair. Settings may change while a reply is being written; they act between rounds.

    Args:
        plain_rounds: have a plain round now and then, by which a reply can say how much sooner it came. Whoever
            measures plain decoding apart needs none.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        vocabulary: Vocabulary,
        settings: Settings,
        costs: Costs | None = None,
        supplies: Supplies | None = None,
        *,
        plain_rounds: bool = False,
    ) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self._draft = draft
        self._settings = settings
        self._costs = costs
        self._plain_rounds = plain_rounds
        self._supplies = supplies or Supplies(vocabulary)
        self._speculator = self._put_together(None)
        self._drafter_choice = choose_drafter(settings)
        self._feeds = {self._drafter_choice: self._speculator.feed}
        self._assembled: Settings | None = settings

    @property
    def settings(self) -> Settings:
        """The settings in force from the next round on."""
        return self._settings

    @property
    def losslessness(self) -> Losslessness:
        """What may be claimed for the settings in force."""
        parts = assemble(self._settings, self.target, self._draft, supplies=self._supplies.keeping(None))
        return losslessness(parts.rule, self._settings.rule)

    def apart(self, changes: Mapping[str, Any], target: Model | None = None) -> Conversation:
        """The same models with some settings changed and parts that have learnt nothing; this one stays as it is.

        `target` is one to use instead: the same weights with a cache of its own.
        """
        settings = self._settings.but(changes)
        model = target or self.target
        return Conversation(model, self._draft, self.vocabulary, settings, self._costs, self._supplies.keeping(None))

    def change(self, settings: Settings) -> None:
        """Use these settings from the next round on; refuses what does not fit and then changes nothing."""
        assemble(settings, self.target, self._draft, supplies=self._supplies.keeping(None))
        self._settings = settings

    def supply(self, supplies: Supplies) -> None:
        """Build drafters from these from now on; those that were built stay."""
        self._supplies = supplies

    def learn_costs(self, costs: Costs) -> None:
        """Plan with these costs from now on."""
        self._costs = costs
        self._assembled = None

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The messages as tokens, ready for a reply to begin.

        Raises:
            ModelError: the tokenizer names a token for which the target has no row.
        """
        tokens = self.vocabulary.encode_chat(list(messages))
        if (largest := max(tokens, default=0)) >= self.target.vocab_size:
            raise ModelError(f"the tokenizer gives token {largest}, and the model knows {self.target.vocab_size}")
        return tokens

    def reply(
        self,
        prompt: Sequence[int],
        seed: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        on_prefill: Callable[[Prefilled], None] = lambda progress: None,
        watch: Stopwatch | None = None,
    ) -> Iterator[Event]:
        """Write one reply to the prompt's tokens.

        Yields Begun, Spoken…, Ended; `on_prefill` hears about the prompt being read in between. The cache keeps
        what was read, so a follow-up prompt reads only what is new. Times are what `watch` shows; whoever lets the
        reply wait between two rounds stops it meanwhile.

        Raises:
            UsageError: the prompt is empty or leaves no room in the context.
        """
        self._check_room(prompt)
        if seed is None:
            seed = self._settings.seed if self._settings.seed >= 0 else secrets.randbits(53)
        speculator = self._current_speculator(None)
        context = Context(list(prompt), len(prompt), self.target.vocab_size, noise=Noise(seed))
        emission = Emission(self.vocabulary, self._limits(context))
        ledger, gaps = Ledger(), Gaps()
        watch = watch or Stopwatch()
        watch.start()

        yield Begun(len(prompt), speculator.feed.reusable(self.target, context.history[:-1]), seed)

        def on_chunk(done: int, total: int) -> None:
            on_prefill(Prefilled(done, total, watch.seconds))
            if cancelled():
                raise _Cancelled

        try:
            speculator.start(context.history, on_chunk)
        except _Cancelled:
            emission.ended = Stop.CANCELLED
        prefill_s = watch.seconds
        while emission.ended is None:
            if cancelled():
                emission.ended = Stop.CANCELLED
            else:
                speculator = self._current_speculator(context)
                emission.limit(self._limits(context))
                spoken = self._round(speculator, context, emission, ledger, watch)
                gaps.add(spoken.at_s, *_counted(spoken.round))
                yield spoken
        tail = emission.finish()
        at_s = watch.seconds
        gaps.end(at_s)
        yield Ended(emission.ended, tail, ledger, gaps, prefill_s, at_s, emission.stop_string)

    def _round(
        self, speculator: Speculator, context: Context, emission: Emission, ledger: Ledger, watch: Stopwatch
    ) -> Spoken:
        texts: list[str] = []

        def cut(emitted: Sequence[int]) -> int:
            texts.extend(emission.take(emitted))
            return len(texts)

        context.sampling = sampling(self._settings)
        round = speculator.round(context, cut)
        ledger.add(round)
        return Spoken(round, tuple(texts), watch.seconds, emission.ended is not None)

    def _current_speculator(self, context: Context | None) -> Speculator:
        """The speculator for the settings in force; a drafter keeps what it has learnt, also while it is not used."""
        if self._settings is not self._assembled:
            choice = choose_drafter(self._settings)
            stays = choice == self._drafter_choice
            self._speculator = self._put_together(self._feeds.get(choice))
            self._feeds[choice] = self._speculator.feed
            self._assembled, self._drafter_choice = self._settings, choice
            if not stays and context is not None:
                self._speculator.start(context.history)
        return self._speculator

    def _put_together(self, feed: StateFeed | None) -> Speculator:
        speculator = assemble(self._settings, self.target, self._draft, feed, self._costs, self._supplies)
        if self._plain_rounds:
            speculator.controller = PlainRounds(speculator.controller)
        return speculator

    def _limits(self, context: Context) -> Limits:
        room = self.target.context_tokens - context.prompt_tokens
        return Limits(self._settings.max_tokens, room, self._settings.stop)

    def _check_room(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise UsageError("the prompt is empty: there is no token to go on from")
        if len(prompt) >= self.target.context_tokens:
            raise UsageError(
                f"the prompt takes {len(prompt)} tokens and the context of this model holds "
                f"{self.target.context_tokens}; shorten it, or start a new chat"
            )


def _counted(round: Round) -> tuple[float, int, int, bool]:
    """What counts of a round for the gaps: its own seconds, its tokens, what it drafted, whether it was plain."""
    timings = round.timings
    own_s = timings.draft_s + timings.verify_s + timings.other_s
    return own_s, len(round.emitted), round.tree.drafted, round.budget.nodes == 0
