"""A network that was trained on the target's states guesses depth by depth: a small one, or the target's own head."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby

import torch

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.context import Context
from specchat.core.drafting_networks import Ahead, Guessed, LearningFigures, TrainedNetwork
from specchat.core.request import HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import HiddenStateSink
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.drafters.compiled_search import CompiledDrafter
from specchat.drafters.draft_model import drawn_below, draws, over_vocabulary
from specchat.drafters.options import TrainedNetworkOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import Likeliest, LikeliestByNode, for_frontier, points_below
from specchat.indexes.called_network import CalledNetwork, Named, grow_rows, nothing_named


class NetworkDrafter(CompiledDrafter):
    """Proposes what a trained network holds likely.

    The network is given the target's states of the text as the target computes them, and reads each depth of a tree in
    one step. Guesses are points: the likeliest tokens, or, above temperature 0, those that win with the target's own
    noise, as with `draft_model`; or draws from q, where the rule uses that.
    """

    kinds = frozenset(DrawKind)

    def __init__(
        self, parts: Parts, network: TrainedNetwork, kinds: Collection[DrawKind] = frozenset(DrawKind)
    ) -> None:
        """`kinds` are those of the draws that it makes."""
        self._noise = parts.noise
        self._network, self._kinds = network, kinds
        super().__init__(parts.proposer)
        self._vocab_size = parts.vocab_size
        if network.layers:
            self.hidden_state_sink = HiddenStateSink(network.layers, network.take, network.skip)
        self._tree: TokenTree | None = None
        self._ready = False
        self._said = LikeliestByNode[Guessed]()
        self._called = CalledNetwork(self._named, network.one_pass)
        self._in_c = False

    @property
    def passes(self) -> int:
        return self._network.passes

    def start(self, history: Sequence[int]) -> None:
        """Read what is known of the text, so that the first round does not pay for the prompt."""
        self._tree = None
        self._network.begin(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Nothing where states of the text are missing, and nothing that costs a pass where none is allowed."""
        if self._tree is not tree:
            self._tree = tree
            self._said.clear()
            self._ready = context.passes and self._network.begin(context.history, Ahead(width, context.budget))
        paid = self._network.one_pass and ROOT in self._said
        asked = self._ready and (context.passes or paid)
        nodes = [node for node in frontier if tree.depths[node] < self._network.depth] if asked else []
        return for_frontier(frontier, nodes, self._guesses(tree, nodes, width, context) if nodes else ())

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """The source of guesses that compiled code asks; it has none where `propose` would have none."""
        self._tree, self._in_c = None, False
        if draws(context, self._kinds):
            return None
        if not (context.budget.passes and self._network.begin(context.history)):
            return CompiledNetwork()
        if (network := self._network.compiled(tokens, rows)) is not None:
            self._in_c = True
            return network
        self._tree = TokenTree(context.root, self._vocab_size)
        return self._called.network

    def count_passes(self, count: int) -> None:
        """Compiled code let the network read so many times; steps in Python were counted."""
        if self._in_c:
            self._network.count_passes(count)

    def observe(self, round: Round) -> None:
        """Forget the tree. What was accepted comes as states of the text."""
        self._tree = None

    def _named(self, behind: Sequence[int], tokens: Sequence[int], _: int) -> Named:
        """What it holds likely after tokens of one depth behind rows of its tree, which are read now."""
        tree = self._tree
        assert tree is not None, "a tree was begun"
        nodes = grow_rows(tree, behind, tokens)
        if tree.depths[nodes[0]] >= self._network.depth:
            return nothing_named(len(nodes))
        return _likeliest(self._network.read(tree, nodes)).named()

    def _read(self, tree: TokenTree, frontier: Sequence[int]) -> None:
        """Read the frontier and whatever lies unread above it (nodes that another drafter proposed)."""
        unread = tree.above(frontier, self._said)
        for _, nodes in groupby(sorted(unread, key=lambda node: (tree.depths[node], node)), tree.depths.__getitem__):
            level = list(nodes)
            said = self._network.read(tree, level)
            self._said.add(level, partial(_likeliest, said), said)

    def _guesses(self, tree: TokenTree, nodes: Sequence[int], width: int, context: Context) -> Proposal:
        self._read(tree, nodes)
        if draws(context, self._kinds):
            noise = self._noise(context.noise)
            return [drawn_below(tree, node, width, context, self._logits(node), noise, self.proposer) for node in nodes]
        noisy = not context.sampling.greedy
        return points_below(
            self._said, tree, nodes, width, context, proposer=self.proposer, noisy=noisy, logits=self._logits
        )

    def _logits(self, node: int) -> torch.Tensor:
        """(V,) logits after a node; what cannot be guessed is impossible."""
        said, row = self._said.source(node)
        return over_vocabulary(torch.from_numpy(said.possible), said.logits[row], self._vocab_size)


class TrainedNetworkDrafter(NetworkDrafter):
    """The same with a network that may learn from replies; which one depends on the name it has in the table.

    Only tokens that texts often use, and those of the text, can be guessed; q gives the others nothing.

    Reference: see the networks, in `models/draft_heads`: modules of the methods' names. The trimmed head follows
    FR-Spec, arXiv:2502.14856.
    """

    def __init__(self, options: TrainedNetworkOptions, parts: Parts) -> None:
        self._learning = network = parts.network(options.tokens)
        super().__init__(parts, network)
        self.learn, self.reply_ended, self.idle = network.learn, network.reply_ended, network.idle
        self.save_state, self.restore_state = network.save_state, network.restore_state

    @property
    def needs(self) -> HeadNeeds:
        """The parts of readings that the network learns from, if it learns from replies."""
        return self._learning.needs

    def start(self, history: Sequence[int]) -> None:
        self._tree = None
        self._learning.start(history)

    def observe(self, round: Round) -> None:
        super().observe(round)
        self._learning.observe(round)

    @property
    def learnt(self) -> LearningFigures:
        return self._learning.learnt


def _likeliest(said: Guessed) -> Likeliest:
    return Likeliest(said.tokens, said.logprobs, said.logsumexp, logits=False)


class ShippedMtp(NetworkDrafter):
    """Proposes what the target's own multi-token prediction head holds likely, see `models/shipped_mtp.py`.

    Reference: DeepSeek-V3 Technical Report, arXiv:2412.19437.
    """

    def __init__(self, options: object, parts: Parts) -> None:
        super().__init__(parts, parts.shipped_head())
