"""A trained head learns from the user's replies, in pieces small enough for slices of idle time."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.drafting_networks import ChangedGuess, JudgedReply, LearningFigures
from specchat.core.seams import Weights
from specchat.indexes.reply_buffer import RecordedReply, ReplyBuffer
from specchat.models.draft_heads.head import Batch, DraftHead, below
from specchat.models.draft_heads.sizes import Sizes
from specchat.training.losses import chain_loss, columns_of, guessed_chains


@dataclass(frozen=True)
class Window:
    """This many neighbouring places of a reply, from `place` on, from each of which a chain is drafted."""

    reply: RecordedReply
    place: int
    anchors: int

    def batch(self, steps: int) -> Batch:
        """This piece as a batch of one text, with the tokens that chains of so many guesses need behind it."""
        length = self.anchors + steps + 1
        part, reply = slice(self.place, self.place + length), self.reply
        tokens, rows = reply.tokens[part].long(), len(reply.inputs[part])
        missing = length - rows
        known = reply.known[part].clone()
        known[self.anchors :] = False
        log_p = F.pad(reply.log_p[part].float(), (0, 0, 0, missing), value=-torch.inf)
        return Batch(
            features=F.pad(reply.inputs[part].float(), (0, 0, 0, missing))[None],
            tokens=F.pad(tokens, (0, length - len(tokens)))[None],
            first=torch.tensor([0]),
            last=torch.tensor([len(tokens) - 2]),
            likeliest=F.pad(reply.likeliest[part].long(), (0, 0, 0, missing))[None],
            log_p=log_p[None],
            rest=(1.0 - log_p.exp().sum(-1)).clamp_min(0.0)[None],
            known=F.pad(known, (0, missing))[None],
        )


DEPTH = 4
"""Guesses in the chains that are compared."""

MOST_CHAINS = 1024
"""How many of the most recent chains count."""

_FEWEST_CHAINS = 128
_SURELY = 2.0
"""Standard deviations of a fair coin: learnt weights that lost by so much are worse."""


@dataclass(frozen=True)
class ChainComparison:
    """Chains from the same places, drafted with both.

    Args:
        chains: how many.
        before, now: for each depth, how many were right that far, with the original and with the learnt weights.
        better, worse: from how many places the learnt weights were right further, and less far.
    """

    chains: int
    before: tuple[int, ...]
    now: tuple[int, ...]
    better: int
    worse: int

    @classmethod
    def of(cls, before: Tensor, now: Tensor) -> ChainComparison:
        """From (n,) how many guesses of each chain were right."""
        deep = range(1, DEPTH + 1)
        return cls(
            len(now),
            tuple(int((before >= depth).sum()) for depth in deep),
            tuple(int((now >= depth).sum()) for depth in deep),
            int((now > before).sum()),
            int((now < before).sum()),
        )


class Judgement:
    """Comparisons of the latest replies."""

    def __init__(self) -> None:
        self._replies: deque[ChainComparison] = deque()

    def add(self, reply: ChainComparison) -> None:
        self._replies.append(reply)
        while sum(one.chains for one in self._replies) > MOST_CHAINS and len(self._replies) > 1:
            self._replies.popleft()

    @property
    def total(self) -> ChainComparison:
        each = self._replies
        return ChainComparison(
            sum(one.chains for one in each),
            tuple(sum(one.before[depth] for one in each) for depth in range(DEPTH)),
            tuple(sum(one.now[depth] for one in each) for depth in range(DEPTH)),
            sum(one.better for one in each),
            sum(one.worse for one in each),
        )

    @property
    def worse(self) -> bool:
        """Whether the learnt weights surely guess worse than the original ones."""
        total = self.total
        lost = total.worse - total.better
        return total.chains >= _FEWEST_CHAINS and lost > _SURELY * (total.worse + total.better) ** 0.5

    def saved(self) -> Tensor:
        """(n, 3 + 2 · DEPTH) int64, a row for each reply."""
        rows = [(one.chains, one.better, one.worse, *one.before, *one.now) for one in self._replies]
        return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3 + 2 * DEPTH)

    @classmethod
    def restored(cls, saved: Tensor) -> Judgement:
        """The judgement that `saved` made; raises ValueError if the tensor is not one that `saved` made."""
        if saved.dtype != torch.int64 or saved.dim() != 2 or saved.shape[1] != 3 + 2 * DEPTH or bool((saved < 0).any()):
            raise ValueError("its judgement is damaged")
        judgement = cls()
        for chains, better, worse, *right in saved.tolist():
            judgement.add(ChainComparison(chains, tuple(right[:DEPTH]), tuple(right[DEPTH:]), better, worse))
        return judgement


MOST_JUDGED = 8
"""Replies of which it is told how both networks did, one by one."""

MOST_CHANGED = 3
"""Changed guesses that are told of a reply."""

_TEXT_TOKENS = 6
"""Tokens before a changed guess that are told with it."""


def changed_guesses(
    tokens: Tensor, guesses: tuple[Tensor, Tensor], places: Tensor
) -> tuple[int, int, tuple[ChangedGuess, ...]]:
    """How many guesses became right and how many wrong, and some of those that changed.

    Args:
        tokens: (n,) of a reply behind the last of its prompt and the token before that.
        guesses: (m,) tokens that were guessed before and after learning.
        places: (m,) where in `tokens` these stand.
    """
    wrote, (one, other) = tokens[places], guesses
    right, wrong = (other == wrote) & (one != wrote), (one == wrote) & (other != wrote)
    # Of each kind the first ones: a choice of gains alone would flatter.
    order = [int(at) for kind in (right, wrong, (one != other) & ~right & ~wrong) for at in kind.nonzero()[:, 0]]
    told = [*order[: MOST_CHANGED - 1], *([int(wrong.nonzero()[0])] if bool(wrong.any()) else []), *order]
    chosen = sorted(list(dict.fromkeys(told))[:MOST_CHANGED])
    changed = tuple(
        ChangedGuess(
            int(places[at]) - 1,
            tuple(tokens[max(0, int(places[at]) - _TEXT_TOKENS) : int(places[at])].tolist()),
            int(one[at]), int(other[at]), int(wrote[at]),
        )
        for at in chosen
    )  # fmt: skip
    return int(right.sum()), int(wrong.sum()), changed


LEARNING_RATE = 1e-4
"""At higher rates other subjects are forgotten; measured in docs/measurements.md."""

STEPS = 3
"""Tokens that are guessed in a row while learning."""

WINDOWS = 8
"""Pieces of replies that one update learns from."""

ANCHORS = 16
"""Places of a piece: learning from one takes some milliseconds, so that a command waits no longer."""

REPEATS = 6
"""How often a place of a new reply is learnt from before the next reply, on the average."""

_NEWEST = 0.5
"""The share of pieces that are of the newest reply; the others are of all that are kept."""

_MOST_UPDATES = 64
"""Updates that may be owed; more would take minutes for a reply of seconds."""

_MOST_RARE = 1024
"""Tokens of the replies that can be learnt besides the frequent ones."""

_COUNTERS = ("replies", "tokens", "updates", "went_back", "new", "owed")


class OnlineLearner:
    """The original network, a copy of it that learns, and the replies that it learns from.

    Every reply is first judged with both networks and then learnt from, so what is said of them was measured on text
    that neither had seen. Where the copy turns out worse it becomes the original again.

    The product that fuses the target's states stays as it is: rows of the text, those of the replies among
    them, remain valid. The loss and the chains are those of training.

    Reference: Liu et al., Online Speculative Decoding, arXiv:2310.07177. Differs: every place of a reply is learnt
    from, not only those where a draft was refused, since a measurement on those alone favours the other network; a
    reply is judged before it is learnt from; there is one network, not one for each topic.
    """

    def __init__(self, original: DraftHead[Sizes], target: Weights, deepest: int) -> None:
        """Nothing learnt yet. `original` is in float32, further tokens of its head are read from `target`, and it can
        guess `deepest` tokens in a row."""
        self._steps, self._judged = min(STEPS, deepest), min(DEPTH, deepest)
        self.original = original
        self.network = _copy(original)
        self.buffer = ReplyBuffer()
        self._target = target
        self._judgement = Judgement()
        self._judged_replies: deque[JudgedReply] = deque(maxlen=MOST_JUDGED)
        self._replies = self._tokens = self._updates = self._went_back = 0
        self._new = 0  # replies at the end of the buffer that are to be judged
        self._owed = 0  # updates that are to be made
        self._frequent = original.shared
        self._columns = columns_of(original.shared.tokens, target.vocab_size)
        self._optimisers: list[torch.optim.Adam] = []

    @property
    def learnt(self) -> LearningFigures:
        total, buffer = self._judgement.total, self.buffer
        return LearningFigures(
            self._replies, self._tokens, buffer.tokens, buffer.size_bytes, self._updates, self._went_back,
            total.chains, total.before[: self._judged], total.now[: self._judged], tuple(self._judged_replies),
        )  # fmt: skip

    @property
    def due(self) -> bool:
        return self._new > 0 or self._owed > 0

    def add(self, reply: RecordedReply) -> None:
        self.buffer.add(reply)
        self._new = min(self._new + 1, len(self.buffer))
        self._replies += 1
        self._tokens += len(reply)
        self._owed = min(_MOST_UPDATES, self._owed + -(-len(reply) * REPEATS // (WINDOWS * ANCHORS)))

    def training_steps(self) -> Iterator[None]:
        """Judge what is new, then learn; yields after every small piece of work."""
        while self._new:
            yield from self._judge(self.buffer[len(self.buffer) - self._new])
            self._new = max(0, self._new - 1)
        if self._judgement.worse:
            self.go_back()
        while self._owed and len(self.buffer):
            yield from self._update()
            self._owed -= 1

    def go_back(self) -> None:
        """Drop what was learnt; the replies stay, and are learnt from anew with those to come."""
        self.network = _copy(self.original)
        self._optimisers = []
        self._judgement = Judgement()
        self._judged_replies.clear()
        self._went_back += 1

    def drafting_copy(self) -> DraftHead[Sizes]:
        """The network with what was learnt, to draft with: the head's rows are the frequent ones again."""
        copied = _copy(self.network).requires_grad_(False)
        copied.shared = self._frequent
        return copied

    def saved(self) -> dict[str, Tensor]:
        """Weights, replies, judgement and counts."""
        counters = torch.tensor([getattr(self, f"_{name}") for name in _COUNTERS], dtype=torch.int64)
        weights = {f"weights.{name}": tensor for name, tensor in self._learning().items()}
        replies = {f"replies.{name}": tensor for name, tensor in self.buffer.saved().items()}
        return {"counters": counters, "judgement": self._judgement.saved(), **weights, **replies}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from what was saved; ValueError if another network saved it, or if it is not what `saved` makes."""
        weights, replies = below(saved, "weights."), below(saved, "replies.")
        learning = self._learning()
        if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in learning.items()}:
            raise ValueError("it holds weights of another network")
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise ValueError("its weights are not all finite")
        counters = saved["counters"].tolist()
        if len(counters) != len(_COUNTERS) or not all(isinstance(n, int) and 0 <= n < 1 << 48 for n in counters):
            raise ValueError("its counters are damaged")
        with torch.no_grad():
            for name, tensor in learning.items():
                tensor.copy_(weights[name])
        self.buffer = ReplyBuffer.restored(replies, self._target.vocab_size, self._target.hidden_size)
        self._judgement = Judgement.restored(saved["judgement"])
        for name, count in zip(_COUNTERS, counters, strict=True):
            setattr(self, f"_{name}", count)
        self._new, self._owed = min(self._new, len(self.buffer)), min(self._owed, _MOST_UPDATES)

    # ------------------------------------------------------------------------------------------------ work

    def _judge(self, reply: RecordedReply) -> Iterator[None]:
        self._make_learnable(reply)
        found: list[tuple[Tensor, ...]] = []
        for place in range(0, len(reply) - 1, ANCHORS):
            batch = Window(reply, place, ANCHORS).batch(self._judged)
            networks = self.original, self.network
            (before, one), (now, other) = (guessed_chains(net, batch, self._columns, self._judged) for net in networks)
            tokens = self.original.shared.tokens  # rows of the head may be others for the next reply
            places = batch.drafted(1, batch.tokens.shape[1])[0].nonzero()[:, 0] + place + 2
            found.append((before, now, tokens[one], tokens[other], places))
            yield
        before, now, *guesses, places = (torch.cat(parts) for parts in zip(*found, strict=True))
        self._judgement.add(ChainComparison.of(before, now))
        right, wrong, changed = changed_guesses(reply.tokens.long(), (guesses[0], guesses[1]), places)
        counts = len(now), int(before.sum()), int(now.sum())
        self._judged_replies.append(JudgedReply(*counts, self._updates, right, wrong, changed))

    def _update(self) -> Iterator[None]:
        """One update from some pieces of replies, tensor by tensor."""
        if not self._optimisers:
            self._optimisers = [
                torch.optim.Adam([tensor], lr=LEARNING_RATE, betas=(0.9, 0.98)) for tensor in self._learning().values()
            ]
        self.network.zero_grad()  # what an update that was broken off left there
        chance = torch.Generator().manual_seed(self._updates)
        for _ in range(WINDOWS):
            window = self._drawn(chance)
            self._make_learnable(window.reply)
            loss, _ = chain_loss(self.network, window.batch(self._steps), self._columns, self._steps, chance)
            if loss.requires_grad:
                (loss / WINDOWS).backward()  # type: ignore[no-untyped-call]
            yield
        nn.utils.clip_grad_norm_(self._learning().values(), 1.0)
        for optimiser in self._optimisers:
            optimiser.step()
            yield
        self._updates += 1

    def _drawn(self, chance: torch.Generator) -> Window:
        """A piece of the newest reply, or of any; long replies are drawn as often as they are long."""
        newest, where = torch.rand(2, generator=chance).tolist()
        lengths = torch.tensor(self.buffer.lengths(), dtype=torch.float32)
        place = len(lengths) - 1 if newest < _NEWEST else int(torch.multinomial(lengths, 1, generator=chance))
        reply = self.buffer[place]
        return Window(reply, int(where * max(1, len(reply) - ANCHORS)), ANCHORS)

    def _make_learnable(self, reply: RecordedReply) -> None:
        """Give the head rows for the tokens of a reply, as drafting does."""
        if self._frequent.own_head:
            return
        tokens = torch.unique(reply.tokens.long())
        new = tokens[self._columns[tokens] < 0]
        if not len(new):
            return
        shared = self.original.shared
        if len(shared.tokens) + len(new) > len(self._frequent.tokens) + _MOST_RARE:
            shared, new = self._frequent, new[:_MOST_RARE]
        rows = self._target.head_rows(new.tolist()).clone()
        shared = replace(shared, tokens=torch.cat([shared.tokens, new]), head=torch.cat([shared.head, rows]))
        self.original.shared = self.network.shared = shared
        self._columns = columns_of(shared.tokens, self._target.vocab_size)

    def _learning(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.network.tensors().items() if tensor.requires_grad}


def on_one_thread(work: Iterator[None], deadline: float) -> bool:
    """Do pieces of work until `time.monotonic()` reaches the deadline, one at least; whether there are more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in work:
            if time.monotonic() >= deadline:
                return True
    finally:
        torch.set_num_threads(threads)
    return False


def _copy(network: DraftHead[Sizes]) -> DraftHead[Sizes]:
    """A network with weights of its own that can be learnt; what it shares with the target stays shared."""
    copied = copy.deepcopy(network, {id(network.shared): network.shared})
    copied.requires_grad_(True)
    copied.fuse.requires_grad_(False)
    return copied
