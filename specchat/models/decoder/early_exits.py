"""A draft model whose first layers were trained to guess by themselves: sure tokens leave before the last layer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from specchat.core.reading import HeadOutput, Reading
from specchat.core.request import CHUNK_TOKENS, DEFAULT_REQUEST, ExtraRow, PassRequest
from specchat.core.seams import OnChunk
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, TokenTree
from specchat.errors import UsageError
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.network import Network, Pass, SubLayers


class NestedDecoder(Decoder):
    """A draft model of which the layers up to each of some depths, with the head behind them, are draft models too."""

    def __init__(
        self,
        network: Network,
        context_tokens: int,
        depths: Sequence[int],
        name: str,
        guessable: Sequence[int],
        parts: SubLayers | None = None,
        source: Decoder | None = None,
    ) -> None:
        """`depths` are numbers of layers, ascending, all of them the last; the rest is as `Decoder` takes it."""
        super().__init__(network, context_tokens, True, parts, source, name, guessable)
        self.depths = depths

    def leaving_early(self, sure: Sequence[float]) -> EarlyExits:
        """The same weights with a cache of its own, whose tokens leave at the first depth that is sure of the next.

        Args:
            sure: the probability of the likeliest token from which on a token leaves: for each depth but the last, or
                one for all.

        Raises:
            UsageError: there are not as many as depths but the last.
        """
        exits = len(self.depths) - 1
        if len(sure) not in (1, exits):
            raise UsageError(
                f"draft_model.leave_at has {len(sure)} probabilities; {self.name} was trained at {exits + 1} depths: "
                f"give one for all but the last{f', or {exits}, one for each of these' if exits > 1 else ''}"
            )
        return EarlyExits(self, self.depths, [*sure] * exits if len(sure) == 1 else sure)

    def _of_parts(self, parts: SubLayers) -> Decoder:
        return NestedDecoder(self.network, self.context_tokens, self.depths, self.name, self.guessable, parts, self)


class Level(Decoder):
    """Some successive layers, with a cache of their own, which read the states that the level below has left behind.

    What the level below reads waits here until a node goes on to this one. Then the tokens of the text and the nodes
    above it that left earlier are read with it in the same pass, from the states with which they left.
    """

    def __init__(self, whole: Decoder, layers: range, below: Level | None) -> None:
        """Nothing read yet. `below` is None for the lowest level, which reads tokens."""
        parts = SubLayers.of_all(whole.layers).without(layers, (), ())
        super().__init__(
            whole.network.unrecorded, whole.context_tokens, True, parts, whole, whole.name, whole.guessable
        )
        self.below = below
        self._feeds = False  # a level above
        self._of_text: dict[int, Tensor] = {}  # by position, states that the level above has not read
        self._of_nodes: dict[int, Tensor] = {}
        self._tree: TokenTree | None = None
        if below is not None:
            self.counters, below._feeds = below.counters, True

    @property
    def joint_weights(self) -> None:
        """None: how far a text is read is known only while it is."""
        return None

    @property
    def behind(self) -> int:
        """How many tokens of the text the level below has read and this one has not."""
        return 0 if self.below is None else len(self.below.rows.prefix) - self.cached(self.below.rows.prefix)

    @torch.inference_mode()
    def states_after(self, tree: TokenTree, nodes: Sequence[int]) -> Tensor:
        """(n, d) states of these nodes after the level's last layer; what of them is not read yet is read now."""
        if self._tree is not tree:
            if self.below is not None:
                self.prefill(self.below.rows.prefix)
            self.forget_tree()
            self._tree = tree
        if unread := tree.above(nodes, self._of_nodes):
            running = self.planned(tree, DEFAULT_REQUEST, unread)
            self.count(running)
            states = self.network.run(running)
            self.rows.tree_read(running.plan)
            self._note(running.plan, states)
        return torch.stack([self._of_nodes[node] for node in nodes])

    def keep(self, path: Sequence[int]) -> None:
        first = len(self.rows.prefix)
        super().keep(path)
        for position, node in zip(range(first, len(self.rows.prefix)), (ROOT, *path), strict=False):
            self._has_read(position, self._of_nodes[node])
        self.forget_tree()

    def forget_tree(self) -> None:
        self._tree, self._of_nodes = None, {}

    def count(self, running: Pass) -> None:
        """Count a pass once, in the lowest level; the network counts layers, each for the rows that it reads."""
        if self.below is None:
            super().count(running)

    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> Tensor:
        states = super()._read_text(plan, watch)
        self._note(plan, states)
        return states

    def _pass(self, plan: PassPlan, watch: LayerWatch | None, extra_rows: Sequence[ExtraRow] = ()) -> Pass:
        running = super()._pass(plan, watch, extra_rows)
        return running if self.below is None else dataclasses.replace(running, embed=partial(self._states_below, plan))

    def _states_below(self, plan: PassPlan, _: Sequence[int]) -> Tensor:
        assert self.below is not None, "the lowest level reads tokens"
        text, nodes = self.below._of_text, self.below._of_nodes
        positions = plan.positions[: plan.missing]
        return torch.stack([*(text[position] for position in positions), *(nodes[node] for node in plan.nodes)])

    def _note(self, plan: PassPlan, states: Tensor) -> None:
        """Keep the (rows, d) states that a pass has left behind."""
        for position, state in zip(plan.positions, states[: plan.missing], strict=False):
            self._has_read(position, state)
        self._of_nodes.update(zip(plan.nodes, states[plan.missing :], strict=True))

    def _has_read(self, position: int, state: Tensor) -> None:
        """Keep a state of the text for the level above; that of the level below has been used."""
        if self._feeds:
            self._of_text[position] = state
        if self.below is not None:
            self.below._of_text.pop(position, None)


