"""The seams: who answers which question of a round. The second file to read, after `decoding/speculate.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from specchat.core.best import best_tokens
from specchat.core.noise import Noise
from specchat.core.sampling import Counts, Law, Sampling, law, penalise
from specchat.core.tree import DrawKind, Guess, TokenTree

if TYPE_CHECKING:
    from specchat.core.round import Round
    from specchat.core.verdict import Verdict


@dataclass(frozen=True)
class Budget:
    """How hard to speculate in a round. 0 nodes is plain decoding.

    Args:
        prices: for the first node, the second, …: the least chance to stand (the product of the probabilities down to
            it) that earns it its row, never falling; the last holds for all that follow. Empty: nodes cost nothing.
        why: what made the controller choose so, in a few words for the screen.
        passes: whether drafters may run passes of draft models.
    """

    nodes: int
    depth: int = 1
    width: int = 1
    prices: tuple[float, ...] = ()
    why: str = field(default="", compare=False)
    passes: bool = True

    @property
    def floor(self) -> float:
        """The least chance that earns any node its row."""
        return self.prices[0] if self.prices else 0.0

    def price(self, node: int) -> float:
        """The least chance that earns the node its row; the first node is 1."""
        return self.prices[min(node, len(self.prices)) - 1] if self.prices else 0.0


@dataclass
class Context:
    """What a round knows: the text so far, how the target samples, the noise.

    Args:
        history: prompt and reply so far; the last token is the root. Grows by `emit`.
        prompt_tokens: how many of them are the prompt.
        vocab_size: V.
        wanted: the kind of draws the acceptance rule can use best; a drafter that cannot draw so proposes points.
        round: rounds done so far in this reply.
        passes: whether drafters may run passes of draft models in this round; the budget says so.
    """

    history: list[int]
    prompt_tokens: int
    vocab_size: int
    sampling: Sampling = field(default_factory=Sampling)
    noise: Noise = field(default_factory=lambda: Noise(0))
    wanted: DrawKind = DrawKind.POINT
    round: int = 0
    passes: bool = True
    counts: Counts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = Counts(frozenset(self.history[: self.prompt_tokens]))
        self.counts.reply.update(self.history[self.prompt_tokens :])

    @property
    def root(self) -> int:
        return self.history[-1]

    def position(self, tree: TokenTree, node: int) -> int:
        """Index in the text of the token that follows `node`; all decisions about it use this position's noise."""
        return len(self.history) + tree.depths[node]

    def emit(self, tokens: Sequence[int]) -> None:
        """Append what a round emitted."""
        self.history.extend(tokens)
        self.counts.reply.update(tokens)
        self.round += 1

    def law_after(self, tree: TokenTree, node: int, logits: Tensor) -> Law:
        """The processed law of the token that follows `node`, from its raw (V,) logits."""
        path = tree.path_tokens(node) if self.sampling.penalised else ()
        return law(penalise(logits, self.sampling, self.counts, path), self.sampling)


@dataclass(frozen=True)
class Rider:
    """An extra row that a drafter attaches to the target's own pass, so that its next proposal costs no pass.

    The row attends to the prefix, to its parent node's path, and to the riders it comes after.

    Args:
        parent: the node it hangs below.
        embedding: (d,) what stands in for a token's embedding (a mask or prompt embedding).
        after: index of the rider it follows, or None where it follows the node itself.
    """

    parent: int
    embedding: Tensor
    after: int | None = None


