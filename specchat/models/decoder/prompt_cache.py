"""The prompt cache: what models read of texts in blocks of tokens, in memory as a tree of prefixes, and on the disk.

A block is found by a key made of everything that its content follows from: the model, and all tokens of the text up to
the block's end. So texts share the blocks of what they have in common, whoever read it.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specchat.config.prompt_files import PromptFiles
from specchat.core.record import record
from specchat.models.decoder.cache_rows import common_prefix

BLOCK_TOKENS = 64
"""Tokens of a block: a multiple of the keys that kernels keep side by side. What is left of a text is read again."""

_log = logging.getLogger(__name__)


@record
class Found:
    """A block that is kept of a text.

    Args:
        first, end: the tokens it holds; fewer than a block's where it is the end of a text.
        content: (bytes,) uint8, as long as that of a whole block.
        stored: whether it was read from the disk.
        lossy: whether it follows from numbers that were rounded to 8 bits.
    """

    first: int
    end: int
    content: Tensor
    stored: bool
    lossy: bool = False


class PromptCache:
    """Blocks of all models of an engine. The least recently used go first, and of a text its end before its beginning.

    Attributes:
        most_bytes: what blocks in memory may take.
        held_bytes: what they take.
        files: the blocks on the disk; None where nothing is to be kept there.
    """

    def __init__(self, most_bytes: int, files: PromptFiles | None = None) -> None:
        """Nothing kept in memory yet."""
        self.most_bytes, self.files = most_bytes, files
        self.held_bytes = 0
        self._blocks: OrderedDict[bytes, tuple[list[int], Tensor, bool]] = OrderedDict()

    def get(self, key: bytes) -> tuple[list[int], Tensor, bool] | None:
        """Of a block in memory the tokens, the content, (bytes,) uint8, and whether it follows from rounded numbers."""
        return self._blocks.get(key)

    def put(self, key: bytes, tokens: list[int], content: Tensor, lossy: bool = False) -> None:
        """Keep a block, (bytes,) uint8, in memory as long as there is room."""
        self._forget(key)
        self._blocks[key] = tokens, content, lossy
        self.held_bytes += content.nbytes
        while self.held_bytes > self.most_bytes:
            self._forget(next(iter(self._blocks)))

    def used(self, keys: Sequence[bytes], on_disk: bool) -> None:
        """These blocks of one text were used, in the order of the text."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)
        if on_disk and self.files is not None:
            self.files.used(keys)

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget blocks that turned out to be wrong, on the disk too."""
        for key in keys:
            self._forget(key)
        if self.files is not None:
            self.files.drop(keys)

    def save(self, owner: str, texts: Sequence[KeptText], stop: Callable[[], bool]) -> bool:
        """Write what belongs to a chat and is not on the disk yet; False where it was stopped before the end.

        Raises:
            OSError: the disk does not take it.
        """
        if (files := self.files) is None:
            return True
        each = [text.blocks() for text in texts]  # as they are stored
        new = [block for blocks in each for block in blocks if not files.has(block[0])]
        if any(each):
            files.prepare()
            files.name(owner, [key for blocks in each for key, _ in blocks])  # first: all that is kept can be erased
        for key, content in new:
            if stop():
                return False
            files.write(key, content().numpy().data)
        for blocks in each:
            files.used([key for key, _ in blocks])
        if new:
            files.shrink()
        return True

    def _forget(self, key: bytes) -> None:
        if (there := self._blocks.pop(key, None)) is not None:
            self.held_bytes -= there[1].nbytes


@dataclass(frozen=True, eq=False)
class KeptTexts:
    """The blocks that hold one kind of thing of one model: its keys and values, or its states after some layers.

    Args:
        name: the model's weights, how it computes, and in which form the content is: all that this follows from.
        on_disk: whether the name means the same in another process.
        eight_bits: whether numbers are rounded to 8 bits on the disk. Such blocks have keys of their own, in memory
            too: what follows from them is never taken for what was read.
        dtype: of the numbers that a block is made of.
    """

    cache: PromptCache
    name: str
    on_disk: bool = True
    eight_bits: bool = False
    dtype: torch.dtype = torch.float32

    def beside(self, name: str) -> KeptTexts:
        """Blocks of another kind of the same model."""
        return KeptTexts(self.cache, f"{self.name}|{name}", self.on_disk, self.eight_bits)

    def with_dtype(self, dtype: torch.dtype) -> KeptTexts:
        """The same for blocks of other numbers."""
        return replace(self, dtype=dtype)

    def as_stored(self, content: Tensor) -> Tensor:
        """A block as it is written, (bytes,) uint8."""
        return rounded(content, self.dtype) if self.eight_bits else content

    def load(self, tokens: Sequence[int], first: int, size: int) -> Iterator[Found]:
        """The blocks of `size` bytes that are here of a text, from its block `first` on, until one is missing.

        The content of each is valid until the next one is asked for.
        """
        keys, cache = self.keys(tokens), self.cache
        files, buffer = cache.files if self.on_disk else None, bytearray()
        cache.used(keys, on_disk=False)  # they stay while others give way
        block = first
        for block in range(first, len(keys)):
            there, stored = cache.get(keys[block]), False
            content = None if there is None else there[1]
            if content is None and files is not None:
                # one for all: fresh memory costs more than reading into it
                buffer = buffer or bytearray(rounded_bytes(size, self.dtype) if self.eight_bits else size)
                if files.read(keys[block], buffer):
                    content, stored = torch.frombuffer(buffer, dtype=torch.uint8), True
                    content = restored(content, self.dtype) if self.eight_bits else content
            if content is None or content.nbytes != size:
                break
            lossy = self.eight_bits and (stored or (there is not None and there[2]))
            yield Found(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS, content, stored, lossy)
        else:
            block = max(first, len(keys))
        tail = _tail(self._before(keys, block))
        cache.used([*keys[:block], tail], self.on_disk)
        end = cache.get(tail)
        same = common_prefix(end[0], tokens[block * BLOCK_TOKENS :]) if end is not None else 0
        if end is not None and same and end[1].nbytes == size:
            yield Found(block * BLOCK_TOKENS, block * BLOCK_TOKENS + same, end[1], False, end[2])

    def put(
        self,
        tokens: Sequence[int],
        first: int,
        content: Callable[[int], Tensor],
        end: bool = False,
        lossy_from: int | None = None,
    ) -> None:
        """Keep a text's blocks from number `first` on in memory, those that are neither there nor on the disk.

        Args:
            content: makes that of a block, (bytes,) uint8, by its number.
            end: whether its last tokens are kept too where they are no whole block.
            lossy_from: from this token on the content follows from numbers that were rounded to 8 bits.
        """
        cache = self.cache
        if not cache.most_bytes:
            return
        keys = self.keys(tokens)
        files = cache.files if self.on_disk else None
        left = list(tokens[len(keys) * BLOCK_TOKENS :])
        if end and left:
            lossy = lossy_from is not None
            cache.put(_tail(self._before(keys, len(keys))), left, content(len(keys)), lossy)
        for block in range(len(keys) - 1, first - 1, -1):  # the beginning last: it is forgotten last
            if cache.get(keys[block]) is None and (files is None or not files.has(keys[block])):
                some = list(tokens[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS])
                lossy = lossy_from is not None and lossy_from < (block + 1) * BLOCK_TOKENS
                cache.put(keys[block], some, content(block), lossy)
        cache.used(keys[first:], on_disk=False)

    def drop(self, tokens: Sequence[int], why: str) -> None:
        """Forget the whole blocks of a text: one of them turned out to be wrong."""
        _log.warning("prompt cache: what was kept of a text of %d tokens is removed: %s", len(tokens), why)
        self.cache.drop(self.keys(tokens))

    def keys(self, tokens: Sequence[int]) -> list[bytes]:
        keys: list[bytes] = []
        for first in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            some = array("q", tokens[first : first + BLOCK_TOKENS]).tobytes()
            keys.append(hashlib.sha256(self._before(keys, len(keys)) + some).digest())
        return keys

    def _before(self, keys: Sequence[bytes], block: int) -> bytes:
        form = "|8 bits" if self.eight_bits else ""
        return keys[block - 1] if block else hashlib.sha256((self.name + form).encode()).digest()


@record
class KeptText:
    """A text that was read, whose blocks can be written to the disk.

    Args:
        tokens: the text.
        kept: where its blocks are kept now; None where they are not.
        held: of some tokens, how many lead the text that is held now: `content` makes its blocks, (bytes,) uint8, by
            their number. Others are written if they are in memory.
    """

    tokens: list[int]
    kept: Callable[[], KeptTexts | None]
    held: Callable[[list[int]], int] = lambda tokens: 0
    content: Callable[[int], Tensor] | None = None

    def blocks(self) -> list[tuple[bytes, Callable[[], Tensor]]]:
        """The whole blocks that can be written, in order: key, and what makes the content, (bytes,) uint8."""
        found: list[tuple[bytes, Callable[[], Tensor]]] = []
        kept, held = self.kept(), self.held(self.tokens) // BLOCK_TOKENS
        if kept is None or not kept.on_disk:
            return found
        for block, key in enumerate(kept.keys(self.tokens)):
            if block < held and self.content is not None:
                found.append((key, partial(_stored, kept, self.content, block)))
            elif (there := kept.cache.get(key)) is not None:
                found.append((key, partial(kept.as_stored, there[1])))
        return found


def _stored(kept: KeptTexts, content: Callable[[int], Tensor], block: int) -> Tensor:
    return kept.as_stored(content(block))


def _tail(before: bytes) -> bytes:
    """The key of the end of a text that is no whole block, by that of the block before it."""
    return hashlib.sha256(before + b"end").digest()


_GROUP = 64
"""Numbers that share a scale: those of a block are a multiple of it."""


def rounded_bytes(size: int, dtype: torch.dtype) -> int:
    """Bytes of `rounded` content of so many bytes."""
    count = size // dtype.itemsize
    return count + count // _GROUP * torch.float32.itemsize


def rounded(content: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of this type, (bytes,) uint8, as 8 bits each and a scale for every group: (bytes,) uint8."""
    groups = content.view(dtype).float().view(-1, _GROUP)
    scales = groups.abs().amax(dim=1, keepdim=True) / 127
    steps = (groups / scales.clamp_min(1e-30)).round().to(torch.int8)
    return torch.cat([steps.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8)])


def restored(content: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `rounded` content stands for, (bytes,) uint8."""
    count = len(content) * _GROUP // (_GROUP + torch.float32.itemsize)
    steps, scales = content[:count].view(torch.int8).view(-1, _GROUP), content[count:].clone().view(torch.float32)
    return (steps * scales[:, None]).to(dtype).view(-1).view(torch.uint8)
