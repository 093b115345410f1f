"""A request for one pass over a tree: outputs of the head, states of layers, extra rows, hooks between layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from torch import Tensor

from specchat.core.noise import Noise
from specchat.core.reading import HeadOutput
from specchat.core.record import record
from specchat.core.sampling import Sampling


@record
class HeadNeeds:
    """Which head outputs are needed besides the likeliest token of each row: more of the likeliest, or logits.

    A pass may compute only these. Other outputs are computed when they are asked for, from states that were kept, with
    the same bits: this only takes longer.
    """

    likeliest: bool
    logits: bool

    def __or__(self, other: HeadNeeds) -> HeadNeeds:
        """The needs of both together."""
        if other is self or other is FIRST:
            return self
        return other if self is FIRST else _BY_PARTS[self.likeliest or other.likeliest, self.logits or other.logits]


FIRST: Final = HeadNeeds(likeliest=False, logits=False)
LIKELIEST: Final = HeadNeeds(likeliest=True, logits=False)
LOGITS: Final = HeadNeeds(likeliest=False, logits=True)
EVERYTHING: Final = HeadNeeds(likeliest=True, logits=True)

_BY_PARTS = {(needs.likeliest, needs.logits): needs for needs in (FIRST, LIKELIEST, LOGITS, EVERYTHING)}


CHUNK_TOKENS = 256
"""Tokens of a prompt that are read in one pass: few enough to stop soon, enough to use the machine."""

DEVICE_CHUNK_TOKENS = 2048
"""The same on CUDA, as far as memory allows it: weights that are rebuilt for a pass move as many bytes for every number
of rows. Chosen by these bytes; times on a device are not measured."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """Low-rank additions to a network's products, for the rows that name it.

    Where the network computes W x, such a row gets W x + up (down x); the others keep their bits.

    Args:
        factors: (layer, product) → down (rank, inputs) and up (outputs, rank). The products are q, k, v, o, gate, up
            and down; rows of q and k are in transformers' order. Whatever is missing is left alone.
    """

    factors: Mapping[tuple[int, str], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Entry:
    """A layer at which extra rows enter a pass; the layers before it do not compute them.

    Args:
        layer: the first layer that computes these rows.
        matrix: (d, d), what is added to a parent's state is this times the state.
    """

    layer: int
    matrix: Tensor

    def states(self, parents: Tensor, embeddings: Tensor) -> Tensor:
        """(n, d) first states of rows, from (n, d) states of their parents before the layer and their embeddings."""
        states = parents.float()
        return (states + states @ self.matrix.float().t() + embeddings.float()).to(parents)


@dataclass(frozen=True)
class ExtraRow:
    """An extra row that a drafter attaches to the target's own pass, so that its next proposal costs no pass.

    The row attends to the prefix, to its parent node's path, and to the extra rows it comes after.

    Args:
        parent: the node it hangs below.
        embedding: (d,) what stands in for a token's embedding (a mask or prompt embedding).
        after: index of the extra row it follows, or None where it follows the node itself.
        adapter: what is added to the network's products for this row alone.
        entry: where the row enters; None: before the first layer. Rows that follow each other have the same. It never
            enters where its parent was dropped before.
        says: whether its logits are wanted. Where no row's are, a reading may have last states instead.
    """

    parent: int
    embedding: Tensor
    after: int | None = None
    adapter: Adapter | None = None
    entry: Entry | None = None
    says: bool = True


def entry_layers(extra_rows: Sequence[ExtraRow]) -> frozenset[int]:
    """The layers at which some of these rows enter."""
    return frozenset(row.entry.layer for row in extra_rows if row.entry is not None)


@dataclass(frozen=True)
class LayerHook:
    """A look at the states after some layers while the pass runs. Nodes may be dropped there.

    Args:
        layers: after which layers `look` is called; layers count from 0. The others cost nothing.
        look: called with (layer, hidden states (R, d) of the nodes still alive, those nodes). Returns the nodes that
            stay, or None to only look. A node that goes takes its subtree with it; the root stays. The states may be
            written over after the call: copy them to keep them.
    """

    layers: frozenset[int]
    look: Callable[[int, Tensor, Sequence[int]], Collection[int] | None]


class HeadOfSome(Protocol):
    """A network's head with rows for some tokens only; see `Weights.trimmed_head`."""

    tokens: Tensor
    """(H,) int64, the token of each row."""

    def add(self, tokens: Sequence[int]) -> None:
        """Let these tokens have rows too."""

    def after(self, states: Tensor) -> HeadOutput:
        """The head's output for (n, d) states after the last layer."""


@record
class Judging:
    """How the tree is judged, for a target on another machine: it judges there, so that no logits have to come here.

    Args:
        rule: its name in the table, with the options that the user set.
        text, prompt: tokens of the text, the root included, and of the prompt.
        round: rounds done so far in the reply.
        looks_at_draws: whether the rule asks how nodes were drawn.
    """

    rule: str
    options: Mapping[str, Any]
    text: int
    prompt: int
    round: int
    sampling: Sampling
    noise: Noise
    looks_at_draws: bool


@record
class PassRequest:
    """The request for one pass, joined from those of all parts of an engine.

    Args:
        taps: layers whose states are wanted: of every node, of every extra row, and of the tokens of the text that are
            read in the same pass. Layers count from 0; tap i is the state after layer i.
        extra_rows: rows that a drafter adds; their results come back in the same order, zeros for a row that never
            entered.
        hooks: looks between layers. Where several drop nodes after one layer, each sees what the one before left.
        head: what makes logits of the last states, one that the same model made; None for the model's whole head.
        needs: what of the head's output is going to be looked at.
        judging: asks for the verdict too, of a target that gives one (`Reading.elsewhere`).
    """

    taps: frozenset[int] = frozenset()
    extra_rows: tuple[ExtraRow, ...] = ()
    hooks: tuple[LayerHook, ...] = ()
    head: HeadOfSome | None = None
    needs: HeadNeeds = EVERYTHING
    judging: Judging | None = None

    @property
    def watched(self) -> bool:
        """Whether anything besides the head's output is asked for."""
        return bool(self.taps or self.hooks or self.extra_rows)


DEFAULT_REQUEST = PassRequest()
"""A request for the head's output alone."""
