"""The parts that `assemble` hands every drafter: whatever a drafter may be built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafter, TrainedDrafters
from specchat.core.drafting_networks import (
    Denoiser,
    LearningDraft,
    LearningTrainedNetwork,
    MaskRows,
    Prunable,
    TrainedNetwork,
)
from specchat.core.memory import MemoryLimit
from specchat.core.noise import Noise
from specchat.core.seams import Drafter, Model, NestedEngine, Weights
from specchat.core.vocabulary import TokenTable
from specchat.drafters.choice import DrafterChoice
from specchat.errors import CombinationError

if TYPE_CHECKING:
    from specchat.config.datastore_files import Datastores

EngineFactory = Callable[[Mapping[str, Any], Model, Model | None, "PairResources"], NestedEngine]
"""(settings by name, the model that writes, its draft model, what else there is) → an engine of its own."""

NetworkFactory = Callable[[Weights, TrainedDrafter, int], LearningTrainedNetwork]
"""(target, trained weights, how many frequent tokens) → the network."""

LearningFactory = Callable[[Model, str, int, Callable[[], str]], LearningDraft | None]
"""(draft model, divergence, most topics, its weights' checksum) → what lets it learn; None where it cannot."""

MaskFactory = Callable[[Weights, TrainedDrafter], MaskRows]
"""(target, trained weights) → the masks."""

DenoiserFactory = Callable[[Weights, TrainedDrafter, int, int, int], Denoiser]
"""(target, trained weights, how many frequent tokens, places of a window, steps) → the network."""


@dataclass(frozen=True)
class FurtherDraft:
    """A draft model of a pair besides its first.

    Args:
        vocabulary: its tokens; the target's own object where they are the same.
    """

    model: Model
    vocabulary: TokenTable | None = None


@dataclass(frozen=True)
class PairResources:
    """The resources of a pair for its drafters besides target and first draft model, and the memory they may take.

    Args:
        vocabulary, draft_vocabulary: the tokens of the target and of the draft model; one object where they are the
            same.
        draft_name: the draft model's name.
        further: the draft models after it, by name.
        trained: drafters that were trained for the target.
        datastores: those with the target's tokens; None where none were looked for.
        keep: called with every drafter that is built, and the name under which its state is kept.
        memory: the most that the pair may take; None: no limit.
        shipped: the drafting head in the target's own files, with a cache of its own each time; None without one.
        prunable: the target's weights, where narrower networks can be made of them.
        make_learning: how a draft model learns; None where none does.
        draft_sha256: the checksum of the weights of the draft model with this name, by which what was learnt on them is
            known; None where nothing is kept.
        make_network, make_masks, make_denoiser: how trained weights become the network, the masks or the denoiser of a
            drafter; see `Parts.network`, `Parts.masks` and `Parts.denoiser`.
    """

    vocabulary: TokenTable | None = None
    draft_vocabulary: TokenTable | None = None
    draft_name: str = ""
    further: Mapping[str, FurtherDraft] = field(default_factory=dict)
    trained: TrainedDrafters = NO_TRAINED
    datastores: Datastores | None = None
    keep: Callable[[str, Drafter | LearningDraft], None] | None = None
    memory: MemoryLimit | None = None
    prunable: Prunable | None = None
    shipped: Callable[[], TrainedNetwork] | None = None
    make_network: NetworkFactory | None = None
    make_masks: MaskFactory | None = None
    make_denoiser: DenoiserFactory | None = None
    make_learning: LearningFactory | None = None
    draft_sha256: Callable[[str], str] | None = None

    @property
    def differing_tables(self) -> tuple[TokenTable, TokenTable] | None:
        """The tokens of the target and of the draft model; None where they are the same or there is no draft model."""
        own, other = self.vocabulary, self.draft_vocabulary
        return None if own is None or other is None or own is other else (own, other)

    @property
    def same_tokens(self) -> bool:
        """Whether the tokens of the draft model, if there is one, are the target's."""
        return self.differing_tables is None

    @property
    def draft_models(self) -> dict[str, bool]:
        """The draft models by name, the first one first, and whether each has the target's tokens."""
        first = {self.draft_name: self.same_tokens}
        return first | {name: self.drafting_with(name).same_tokens for name in self.further}

    def drafting_with(self, name: str) -> PairResources:
        """The same for a drafter that uses the draft model with this name."""
        if name not in self.further:
            return self
        return dataclasses.replace(self, draft_name=name, draft_vocabulary=self.further[name].vocabulary)

    def keeping(self, keep: Callable[[str, Drafter | LearningDraft], None] | None) -> PairResources:
        """The same with another keeper of drafters' states; None: none are kept, and drafters begin untaught."""
        return dataclasses.replace(self, keep=keep)


NO_RESOURCES = PairResources()
"""Models alone."""


@dataclass(frozen=True)
class Parts:
    """The parts that one drafter may be built from.

    Args:
        target: the target's weights. Its cache is not the drafter's to touch: it takes a view, or a copy with a cache
            of its own.
        draft_model: the pair's, if it has one; of several the one that this drafter's options name.
        choices: the drafters that this one is made of, as its options name them.
        resources: what else the pair has.
        name: the drafter's, in its family's table.
        number: tells it from others of its name, see `DrafterChoice`.
        label: tells this drafter from all others of the engine.
        trained: its verified weights, where the table says that it needs some.
        make_engine: see `engine`.
    """

    target: Weights
    draft_model: Model | None = None
    choices: tuple[DrafterChoice, ...] = ()
    resources: PairResources = NO_RESOURCES
    name: str = ""
    number: int = 0
    label: str = ""
    trained: TrainedDrafter | None = None
    make_engine: EngineFactory | None = None

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def proposer(self) -> str:
        """The name that its guesses carry: no other drafter of the engine has it."""
        return self.numbered(self.name)

    def numbered(self, name: str) -> str:
        """The name of a source of its guesses, told apart from those of other drafters."""
        return f"{name} {self.number}" if self.number else name

    def noise(self, noise: Noise) -> Noise:
        """Noise of this drafter's own, from that of a reply (`Context.noise`)."""
        return noise.child(f"drafter/{self.label}")

    def build(self, choice: DrafterChoice, place: int = 0) -> Drafter:
        """A drafter from the same parts.

        Args:
            place: tells members of one name apart.

        Raises:
            CombinationError: it needs weights trained for the target, and there are none.
        """
        method, label = choice.method, f"{self.label}/{place}.{choice.name}"
        trained = self.resources.trained.choose(choice.name, choice.options.weights) if method.needs_weights else None
        parts = dataclasses.replace(
            self, choices=choice.members, name=choice.name, number=choice.number, label=label, trained=trained
        )
        if not choice.needs_draft_model:
            parts = parts._without_drafts()
        elif not choice.members:
            parts = parts._drafting_with(choice.options.model)
        drafter: Drafter = method.load()(choice.options, parts)
        if self.resources.keep is not None:
            self.resources.keep(trained.name if trained else choice.name, drafter)
        return drafter

    def members(self) -> list[Drafter]:
        """The drafters that its options name, in order.

        A draft model keeps the tree of one drafter. So the first member that uses it gets the pair's, and every other
        one the same weights with a cache of its own.
        """
        built: list[Drafter] = []
        taken: set[str] = set()
        for place, choice in enumerate(self.choices):
            used = choice.draft_models(self.resources.draft_name)
            built.append(self._with_new_caches(used & taken).build(choice, place))
            taken |= used
        return built

    def drafts_of(self, choice: DrafterChoice) -> tuple[Model, ...]:
        """The draft models that a drafter and its members use."""
        used = choice.draft_models(self.resources.draft_name)
        first = {} if self.draft_model is None else {self.resources.draft_name: self.draft_model}
        models = first | {name: one.model for name, one in self.resources.further.items()}
        return tuple(model for name, model in models.items() if name in used)

    def _with_new_caches(self, names: Collection[str]) -> Parts:
        """The same with draft models that have caches of their own in place of these."""
        further = {
            name: dataclasses.replace(one, model=one.model.with_new_cache()) if name in names else one
            for name, one in self.resources.further.items()
        }
        first = self.draft_model
        if first is not None and self.resources.draft_name in names:
            first = first.with_new_cache()
        resources = dataclasses.replace(self.resources, further=further)
        return dataclasses.replace(self, draft_model=first, resources=resources)

    def _drafting_with(self, name: str) -> Parts:
        """The same for a drafter that uses the draft model with this name, or the first if the name is empty."""
        if name not in self.resources.further:
            return self
        model = self.resources.further[name].model
        return dataclasses.replace(self, draft_model=model, resources=self.resources.drafting_with(name))

    def _without_drafts(self) -> Parts:
        """The same for a drafter that uses no draft model, so that it keeps none in memory."""
        resources = dataclasses.replace(self.resources, draft_vocabulary=None, draft_name="", further={})
        return dataclasses.replace(self, draft_model=None, resources=resources)

    def network(self, tokens: int) -> LearningTrainedNetwork:
        """The network of this drafter's trained weights, which guesses so many frequent tokens besides the text's."""
        assert self.trained is not None, "the table says that it needs weights"
        assert self.resources.make_network is not None, "a pair with trained drafters makes networks"
        return self.resources.make_network(self.target, self.trained, tokens)

    def shipped_head(self) -> TrainedNetwork:
        """The head in the target's own files; CombinationError if it has none."""
        if self.resources.shipped is None:
            raise CombinationError(
                f"drafter {self.name!r} needs a head in the target's own files (mtp.*), and there is none; nearest "
                "that works: drafter 'suffix'"
            )
        return self.resources.shipped()

    def draft_sha256(self) -> str:
        """The checksum of the draft model's weights; empty where nothing is kept."""
        checksum = self.resources.draft_sha256
        return "" if checksum is None else checksum(self.resources.draft_name)

    def learning(self, divergence: str, topics: int) -> LearningDraft | None:
        """The learner of this drafter's draft model, kept under the draft model's name."""
        make, keep, draft = self.resources.make_learning, self.resources.keep, self.draft_model
        if make is None or draft is None or (made := make(draft, divergence, topics, self.draft_sha256)) is None:
            return None
        if keep is not None:
            keep(self.resources.draft_name, made)
        return made

    def masks(self) -> MaskRows:
        assert self.trained is not None, "the table says that it needs weights"
        assert self.resources.make_masks is not None, "a pair with trained drafters makes masks"
        return self.resources.make_masks(self.target, self.trained)

    def denoiser(self, tokens: int, window: int, steps: int) -> Denoiser:
        """The network of this drafter's trained weights; see `models.draft_heads.specdiff`."""
        assert self.trained is not None, "the table says that it needs weights"
        assert self.resources.make_denoiser is not None, "a pair with trained drafters makes denoisers"
        return self.resources.make_denoiser(self.target, self.trained, tokens, window, steps)

    def datastore(self, wanted: str) -> Path:
        """The file of this datastore, or of the newest; CombinationError if none has the target's tokens."""
        if self.resources.datastores is None:
            raise CombinationError(f"drafter {self.name!r} needs a datastore; nearest that works: drafter 'suffix'")
        return self.resources.datastores.choose(wanted).file

    def engine(self, settings: Mapping[str, Any], model: Model, draft: Model | None = None) -> NestedEngine:
        """A whole engine that writes with another model, to draft with.

        It samples as the context of its rounds says. It speculates as `settings` say, and not at all where they are
        silent.
        """
        assert self.make_engine is not None, "assemble hands out engines"
        return self.make_engine(settings, model, draft, self.resources)