@dataclass(frozen=True)
class Reading:
    """What a network says after every node it read.

    Args:
        nodes: (R,) the nodes read in this pass, ascending.
        logits: (R, V) raw, on the model's device; row i is what follows `nodes[i]`. Of dropped nodes it holds
            nothing that may be used.
        alive: the nodes that stayed to the end of the pass.
        pruned: for every dropped node, the layer after which it went.
        taps: layer → (R, d) hidden states after that layer, where asked for.
        rider_logits: (riders, V), in the order the riders were given.
        rider_states: layer → (riders, d), for the tapped layers.
        likeliest: (R, K) the tokens with the highest logits, best first, of equals the one with the lower number, where
            the model found them on the way.
        totals: (R,) logarithm of the sum of the exponentials of the logits, likewise.
    """

    nodes: tuple[int, ...]
    logits: Tensor
    alive: frozenset[int]
    pruned: Mapping[int, int] = field(default_factory=dict)
    taps: Mapping[int, Tensor] = field(default_factory=dict)
    rider_logits: Tensor | None = None
    rider_states: Mapping[int, Tensor] = field(default_factory=dict)
    likeliest: Tensor | None = None
    totals: Tensor | None = None

    def after(self, node: int) -> Tensor:
        """(V,) raw logits of the token that follows `node`, which must have been read and be alive."""
        assert node in self.alive, f"node {node} was not read to the end"
        return self.logits[self.row(node)]

    def best_after(self, nodes: Sequence[int], count: int) -> list[list[int]]:
        """The `count` likeliest tokens after each of these living nodes, best first. One copy to the host."""
        rows = [self.row(node) for node in nodes]
        if self.likeliest is not None and count <= self.likeliest.shape[1]:
            if self.likeliest.device.type == "cpu":  # numpy takes 3 µs, where torch takes 40
                named: list[list[int]] = self.likeliest.numpy()[rows, :count].tolist()
                return named
            return self.likeliest[rows, :count].tolist()
        return best_tokens(self.logits[rows], count)[1].tolist()

    def totals_after(self, nodes: Sequence[int]) -> Tensor:
        """(n,) float32: what is to be taken from the logits after these nodes to make log-probabilities of them."""
        rows = [self.row(node) for node in nodes]
        return torch.logsumexp(self.logits[rows].float(), dim=-1) if self.totals is None else self.totals[rows]

    def row(self, node: int) -> int:
        """The row of `node`; a whole tree's reading has the node's own number."""
        if node < len(self.nodes) and self.nodes[node] == node:
            return node
        return self.nodes.index(node)


OnLayer = Callable[[int, Tensor, Sequence[int]], Collection[int] | None]
"""Called after each layer with (layer, hidden states (R, d) of the rows read, their nodes).

Returns the nodes that stay, or None to only look. A node that goes takes its subtree with it; the root stays."""


@dataclass
class Counters:
    """What a model has done since it was loaded; tests read them, so that no saving is only claimed."""

    passes: int = 0
    rows: int = 0
    node_layers: int = 0  # rows times the layers they went through


class Model(Protocol):
    """What does this network say after every node? The same thing serves as target and as draft model."""

    vocab_size: int
    context_tokens: int
    counters: Counters
    device: torch.device

    def twin(self) -> Model:
        """The same weights with a cache of its own."""

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""

    def prefill(self, tokens: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet.

        Ends a round that was not kept: rows of its tree are forgotten. `on_chunk(done, total)` is told about
        progress and may raise to stop; what was read so far stays in the cache. A handful of missing tokens may
        be put off until the next `read`, which then reads them in the same pass.
        """

    def read(
        self,
        tree: TokenTree,
        new_nodes: Sequence[int] | None = None,
        riders: Sequence[Rider] = (),
        taps: Collection[int] = (),
        on_layer: OnLayer | None = None,
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones (ascending, their parents read before).

        Layers count from 0; tap i is the state after layer i.
        """

    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""

    def keep(self, path: Sequence[int]) -> None:
        """End the round: keep the root and the accepted path, forget the rest of the tree.

        The path may end in nodes that were never read; the cache then ends before them.
        """

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read, with arbitrary contents: for measuring costs only."""


Proposal = Sequence[Sequence[Guess]]
"""For each frontier node in order, its guesses, best first."""


class Drafter(Protocol):
    """What probably follows these nodes?"""

    @property
    def taps(self) -> Collection[int]:
        """Layers of the target whose states it wants to find in the round's reading."""

    def start(self, history: Sequence[int]) -> None:
        """A text begins or changed other than by a round: new chat, edit, branch, switch of methods."""

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Up to `width` guesses for each frontier node of a growing tree."""

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        """Rows to attach to the target's pass over this tree; their logits come back in the round's reading."""

    def observe(self, round: Round) -> None:
        """Learn from a round, rejected nodes included. Find the accepted path by tokens: a transform may have
        renumbered the nodes."""

    @property
    def passes(self) -> int:
        """Forward passes of draft models so far."""


class TreePolicy(Protocol):
    """Which guesses deserve a place?"""

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """A frozen tree below the root, within the budget; of the root alone where the budget is 0 or nothing is
        proposed."""


class AcceptanceRule(Protocol):
    """Which guesses stand?"""

    @property
    def lossless(self) -> bool:
        """Whether its text is distributed exactly as the target's."""

    @property
    def wanted(self) -> DrawKind:
        """The kind of draws it makes best use of."""

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """The accepted path and the bonus token."""


class Controller(Protocol):
    """How hard do we speculate next?"""

    def plan(self, context: Context) -> Budget:
        """The next round's budget."""

    def observe(self, round: Round) -> None:
        """Learn from a round, its timings included."""


TreeTransform = Callable[[TokenTree], TokenTree]
"""Tree → frozen tree: merge, fuse, prune, unfold."""
