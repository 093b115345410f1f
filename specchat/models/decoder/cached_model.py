"""The text whose rows a model's cache holds: read, alone or together with other texts, copied from another model, kept
after a round, or dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from specchat.core.reading import Reading
from specchat.core.request import CHUNK_TOKENS, HeadNeeds, HeadOfSome, PassRequest
from specchat.core.seams import Model, OnChunk
from specchat.core.states import HiddenStateSink
from specchat.core.tree import TokenTree
from specchat.errors import CombinationError
from specchat.models.decoder.cache_rows import PassPlan, Rows, common_prefix
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.network import SubLayers
from specchat.models.decoder.prompt_cache import BLOCK_TOKENS, KeptText, KeptTexts
from specchat.models.decoder.trimmed_head import PickedLogits, TrimmedHead

_WORTH_TOKENS = 16
"""Fewer rows than this are read again rather than kept or brought back."""

_NEAR = 0.05
"""How far keys and values may differ, as a share of the largest, where a pass of other rows rounds otherwise."""

Own = TypeVar("Own", bound="CachedModel[Any]")
"""The class that extends it."""

TextTree = tuple[Model, TokenTree, PassRequest]
"""The model that holds a text, a tree behind the text, and what is asked of the pass over it."""


class CachedModel(ABC, Generic[Own]):
    """The part of a `Model` that is about its cache; how a pass is computed is left to those that extend it.

    Attributes:
        rows: which cache row holds which token.
        kept: where rows go that give way to another text, and where they come from; None where they are lost.
    """

    flexible_passes = True
    chunk_bytes = 1 << 62

    kept: KeptTexts | None = None
    _like: Tensor | None = None
    """(heads, head_dim), whose format the rows of its cache have; None for a model whose rows cannot be kept."""
    _same_bits = False
    """Whether a row has the same bits whatever other rows are read with it."""

    _parts: SubLayers
    """The halves of layers that are computed."""

    def __init__(self, cache: KVCache | None, source: Own | None) -> None:
        """No rows yet.

        Args:
            cache: keys and values, moved with the rows; None for a model that computes nothing from them.
            source: the model that this one was made from: `copy_rows_from` copies its rows.
        """
        self.rows = Rows()
        self._source = source
        self._stored = cache
        self._lossy_from: int | None = None  # rows from this one on follow from numbers that were rounded

    def with_new_cache(self) -> Own:
        return self.view()

    def view(
        self,
        layers: Collection[int] | None = None,
        skip_attention: Collection[int] = (),
        skip_mlp: Collection[int] = (),
    ) -> Own:
        """The same weights without some layers or halves of layers, with a cache of its own for what is left.

        Raises:
            ModelError: layers of a form that is not known.
        """
        return self._of_parts(self._parts.without(layers, skip_attention, skip_mlp))

    @property
    def whole(self) -> Own:
        """The model that this one is a view of, or the one that that is a view of, and so on; else this one."""
        return cast(Own, self) if self._source is None else self._source.whole

    @property
    def joint_weights(self) -> object | None:
        """The weights with which trees of several texts can be read in one pass; None: each is read by itself."""
        return None

    def planned(self, tree: TokenTree, request: PassRequest) -> Any:
        """A pass over a whole tree, for `joint_groups` and `read_joined`; asked where there are `joint_weights`."""
        raise NotImplementedError

    def joint_groups(self, planned: Sequence[Any]) -> list[list[int]]:
        """Places of the passes that are read in one, for each such pass; asked where there are `joint_weights`."""
        raise NotImplementedError

    def read_joined(self, joined: Sequence[tuple[Own, Any]], needs: Sequence[HeadNeeds]) -> list[Reading]:
        """Read the trees of a group in one pass, each with the model that holds its text."""
        raise NotImplementedError

    @abstractmethod
    def _of_parts(self, parts: SubLayers) -> Own:
        """The same weights with these sub-layers alone, and a cache of its own."""

    @abstractmethod
    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> object:
        """Compute a pass over tokens of the text, and show the watch the states after the layers it wants."""

    def cached(self, tokens: Sequence[int]) -> int:
        same = common_prefix(self.rows.prefix, tokens)
        return same if self._stored is None else self._stored.resumable(same)

    def chunk_after(self, tokens: int) -> int:
        return CHUNK_TOKENS

    def keep_texts_in(self, kept: KeptTexts) -> bool:
        """Keep rows there from now on; False where the model cannot."""
        if self._like is None or self._stored is None:
            return False
        if self._lossy_from is not None and not kept.eight_bits:
            self.rows.rewind(self.rows.prefix[: self._lossy_from])
            self._lossy_from = None
        self.kept = kept.with_dtype(self._like.dtype)
        return True

    def is_lossy(self, tokens: Sequence[int]) -> bool:
        """Whether what is held of this text follows from numbers that were rounded to 8 bits."""
        return self._lossy_from is not None and self.cached(tokens) > self._lossy_from

    @torch.inference_mode()
    def recall(self, tokens: Sequence[int]) -> None:
        kept, stored, like = self.kept, self._stored, self._like
        if kept is None or stored is None or like is None or not self.rows.whole:
            return
        here = self.cached(tokens)
        if len(tokens) - here < _WORTH_TOKENS:
            return
        first = here - here % BLOCK_TOKENS
        from_disk, restored = False, here
        for found in kept.load(tokens, first // BLOCK_TOKENS, stored.block_bytes(BLOCK_TOKENS, like)):
            if found.end <= here:  # the end of a text, of which as much is held
                break
            if restored == here:
                self._give_way(here)
                self._rewind(tokens[: found.first])
                stored.room_for(len(tokens), like)  # at once, for all that comes
            stored.put_block_(found.first, BLOCK_TOKENS, found.content, like)
            self.rows.prefix_read(list(tokens[found.first : found.end]))
            from_disk, restored = from_disk or found.stored, found.end
            if found.lossy and self._lossy_from is None:
                self._lossy_from = found.first
        if from_disk and not self._last_row_holds():
            kept.drop(tokens[:restored], "its last token, read again, has other keys and values")
            self._rewind(tokens[:first])

    def _rewind(self, tokens: Sequence[int]) -> None:
        self.rows.rewind(tokens)
        self._forget_lossy(len(tokens))

    def _forget_lossy(self, end: int) -> None:
        """The rows from this one on are read anew."""
        if self._lossy_from is not None and end <= self._lossy_from:
            self._lossy_from = None

    def share(self, tokens: Sequence[int]) -> None:
        """Keep the rows that this text shares with the one that is held: another cache of the network takes them."""
        if self.kept is not None and (same := self._held_whole(tokens)) >= _WORTH_TOKENS:
            self.kept.put(self.rows.prefix[:same], 0, self._block, True, self._lossy_from)

    def kept_text(self) -> KeptText | None:
        """The text that is held now; None where nothing of it is kept."""
        if self.kept is None or not self.rows.whole or self.rows.pretended:
            return None
        return KeptText(list(self.rows.prefix), lambda: self.kept, self._held_whole, self._block)

    def _held_whole(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these have a row of their own."""
        return self.cached(tokens) if self.rows.whole else 0

    def _block(self, number: int) -> Tensor:
        assert self._stored is not None, "rows are kept of a cache"
        return self._stored.block(number * BLOCK_TOKENS, BLOCK_TOKENS)

    def _give_way(self, same: int) -> None:
        """Keep the rows of the text that is held now, of which another text shares the first `same`."""
        kept, rows = self.kept, self.rows
        if kept is not None and rows.whole and not rows.pretended and len(rows.prefix) - same >= _WORTH_TOKENS:
            kept.put(rows.prefix, same // BLOCK_TOKENS, self._block, True, self._lossy_from)

    def _last_row_holds(self) -> bool:
        """Read the last token again: whether its keys and values come out in all layers as they are."""
        stored, rows = self._stored, self.rows
        assert stored is not None, "rows are kept of a cache"
        assert self._like is not None, "rows are kept of a known format"
        together = stored.key_interleave
        first = (rows.held - 1) // together * together
        before = stored.block(first, together)
        last = rows.prefix.pop()
        self._read_text(rows.plan_prefix([last]), None)
        rows.prefix_read([last])
        after = stored.block(first, together)
        if self._same_bits and self._lossy_from is None:
            return torch.equal(before, after)
        one, other = (rows.view(self._like.dtype).float() for rows in (before, after))
        return bool((one - other).abs().max() <= _NEAR * one.abs().max())

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk = None, tap: HiddenStateSink | None = None) -> None:
        def read(plan: PassPlan) -> None:
            watch = None if tap is None else LayerWatch(plan, PassRequest(taps=tap.layers))
            self._read_text(plan, watch)
            if tap is not None and watch is not None and (states := watch.text_states()) is not None:
                tap.take(states)

        if self.kept is not None:
            same = self.cached(tokens)
            if tap is None and len(tokens) - same >= _WORTH_TOKENS:
                self.recall(tokens)
                same = self.cached(tokens)
            self._give_way(same)
            self._forget_lossy(same)
        stateful = self._stored if self._stored is not None and self._stored.keeps_states else None
        if stateful is not None:
            self.rows.rewind(tokens[: self.cached(tokens)])
            stateful.rewind_(len(self.rows.prefix), self.rows.held)
        self.rows.read_prefix(tokens, read, on_chunk, self.chunk_after)
        if stateful is not None:
            stateful.mark_border()

    @torch.inference_mode()
    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it.

        Rows at the front that were copied before and are wanted again are not copied again.
        """
        source = self._copied_from()
        held = source.cached(tokens)
        some, rows, each_its_own = source.rows.rows_to_copy(positions, held)
        if self._stored is not None and source._stored is not None:
            known = 0 if each_its_own else self.rows.already_copied(tokens, some)
            self._stored.copy_rows_(source._stored, rows, known)
            self._stored.copy_states_(source._stored, held, len(rows))
        self.rows.copy_rows_from(tokens[:held], some, each_its_own)

    def keep(self, path: Sequence[int]) -> None:
        start = self.rows.held
        kept = self.rows.keep(path)
        if self._stored is not None:
            self._stored.keep_rows_(start, kept)

    def fill_for_benchmark(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._give_way(0)
        self.rows.fill_for_benchmark(tokens)
        if self._stored is not None:
            self._stored.fill_states_(tokens)

    def _copied_from(self) -> Own:
        assert self._source is not None, "rows are copied from the model that this one was made from"
        return self._source


def read_together(trees: Sequence[TextTree]) -> Iterator[dict[int, Reading]]:
    """Read whole trees of several texts, each with a model of its own over the same weights, in few passes.

    What is said of a text is what `read` of its model says.

    Yields:
        The readings of each pass of two texts or more, by their place among the trees. Trees that need hooks, extra
        rows or a head of their own, and those that no other can be read with, are not read.

    Raises:
        NotNumbers: as `Decoder.read` does, of some of the texts of a pass. Each may be read again.
    """
    pools: dict[int, list[tuple[int, CachedModel[Any], Any]]] = {}
    for place, (model, tree, request) in enumerate(trees):
        special = request.head is not None or request.hooks or request.extra_rows
        if isinstance(model, CachedModel) and not special and (weights := model.joint_weights) is not None:
            pools.setdefault(id(weights), []).append((place, model, model.planned(tree, request)))
    for pool in pools.values():
        for group in pool[0][1].joint_groups([planned for *_, planned in pool]):
            if len(group) < 2:
                continue
            members = [pool[number] for number in sorted(group)]
            needs = [trees[place][2].needs for place, *_ in members]
            readings = members[0][1].read_joined([(model, planned) for _, model, planned in members], needs)
            yield dict(zip([place for place, *_ in members], readings, strict=True))


class FixedPasses:
    """Refuses views, extra rows, hooks, copies of single rows, and the head by itself."""

    flexible_passes = False
    chunk_bytes = 1 << 62
    runs_in: ClassVar[str]
    """What runs it, as a refusal calls it, …"""
    instead: ClassVar[str]
    """… and where the model runs that can do all this."""

    def chunk_after(self, tokens: int) -> int:
        return CHUNK_TOKENS

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head that picks these tokens' logits out of all of them."""
        return TrimmedHead(PickedLogits, torch.tensor(tokens), tokens, list)

    def view(self, *parts: object, **named: object) -> NoReturn:
        self._refuse()

    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> NoReturn:
        self._refuse()

    def head(self, hidden: Tensor) -> NoReturn:
        self._refuse()

    def check_request(self, request: PassRequest) -> None:
        """CombinationError: it asks for more."""
        if request.hooks or request.extra_rows:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise CombinationError(
            f"{self.runs_in} takes no extra rows and leaves nothing out of a pass, which this method needs; nearest "
            f"that works: drafter 'token_recycling', or {self.instead}"
        )