class EarlyExits(Level):
    """A nested draft model: a token leaves at the first depth whose likeliest next token is probable enough.

    A token that goes on does so from the state that it has, so no layer reads it twice. What left early gets its keys
    and values of the deeper layers when a later token goes there: these layers then read it, all that waits in one
    pass, which reads their weights once, as for a single token. So the law at a depth is exactly that of the network
    cut off there, whoever left before; carrying an exit's state up through the products for keys and values would be
    cheaper and would change it.

    Reference: Kavehzadeh et al., S2D: Sorted Speculative Decoding, arXiv:2407.01955.

    Attributes:
        left_at: how many nodes left at each depth, so far.
    """

    def __init__(self, whole: NestedDecoder, depths: Sequence[int], sure: Sequence[float]) -> None:
        """Nothing read yet; `sure` has a probability for each depth but the last."""
        super().__init__(whole, range(depths[0]), None)
        self.left_at: Counter[int] = Counter()
        self._whole, self._depths, self._sure = whole, depths, sure
        self._levels: list[Level] = [self]
        for first, end in pairwise(depths):
            self._levels.append(Level(whole, range(first, end), self._levels[-1]))

    def with_new_cache(self) -> Decoder:
        return EarlyExits(self._whole, self._depths, self._sure)

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk = None, tap: HiddenStateSink | None = None) -> None:
        """As `Model.prefill`. Levels above read a text once a chunk of it waits, or a node goes on to them."""
        assert tap is None, "states of a draft model's text are not asked for"
        super().prefill(tokens, on_chunk)
        for level in self._levels:
            level.forget_tree()
            if level.behind > CHUNK_TOKENS:
                level.prefill(self.rows.prefix)

    @torch.inference_mode()
    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """As `Model.read`. The state after the last layer is, of a node that left early, the one that it left with."""
        assert not request.hooks, "a draft model's passes have no hooks"
        assert not request.extra_rows, "nor extra rows"
        assert request.taps <= {self.layers - 1}, "nor states of other layers than the last"
        nodes = tuple(range(len(tree)) if new_nodes is None else new_nodes)
        states = self.states_after(tree, nodes)
        said, going, asked = self._said(request, states), list(range(len(nodes))), len(nodes)
        for level, depth, sure in zip(self._levels[1:], self._depths, self._sure, strict=False):
            unsure = (confidence(said) < sure).tolist()
            going = [place for place, goes_on in zip(going, unsure, strict=True) if goes_on]
            self.left_at[depth] += asked - len(going)
            if not going:
                break
            deeper = level.states_after(tree, [nodes[place] for place in going])
            states[going], asked = deeper, len(going)
            said = self._said(request, deeper)
        self.left_at[self._depths[-1]] += len(going)
        if asked < len(nodes):  # some left before others: all get their rows of the head's output in one
            said = self._said(request, states)
        return Reading(nodes, said, frozenset(nodes), taps=dict.fromkeys(request.taps, states))

    def keep(self, path: Sequence[int]) -> None:
        super().keep(path)
        for level in self._levels[1:]:
            level.keep(path)

    def fill_for_benchmark(self, tokens: int) -> None:
        super().fill_for_benchmark(tokens)
        for level in self._levels[1:]:
            level.fill_for_benchmark(tokens)

    def _said(self, request: PassRequest, states: Tensor) -> HeadOutput:
        if request.head is not None:
            return request.head.after(states)
        return self.network.head(states, logsumexp=True)


def confidence(said: HeadOutput) -> Tensor:
    """(n,) the probability of the likeliest token, at temperature 1."""
    if said.highest is not None and said.logsumexp is not None:
        return (said.highest[:, 0] - said.logsumexp).exp()
    logits = said.logits.float()
    return (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp()
