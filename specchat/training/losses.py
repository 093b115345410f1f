"""The loss of chains of a network's own guesses along texts, and how many of them the target accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.models.draft_heads.head import Batch, DraftNetwork
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.sizes import NetworkSizes

_NEAR = 4
"""A guess is a near miss where the token is among this many of the network's likeliest."""

_NEAR_SHARE = 1 / 3
"""The share of the chains that missed narrowly and are followed all the same."""

SHARPNESS = 1.25
"""Exponent of the target's probabilities in the labels of heads that guess greedily, where acceptance is decided among
the likeliest tokens. Draft models, whose tokens are drawn too, learn the probabilities as they are."""

_LEAST, _TINY = 1e-5, 1e-30


@dataclass(frozen=True)
class Labels:
    """The target's probabilities at some places, of the tokens that can be guessed.

    Args:
        places: (n, K) int64 columns of the logits.
        p: (n, K) their probabilities; 0 where the token cannot be guessed.
        rest: (n,) the probability of all other tokens that can be guessed.
    """

    places: Tensor
    p: Tensor
    rest: Tensor


def labels_of(likeliest: Tensor, log_p: Tensor, rest: Tensor, columns: Tensor, sharpness: float = 1.0) -> Labels:
    """Labels for a trimmed head: what cannot be guessed is left out, and the others share its probability.

    Args:
        likeliest, log_p, rest: (n, K), (n, K), (n,) as `StateShard` has them.
        columns: (V,) the column of every token, −1 for those that cannot be guessed.
        sharpness: exponent of all probabilities, which are normalised again; see `sharpened_rest`.
    """
    places = columns[likeliest]
    p = torch.where(places >= 0, (sharpness * log_p).exp(), 0.0)
    rest = sharpened_rest(log_p, rest, sharpness)
    total = (p.sum(dim=1) + rest).clamp_min(_LEAST)
    return Labels(places.clamp_min(0), p / total[:, None], rest / total)


def sharpened_rest(log_p: Tensor, rest: Tensor, sharpness: float) -> Tensor:
    """(n,) sum of the probabilities of all tokens but the K likeliest, each raised to `sharpness` ≥ 1.

    Only their sum `rest` is known. The single ones are taken to fall with a power of the rank, from the K-th likeliest
    on: p_r = p_K · (r / K) ** −a. On replies of SmolLM2 labels of sharpness 1.25 made so differ from the exact ones by
    a total variation of 0.005, where those of sharpness 1 differ by 0.134.
    """
    if sharpness == 1.0:
        return rest
    last = log_p[..., -1]
    first = log_p.shape[-1] * last.exp()  # K · p_K = (a − 1) · rest
    return rest * ((sharpness - 1) * last).exp() * first / (sharpness * first + (sharpness - 1) * rest).clamp_min(_TINY)


@dataclass(frozen=True)
class Laws:
    """The laws of target and network at some places, all tokens besides the likeliest counted as one, the last.

    Args:
        p: (n, K + 1) of the target.
        q, log_q: (n, K + 1) of the network, and their logarithms; both 0 where a token cannot be guessed.
    """

    p: Tensor
    q: Tensor
    log_q: Tensor


def laws_of(logits: Tensor, labels: Labels) -> Laws:
    """The laws at some places, from (n, H) logits of the network."""
    known = labels.p > 0
    log_q = torch.where(known, torch.log_softmax(logits, dim=1).gather(1, labels.places), 0.0)
    q = torch.where(known, log_q.exp(), 0.0)
    log_rest = torch.log1p(-q.sum(dim=1, keepdim=True).clamp_max(1.0 - _LEAST))
    p = torch.cat([labels.p, labels.rest[:, None]], dim=1)
    return Laws(p, torch.cat([q, log_rest.exp()], dim=1), torch.cat([log_q, log_rest], dim=1))


def divergence(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) Kullback-Leibler divergence of the target's law from that of (n, H) logits, other tokens counted as one."""
    laws = laws_of(logits, labels)
    said: Tensor = torch.special.xlogy(laws.p, laws.p).sum(dim=1)
    return said - (laws.p * laws.log_q).sum(dim=1)


