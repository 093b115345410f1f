"""Networks that drafters are built from besides models: trained ones, trained masks, narrower copies of the target.

With what drafters and models may do besides: keep a state, work while idle, learn from replies, hold parts of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.memory import NetworkMemory
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.request import Adapter, Entry, HeadNeeds, PassRequest
from specchat.core.round import Round
from specchat.core.seams import Model
from specchat.core.states import TextStates
from specchat.core.tree import TokenTree

Tokens = np.ndarray[Any, np.dtype[np.int32 | np.int64]]
Logprobs = np.ndarray[Any, np.dtype[np.float32 | np.float64]]


@dataclass(frozen=True)
class Ahead:
    """The questions that follow in a tree that begins, where no other drafter takes part: one call may compute them.

    `width` guesses are asked for after each node; within `budget` those of most worth stay (`trees.growth`).
    """

    width: int
    budget: Budget


@dataclass(frozen=True)
class Guessed:
    """Which tokens probably follow n nodes; on the host. It may be written over once the next tree begins.

    Args:
        tokens: (n, C) the likeliest, best first.
        logprobs: (n, C) their log-probabilities among the tokens that can be guessed.
        possible: (H,) the tokens that can be guessed.
        logsumexp: (n,) what was taken from the logits to make log-probabilities of them.
        compute_logits: () → (n, H) of all of them; few rules ask.
    """

    tokens: Tokens
    logprobs: Logprobs
    possible: Tokens
    logsumexp: Logprobs
    compute_logits: Callable[[], Tensor]

    @property
    def logits(self) -> Tensor:
        """(n, H) logits of all tokens that can be guessed."""
        return self.compute_logits()

    def of(self, rows: Sequence[int]) -> Guessed:
        """The guesses after these of the n nodes, each as often as it is named."""
        some = list(rows)
        tokens, logprobs, logsumexp = self.tokens[some], self.logprobs[some], self.logsumexp[some]
        return Guessed(tokens, logprobs, self.possible, logsumexp, lambda: self.logits[some])


class TrainedNetwork(Protocol):
    """A small network that was trained to guess, from the target's own states, the tokens that follow."""

    layers: frozenset[int]
    """Of the target, whose states it reads."""
    depth: int
    """Nodes of this depth and deeper it cannot be asked about."""

    @property
    def one_pass(self) -> bool:
        """Whether the pass that answers for the root answers for the whole tree: deeper levels cost none."""

    @property
    def passes(self) -> int:
        """Forward passes so far."""

    def take(self, states: TextStates) -> None:
        """States of the text; they come as `Drafter.hidden_state_sink` is given them."""

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        """Told of tokens of the text whose states do not come; None for a network that needs them all."""

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        """A tree is to grow below the last token of this text. False where states of the text are missing.

        Results do not depend on `ahead`, only how soon they come.
        """

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """Read nodes of one depth, each once, after their parents: what probably follows each of them."""

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        """After `begin`: how compiled code reads the tree by itself; None where only `read` can do so.

        Args:
            tokens: that it will be asked about for sure, the root among them.
            rows: so many it may be asked about.
        """

    def count_passes(self, count: int) -> None:
        """Compiled code let it read so many times."""


class Denoiser(TrainedNetwork, Protocol):
    """A trained network that reads tokens alone and fills masked places of windows behind the text."""

    def guesses(self, window: Sequence[int | None]) -> Guessed:
        """After `begin`: what it says in every place of one window, in which None is a mask. One pass."""


@dataclass(frozen=True)
class ChangedGuess:
    """A place of a reply where learning changed the first guess, which was made without having seen that place.

    Args:
        place: which token of the reply is guessed, from 1.
        text: the last tokens before it.
        before, now, wrote: the guess by the weights as they were trained, that by the learnt ones, the target's token.
    """

    place: int
    text: tuple[int, ...]
    before: int
    now: int
    wrote: int


@dataclass(frozen=True)
class JudgedReply:
    """One reply, judged before it was learnt from, by the weights as they were trained and as the replies before left
    them.

    Args:
        chains: places that were asked about.
        before, now: guesses that were right in all chains together.
        updates: of the weights until then.
        became_right, became_wrong: places whose first guess did.
        changed: some of them, in their order.
    """

    chains: int
    before: int
    now: int
    updates: int = 0
    became_right: int = 0
    became_wrong: int = 0
    changed: tuple[ChangedGuess, ...] = ()


