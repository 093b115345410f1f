"""Drafting with a trained network: its inputs from text and tokens, and the classes that read a text and a tree.

`TextInputs` keeps a row of the fused target states for every token of the text, `TokenInputs` a row for every token of
the vocabulary that was asked for. `Drafting` is the base of every family's `TrainedNetwork`. What comes before a tree
is read by `LastEntryAlone` or `WholeText`; heads that guess all depths at once draft by `ParallelDrafting`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.device_copy import drawable, rows_of, to_host
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.request import CHUNK_TOKENS
from specchat.core.states import HostRow, TextStates, host_row_of, row_of, rows_by_token
from specchat.core.tree import TokenTree
from specchat.models.cpu_kernels.hydra import NamedHead, TokenRows
from specchat.models.cpu_kernels.linear import NativeHead
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.trimmed_head import TrimmedHead
from specchat.models.draft_heads.layers import AttentionRows, DecoderLayer

_MOST_WAITING_TOKENS = 256
"""States of so many tokens are kept as they came, with all that was read beside them: rows that are asked for by nobody
are made many at a time."""


class TextInputs:
    """Rows by position in the text. What comes again replaces what was known from there on: the text was changed."""

    def __init__(self, taps: Sequence[int], fuse: Callable[[Tensor], Tensor]) -> None:
        """No text yet; `fuse` makes (n, d) rows of (n, taps, width) states as the target has them."""
        self._taps, self._fuse = tuple(taps), fuse
        self._text: list[int] = []
        self._rows = torch.empty(0, 0)
        self._waiting: list[TextStates] = []
        self._skipped: set[int] = set()  # positions without a state
        self._waiting_tokens = 0
        self._compared: Sequence[int] = ()  # the text last asked about,
        self._same = 0  # and how many of its first tokens are known to be those of this one

    def take(self, states: TextStates) -> None:
        """The states of some tokens; those before them are known."""
        assert states.first <= len(self._text), "states of a text have no gap"
        self._waiting.append(states)
        self._waiting_tokens += len(states.tokens)
        self._text[states.first :] = states.tokens
        self._same = min(self._same, states.first)
        if self._skipped:
            self._skipped.difference_update(range(states.first, states.end))
        if self._waiting_tokens > _MOST_WAITING_TOKENS:
            self._make_rows()

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        """Some tokens whose states do not come; those before them are known, or were skipped."""
        assert first <= len(self._text), "a text has no gap"
        self._text[first:] = tokens
        self._same = min(self._same, first)
        self._skipped.update(range(first, len(self._text)))

    def cover(self, text: Sequence[int], count: int) -> bool:
        """Whether the first `count` tokens of this are the text so far, and there is a state of the last of them.

        A text that goes on from round to round stays one list: only what came to it is compared.
        """
        same = min(self._same, count) if text is self._compared else 0
        if self._text[same:count] != list(text[same:count]):
            return False
        self._compared, self._same = text, count
        return count - 1 not in self._skipped

    def for_c(self, position: int) -> HostRow | Tensor:
        """Where the states at a position lie, or (taps, width) a copy of them, where they still wait; else (d,) its
        row."""
        assert position < len(self._text), "this position is known"
        for states in reversed(self._waiting):
            if states.first <= position:
                about = states.layers, self._taps, position - states.first
                return host_row_of(*about) or row_of(*about).to("cpu", torch.float32)
        return self._rows[position]

    def rows(self, first: int, end: int) -> Tensor:
        """(end − first, d) rows of these positions."""
        assert end <= len(self._text), "these rows are known"
        self._make_rows()
        return self._rows[first:end]

    @property
    def tokens(self) -> Sequence[int]:
        return self._text

    def holds(self, first: int, tokens: Sequence[int]) -> bool:
        return self._text[first : first + len(tokens)] == list(tokens)

    def kept(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """(n, d) copies of the rows of these positions, and (n,) bool, which of them are known; the others are 0."""
        known = torch.tensor([position not in self._skipped for position in range(first, end)])
        rows = self.rows(first, end)
        copies = torch.zeros(end - first, rows.shape[1])
        copies[: len(rows)] = rows.cpu()
        copies[~known] = 0.0
        return copies, known

    @torch.inference_mode()
    def _make_rows(self) -> None:
        """Make rows of the states that wait, in the order they came in; what goes on from what came before, with it."""
        together: list[Tensor] = []
        for at, states in enumerate(self._waiting):
            together.append(rows_by_token(states.layers, self._taps))
            if at + 1 == len(self._waiting) or self._waiting[at + 1].first != states.end:
                self._write(states.end, torch.cat(together))
                together.clear()
        self._waiting.clear()
        self._waiting_tokens = 0

    def _write(self, end: int, features: Tensor) -> None:
        """Rows of (n, taps, width) states, the last of which is at `end` − 1."""
        rows = self._fuse(features)
        first = end - len(rows)
        if end > len(self._rows):
            room = rows.new_zeros(max(end, 2 * len(self._rows), 256), rows.shape[1])
            if len(self._rows):
                room[: len(self._rows)] = self._rows
            self._rows = room
        self._rows[first:end] = rows


_MOST_OTHERS = 2048
"""Rows of so many tokens are kept besides those that are known from the beginning."""

_AT_ONCE = 1024
"""Rows that are made in one call while loading."""


class TokenInputs:
    """Rows by token: of some tokens from the beginning, of others once they are asked for.

    The table stays where it is, so that compiled code may keep its address.
    """

    def __init__(
        self,
        write: Callable[[Sequence[int], Tensor], None],
        vocab_size: int,
        width: int,
        known: Sequence[int],
        like: Tensor | None = None,
    ) -> None:
        """`write` makes rows (n, width) of n tokens below `vocab_size`; those of `known` are made now.

        Rows have the format of `like` and are on its device; float32 on the processor where it is left out.
        """
        rows = (torch.empty(0) if like is None else like).new_empty(len(known) + _MOST_OTHERS, width)
        for first in range(0, len(known), _AT_ONCE):
            some = known[first : first + _AT_ONCE]
            write(some, rows[first : first + len(some)])
        self._write, self._known = write, np.asarray(known, np.int64)
        self._table = TokenRows(rows, np.full(vocab_size, -1, np.int32))
        self._places = self._table.places.data  # the same: asking numpy for a number takes ten times as long
        self._count = 0
        self._forget()

    def of(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) a row for each token."""
        parts = [self._of(tokens[at : at + _MOST_OTHERS]) for at in range(0, len(tokens), _MOST_OTHERS)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def within(self, tokens: Sequence[int]) -> TokenRows:
        """The table, which has the rows of these tokens, `_MOST_OTHERS` at most, until others are asked for."""
        places = self._places
        for token in tokens:
            if places[token] < 0:
                self._learn(tokens)
                break
        return self._table

    def _of(self, tokens: Sequence[int]) -> Tensor:
        table = self.within(tokens)
        return rows_of(table.rows, table.places[list(tokens)].tolist())

    def _learn(self, tokens: Sequence[int]) -> None:
        places = self._places
        new = [token for token in dict.fromkeys(tokens) if places[token] < 0]
        if self._count + len(new) > len(self._known) + _MOST_OTHERS:
            self._forget()
            new = [token for token in dict.fromkeys(tokens) if places[token] < 0]
        first, self._count = self._count, self._count + len(new)
        self._write(new, self._table.rows[first : self._count])
        for place, token in enumerate(new, first):
            places[token] = place

    def _forget(self) -> None:
        """Only those that are known from the beginning."""
        self._count = len(self._known)
        self._table.places[:] = -1
        self._table.places[self._known] = range(self._count)


@dataclass(frozen=True)
class DraftingInputs:
    """Inputs of a trained network from text and tokens, and its output head.

    Args:
        threads: with how many the compiled kernels may draft, if they belong to the target's own team.
        weights: kept with them: other drafters find it as long as it lives.
    """

    text: TextInputs
    tokens: TokenInputs
    head: TrimmedHead[Tensor]
    threads: int = 1
    weights: object = None

    def take(self, states: TextStates) -> None:
        """States of the text. Its tokens can be guessed soon."""
        self.text.take(states)
        self.head.add_later(states.tokens)

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        """Tokens whose states do not come. They can be guessed all the same, soon."""
        self.text.skip(first, tokens)
        self.head.add_later(tokens)

    def guessed(self, states: Tensor) -> Guessed:
        """The guesses after (n, d) states."""
        return self.guessed_beside(states)[0]

    def guessed_beside(self, states: Tensor, *others: Tensor) -> tuple[Guessed, list[np.ndarray[Any, np.dtype[Any]]]]:
        """The same, and other tensors, which come to the host in the same copy."""
        said = self.head.after(states)
        assert said.likeliest is not None, "every head that guesses names the likeliest"
        assert said.highest is not None, "and their logits"
        assert said.logsumexp is not None, "and what makes log-probabilities of them"
        tokens, highest, logsumexp, *there = to_host(said.likeliest, said.highest, said.logsumexp, *others)
        logprobs, logits = highest.astype(np.float64) - logsumexp[:, None], said.logits
        return Guessed(tokens, logprobs, self.head.tokens.numpy(), logsumexp, lambda: drawable(logits)), there

    def head_for_c(self, before: NamedHead | None) -> NamedHead:
        """The output head for compiled code; `before` where that is still the same."""
        head = self.head
        if before is not None and before.tokens is head.tokens:
            return before
        assert isinstance(head.product, NativeHead), "loading gives kernels to all of a network or to nothing"
        return NamedHead(head.product, head.tokens)

    def complete(self, history: Sequence[int]) -> bool:
        """Whether this text but its last token is known, and the state of the last but one. The last can be guessed
        too, soon."""
        self.head.add_later(history[-1:])
        return len(history) > 1 and self.text.cover(history, len(history) - 1)


class TextEntries:
    """Entry s pairs what was made of the target's states at token s with token s + 1: the last entry is the root's."""

    def __init__(self, given: DraftingInputs) -> None:
        self._given = given
        self._read: list[int] = []  # the tokens of the entries that were read

    def __len__(self) -> int:
        return len(self._read)

    def take(self, states: TextStates) -> None:
        """States of the text: what was read of others in their place is forgotten."""
        self._given.take(states)
        del self._read[max(0, states.first - 1) :]  # entry s is made of state s

    def unread(self, history: Sequence[int], again: int = 1) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each piece that is to be read now: its first entry, and (n, d) what is taken of states and of tokens. They
        count as read once all were asked for. Of `history` all states but the last token's are known. The last `again`
        entries are read in any case: their states are where drafting begins."""
        tokens = history[1:]
        kept = min(common_prefix(self._read, tokens), max(0, len(tokens) - again))
        for first in range(kept, len(tokens), CHUNK_TOKENS):
            some = tokens[first : first + CHUNK_TOKENS]
            yield first, self._given.text.rows(first, first + len(some)), self._given.tokens.of(some)
        self._read = list(tokens)


class Drafting:
    """The base of a network that drafts from what is `given`, a `TrainedNetwork`; families override what differs."""

    depth = sys.maxsize
    one_pass = False

    def __init__(self, taps: Sequence[int], given: DraftingInputs, reading: RootReading | None = None) -> None:
        """`reading` reads the text for it, if it does not do so itself."""
        self.layers = frozenset(taps)
        self.take = given.take if reading is None else reading.take
        self.skip: Callable[[int, Sequence[int]], None] | None = None if reading is None else reading.skip
        self.given = given
        self._text = reading
        self._counted = 0

    @property
    def passes(self) -> int:
        return self._counted + (0 if self._text is None else self._text.passes)

    def count_passes(self, count: int) -> None:
        self._counted += count

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        assert self._text is not None, "a network that reads the text by itself begins by itself"
        return self._text.begin(history)

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        raise NotImplementedError

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None


class RootReading:
    """Reads the text up to its last entry, which is the root's. `take` and `skip` are as `TrainedNetwork` has them."""

    def __init__(self, given: DraftingInputs) -> None:
        """Nothing read yet; the whole text is read unless `skip` is replaced."""
        self.passes = 0
        self.skip: Callable[[int, Sequence[int]], None] | None = None
        self._given, self._entries = given, TextEntries(given)
        self.take = self._entries.take
        self._root = torch.empty(0)

    def begin(self, history: Sequence[int]) -> bool:
        """A tree is to grow below the last token of this text. False where states of the text are missing."""
        raise NotImplementedError

    def root(self) -> Tensor:
        """(n, d) states that drafting begins with, n most often 1. Asked once for each tree."""
        return self._root


class LastEntryAlone(RootReading):
    """For heads that look at no other entry of the text."""

    def __init__(self, entries: Callable[[Tensor, Tensor], Tensor], given: DraftingInputs) -> None:
        """`entries` makes (n, d) states of (n, d) rows of the text and (n, d) rows of the tokens that follow."""
        super().__init__(given)
        self.take, self.skip = given.take, given.skip
        self._of = entries
        self._text: Sequence[int] = ()

    def begin(self, history: Sequence[int]) -> bool:
        self._text = history
        return self._given.complete(history)

    def root(self) -> Tensor:
        given, entries = self._given, len(self._text) - 1
        self.passes += 1
        return self._of(given.text.rows(entries - 1, entries), given.tokens.of(self._text[-1:]))


Over = Callable[[DecoderLayer, Tensor], Tensor]
"""A decoder layer and (…, d) states of a text's entries → the layer's output, each attending up to its own place."""


class WholeText(RootReading):
    """For networks with layers that attend to the text: its new entries are read when a tree begins."""

    def __init__(
        self, layers: Sequence[DecoderLayer], entries: Callable[[Tensor, Tensor, Over], Tensor], given: DraftingInputs
    ) -> None:
        """`entries` makes (n, d) states of rows of the text and of the tokens that follow, by means of these layers."""
        super().__init__(given)
        self._of = entries
        self._rows = {layer: AttentionRows(layer.sizes.kv_heads, layer.sizes.head_dim) for layer in layers}

    @torch.inference_mode()
    def begin(self, history: Sequence[int]) -> bool:
        if not self._given.complete(history):
            return False
        for first, inputs, tokens in self._entries.unread(history):
            self._root = self._of(inputs, tokens, partial(self._over, first))[-1:]
            self.passes += 1
        return True

    def _over(self, first: int, layer: DecoderLayer, states: Tensor) -> Tensor:
        return layer.behind(self._rows[layer], first, states)


class ParallelDrafting(Drafting):
    """Drafting of heads whose guesses after a node depend on its depth alone: one call for a whole tree."""

    one_pass = True

    def __init__(
        self,
        taps: Sequence[int],
        depth: int,
        ahead: Callable[[Tensor], Tensor],
        reading: RootReading,
        given: DraftingInputs,
    ) -> None:
        """`ahead` makes (…, depth, d) states of all depths of the reading's root."""
        super().__init__(taps, given, reading)
        self.depth = depth
        self._ahead, self._reading = ahead, reading
        self._guessed: Guessed | None = None

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._guessed = None
        return super().begin(history)

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        if self._guessed is None:
            self._guessed = self.given.guessed(self._ahead(self._reading.root()).flatten(0, -2))
        return self._guessed.of([tree.depths[node] for node in nodes])