def overlap(laws: Laws) -> Tensor:
    """(n,) the sum of the lesser of both probabilities: how likely a p/q rule accepts one draw."""
    shared: Tensor = torch.minimum(laws.p, laws.q).sum(dim=1)
    return shared


def log_overlap(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) the negative logarithm of the overlap: the gradient of the total variation, larger where little is accepted.

    Reference: Samarin et al., LK Losses, arXiv:2602.23881.
    """
    return -overlap(laws_of(logits, labels)).clamp_min(_LEAST).log()


_KL_DECAY = 3.0


def divergence_then_overlap(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) λ · Kullback-Leibler divergence + (1 − λ) · total variation, λ = exp(−3 · overlap) of the same place.

    The divergence teaches while little is accepted, the total variation refines what is.

    Reference: as `log_overlap`.
    """
    accepted = overlap(laws_of(logits, labels))
    share = (-_KL_DECAY * accepted.detach()).exp()
    return share * divergence(logits, labels) + (1 - share) * (1 - accepted)


def state_distance(normed: Tensor, target: Tensor, epsilon: float) -> Tensor:
    """(n,) mean square of what the network's head input differs by from the target's.

    Args:
        normed: (n, d) of the network, what it aligns with the target's state.
        target: (n, d) the target's last states, not yet normed.
    """
    distance: Tensor = (normed - rms_normalize(target, epsilon)).square().mean(dim=1)
    return distance


def followed(logits: Tensor, wanted: Tensor, chance: Tensor) -> Tensor:
    """(n,) bool, which chains go on: those whose guess was right, and some of those that missed narrowly.

    What follows a wrong guess is never verified, so learning it is a waste; near misses keep the deeper steps fed
    while the first is still poor, and trees have them as siblings.

    Args:
        wanted: (n,) columns of the text's tokens, −1 for those that cannot be guessed.
        chance: (n,) uniform numbers.
    """
    near: Tensor = (logits.topk(min(_NEAR, logits.shape[1]), dim=1).indices == wanted[:, None]).any(dim=1)
    lucky: Tensor = near & (chance < _NEAR_SHARE)
    return right(logits, wanted) | lucky


def right(logits: Tensor, wanted: Tensor) -> Tensor:
    """(n,) bool, where the likeliest token is the wanted one."""
    hit: Tensor = logits.argmax(dim=1) == wanted
    return hit


def columns_of(tokens: Tensor, vocab_size: int) -> Tensor:
    """(V,) int64 the column of every token in the logits of a trimmed head, −1 for those it lacks."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int64, device=tokens.device)
    columns[tokens] = torch.arange(len(tokens), device=tokens.device)
    return columns


_SMOOTHING = 0.5


def confidence_weights(said: Tensor) -> Tensor:
    """(steps, n) weights of the steps of chains: the gain in expected accepted length as a step's log-confidence grows.

    w_j = Σ_{m ≥ j} Π_{i ≤ m} c_i, the confidences smoothed so that later steps learn from the beginning.

    Reference: D-PACE, arXiv:2605.18810. Differs: what is weighted is the distance of laws, not the text's token alone.

    Args:
        said: (steps, n) the network's probabilities of the text's tokens; below 0 where a chain has ended.
    """
    reached = torch.where(said < 0, 0.0, (1 - _SMOOTHING) * said + _SMOOTHING).cumprod(dim=0)
    return reached.flip(0).cumsum(dim=0).flip(0)


_GUESSABLE = 10


def guessable(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) bool, where the target's likeliest token is among the network's ten likeliest.

    Reference: Hu et al., GRIFFIN, arXiv:2502.11018 (token-alignable training). Differs: ten, and the place itself is
    looked at, since chains end at misses anyhow.
    """
    wanted = labels.places.gather(1, labels.p.argmax(dim=1, keepdim=True))
    near: Tensor = (logits.topk(min(_GUESSABLE, logits.shape[1]), dim=1).indices == wanted).any(dim=1)
    return near


STATE_SHARE = 4.0
"""Weight of the distance between states beside the distance between laws, in nats; measured in
docs/measurements.md."""


