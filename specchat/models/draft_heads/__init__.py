"""Networks that are trained for one target and draft for it. This table is all that listing and costing them needs.

A family is one file here: its sizes, its network, how it drafts, its training recipe, its source; and one line below.
Importing the table imports no torch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specchat.models.draft_heads.head import DraftNetwork
    from specchat.models.draft_heads.sizes import NetworkSizes

Kind = Literal["head", "draft model", "masks", "denoiser"]


@dataclass(frozen=True)
class TrainedFamily:
    """One trained family.

    Args:
        method: the drafter that uses its weights.
        where: its class, a `DraftNetwork`: "module:Class" with a module of this package, or a whole dotted name.
        learnt_per_s: tokens of replies that one thread learns from in a second with SmolLM2-135M as the target;
            docs/training.md says on which machine.
        kind: "head" reads the target's hidden states, "draft model" reads tokens alone and runs as draft models do,
            "masks" are rows of the target's own pass, "denoiser" reads tokens alone and fills windows of masks.
        epochs: how often every text is learnt from, by default.
    """

    method: str
    where: str
    learnt_per_s: float
    kind: Kind = "head"
    epochs: float = 3.0

    def load(self) -> type[DraftNetwork[NetworkSizes]]:
        """The family's class. Imports torch."""
        module, _, name = self.where.partition(":")
        whole = module if "." in module else f"{__name__}.{module}"
        found: type[DraftNetwork[NetworkSizes]] = getattr(importlib.import_module(whole), name)
        return found


# Measured: hydra, draft_model, prompt_tokens, mtp, specdiff. eagle's speed is 0.6 of what it was with AdamW, as hydra's
# is; medusa learns as many products as hydra, the others about as many as eagle. Masks run through the whole target
# while they learn, and a quarter of the texts teaches so few numbers what they can learn.
FAMILIES: dict[str, TrainedFamily] = {
    family.method: family
    for family in (
        TrainedFamily("hydra", "hydra:Hydra", 1600.0),
        TrainedFamily("eagle", "eagle:Eagle", 800.0),
        TrainedFamily("medusa", "medusa:Medusa", 1600.0),
        TrainedFamily("selector", "selector:Selector", 1000.0),
        TrainedFamily("amphista", "amphista:Amphista", 800.0),
        TrainedFamily("falcon", "falcon:Falcon", 800.0),
        TrainedFamily("parallel_spec", "parallel_spec:ParallelSpec", 800.0),
        TrainedFamily("clover", "clover:Clover", 800.0),
        TrainedFamily("draft_model", "draft_language_model:DraftLanguageModel", 720.0, "draft model"),
        TrainedFamily("prompt_tokens", "masks:PromptTokens", 260.0, "masks", 0.25),
        TrainedFamily("specdiff", "specdiff:SpecDiff", 320.0, "denoiser"),
        TrainedFamily("mtp", "masks:Mtp", 250.0, "masks", 0.25),
        TrainedFamily("speculative_streaming", "masks:SpeculativeStreaming", 250.0, "masks", 0.25),
    )
}
"""Drafter → the family of its weights."""


def methods(*kinds: Kind) -> tuple[str, ...]:
    """The drafters with weights of these kinds."""
    return tuple(family.method for family in FAMILIES.values() if family.kind in kinds)