@dataclass(frozen=True)
class LearningFigures:
    """Figures of learning, and of its worth on the most recent text, measured before that was learnt from.

    Args:
        replies, tokens: recorded so far, those that have been forgotten since included.
        kept_tokens, kept_bytes: of the replies that are kept to learn from.
        went_back: how often what was learnt was dropped, because it did worse than the original weights.
        chains: places in the most recent replies from which both networks were asked.
        before, now: for each depth, how many of the chains were right that far: with the original weights, and with
            those in use when the reply was written.
        judged: the last replies since the engine began, the newest at the end.
    """

    replies: int = 0
    tokens: int = 0
    kept_tokens: int = 0
    kept_bytes: int = 0
    updates: int = 0
    went_back: int = 0
    chains: int = 0
    before: tuple[int, ...] = ()
    now: tuple[int, ...] = ()
    judged: tuple[JudgedReply, ...] = ()


@runtime_checkable
class KeepsState(Protocol):
    """A drafter that keeps what it has learnt from one session to the next.

    Its state is saved when a reply ends, after idle work and when the engine leaves, for each target and name.
    """

    def save_state(self) -> bytes:
        """The learnt state as bytes; empty if nothing was learnt. The same state gives the same bytes."""

    def restore_state(self, state: bytes) -> None:
        """Go on from what was saved, or from nothing where that is empty.

        Raises:
            ValueError: this was not saved by such a drafter.
        """


@runtime_checkable
class IdleWorker(Protocol):
    """A drafter that can use the time in which the engine is idle."""

    def idle(self, deadline: float) -> bool:
        """Work until `time.monotonic()` reaches the deadline; whether there is more to do. Never called in a reply."""


@runtime_checkable
class LearnsFromReplies(KeepsState, IdleWorker, Protocol):
    """A drafter that learns from the user's replies, where the user wants that. Its state is large, so that it is saved
    after idle work and when the engine leaves, not after every reply."""

    def learn(self, wanted: bool) -> None:
        """Learn from replies from now on, or no longer; at first it does not. What was learnt stays in use."""

    def reply_ended(self) -> None:
        """A reply is over, and no command waits: what takes time may be done now."""

    @property
    def learnt(self) -> LearningFigures:
        """The figures of learning so far."""