@dataclass(frozen=True)
class Acceptance:
    """How far chains of guesses are right: of so many `chains`, how many were `right` up to each depth."""

    right: tuple[int, ...]
    chains: int

    @classmethod
    def of(cls, lengths: Tensor, steps: int) -> Acceptance:
        """From (n,) numbers of right guesses of chains of so many steps."""
        return cls(tuple(int((lengths >= step).sum()) for step in range(1, steps + 1)), len(lengths))

    @property
    def by_depth(self) -> tuple[float, ...]:
        """The share that was right at each depth, of those that were right so far."""
        before = (self.chains, *self.right)
        return tuple(now / max(1, last) for last, now in zip(before, self.right, strict=False))

    @property
    def tau(self) -> float:
        """Mean tokens emitted per round of a chain of so many nodes, the bonus included."""
        return 1.0 + sum(self.right) / max(1, self.chains)

    def plus(self, other: Acceptance) -> Acceptance:
        if not self.right:
            return other
        return Acceptance(
            tuple(a + b for a, b in zip(self.right, other.right, strict=True)), self.chains + other.chains
        )


LawLoss = Callable[[Tensor, Labels, torch.Generator], Tensor]
"""(n, H) logits, what the target says, randomness → (n,) what is to become small."""


def chain_loss(
    network: DraftNetwork[NetworkSizes],
    batch: Batch,
    columns: Tensor,
    steps: int,
    generator: torch.Generator,
    glancing: float = 0.0,
    sharpness: float = SHARPNESS,
    loss: LawLoss = lambda logits, labels, _: divergence(logits, labels),
    select: str = "reached",
) -> tuple[Tensor, int]:
    """The mean loss over the first guesses of all chains, that of deeper ones added, and how many chains there are.

    A guess's loss is how far its law is from the target's and, where the batch has the target's states, how far its
    state is from the target's last one: few texts teach more by their states than by their likeliest tokens alone.

    Reference for the second part: Li et al., EAGLE, arXiv:2401.15077.

    Args:
        columns: (V,) the column of every token in the network's logits, −1 where it has none.
        glancing: share of its misses that a network which guesses blocks is shown; see `falcon`.
        sharpness: exponent of the target's probabilities in the labels.
        loss: how far a law is from the target's.
        select: `reached`, the guesses behind right ones and some near misses; `confidence`, all, by
            `confidence_weights`; `guessable`, those that are reached and `guessable`. What is left out or weighted is
            the distance of laws; that of states is not.
    """
    fused = _fused(network, batch)
    states = network.learning_states(fused, batch, columns, steps, glancing, generator)
    anchors = states[0].shape[1]
    going = batch.drafted(1, anchors)
    chains = int(going.sum())
    said = states[0].new_full((steps, *going.shape), -1.0, dtype=torch.float32)
    found = list[tuple[tuple[Tensor, Tensor], Tensor]]()
    total = states[0].new_zeros(())
    for step, state in enumerate(states, 1):
        going = going & batch.drafted(step, anchors)
        rows, places = going.nonzero(as_tuple=True)
        if not len(rows):
            break
        guessed, at = state[rows, places], places + step
        logits, labels = logits_of(network, guessed), labels_at(batch, rows, at, columns, sharpness)
        wanted, far = columns[batch.tokens[rows, at + 1]], loss(logits, labels, generator)
        if select == "guessable":
            far = far * guessable(logits.detach(), labels)
        found.append(((rows, places), far))
        if batch.features.dim() == 4:
            last, own = batch.features[rows, at, -1], network.aligned(guessed)
            total = total + STATE_SHARE * state_distance(own, last, network.sizes.epsilon).sum()
        if select == "confidence":
            chance_of = torch.log_softmax(logits.detach(), dim=1).gather(1, wanted.clamp_min(0)[:, None])[:, 0].exp()
            said[step - 1, rows, places] = torch.where(wanted >= 0, chance_of, 0.0).to(said.dtype)
        else:
            chance = torch.rand(len(rows), generator=generator).to(logits.device)
            going = going.index_put((rows, places), followed(logits.detach(), wanted, chance))
    weights = confidence_weights(said[: len(found)]) if select == "confidence" else None
    for step, (where, far) in enumerate(found):
        total = total + (far if weights is None else far * weights[step][where]).sum()
    return total / max(1, chains), chains


