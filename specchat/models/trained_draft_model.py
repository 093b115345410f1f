"""A trained draft model made ready to run: its layers from its folder, embedding and head from its target's file."""

from __future__ import annotations

from torch import Tensor

from specchat.config.trained_drafters import TrainedDrafter
from specchat.errors import ModelError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.early_exits import NestedDecoder
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.draft_language_model import DraftLanguageModel, shape_of
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network, read_tokens
from specchat.models.model_loading import Loaded
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    AdjustedSource,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)


def load_trained_draft(
    trained: TrainedDrafter, target: Loaded, lender: tuple[WeightSource, Shape] | None = None
) -> Loaded:
    """A trained draft model beside a target: in its precision, by its kernels, with its tokenizer.

    Args:
        lender: weights and shape of the model that it was trained for, whose embedding and head it uses; None where
            that is the target. The target must have the same tokens.

    Raises:
        ConfigError: the sizes that its folder names are wrong.
        WeightsError: its file is damaged, or holds another network.
        ModelError: the model it was trained for has states of another width, or the target runs through transformers.
    """
    file = target.prunable
    if not isinstance(file, PrunableFile):
        raise ModelError(
            f"trained draft model {trained.name!r} needs a target that runs in specchat's own decoder, whose embedding "
            f"and head it uses; nearest that works: drafter 'suffix'"
        )
    layers = load_network(trained.method, trained.options, trained.weights, lambda tokens: SharedWeights.none())
    assert isinstance(layers, DraftLanguageModel), "it is listed as a draft model"
    source, whole = lender or file.opened()
    if layers.sizes.hidden != whole.hidden:
        raise ModelError(
            f"trained draft model {trained.name!r} has states of {layers.sizes.hidden} numbers; "
            f"{'the target' if lender is None else trained.target} has {whole.hidden}"
        )
    tokens = read_tokens(trained.weights).tolist()
    if max(tokens) >= (least := min(whole.vocab_size, target.model.vocab_size)):
        raise ModelError(f"trained draft model {trained.name!r} guesses token {max(tokens)}; the target has {least}")
    shape = shape_of(layers.sizes, whole.vocab_size, tied=whole.tied, embedding_scale=whole.embedding_scale)
    between = LayersBetween(source, layers, str(trained.weights))
    network = file.network(shape, between)
    between.forget_layers()
    context, depths = file.target.context_tokens, layers.sizes.depths
    model = (
        NestedDecoder(network, context, depths, trained.name, tokens)
        if len(depths) > 1
        else Decoder(network, context, drafts=True, name=trained.name, guessable=tokens)
    )
    return Loaded(
        trained.name, model, target.tokenizer, target.eos_ids, network.nbytes, target.precision, network.kernels
    )


class LayersBetween(AdjustedSource):
    """Layers of a trained draft model between a target's embedding and its head, whose norm has the factors of both."""

    def __init__(self, source: WeightSource, layers: DraftLanguageModel, place: str) -> None:
        """`place` says where the layers are from, for errors."""
        super().__init__(source)
        self._layers: DraftLanguageModel | None = layers
        self._norm = layers.norm.detach()
        self._place = place
        self.interleaved = True

    def forget_layers(self) -> None:
        """Give the memory of the layers back once they are packed: only the embedding is read later."""
        self._layers = None

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return super().stored(name) if layer is None else StoredRows.of_tensor(self._weight(name, layer))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        if layer is not None:
            return self._weight(name, layer)[rows]
        values = super().dense(name, part=part, rows=rows)
        return values * self._norm[rows] if name == "norm" else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        if layer is None:
            return super().about(name, part=part)
        sizes = tuple(self._weight(name, layer).shape) if self._known.has(name, layer, part) else None
        return TensorFacts(f"{self._place}: tensor layers.{layer}.{name}", sizes)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return super().four_bit(name) if layer is None else None

    def _weight(self, name: str, layer: int) -> Tensor:
        return self._known.dense(name, layer).detach()

    @property
    def _known(self) -> DraftLanguageModel:
        assert self._layers is not None, "layers are read before they are forgotten"
        return self._layers
