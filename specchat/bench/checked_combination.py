"""One combination over a loaded pair, as checks see it: how it writes, what counts as a tie, how much is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from specchat.bench.workloads import own_workload
from specchat.core.round import Round
from specchat.core.seams import Model
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import RoundWritten
from specchat.decoding.teacher_forcing import disturbance, forced
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.parts import PairResources
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.settings import Settings

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Finding:
    """The result of one check, in a sentence and in figures."""

    claim: str
    status: str
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


def skipped_without_guesses(finding: Finding, settings: Settings) -> Finding:
    """The finding; where it passed without a drafted token, one that nothing was tested, and what would change that."""
    if finding.status != PASSED or finding.figures["drafted"]:
        return finding
    usual = Settings()
    if settings.drafter == "none":
        why = f"drafter 'none' proposes nothing; set another one, such as --drafter {usual.drafter}"
    elif settings.controller == "off":
        why = f"controller 'off' is plain decoding; set --controller {usual.controller}"
    elif settings.nodes == 0:
        why = f"nodes = 0 is plain decoding; set --nodes {usual.nodes}"
    elif settings.controller != "fixed":
        why = f"controller {settings.controller!r} planned no nodes; set --controller fixed"
    else:
        why = f"drafter {settings.drafter!r} found nothing to propose; set --budget full, or another drafter"
    return replace(finding, status=SKIPPED, detail=f"no guess was made: {why}")


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Args:
        prompts: whose greedy texts are compared.
        tokens: of each greedy text.
        seeds: how many sampled texts are compared.
        sampled_tokens: of each sampled text.
        twin_tokens: drafted for by the target itself.
        adversary_tokens: written against a drafter that is always wrong.
        samples: of the first two tokens, for the test of the law.
    """

    prompts: int
    tokens: int
    seeds: int
    sampled_tokens: int
    twin_tokens: int
    adversary_tokens: int
    samples: int


EFFORTS = {
    # Shorter texts of the scripted pair repeat nothing, so that no guess would be right.
    "small": Effort(prompts=2, tokens=64, seeds=1, sampled_tokens=64, twin_tokens=24, adversary_tokens=16, samples=200),
    "full": Effort(prompts=8, tokens=96, seeds=6, sampled_tokens=64, twin_tokens=96, adversary_tokens=64, samples=1200),
}
"""By the names that `--budget` takes."""


NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Settings without penalties."""


@dataclass(frozen=True)
class Text:
    """A reply with the rounds it took."""

    tokens: list[int]
    rounds: list[Round]

    @property
    def drafted(self) -> int:
        return sum(round.tree.drafted for round in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(round.accepted for round in self.rounds)


@dataclass(eq=False)
class CheckedCombination:
    """One combination over one target.

    Args:
        exact: the texts must be the same, token by token; elsewhere ties of rounded numbers are excused.
    """

    target: Model
    draft: Model | None
    vocabulary: Vocabulary
    settings: Settings
    effort: Effort
    exact: bool
    resources: PairResources | None = None

    @classmethod
    def of(cls, pair: LoadedPair, settings: Settings, effort: Effort) -> CheckedCombination:
        draft = pair.draft.model if pair.draft else None
        return cls(pair.target.model, draft, pair.vocabulary, settings, effort, pair.exact, pair.resources)

    @property
    def lossless(self) -> bool:
        """Whether the combination claims to write exactly the target's text."""
        return self.conversation(self.settings).losslessness.lossless

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Prompts of our own set, one of each category in turn, as tokens."""
        chosen = own_workload().first_turns().limited(self.effort.prompts).questions
        encoded = [self.vocabulary.encode_chat([{"role": "user", "content": q.turns[0]}]) for q in chosen]
        room = self.target.context_tokens - self.effort.tokens - 1
        return [prompt for prompt in encoded if len(prompt) <= room]

    @cached_property
    def greedy_settings(self) -> Settings:
        return self.settings.but({"temperature": 0.0, "max_tokens": self.effort.tokens})

    @cached_property
    def greedy_plain(self) -> list[Text]:
        """Plain decoding's own text for every prompt."""
        plain = self.greedy_settings.but({"controller": "off"})
        return [self.write(plain, prompt) for prompt in self.prompts]

    @cached_property
    def first_logits(self) -> list[Tensor]:
        """(V,) each: what plain decoding goes by along its own text for the first prompt."""
        return [row.clone() for row in forced(self.target, self.prompts[0], self.greedy_plain[0].tokens)]

    @cached_property
    def moved(self) -> float:
        """How far two likely logits move against each other between passes of one row and of several."""
        reply = self.greedy_plain[0].tokens
        sizes = sorted({2, 4, self.settings.nodes + 1})
        return max(disturbance(self.first_logits, self.target, self.prompts[0], reply, rows) for rows in sizes)

    def conversation(self, settings: Settings, draft: Model | None = None) -> Conversation:
        """A conversation with nothing learnt yet; `draft` takes the place of the pair's draft model."""
        return Conversation(self.target, draft or self.draft, self.vocabulary, settings, resources=self.resources)

    def write(self, settings: Settings, prompt: Sequence[int], seed: int = 0, draft: Model | None = None) -> Text:
        """One reply from an empty cache."""
        self.target.prefill(())
        return write(self.conversation(settings, draft), prompt, seed)


def write(conversation: Conversation, prompt: Sequence[int], seed: int) -> Text:
    rounds = [event.round for event in conversation.reply(prompt, seed) if isinstance(event, RoundWritten)]
    return Text([token for round in rounds for token in round.emitted], rounds)
