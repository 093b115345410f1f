"""Batches of texts to learn from, in an order given by a seed, and the target's weights for their tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest

import torch
from torch import Tensor

from specchat.core.seams import Weights
from specchat.models.draft_heads.head import Batch, SharedWeights
from specchat.training.losses import columns_of
from specchat.training.states import StateShard
from specchat.training.texts import TrainingText

_HELD_OUT = 20
"""One text in so many is never learnt from: progress is measured on those."""


class Corpus:
    """Texts in shards. The same seed gives the same batches."""

    def __init__(
        self,
        shards: Sequence[StateShard],
        steps: int,
        reads_back: bool,
        measured: int | None = None,
        reads_states: bool = True,
    ) -> None:
        """Nothing is copied.

        Args:
            steps: tokens that are guessed in a row.
            reads_back: whether the network looks at tokens further back than its last input: else prompts are left out.
            measured: on so many texts progress is measured at most; None for all that are not learnt from.
            reads_states: whether the network looks at the target's states: else batches have none.
        """
        self._reads_states = reads_states
        self._shards = shards
        self._steps = steps
        self._reads_back = reads_back
        places = [(number, text) for number, shard in enumerate(shards) for text in range(len(shard))]
        self.learnt = [place for index, place in enumerate(places) if index % _HELD_OUT]
        self.held_out = places[::_HELD_OUT][:measured]

    @property
    def tokens(self) -> int:
        """Tokens of replies that are learnt from."""
        return sum(self._length(*place) for place in self.learnt)

    def text(self, learnt: int) -> TrainingText:
        """One of the texts that are learnt from, by its place among them."""
        number, text = self.learnt[learnt]
        shard = self._shards[number]
        begin, end, reply = int(shard.starts[text]), int(shard.starts[text + 1]), int(shard.replies[text])
        tokens: list[int] = shard.tokens[begin:end].tolist()
        return TrainingText(learnt, tokens[:reply], tokens[reply:], greedy=False)

    def rewritten(self, learnt: Sequence[int], shards: Sequence[StateShard]) -> Corpus:
        """The same with other texts in these places of `learnt`: those of the shards, one behind the other."""
        made = copy.copy(self)
        made._shards = [*self._shards, *shards]
        made.learnt = [*self.learnt]
        places = [(len(self._shards) + number, text) for number, one in enumerate(shards) for text in range(len(one))]
        for at, place in zip(learnt, places, strict=True):
            made.learnt[at] = place
        return made

    def below_average(self, share: Callable[[Batch], Tensor], texts: int) -> Corpus:
        """The texts whose share is below the mean of those that are learnt from; all where there are none.

        Args:
            share: texts → (B,) float32, on the host.
            texts: are asked about at once.
        """
        learnt, held_out = (
            torch.cat([share(self._batch(places[at : at + texts])[0]) for at in range(0, len(places), texts)])
            for places in (self.learnt, self.held_out)
        )
        made, mean = copy.copy(self), float(learnt.mean())
        made.learnt = [place for place, found in zip(self.learnt, learnt, strict=True) if found < mean] or self.learnt
        made.held_out = [
            place for place, found in zip(self.held_out, held_out, strict=True) if found < mean
        ] or self.held_out
        return made

    def epoch(self, number: int, seed: int, texts: int, skipped: int = 0) -> Iterator[tuple[Batch, int]]:
        """All texts once, so many at a time, without the first batches; and how many tokens of replies each has."""
        order = torch.randperm(len(self.learnt), generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
        for some in torch.split(order, texts)[skipped:]:
            yield self._batch([self.learnt[at] for at in some.tolist()])

    def unseen(self, texts: int) -> Iterator[Batch]:
        for first in range(0, len(self.held_out), texts):
            yield self._batch(self.held_out[first : first + texts])[0]

    def frequent_tokens(self, count: int) -> Tensor:
        """(≤ count,) int64 the tokens that the target says most, the most frequent first."""
        weight: dict[int, float] = {}
        for shard in self._shards:
            tokens, inverse = torch.unique(shard.likeliest, return_inverse=True)
            sums = torch.zeros(len(tokens)).index_add_(0, inverse.flatten(), shard.log_p.float().exp().flatten())
            for token, mass in zip(tokens.tolist(), sums.tolist(), strict=True):
                weight[token] = weight.get(token, 0.0) + mass
        return torch.tensor(sorted(weight, key=lambda token: (-weight[token], token))[:count])

    def occurring_tokens(self) -> Tensor:
        some = [torch.unique(shard.tokens) for shard in self._shards]
        every: Tensor = torch.unique(torch.cat(some))
        return every.long()

    def _length(self, number: int, text: int) -> int:
        shard = self._shards[number]
        return int(shard.starts[text + 1] - shard.starts[text] - shard.replies[text])

    def _batch(self, places: Sequence[tuple[int, int]]) -> tuple[Batch, int]:
        spans = [self._span(number, text) for number, text in places]
        longest = max(end - begin for begin, end, _ in spans)
        rows, length = len(spans), longest + self._steps - 2
        like = self._shards[places[0][0]]
        sizes, kept = like.states.shape[1:] if self._reads_states else (0, 0), like.likeliest.shape[1]
        batch = Batch(
            features=torch.zeros(rows, length, *sizes),
            tokens=torch.zeros(rows, length, dtype=torch.int64),
            first=torch.tensor([first for _, _, first in spans]),
            last=torch.tensor([end - begin - 2 for begin, end, _ in spans]),
            likeliest=torch.zeros(rows, length, kept, dtype=torch.int64),
            log_p=torch.full((rows, length, kept), -torch.inf),
            rest=torch.zeros(rows, length),
        )
        for row, ((number, _), (begin, end, _)) in enumerate(zip(places, spans, strict=True)):
            shard, count = self._shards[number], min(end - begin, length)
            if self._reads_states:
                batch.features[row, :count] = shard.states[begin : begin + count]
            for name, tensor in (("tokens", shard.tokens), ("rest", shard.rest), ("likeliest", shard.likeliest),
                                 ("log_p", shard.log_p)):  # fmt: skip
                getattr(batch, name)[row, :count] = tensor[begin : begin + count]
        return batch, sum(self._length(*place) for place in places)

    def _span(self, number: int, text: int) -> tuple[int, int, int]:
        """Where in its shard the part of a text begins and ends that is learnt from, and the first place in it."""
        shard = self._shards[number]
        begin, end, reply = int(shard.starts[text]), int(shard.starts[text + 1]), int(shard.replies[text])
        first = max(0, reply - 2)
        return (begin, end, first) if self._reads_back else (begin + first, end, 0)


def shared_with(
    target: Weights, corpus: Corpus, head_tokens: int, known: Tensor | None = None, also: Tensor | None = None
) -> SharedWeights:
    """The target's weights for the tokens of a corpus: looking a token up is one row of a table.

    Args:
        head_tokens: so many of the most frequent tokens can be guessed.
        known: (H,) int64 the tokens of another training, the most frequent first: they and those of the corpus take
            turns.
        also: (n,) int64 tokens that are read besides.
    """
    frequent = corpus.frequent_tokens(head_tokens)
    if known is not None:
        frequent = _in_turn(frequent, known)[:head_tokens]
    others = [] if also is None else [also]
    read = torch.unique(
        torch.cat([corpus.occurring_tokens(), frequent, *others])
    )  # a draft model reads its own guesses too
    table = target.embed(read.tolist()).float()
    rows = columns_of(read, target.vocab_size).clamp_min(0).to(table.device)

    def embed(tokens: Tensor) -> Tensor:
        return table[rows[tokens]]

    return SharedWeights(embed, frequent, target.head_rows(frequent.tolist()).float().to(table.device))


def _in_turn(one: Tensor, other: Tensor) -> Tensor:
    """The first of each list, then the second of each, and so on, every token once."""
    turns = chain.from_iterable(zip_longest(one.tolist(), other.tolist()))
    return torch.tensor(list(dict.fromkeys(token for token in turns if token is not None)))
