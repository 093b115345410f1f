"""The base classes of trained draft networks: shared weights, logits, initialisation, recipe, tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.seams import Weights
from specchat.errors import ModelError
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.sizes import LEAST_TEXTS, NetworkSizes, Sizes

if TYPE_CHECKING:
    from specchat.models.decoder.shape import Shape

S_co = TypeVar("S_co", bound=NetworkSizes, covariant=True)
H_co = TypeVar("H_co", bound=Sizes, covariant=True)

TOKENS = "tokens"
"""The tensor that lists the tokens that can be guessed, the most frequent first."""

OWN_HEAD, OWN_EMBED = "head", "embed"
"""Tensors that only published networks have: a head and an embedding of their own."""

HEAD_TOKENS = 8192
"""How many of the target's most frequent tokens can be guessed while training."""

STEPS = 3
"""Tokens that are guessed in a row while training, where deeper guesses use the same network."""

FURTHER_RATE = 0.3
"""Factor on the learning rate where a training begins with the weights of a drafter. docs/measurements.md has what was
tried."""

_ADDED, _OTHER = 0.1, 0.7
"""Root mean square of the first products: of those that are added to a state, and of all others."""


@dataclass(frozen=True)
class SharedWeights:
    """The target's frozen weights as a trained network uses them.

    Args:
        embed: int64 tokens (…) → (…, d) what the target's first layer gets for them.
        tokens: (H,) int64, the tokens that can be guessed, those first that texts use most: a drafter may take only
            the first of them.
        head: (H, d) output-head rows of these tokens, the target's final norm folded in (`Weights.head_rows`): the
            logits are their products with a state of mean square 1.
        own_head: whether the rows are not the target's, so that there are none for other tokens.
        own_embed: whether the embeddings are not the target's; they stay on the processor.
    """

    embed: Callable[[Tensor], Tensor]
    tokens: Tensor
    head: Tensor
    own_head: bool = False
    own_embed: bool = False

    @classmethod
    def of(cls, target: Weights, tokens: Tensor) -> SharedWeights:
        """The weights of a target, its head trimmed to these tokens; ModelError for one outside its vocabulary."""
        if int(tokens.max()) >= target.vocab_size:
            raise ModelError(f"token {int(tokens.max())} can be guessed, and the target has {target.vocab_size} tokens")

        def embed(wanted: Tensor) -> Tensor:
            unique, place = torch.unique(wanted, return_inverse=True)
            return target.embed(unique.tolist()).to(wanted.device, torch.float32)[place]

        rows = target.head_rows(tokens.tolist()).clone()  # a model's own tensors cannot take part in training
        return cls(embed, tokens, rows)

    @classmethod
    def none(cls) -> SharedWeights:
        """Nothing, for a network whose shapes or layers alone are looked at."""
        return cls(nn.Identity(), torch.empty(0), torch.empty(0))


@dataclass(frozen=True)
class Recipe:
    """How a family is trained.

    Args:
        reads_back: whether it attends to the text, so that prompts are read too.
        steps: tokens that are guessed in a row while training.
        glancing: share of its misses that a network which guesses blocks is shown at the beginning; see `falcon`.
        learning_rate: at its highest, with the fewest texts in a step; it grows with the square root of their number.
        distils: whether it learns at every place of a text by itself, with a loss that can be chosen, and not in chains
            of its own guesses.
        through_target: whether what is trained runs through the target's layers, which takes as long as the target.
        denoises: whether it learns to fill masked places of windows behind a text.
        measurements: how often progress is measured in a training that goes through.
        measured_texts: on how many texts at most; they are not learnt from.
    """

    reads_back: bool
    steps: int = STEPS
    glancing: float = 0.0
    learning_rate: float = 5e-3
    distils: bool = False
    through_target: bool = False
    denoises: bool = False
    measurements: int = 24
    measured_texts: int | None = None

    @property
    def reads_states(self) -> bool:
        """Whether it looks at the target's states while it learns."""
        return not (self.distils or self.denoises)

    def rate(self, texts: int, *, further: bool = False) -> float:
        """The highest learning rate with so many texts in a step; `further`: with a trained drafter's weights."""
        return self.learning_rate * math.sqrt(texts / LEAST_TEXTS) * (FURTHER_RATE if further else 1.0)


@dataclass(frozen=True)
class Batch:
    """Some texts side by side that a network learns from, padded behind their ends.

    Args:
        features: (B, S, taps, d) float32 states of the target, or (B, S, d), what a network's `fused` made of them.
        tokens: (B, S) int64.
        first: (B,) the first place from which something is drafted: the token in front of the last of the prompt.
        last: (B,) the last place whose next token is known.
        likeliest: (B, S, K) int64, the target's likeliest next tokens.
        log_p: (B, S, K) logarithms of their probabilities.
        rest: (B, S) the probability of all others.
        known: (B, S) bool, where there are features; None: everywhere.
    """

    features: Tensor
    tokens: Tensor
    first: Tensor
    last: Tensor
    likeliest: Tensor
    log_p: Tensor
    rest: Tensor
    known: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})

    def drafted(self, step: int, anchors: int) -> Tensor:
        """(B, A) bool, from which places the token `step` + 1 further on is one of the reply's."""
        place = torch.arange(anchors, device=self.tokens.device)
        begun, ended = self.first[:, None], self.last[:, None]
        inside: Tensor = (place >= begun) & (place + step <= ended)
        return inside if self.known is None else inside & self.known[:, :anchors]


