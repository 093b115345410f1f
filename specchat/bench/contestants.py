"""The contestants of a benchmark: configurations over the loaded pair, cold or warmed up by other prompts' replies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from specchat.bench.circumstances import EnergyMeter
from specchat.bench.configurations import Configuration
from specchat.bench.measured_reply import Work, Written
from specchat.bench.peer_engines import Peer
from specchat.core.constraint import ConstraintSource
from specchat.core.costs import Costs
from specchat.decoding.conversation import Conversation
from specchat.decoding.kept_parts import ControllerCache
from specchat.decoding.reply_events import ReplyEnded, RoundWritten
from specchat.engine.server.loaded_pair import LoadedPair

_WARM_UP_TOKENS = 16


class Ours:
    """One configuration. A cold one gets a new conversation, and so an untrained drafter, for every question.

    Its controller goes on, as it does from chat to chat: what that learns is times and counts, not texts.

    Args:
        taught: go on with the same drafter from question to question; `forget` starts anew.
        costs: what passes cost here, for controllers that plan with it.
    """

    def __init__(
        self, configuration: Configuration, pair: LoadedPair, taught: bool = False, costs: Costs | None = None
    ) -> None:
        self.configuration = configuration
        self.taught = taught
        self._pair = pair
        self._costs = costs
        self._meter = EnergyMeter(pair.device)
        self._controllers = ControllerCache()
        self._conversation = self._new()

    @property
    def name(self) -> str:
        return f"{self.configuration.name} (warm)" if self.taught else self.configuration.name

    @property
    def lossless(self) -> bool:
        return self._conversation.losslessness.lossless

    def begin(self) -> None:
        if not self.taught:
            self._conversation = self._new()

    def forget(self) -> None:
        self._controllers.forget()
        self._conversation = self._new()

    def warm_up(self, prompt: list[int]) -> None:
        for _ in self._new({"max_tokens": _WARM_UP_TOKENS}).reply(prompt, 0):
            pass

    def write(self, prompt: list[int], seed: int, json_schema: str = "") -> Written:
        """One reply, from an empty cache: every contestant reads the whole prompt."""
        self._pair.target.model.prefill(())
        for draft in self._pair.drafts:
            draft.model.prefill(())
        tokens: list[int] = []
        texts: list[str] = []
        by_rows: dict[int, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        source = ConstraintSource("json_schema", json_schema) if json_schema else None
        constraint = None if source is None else self._conversation.compile(source)
        before = self._meter.joules()
        ended: ReplyEnded | None = None
        for event in self._conversation.reply(prompt, seed, constraint=constraint):
            match event:
                case RoundWritten(round=round, texts=new):
                    tokens += round.emitted
                    texts += new
                    passes, seconds = by_rows[round.rows]
                    by_rows[round.rows] = (passes + 1, seconds + round.timings.verify_s)
                case ReplyEnded():
                    ended = event
        assert ended is not None, "a reply ends"
        return Written(
            tokens=tuple(tokens),
            text="".join(texts) + ended.tail,
            stop=ended.stop.value,
            prefill_s=ended.prefill_s,
            decode_s=ended.at_s - ended.prefill_s,
            work=_work(ended, by_rows),
            energy_j=self._meter.since(before),
        )

    def _new(self, changes: Mapping[str, Any] | None = None) -> Conversation:
        pair, settings = self._pair, self.configuration.settings.but(changes or {})
        models = (pair.target.model, pair.draft.model if pair.draft else None, pair.vocabulary)
        return Conversation(*models, settings, self._costs, pair.resources, controllers=self._controllers)


Contestant = Ours | Peer
"""Writes replies to prompts given as tokens. `begin` is called before each question, `warm_up` before the first."""


def _work(ended: ReplyEnded, by_rows: dict[int, tuple[int, float]]) -> Work:
    """The ledger's figures; what passed on the clock besides drafting and verifying is other work."""
    ledger = ended.ledger
    decode_s = ended.at_s - ended.prefill_s
    return Work(
        rounds=ledger.rounds,
        drafted=ledger.drafted,
        accepted=ledger.accepted,
        draft_passes=ledger.draft_passes,
        draft_s=ledger.draft_s,
        verify_s=ledger.verify_s,
        other_s=max(0.0, decode_s - ledger.draft_s - ledger.verify_s),
        offered_by_depth=tuple(ledger.offered_by_depth),
        accepted_by_depth=tuple(ledger.accepted_by_depth),
        verify_by_rows=dict(by_rows),
    )
