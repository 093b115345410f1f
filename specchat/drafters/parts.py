"""What `assemble` hands every drafter: whatever a drafter may be built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafter, TrainedDrafters
from specchat.core.noise import Noise
from specchat.core.seams import Drafter, Engine, Model, TrainedNetwork, Weights
from specchat.core.vocabulary import TokenTable
from specchat.drafters import DRAFTERS

EngineFactory = Callable[[Mapping[str, Any], Model, Model | None], Engine]
"""(settings by name, the model that writes, its draft model) → an engine of its own."""

NetworkFactory = Callable[[Weights, TrainedDrafter, int], TrainedNetwork]
"""(target, trained weights, how many frequent tokens) → the network."""


@dataclass(frozen=True)
class Supplies:
    """What a pair has for its drafters besides models.

    Args:
        vocabulary, draft_vocabulary: the tokens of the target and of the draft model.
        trained: drafters that were trained for the target.
        keep: called with every drafter that is built, and the name under which its state is kept.
    """

    vocabulary: TokenTable | None = None
    draft_vocabulary: TokenTable | None = None
    trained: TrainedDrafters = NO_TRAINED
    keep: Callable[[str, Drafter], None] | None = None

    def keeping(self, keep: Callable[[str, Drafter], None] | None) -> Supplies:
        """The same with another who keeps drafters; None: nobody does, and they begin with nothing learnt."""
        return dataclasses.replace(self, keep=keep)


NO_SUPPLIES = Supplies()
"""Models alone."""


@dataclass(frozen=True)
class Parts:
    """What one drafter may be built from.

    Args:
        target: the target's weights. Its cache is not the drafter's to touch: it takes a twin or a view.
        draft_model: the pair's, if it has one.
        options: options of the drafters that this one is made of, by name; defaults where a name is missing.
        supplies: what else the pair has.
        name: the drafter's, in its family's table.
        label: tells this drafter from all others of the engine.
        trained: its verified weights, where the table says that it needs some.
        make_engine: see `engine`.
        make_network: see `network`.
    """

    target: Weights
    draft_model: Model | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    supplies: Supplies = NO_SUPPLIES
    name: str = ""
    label: str = ""
    trained: TrainedDrafter | None = None
    make_engine: EngineFactory | None = None
    make_network: NetworkFactory | None = None

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.target.vocab_size

    def noise(self, noise: Noise) -> Noise:
        """Noise of this drafter's own, from that of a reply (`Context.noise`)."""
        return noise.child(f"drafter/{self.label}")

    def member(self, name: str, place: int = 0, options: Any = None) -> Drafter:
        """A drafter that this one is made of, built from the same parts.

        Args:
            place: tells members of one name apart.
            options: those of the settings, or its defaults, where None.

        Raises:
            CombinationError: it needs weights trained for the target, and there are none.
        """
        method = DRAFTERS[name]
        chosen = options or self.options.get(name) or method.options()
        label = f"{self.label}/{place}.{name}"
        trained = self.supplies.trained.choose(name, chosen.weights) if method.needs_weights else None
        parts = dataclasses.replace(self, name=name, label=label, trained=trained)
        drafter: Drafter = method.load()(chosen, parts)
        if self.supplies.keep is not None:
            self.supplies.keep(trained.name if trained else name, drafter)
        return drafter

    def network(self, tokens: int) -> TrainedNetwork:
        """The network of this drafter's trained weights, which guesses so many frequent tokens besides the text's."""
        assert self.trained is not None, "the table says that it needs weights"
        assert self.make_network is not None, "assemble hands out networks"
        return self.make_network(self.target, self.trained, tokens)

    def engine(self, settings: Mapping[str, Any], model: Model, draft: Model | None = None) -> Engine:
        """A whole engine that writes with another model, to draft with.

        It samples as the context of its rounds says. It speculates as `settings` say, and not at all where they are
        silent.
        """
        assert self.make_engine is not None, "assemble hands out engines"
        return self.make_engine(settings, model, draft)
