"""Guesses that come out of the target's own pass, from trained masks behind the nodes of its tree."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.device_copy import rows_of, to_host
from specchat.core.request import LOGITS, ExtraRow, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.options import MaskRowsOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import Likeliest, LikeliestByNode, for_frontier, points_below
from specchat.indexes.running_estimates import LearntRates, RecentLinearFit

_LEAST = 1e-6

_CANDIDATES = 32
"""How many of the likeliest tokens after a mask can be guessed."""

_CLAIMED = 0.3
"""How often a guess is right, as long as none was judged."""

_MOST_ROWS, _UNMEASURED_ROWS, _PROBE = 64, 6, 32
"""Where as many masks stand as pay: the most rows, the rows until passes are measured, and how often there are as many
whatever they cost."""


class MaskRowsDrafter(Drafter):
    """Proposes what the target said after masks behind the node that was accepted last; there is no pass of its own.

    A mask stands for a token that is not known yet. The first one behind a node stands where the target's own next
    token will stand, so what is said after it is a guess of the token after that one; the second guesses one further,
    and so on. What is guessed at a depth does not depend on the guesses before it. Masks stand behind every node
    that may be the last one accepted, or behind some of them if rows are few; the tree's own rows keep their bits.

    `prompt_tokens` are embeddings alone. Reference: Chen et al., Hardware-Aware Parallel Prompt Decoding (PPD),
    arXiv:2405.18628. Differs: how many masks a node has is decided anew for every tree, from what its guesses claim,
    what states of the chain proved to be worth (`MaskStates`) and the times of the chat's own passes (`RowPrice`); the
    paper computes and measures that beforehand.

    `mtp` has a low-rank adapter for the masks' rows too, and a sampler: an MLP on a mask's state and the token guessed
    before it orders the mask's likeliest tokens anew. Reference: Samragh et al., Your LLM Knows the Future,
    arXiv:2507.11851. Differs: only attention is adapted; masks are learnt with the divergence from the target's law;
    the sampler moves nothing beyond a mask's likeliest tokens. With masks of one embedding this is SPACE,
    arXiv:2402.11809, whose model is trained as a whole instead.

    The rows of `speculative_streaming` are streams: they enter the pass at one of its last layers, as a map of their
    node's state there, and the layers before do not compute them. Reference: Bhendawade et al., Speculative Streaming,
    arXiv:2402.11131. Differs: the target stays as it is, so the text does; the tree is the policy's; nodes are dropped
    before streams enter by early pruning alone.
    """

    needs: HeadNeeds = LOGITS

    def __init__(self, options: MaskRowsOptions, parts: Parts) -> None:
        self.proposer = parts.proposer
        self._masks = parts.masks()
        self._rows, self._linear = options.rows, options.behind == "last"
        self._vocab_size = parts.vocab_size
        self._count = len(self._masks.embeddings) // self._masks.ensemble
        self._rates = LearntRates()  # by mask
        skipped = 0 if self._masks.entry is None else self._masks.entry.layer
        self._share = 1.0 - skipped / parts.target.layers  # of the layers that a row takes
        self._states, self._price = MaskStates(self._count), RowPrice()
        self._asked = 0
        self._target = parts.target
        self._last = frozenset({parts.target.layers - 1} if self._masks.sampler else ())
        self._said: _Said | None = None
        self._tree: TokenTree | None = None
        self._by_node = LikeliestByNode[Callable[[], Tensor]]()
        self._attached: _Attached | None = None

    @property
    def taps(self) -> Collection[int]:
        """The last layer, whose states of masks the sampler reads."""
        return self._last

    def start(self, history: Sequence[int]) -> None:
        self._said = self._tree = self._attached = None

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) for each node up to `width` tokens that its depth's mask guessed, and nothing below the last mask."""
        if self._tree is not tree:
            self._tree = tree
            self._by_node.clear()
        if self._said is None:
            return [()] * len(frontier)
        nodes = [node for node in frontier if tree.depths[node] < len(self._said.logits)]
        if new := [node for node in nodes if node not in self._by_node]:
            sampled = self._sampled(self._said, tree, new)
            for place, node in enumerate(new):
                row = tree.depths[node]
                said, logits = self._said.likeliest.only(row), partial(self._said.logits.__getitem__, row)
                if sampled is not None:
                    said = sampled.only(place)
                    logits = partial(_replaced, self._said, row, said)
                self._by_node.add([node], partial(said.only, 0), logits)
        guesses = points_below(
            self._by_node, tree, nodes, width, context,
            proposer=self.proposer, noisy=not context.sampling.greedy, logits=self._logits,
        ) if nodes else ()  # fmt: skip
        return for_frontier(frontier, nodes, guesses)

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """The masks behind nodes of this tree, those of a node one after the other."""
        masks, ensemble, entry = self._masks.embeddings, self._masks.ensemble, self._masks.entry
        rows, price = self._affordable()
        if self._linear:
            placed = last_of_likeliest(tree, min(rows // ensemble, self._count))
        else:
            rates = [self._rates.rate(place, _CLAIMED) for place in range(self._count)]
            placed = likeliest_places(tree, self._states.gains(rates), rows // ensemble, price * ensemble)
        extra_rows: list[ExtraRow] = []
        numbers: dict[int, range] = {}
        for node, count in placed.items():
            numbers[node] = range(len(extra_rows), len(extra_rows) + count * ensemble)
            for member in range(ensemble):
                for mask in range(count):
                    after = len(extra_rows) - 1 if mask else None
                    embedding = masks[member * self._count + mask]
                    extra_rows.append(
                        ExtraRow(node, embedding, after, self._masks.adapter, entry=entry, says=entry is None)
                    )
        self._attached = _Attached(tree, numbers, len(extra_rows))
        return extra_rows

    def _affordable(self) -> tuple[int, float]:
        """The most rows of masks, and what one must be worth."""
        if self._rows:
            return self._rows, 0.0
        self._asked += 1
        price = None if self._price.tokens is None else self._share * self._price.tokens
        if price is None or self._asked % _PROBE == 0:  # what never pays is tried again: texts and times change
            return _UNMEASURED_ROWS, 0.0
        return _MOST_ROWS, price

    def observe(self, round: Round) -> None:
        """Count which guesses were right, and read what was said after the masks of the last accepted node."""
        if self._said is not None:
            for place, (token, guesses) in enumerate(zip(round.emitted, self._said.likeliest.tokens, strict=False)):
                right = int(guesses[0]) == token
                self._rates.count(place, right)
                if not right:
                    break
        before = 0 if self._said is None else len(self._said.logits)
        self._said, self._tree = self._read(round), None
        if self._attached is not None:
            after = 0 if self._said is None else len(self._said.logits)
            self._states.move(before, after, len(round.emitted))
            times = round.timings
            if times.joint is None and times.verify_s > 0.0:
                rows = len(round.tree) + self._share * round.extra_rows
                self._price.add(rows, times.verify_s, times.draft_s + times.verify_s, len(round.emitted))
        self._attached = None

    def _sampled(self, said: _Said, tree: TokenTree, nodes: Sequence[int]) -> Likeliest | None:
        """The likeliest tokens of these nodes' masks as the sampler orders them, which knows the nodes' own tokens."""
        if self._masks.sampler is None or said.states is None:
            return None
        rows = [tree.depths[node] for node in nodes]
        states = self._masks.sampler(
            rows_of(said.states, rows), self._target.embed([tree.tokens[node] for node in nodes])
        )
        normed = _normed(states).cpu()
        tokens, values = said.likeliest.tokens[rows], said.likeliest.values[rows]
        shared = torch.from_numpy(values - said.likeliest.logsumexp[rows][:, None]).logsumexp(1, keepdim=True)
        heads = [self._head_rows(said, row) for row in rows]
        scores = torch.stack([head @ state for head, state in zip(heads, normed, strict=True)])
        best, order = (shared + scores.log_softmax(dim=1)).sort(dim=1, descending=True)
        return Likeliest(np.take_along_axis(tokens, order.numpy(), 1), best.numpy(), np.zeros(len(rows)), logits=False)

    def _head_rows(self, said: _Said, row: int) -> Tensor:
        """(C, d) of the head for the likeliest tokens of a mask."""
        if row not in said.head_rows:
            said.head_rows[row] = self._target.head_rows(said.likeliest.tokens[row].tolist())
        return said.head_rows[row]

    def _read(self, round: Round) -> _Said | None:
        """What was said after the masks behind the node that was accepted last; None where it had none."""
        attached, logits = self._attached, round.reading.extra_row_logits
        rows = round.reading.extra_row_last if logits is None else logits
        if attached is None or rows is None or len(rows) != attached.rows:
            return None
        accepted = round.emitted[:-1]
        path = attached.tree.follow(accepted)
        numbers = attached.extra_rows.get(path[-1] if path else ROOT)
        if len(path) < len(accepted) or not numbers:
            return None
        at = slice(numbers.start, numbers.stop)
        logits = self._target.head(rows[at]) if logits is None else rows[at]
        said = self._averaged(logits[:, : self._vocab_size].float())
        values, tokens = said.topk(min(_CANDIDATES, said.shape[1]), dim=1)
        found, highest, logsumexp = to_host(tokens, values, torch.logsumexp(said, dim=1))
        states = round.reading.extra_row_states.get(self._target.layers - 1) if self._last else None
        own = None if states is None else self._averaged(_normed(states[at]))
        return _Said(Likeliest(found, highest, logsumexp, logits=True), said, own, {})

    def _averaged(self, rows: Tensor) -> Tensor:
        """(m, …) means over the ensemble, from (E · m, …)."""
        ensemble = self._masks.ensemble
        return rows if ensemble == 1 else rows.view(ensemble, len(rows) // ensemble, -1).mean(dim=0)

    def _logits(self, node: int) -> Tensor:
        """(V,) logits after a node."""
        return self._by_node.source(node)[0]()


class _Said(NamedTuple):
    """The target's likeliest tokens after m masks.

    Args:
        logits: (m, V).
        states: (m, d) its last states there, of mean square 1, where there is a sampler.
        head_rows: of masks that were asked about, of their likeliest tokens.
    """

    likeliest: Likeliest
    logits: Tensor
    states: Tensor | None
    head_rows: dict[int, Tensor]


def _replaced(said: _Said, row: int, sampled: Likeliest) -> Tensor:
    """(V,) log-probabilities after a mask, those of its likeliest tokens by the sampler."""
    logprobs = said.logits[row] - float(said.likeliest.logsumexp[row])
    logprobs[torch.from_numpy(sampled.tokens[0]).long()] = torch.from_numpy(sampled.values[0]).to(logprobs)
    return logprobs


def _normed(states: Tensor) -> Tensor:
    """(n, d) float32 states of mean square 1."""
    states = states.float()
    return states * states.square().mean(dim=1, keepdim=True).add(_LEAST).rsqrt()


class _Attached(NamedTuple):
    """Masks attached to a pass over a tree: for each node that has some the numbers of their extra rows."""

    tree: TokenTree
    extra_rows: dict[int, range]
    rows: int


_UNKNOWN = 0.5
"""The chance of a guess whose drafter says none."""

_LEAST_RATE = 1e-6

_HABIT, _MEMORY = 8.0, 0.99
"""Weight of what is expected of a state at first, in rounds; and the share of its weight that a round keeps with each
that follows."""


class MaskStates:
    """The worth of the state in which a round begins: how many masks the node accepted last carried.

    States follow one another as a Markov chain, and a round's tokens are its reward. With ρ the steady state's tokens a
    round, the worth h of a state solves h + ρ = r + P h. So a mask counts for the guess it makes, and also for the
    masks that can stand behind that guess.
    """

    def __init__(self, masks: int) -> None:
        self._moves = np.zeros((masks + 1, masks + 1))
        self._tokens = np.zeros(masks + 1)

    def move(self, before: int, after: int, tokens: int) -> None:
        """A round began in one state, emitted so many tokens, and ended in another state."""
        self._moves *= _MEMORY
        self._tokens *= _MEMORY
        self._moves[before, after] += 1.0
        self._tokens[before] += tokens

    def gains(self, rates: Sequence[float]) -> list[float]:
        """For each mask what it adds to the worth of its node's state, never rising; in tokens.

        Args:
            rates: how often guesses of each mask are right, where those of the masks before it were: what a state's
                round emits, as long as there were few such rounds.
        """
        visits = self._moves.sum(axis=1)
        expected = 1.0 + np.concatenate([[0.0], np.cumsum(np.cumprod(rates))])
        reward = (self._tokens + _HABIT * expected) / (visits + _HABIT)
        usual = (self._moves.sum(axis=0) + 1.0) / (visits.sum() + len(visits))
        chances = (self._moves + _HABIT * usual) / (visits + _HABIT)[:, None]
        system = np.eye(len(visits)) - chances
        system[:, 0] = 1.0  # h of the first state is 0, and in its place stands ρ
        worth = np.linalg.solve(system, reward)
        worth[0] = 0.0
        gains: list[float] = np.minimum.accumulate(np.diff(worth).clip(min=0.0)).tolist()
        return gains


class RowPrice:
    """The price of a further row of the target's pass, in tokens that could be written in its time, as measured."""

    def __init__(self) -> None:
        self._times = RecentLinearFit()
        self._tokens = self._seconds = 0.0

    def add(self, rows: float, verify_s: float, round_s: float, tokens: int) -> None:
        self._times.add(rows, verify_s)
        self._tokens = _MEMORY * self._tokens + tokens
        self._seconds = _MEMORY * self._seconds + round_s

    @property
    def tokens(self) -> float | None:
        """None as long as passes had much the same number of rows."""
        known = self._times.known and self._seconds > 0.0
        return self._times.slope * self._tokens / self._seconds if known else None


def likeliest_places(tree: TokenTree, gains: Sequence[float], rows: int, price: float = 0.0) -> dict[int, int]:
    """Node → how many masks stand behind it; nodes without any are left out.

    The state of a round is how many masks the node carried that was accepted last: so many tokens the next tree can
    guess ahead. A mask's worth is the chance that its node is the last one, times what it adds to the worth of the
    node's state, and a node's masks are worth less one after the other. So taking the best masks until the rows are
    used up, or until none is worth its price, is the best choice for this tree.

    Args:
        gains: what each mask adds to the worth of a state, never rising.
        rows: the most masks in all.
        price: what a mask costs, in what gains are counted in.
    """
    last = last_accepted(tree)
    waiting = [(-chance * gains[0], node, 0) for node, chance in enumerate(last)] if gains else []
    heapq.heapify(waiting)
    placed: dict[int, int] = {}
    while waiting and rows > 0:
        worth, node, number = heapq.heappop(waiting)
        if -worth < price:
            break
        placed[node], rows = number + 1, rows - 1
        if number + 1 < len(gains):
            heapq.heappush(waiting, (-last[node] * gains[number + 1], node, number + 1))
    return placed


def last_of_likeliest(tree: TokenTree, masks: int) -> dict[int, int]:
    """The same with all masks behind the end of the likeliest path alone."""
    node = ROOT
    while children := tree.children(node):
        chances = _chances(tree, node)
        node = max(children, key=chances.__getitem__)
    return {node: masks} if masks else {}


def last_accepted(tree: TokenTree) -> list[float]:
    """(N,) how likely each node is the last that is accepted, by what the guesses claim; they add up to 1."""
    reached, last = [0.0] * len(tree), [0.0] * len(tree)
    reached[ROOT] = 1.0
    for node in range(len(tree)):
        chances = _chances(tree, node)
        for child, chance in chances.items():
            reached[child] = reached[node] * chance
        last[node] = reached[node] * (1.0 - math.fsum(chances.values()))
    return last


def _chances(tree: TokenTree, node: int) -> dict[int, float]:
    """The chance of each child of a node; together they leave some for none of them."""
    chances: dict[int, float] = {}
    for child, guess in tree.draws(node):
        said = _UNKNOWN if guess.logprob is None else min(1.0, math.exp(guess.logprob))
        chances[child] = max(chances.get(child, _LEAST_RATE), said)
    total = math.fsum(chances.values())
    most = 1.0 - _LEAST_RATE
    return {child: chance * most / total for child, chance in chances.items()} if total > most else chances