class DraftNetwork(nn.Module, Generic[S_co]):
    """Any network that is trained here: it guesses with the target's own output head.

    Attributes:
        sizes: as `[options]` of its folder has them.
        shared: the target's weights that it uses.
    """

    recipe: ClassVar[Recipe]
    sizes_type: ClassVar[type[NetworkSizes]]

    def __init__(self, sizes: S_co, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
        """The sizes that are trained for a target of this shape, whose states are kept after these layers."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ guesses

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) input of the head; the target's is its last state, scaled to a mean square of 1."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return F.linear(self.normed(states), self.shared.head)

    def aligned(self, states: Tensor) -> Tensor:
        """(…, d) what is to be near the target's last state, scaled to a mean square of 1: the head's input."""
        return self.normed(states)

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) input of the first step, from (…, taps, d) states of the target; (…, 0) where it reads none."""
        return features[..., :0]

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, d) states for each step, from (B, S, d) fused states and (B, S) tokens. Differentiable.

        For step k = 1 … `steps`, row t is what token t + k + 1 is guessed from, drafted after token t was read.
        """
        raise NotImplementedError

    def states_by_depth(self, fused: Tensor, tokens: Tensor) -> list[Tensor]:
        """(B, S − 1, d) each: `states` of one step, of every part of the network that is to guess by itself; all of it
        is the last."""
        return self.states(fused, tokens, 1)

    def learning_states(
        self, fused: Tensor, batch: Batch, columns: Tensor, steps: int, glancing: float, generator: torch.Generator
    ) -> list[Tensor]:
        """`states` along a batch that is learnt from.

        Args:
            columns: (V,) the column of every token in the network's logits, −1 where it has none.
            glancing: share of its misses that a network which guesses blocks is shown.
        """
        assert not glancing, "only networks that guess blocks are shown what they miss"
        return self.states(fused, batch.tokens, steps)

    # ------------------------------------------------------------------------------------------------ weights

    @property
    def added(self) -> tuple[Tensor, ...]:
        """Matrices whose products are added to a state: they begin small."""
        return ()

    @torch.no_grad()
    def begin_(self, generator: torch.Generator) -> None:
        """Begin untrained: products keep the mean square of their inputs, those that are added to a state are small."""
        added = {id(matrix) for matrix in self.added}
        for parameter in self.parameters():
            if parameter.dim() == 2:
                scale = _ADDED if id(parameter) in added else _OTHER
                parameter.normal_(std=scale * parameter.shape[1] ** -0.5, generator=generator)

    def stored_name(self, name: str) -> str:
        """The name of a parameter in files."""
        return name

    def tensors(self) -> dict[str, nn.Parameter]:
        """The trained tensors by their names in files."""
        return {self.stored_name(name): parameter for name, parameter in self.named_parameters()}

    def assign_(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these tensors, by their names in files, in the place of its own."""
        self.load_state_dict({name: tensors[self.stored_name(name)] for name in self.state_dict()}, assign=True)

    def copy_(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these tensors, by their names in files, into its own; RuntimeError for other names or shapes."""
        names = {self.stored_name(name): name for name in self.state_dict()}
        self.load_state_dict({names.get(stored, stored): tensor for stored, tensor in tensors.items()})

    @classmethod
    def own_shapes(cls, sizes: NetworkSizes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Tensors besides the trained ones that a file of these shapes has, and which shape each must have."""
        return {}

    def take_own_(self, tensors: Mapping[str, Tensor]) -> None:
        """Use the tensors that `own_shapes` named."""


class TokenNetwork(DraftNetwork[S_co]):
    """A network that reads embeddings of tokens.

    Attributes:
        norm: (d,) factors of the norm in front of the output head.
        token: the product of normed embeddings that steps read; None where they read `token_norm` times these.
        token_norm: (d,) factors on normed embeddings.
    """

    norm: nn.Parameter
    token: nn.Module | None
    token_norm: nn.Parameter

    def __init__(self, sizes: S_co, shared: SharedWeights, *, token_norm: bool = False) -> None:
        super().__init__(sizes, shared)
        self.norm = nn.Parameter(torch.ones(sizes.hidden))
        self.token = None
        if token_norm:
            self.token_norm = nn.Parameter(torch.ones(sizes.hidden))

    @property
    def token_width(self) -> int:
        """How wide the outputs of `of_tokens` are."""
        return self.sizes.hidden

    def normed(self, states: Tensor) -> Tensor:
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, token_width) input of a step, from the embeddings (…, d) of tokens."""
        normed, product = rms_normalize(embedded, self.sizes.epsilon), self.token
        taken: Tensor = normed * self.token_norm if product is None else product(normed)
        return taken


class DraftHead(TokenNetwork[H_co]):
    """A network that reads the target's hidden states.

    Attributes:
        fuse: makes one state of those after several layers. It stays as it is while the network learns from replies.
    """

    sizes_type: ClassVar[type[Sizes]]
    fuse: nn.Module

    def __init__(self, sizes: H_co, shared: SharedWeights, *, token_norm: bool = False) -> None:
        super().__init__(sizes, shared, token_norm=token_norm)
        self.fuse = nn.Linear(len(sizes.taps) * sizes.hidden, sizes.hidden, bias=False)

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> Sizes:
        return cls.sizes_type.like_target(shape, taps)

    def drafting(self, given: DraftingInputs) -> Drafting:
        raise NotImplementedError

    def fused(self, features: Tensor) -> Tensor:
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def fused_here(self, features: Tensor) -> Tensor:
        """`fused` of states of any format on any device, in its own format and on its own device."""
        return self.fused(features.to(self.norm))


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