TREE_WIDTHS = (3, 2, 1)
"""Children of a node by its depth, in the trees that `tree_loss` draws; below them there is 1."""

_CLIPPED = 0.2
"""A draw is no longer reinforced where it is this much likelier, or less likely, than the reference makes it."""


def drawn_children(log_q: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(n, count) columns drawn without replacement, in their order, from (n, H) logarithms of probabilities."""
    uniform = torch.rand(log_q.shape, generator=generator).clamp_min(_TINY).to(log_q.device)
    drawn: Tensor = (log_q - (-uniform.log()).log()).topk(min(count, log_q.shape[1]), dim=1).indices
    return drawn


def log_chance(log_q: Tensor, children: Tensor) -> Tensor:
    """(n,) logarithms of the probabilities with which `drawn_children` draws these, in this order."""
    each = log_q.gather(1, children)
    before = each.exp().cumsum(dim=1) - each.exp()
    chance: Tensor = (each - torch.log1p(-before.clamp_max(1.0 - _LEAST))).sum(dim=1)
    return chance


def clipped_gain(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """(n,) advantage × ratio of the chances of a draw, which gains nothing more beyond `_CLIPPED`."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - _CLIPPED, 1.0 + _CLIPPED) * advantage)


@dataclass(frozen=True)
class NextTokens:
    """The tokens that follow at n places that are drafted for from anchors: the target's likeliest, and the text's.

    Args:
        rows, anchors: (n,) numbers of texts, and the places from which it is drafted.
        likeliest, p: (n, K) columns of the logits, −1 where a token cannot be guessed, and their probabilities.
        wanted: (n,) columns of the text's tokens, likewise.
    """

    rows: Tensor
    anchors: Tensor
    likeliest: Tensor
    p: Tensor
    wanted: Tensor

    @classmethod
    def of(cls, batch: Batch, columns: Tensor, step: int, where: Tensor) -> NextTokens:
        """At this step behind the (B, A) anchors that `where` marks."""
        rows, anchors = where.nonzero(as_tuple=True)
        at = rows, anchors + step
        wanted = columns[batch.tokens[rows, anchors + step + 1]]
        return cls(rows, anchors, columns[batch.likeliest[at]], batch.log_p[at].exp(), wanted)


class DrawnTrees:
    """Trees drawn from every place of a batch, grown along its texts: other branches add nothing to what is known.

    Attributes:
        going: (B, A) bool, where the text is in the tree so far.
        length: (B, A) expected accepted length by the target's probabilities, given the text up to each depth. Its
            mean over texts that the target draws is the sum over nodes of the product of probabilities down to them.
    """

    def __init__(self, begun: Tensor) -> None:
        self.going, self.length = begun.clone(), torch.zeros(begun.shape, device=begun.device)

    def grow(self, step: int, log_q: Tensor, next_tokens: NextTokens, generator: torch.Generator) -> Tensor:
        """(n, C) children that were drawn at these n places, for the tree's next depth."""
        at = next_tokens.rows, next_tokens.anchors
        width = TREE_WIDTHS[step - 1] if step <= len(TREE_WIDTHS) else 1
        children = drawn_children(log_q, width, generator)
        found = (next_tokens.likeliest[:, None] == children[:, :, None]) * next_tokens.p[:, None]
        self.length[at] += self.going[at] * found.sum(dim=(1, 2))
        self.going[at] &= (children == next_tokens.wanted[:, None]).any(dim=1)
        return children


def tree_loss(
    network: DraftNetwork[NetworkSizes],
    batch: Batch,
    columns: Tensor,
    steps: int,
    generator: torch.Generator,
    glancing: float = 0.0,
    *,
    reference: DraftNetwork[NetworkSizes],
) -> tuple[Tensor, int]:
    """Minus what trees drawn from the network gain in expected accepted length over trees of a frozen reference.

    At every place a tree of `TREE_WIDTHS` is drawn from each. The difference of their lengths, standardised within a
    text, is the advantage of all draws of the network's tree along the text. Arguments and result are those of
    `chain_loss`; `reference` is what the network was before this stage.

    Reference: Hu et al., Group Tree Optimization, arXiv:2509.22134. Differs: trees have a fixed shape and are drawn, so
    that the score of a draw is exact; texts that the target wrote stand for its probabilities below the first guess; a
    group is a text; ratios are to the reference.
    """
    states = network.learning_states(_fused(network, batch), batch, columns, steps, glancing, generator)
    with torch.no_grad():
        earlier = reference.learning_states(_fused(reference, batch), batch, columns, steps, glancing, generator)
    anchors = states[0].shape[1]
    begun = batch.drafted(1, anchors)
    trees, others = DrawnTrees(begun), DrawnTrees(begun)
    drawn = list[tuple[NextTokens, Tensor, Tensor]]()
    for step, (state, before) in enumerate(zip(states, earlier, strict=True), 1):
        there = (trees.going | others.going) & batch.drafted(step, anchors)
        if not bool(there.any()):
            break
        log_q = torch.log_softmax(logits_of(network, state[there]), dim=1)
        with torch.no_grad():
            log_before = torch.log_softmax(logits_of(reference, before[there]), dim=1)
        following = NextTokens.of(batch, columns, step, there)
        going = trees.going[there]
        children = trees.grow(step, log_q.detach(), following, generator)
        others.grow(step, log_before, following, generator)
        log_ratio = log_chance(log_q, children) - log_chance(log_before, children)
        drawn.append((following, going, log_ratio))
    advantage = _standardised(trees.length - others.length, begun)
    chains, total = int(begun.sum()), states[0].new_zeros(())
    for following, going, log_ratio in drawn:
        gain = clipped_gain(log_ratio, advantage[following.rows, following.anchors])
        total = total - gain[going].sum()
    return total / max(1, chains), chains


def _standardised(values: Tensor, known: Tensor) -> Tensor:
    """(B, A) the values less their mean over the known ones of a text, over their standard deviation there."""
    count = known.sum(dim=1, keepdim=True).clamp_min(1)
    centred = torch.where(known, values - (values * known).sum(dim=1, keepdim=True) / count, 0.0)
    deviation = (centred.square().sum(dim=1, keepdim=True) / count).sqrt()
    return centred / deviation.clamp_min(_LEAST)


def logits_of(network: DraftNetwork[NetworkSizes], states: Tensor) -> Tensor:
    """(n, H) logits after (n, d) states, in float32 at least: the sum of bfloat16 numbers may exceed 1."""
    logits = network.logits(states)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def labels_at(batch: Batch, rows: Tensor, places: Tensor, columns: Tensor, sharpness: float = 1.0) -> Labels:
    """The target's labels at some places: (n,) numbers of texts, (n,) of places in them; `columns` as above."""
    at = rows, places
    return labels_of(batch.likeliest[at], batch.log_p[at], batch.rest[at], columns, sharpness)


def acceptance(network: DraftNetwork[NetworkSizes], batch: Batch, columns: Tensor, steps: int) -> Acceptance:
    """How many chains of guesses are what the text says, depth by depth. Chains cut off by the end count as wrong."""
    return Acceptance.of(guessed_chains(network, batch, columns, steps)[0], steps)


@torch.no_grad()
def guessed_chains(
    network: DraftNetwork[NetworkSizes], batch: Batch, columns: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """(n,) int64 each, for the places from which something is drafted: how many guesses of the chain are right, and the
    column of the first guess."""
    states = network.states(_fused(network, batch), batch.tokens, steps)
    going = begun = batch.drafted(1, states[0].shape[1])
    lengths = torch.zeros_like(begun, dtype=torch.int64)
    first = lengths[begun]
    for step, state in enumerate(states, 1):
        rows, places = (going & batch.drafted(step, going.shape[1])).nonzero(as_tuple=True)
        going = torch.zeros_like(going)
        if len(rows):
            wanted = columns[batch.tokens[rows, places + step + 1]]
            guesses = network.logits(state[rows, places]).argmax(dim=1)
            going[rows, places] = guesses == wanted
            first = guesses if step == 1 else first
        lengths += going
    return lengths[begun], first


def _fused(network: DraftNetwork[NetworkSizes], batch: Batch) -> Tensor:
    return network.fused(batch.features) if batch.features.dim() == 4 else batch.features
