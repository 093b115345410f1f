"""What `assemble` hands every drafter: whatever a drafter may be built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specchat.core.noise import Noise
from specchat.core.seams import Drafter, Engine, Model, Weights
from specchat.core.vocabulary import TokenTable
from specchat.drafters.choice import DrafterChoice, choose
from specchat.settings import Settings

EngineFactory = Callable[[Mapping[str, Any], Model, Model | None], Engine]
"""(settings by name, the model that writes, its draft model) → an engine of its own."""


@dataclass(frozen=True)
class PairResources:
    """What a pair has for its drafters besides models.

    Args:
        vocabulary, draft_vocabulary: the tokens of the target and of the draft model.
        trained: drafter → file → where that verified file of trained weights lies.
    """

    vocabulary: TokenTable | None = None
    draft_vocabulary: TokenTable | None = None
    trained: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)


NO_RESOURCES = PairResources()
"""Models alone."""


@dataclass(frozen=True)
class Parts:
    """What one drafter may be built from.

    Args:
        target: the target's weights. Its cache is not the drafter's to touch: it takes a twin or a view.
        draft_model: the pair's, if it has one.
        choices: the drafters that this one is made of, as its options name them.
        resources: what else the pair has.
        name: the drafter's, in its family's table.
        label: tells this drafter from all others of the engine.
        make_engine: see `engine`.
    """

    target: Weights
    draft_model: Model | None = None
    choices: tuple[DrafterChoice, ...] = ()
    resources: PairResources = NO_RESOURCES
    name: str = ""
    label: str = ""
    make_engine: EngineFactory | None = None

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.target.vocab_size

    @property
    def trained(self) -> Mapping[str, Path]:
        """Verified files of this drafter's trained weights, by name."""
        return self.resources.trained.get(self.name, {})

    def noise(self, noise: Noise) -> Noise:
        """Noise of this drafter's own, from that of a reply (`Context.noise`)."""
        return noise.child(f"drafter/{self.label}")

    def build(self, choice: DrafterChoice, place: int = 0) -> Drafter:
        """A drafter from the same parts.

        Args:
            place: tells members of one name apart.
        """
        label = f"{self.label}/{place}.{choice.name}"
        parts = dataclasses.replace(self, choices=choice.members, name=choice.name, label=label)
        drafter: Drafter = choice.method.load()(choice.options, parts)
        return drafter

    def members(self) -> list[Drafter]:
        """The drafters that its options name, in order.

        A draft model keeps the tree of one drafter. So the first member that uses it gets the pair's, and every other
        one a twin: the same weights with a cache of its own.
        """
        built: list[Drafter] = []
        taken = False
        for place, choice in enumerate(self.choices):
            parts = self
            if choice.needs_draft_model and taken:
                assert self.draft_model is not None, "assemble refuses a drafter whose members lack a draft model"
                parts = dataclasses.replace(self, draft_model=self.draft_model.twin())
            taken = taken or choice.needs_draft_model
            built.append(parts.build(choice, place))
        return built

    def member(self, name: str, place: int = 0) -> Drafter:
        """A drafter that this one always has inside, with default options."""
        return self.build(choose(name, Settings()), place)

    def engine(self, settings: Mapping[str, Any], model: Model, draft: Model | None = None) -> Engine:
        """A whole engine that writes with another model, to draft with.

        It samples as the context of its rounds says. It speculates as `settings` say, and not at all where they are
        silent.
        """
        assert self.make_engine is not None, "assemble hands out engines"
        return self.make_engine(settings, model, draft)
