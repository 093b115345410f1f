"""SpecDiff: a masked diffusion model that guesses a whole window behind the text, in a few steps of denoising."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.drafting_networks import Ahead, Denoiser, Guessed
from specchat.core.request import CHUNK_TOKENS
from specchat.core.seams import Weights
from specchat.core.tree import TokenTree
from specchat.errors import CombinationError
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs
from specchat.models.draft_heads.head import Recipe, SharedWeights, TokenNetwork
from specchat.models.draft_heads.layers import AttentionRows, DecoderLayer, KeysValues, attend_in_groups, rms_normalize
from specchat.models.draft_heads.loading import HeadOfTarget
from specchat.models.draft_heads.sizes import MOST_DEPTH, MOST_WIDTH, DecoderSizes, multiple_of_32, size

_HEADS = 4
_LEAST_WIDTH = 256

_MOST_UNREAD = 64
"""So many new tokens of a text at most are read in the pass of the first window; more have passes of their own."""


@dataclass(frozen=True, kw_only=True)
class SpecDiffSizes(DecoderSizes):
    """Sizes of `specdiff`: `layers` decoder layers of states `width` wide, and γ = `masks`, the longest window."""

    width: int = size(MOST_WIDTH)
    layers: int = size(MOST_DEPTH, default=3)
    masks: int = size(MOST_DEPTH, default=8)


class SpecDiff(TokenNetwork[SpecDiffSizes]):
    """Says which token stands in every masked place of a window behind a text, from the window's other tokens too.

    It reads tokens alone, none of the target's states. A token of the window sees the text and all of the window; a
    token of the text sees those before it, so that what was read of a text stays read. There is no input for the time
    of the diffusion: where tokens turn into masks and stay so, the window itself shows it (Sahoo et al., section 3.4).

    Reference: Christopher et al., Speculative Diffusion Decoding, arXiv:2408.05636; the network and how it learns are
    those of Sahoo et al., MDLM, arXiv:2406.07524. Differs: the text is attended to causally and the window alone is
    denoised (Arriola et al., Block Diffusion, arXiv:2503.09573); embedding and head are the target's.
    """

    recipe = Recipe(reads_back=True, steps=8, denoises=True)
    sizes_type = SpecDiffSizes

    def __init__(self, sizes: SpecDiffSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.token = nn.Linear(sizes.hidden, sizes.width, bias=False)
        self.mask = nn.Parameter(torch.empty(1, sizes.width))
        inside = replace(sizes, hidden=sizes.width)
        self.layers = nn.ModuleList(DecoderLayer(inside) for _ in range(sizes.layers))
        self.widen = nn.Linear(sizes.width, sizes.hidden, bias=False)

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> SpecDiffSizes:
        """Half as wide as the target, or wider."""
        width = multiple_of_32(max(shape.hidden / 2, min(shape.hidden, _LEAST_WIDTH)))
        return SpecDiffSizes(
            hidden=shape.hidden, epsilon=shape.epsilon, width=width, inner=multiple_of_32(8 * width / 3), heads=_HEADS,
            kv_heads=_HEADS, head_dim=width // _HEADS,
        )  # fmt: skip

    @property
    def stack(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    @property
    def added(self) -> tuple[Tensor, ...]:
        return tuple(matrix for layer in self.stack for matrix in layer.added)

    @property
    def token_width(self) -> int:
        return self.sizes.width

    @property
    def masked(self) -> Tensor:
        """(width,) what stands in a masked place."""
        return rms_normalize(self.mask[0], self.sizes.epsilon)

    def windows(self, tokens: Tensor, shown: Tensor, first: int = 0) -> Tensor:
        """(B, S − first, γ, width) states in the windows behind every token of (B, S) texts from `first` on.
        Differentiable.

        Args:
            shown: (B, S − first, γ) bool, or what expands to it: which places of a window hold their token, not a mask.
        """
        (texts, length), masks = tokens.shape, self.sizes.masks
        positions = torch.arange(length, device=tokens.device)
        places = positions[first:, None] + 1 + torch.arange(masks, device=tokens.device)
        text = self.of_tokens(self.shared.embed(tokens))
        window = torch.where(shown[..., None], text[:, places.clamp_max(length - 1)], self.masked.to(text.dtype))
        sees = torch.ones(masks, masks, dtype=torch.bool, device=tokens.device)
        for number, layer in enumerate(self.stack, 1):
            _, *before = layer.before_attention(text, positions)
            queries, *own = (
                each.view(texts, length - first, masks, *each.shape[2:])
                for each in layer.before_attention(window.flatten(1, 2), places.flatten())
            )
            mixed = attend_in_groups(queries, KeysValues(*before), KeysValues(*own), sees)
            window = layer.after_attention(window, mixed)
            if number < len(self.layers):
                text = layer.over_text(text)
        return window

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """As `DraftNetwork.states`, of windows in which all is masked: what one step of denoising guesses."""
        masks, anchors = self.sizes.masks, tokens.shape[1] - steps
        assert 1 <= steps <= masks, f"{masks} masks cannot guess {steps} tokens"
        window = self.windows(tokens, torch.zeros(masks, dtype=torch.bool, device=tokens.device))
        return list(self.widen(window[:, 1 : anchors + 1, :steps]).unbind(2))


class Denoising(Drafting):
    """A `Denoiser`: windows behind the last text. A pass reads what is new of the text with the first of them.

    A tree is denoised from left to right, in blocks: the window below a node that ends a block holds the tokens on the
    path to it and masks behind them, and a pass says what follows in the next block.
    """

    def __init__(self, network: SpecDiff, given: DraftingInputs, window: int, steps: int) -> None:
        """Windows of so many places, cut into `steps` blocks of about one length."""
        super().__init__((), given)
        sizes = network.sizes
        self.depth, self.one_pass = window, steps == 1
        self._network = network
        self._begins = [step * window // steps for step in range(steps)]  # depths at which blocks begin
        self._masked = network.masked
        self._rows = [AttentionRows(sizes.kv_heads, sizes.head_dim) for _ in network.stack]
        self._known: list[int] = []  # whose rows were read
        self._unread: Sequence[int] = ()
        self._block: dict[int, Tensor] = {}  # node that ends a block → (γ, width) states in the window below it

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._block = {}
        kept = common_prefix(self._known, history)
        del self._known[kept:]
        self._unread = history[kept:]
        self.given.head.add_later(self._unread)
        while len(self._unread) > _MOST_UNREAD:
            self._pass(())
        return True

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """A pass where a block begins at this depth; elsewhere the windows of the blocks above say what follows."""
        depth = tree.depths[nodes[0]]
        begins = self._begins[bisect_right(self._begins, depth) - 1]
        ends = [tree.path(node)[begins - 1] if begins else 0 for node in nodes]
        if unread := [node for node in dict.fromkeys(ends) if node not in self._block]:
            masks = [None] * (self.depth - begins)
            found = self._pass([[*tree.path_tokens(node), *masks] for node in unread])
            self._block.update(zip(unread, found, strict=True))
        some = list(dict.fromkeys(ends))
        states = torch.stack([self._block[node][depth] for node in some])
        return self.given.guessed(self._network.widen(states)).of([some.index(node) for node in ends])

    @torch.inference_mode()
    def guesses(self, window: Sequence[int | None]) -> Guessed:
        [states] = self._pass([window])
        return self.given.guessed(self._network.widen(states))

    def _pass(self, windows: Sequence[Sequence[int | None]]) -> Tensor:
        """(n, γ, width) states in n windows, read with what is new of the text; CHUNK_TOKENS of it at most."""
        first, some = len(self._known), self._unread[:CHUNK_TOKENS]
        new, end, length = len(some), len(self._known) + len(some), len(windows[0]) if windows else 0
        held = [token for window in windows for token in window if token is not None]
        rows = iter(self.given.tokens.of([*some, *held]).unbind(0)) if new or held else iter(())
        entries = [next(rows) for _ in some]
        entries += [self._masked if token is None else next(rows) for window in windows for token in window]
        positions = torch.cat([torch.arange(first, end), (end + torch.arange(length)).repeat(len(windows))])
        number = torch.arange(len(windows)).repeat_interleave(length)
        seen = torch.ones(len(entries), first + len(entries), dtype=torch.bool).tril(first)
        seen[new:, end:] = number[:, None] == number
        states = torch.stack(entries)
        for layer, kept in zip(self._network.stack, self._rows, strict=True):
            mixed = kept.attend(first, *layer.before_attention(states, positions), seen)
            states = layer.after_attention(states, mixed)
        self._known += some
        self._unread = self._unread[new:]
        self._counted += 1
        return states[new:].view(len(windows), length, states.shape[1])


def denoiser(target: Weights, trained: TrainedDrafter, tokens: int, window: int, steps: int) -> Denoiser:
    """The network of a trained drafter, ready to denoise.

    Args:
        tokens: so many of the tokens that it can guess are kept, those that texts use most.
        window: places of its windows; 0: as many as it was trained with.
        steps: into so many blocks a window is cut.

    Raises:
        CombinationError: it was trained with smaller windows.
        ConfigError, WeightsError, ModelError: as for `HeadOfTarget`.
    """
    made = HeadOfTarget(target, trained, tokens)
    weights = made.weights()
    network = weights.network
    assert isinstance(network, SpecDiff), "its drafter asks for a denoiser"
    masks = network.sizes.masks
    for key, value in (("window", window), ("steps", steps)):
        if value > masks:
            raise CombinationError(
                f"{trained.method}.{key} = {value}, and trained drafter {trained.name!r} knows windows of up to "
                f"{masks} tokens; nearest that works: {masks}"
            )
    return Denoising(network, weights.inputs(None, made.threads), window or masks, steps)