class LearningDraft(LearnsFromReplies, Protocol):
    """Lets the draft model of a drafter learn: it changes what the draft model says of its last states."""

    @property
    def wanted(self) -> bool:
        """Whether replies are learnt from now."""

    @property
    def active(self) -> bool:
        """Whether passes are made with `request`: replies are learnt from, or something was learnt."""

    @property
    def states(self) -> Tensor:
        """(n, d) last states of the nodes that were read last, as the draft model computed them."""

    def start(self, history: Sequence[int]) -> None:
        """A reply begins behind this text: from here to its end the weights stay as they are."""

    def request(self, request: PassRequest) -> PassRequest:
        """The same request of the draft model, with what was learnt."""

    def law(self, reading: Reading, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """(n, K) the target's likeliest tokens after these nodes, and the logarithms of their probabilities."""

    def add(self, states: Sequence[Tensor], likeliest: Tensor, log_p: Tensor, wrote: Sequence[int], sure: bool) -> None:
        """Note places of the reply, to be learnt from.

        Args:
            states: (d,) the draft model's last state at each.
            likeliest, log_p: (n, K) what `law` says there, in the draft model's tokens; −1 for those that it has not.
            wrote: the draft token that follows.
            sure: whether that token alone is to be learnt.
        """


class LearningTrainedNetwork(TrainedNetwork, LearnsFromReplies, Protocol):
    """A trained network that can go on learning from the user's replies."""

    @property
    def needs(self) -> HeadNeeds:
        """The parts of the target's readings that it looks at: see `Drafter.needs`."""

    def start(self, history: Sequence[int]) -> None:
        """A reply begins behind this text: from here to its end the weights stay as they are."""

    def observe(self, round: Round) -> None:
        """A round of the reply is over."""


@dataclass(frozen=True, eq=False)
class MaskRows:
    """Trained masks: stand-ins for the embeddings of tokens that are not known yet.

    Args:
        embeddings: (d,) of each mask, the nearest place first; those of an ensemble's members one after the other.
        adapter: what is added to the target's products for these rows alone, where anything is.
        sampler: (n, d) last states of masks, and (n, d) embeddings of the tokens guessed before them → (n, d) states
            that know these tokens; None where guesses do not know of each other.
        ensemble: so many masks stand for one place, whose logits are averaged.
        entry: where the rows enter the pass with a state made of their nodes' own; None: as masks do, at its beginning.
    """

    embeddings: tuple[Tensor, ...]
    adapter: Adapter | None = None
    sampler: Callable[[Tensor, Tensor], Tensor] | None = None
    ensemble: int = 1
    entry: Entry | None = None


@dataclass(frozen=True)
class Ranking:
    """The heads and MLP channels of every layer and the dimensions of the hidden state, those that matter most first.

    Args:
        heads: (layers, heads) int32, every row a permutation.
        channels: (layers, inner) int32, likewise.
        dimensions: (d,) int32, a permutation.
    """

    heads: Tensor
    channels: Tensor
    dimensions: Tensor

    @classmethod
    def of(cls, heads: Tensor, channels: Tensor, dimensions: Tensor) -> Ranking:
        """From how much each of them matters: (layers, heads), (layers, inner) and (d,) numbers."""
        orders = (values.argsort(dim=-1, descending=True, stable=True) for values in (heads, channels, dimensions))
        return cls(*(order.to(torch.int32) for order in orders))

    def fits(self, layers: int, heads: int, channels: int, dimensions: int) -> bool:
        """Whether it ranks the units of a network of these sizes."""
        wanted = ((self.heads, (layers, heads)), (self.channels, (layers, channels)), (self.dimensions, (dimensions,)))
        return all(
            ranked.shape == shape and bool((ranked.sort(dim=-1).values == torch.arange(shape[-1])).all())
            for ranked, shape in wanted
        )


@dataclass(frozen=True)
class LeftOut:
    """Shares of a network's units that are left out, each from 0 to less than 1.

    Args:
        heads, channels: of every layer.
        dimensions: of the hidden state, the same ones everywhere.
    """

    heads: float = 0.0
    channels: float = 0.0
    dimensions: float = 0.0


Recovered = Mapping[tuple[int, str], tuple[Tensor, Tensor]]
"""Low-rank additions to the products of a pruned network; see `Adapter.factors`."""


class Prunable(Protocol):
    """A target of whose weights a narrower network can be made. They are read from its file again."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Layers, heads, MLP channels and dimensions of the hidden state."""

    def sizes_without(self, left_out: LeftOut) -> tuple[int, int, int, int]:
        """The same of the narrower network."""

    def by_magnitude(self) -> Ranking:
        """Units by the size of their weights."""

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        """Units by what the loss on these texts, all of one length, would lose without them, to first order. Yields
        None after every piece of work, then the ranking."""

    def recover(
        self, ranking: Ranking, left_out: LeftOut, texts: Sequence[Sequence[int]], steps: int
    ) -> Iterator[Recovered | None]:
        """What is added to such a model's products, learnt from at least two texts of the target, all of one length;
        nothing where that does not help. Yields None after every piece of work, then the additions."""

    def pruned(self, ranking: Ranking, left_out: LeftOut, recovered: Recovered = ...) -> Model:
        """A model without the units that matter least, and with these additions, which are left out where they do not
        fit its sizes. It takes texts as long as the target does now."""

    def memory(self, left_out: LeftOut, texts: int, tokens: int, recovers: bool = False) -> NetworkMemory:
        """The memory of such a model, ranked by so many texts of so many tokens, and perhaps recovered by them."""


@runtime_checkable
class GuessesSome(Protocol):
    """A model that may have been trained to guess some tokens alone."""

    @property
    def guessable(self) -> Sequence[int]:
        """These tokens, the most frequent first; empty where it can guess all."""


@runtime_checkable
class LeavesEarly(Protocol):
    """A model whose first layers were trained to guess by themselves, at several depths."""

    def leaving_early(self, sure: Sequence[float]) -> Model:
        """The same model with a cache of its own, in which a token leaves at the first depth where its likeliest next
        token is as probable as `sure` says: for each depth but the last, or one for all.

        Raises:
            UsageError: there are not as many as depths but the last.
        """


@record
class ChunkScores:
    """How well the chunks of a text answer what is read next.

    Args:
        tokens: so many tokens of the text are held.
        scores: (layers, key heads, chunks) float32, on the host: the product of a query with the mean of a chunk's
            keys, over the root of the head size; the mean of the heads that share the keys. One for all key heads where
            a target is shared out. Chunks are those that are held whole, from the first token on. All scores are 0 in
            layers that see only a window of the text.
    """

    tokens: int
    scores: Tensor


@runtime_checkable
class HoldsPartsByLayer(Model, Protocol):
    """A twin or view whose layers may each hold another part of the text that its source holds."""

    def chunk_scores(self, tokens: Sequence[int], chunk_tokens: int) -> ChunkScores:
        """Score the chunks of a text that the source holds, by the queries of the first token that it does not hold.

        If it holds the whole text, the queries are those of the last token. Costs a pass of one row through the source,
        whose text stays as it is; it is counted here.
        """

    def copy_rows_by_layer(self, tokens: Sequence[int], positions: Tensor) -> None:
        """As `copy_rows_from`, with positions for each layer.

        Args:
            positions: (layers, n) or (layers, key heads, n) int64, ascending; of tokens that the source holds. The same
                in all layers that see only a window of the text.
        """
