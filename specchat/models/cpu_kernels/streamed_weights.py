"""Layers that do not fit into memory: packed once into a file, and read from it in every pass, ahead of their turn."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from specchat.compiled.machine import cpu_flags, machine
from specchat.config.directories import private_dir
from specchat.config.kept_files import locked, put_on_disk, replacing
from specchat.errors import PackedWeightsError
from specchat.models.decoder.kv_cache import zeroed_bytes

_MAGIC = b"specchat packed layers\n"
_FORMAT = 1
_PAGE = 4096
"""Layers begin at multiples of so many bytes: reads past the page cache start and end there."""

_PIECE = 8 << 20
"""Bytes that are read at once."""

LEAST_LAYERS = 3
"""Of two layers or one, the buffers would hold all."""

_PATIENCE_S = 600.0
"""How long to wait while another process packs the same layers."""


@dataclass(frozen=True)
class WeightLimit:
    """How much memory a network's weights may take, and where layers are kept that do not fit.

    Args:
        left: bytes that weights and everything after them may take; asked when all that is loaded before them is there.
        besides: of these, bytes that other models will take; rather too many.
        file: of the packed layers; written where it does not hold them.
        source_sha256: checksum of the weights that are packed.
        stated: the limit as the user wrote it, for errors.
    """

    left: Callable[[], int]
    besides: int
    file: Path
    source_sha256: Callable[[], str]
    stated: str


def aligned(size: int) -> int:
    """Bytes of a layer in the file, and of a buffer for it."""
    return -(-size // _PAGE) * _PAGE


class LayerFile:
    """Packed layers in a file, read past the page cache where the system lets us.

    The cache would be of no use: each pass reads all of the file, and what was read first is dropped first.
    """

    def __init__(self, path: Path, expected: dict[str, Any]) -> None:
        """Open it.

        Raises:
            PackedWeightsError: it is not there, damaged, or holds something else.
        """
        self.path, self.sizes = path, tuple(expected["sizes"])
        self._starts = _starts(self.sizes)
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise self._trouble(error.strerror or str(error)) from None
        try:
            self._sums: list[int | None] = list(self._header(expected))
            self._known = self._now()
            if self._known[0] != self._starts[-1]:
                raise self._trouble("it is not complete")
            self._direct = self._read_past_cache()
        except BaseException:
            os.close(self._handle)
            raise

    def read(self, layer: int, into: memoryview, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read a layer into memory that begins at a page; False where it was stopped on the way.

        What it holds is compared with its checksum the first time; later it is enough that the file did not change.

        Raises:
            PackedWeightsError: it cannot be read, or was changed.
        """
        start, size = self._starts[layer], aligned(self.sizes[layer])
        try:
            done = 0
            while done < size:
                if stopped():
                    return False
                got = os.preadv(self._handle, [into[done : min(done + _PIECE, size)]], start + done)
                if got == 0 or self._now() != self._known:
                    raise self._trouble("it was changed while it was in use")
                done += got
            if not self._direct and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._handle, start, size, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._trouble(error.strerror or str(error)) from None
        if (expected := self._sums[layer]) is not None:
            if zlib.crc32(into[: self.sizes[layer]]) != expected:
                raise self._trouble(f"layer {layer} is damaged")
            self._sums[layer] = None
        return True

    def close(self) -> None:
        os.close(self._handle)

    def _header(self, expected: dict[str, Any]) -> list[int]:
        try:
            data = os.pread(self._handle, self._starts[0], 0)
            said, digest = data.removeprefix(_MAGIC)[32:].rstrip(b"\0"), data.removeprefix(_MAGIC)[:32]
            if not data.startswith(_MAGIC) or hashlib.blake2b(said, digest_size=32).digest() != digest:
                raise self._trouble("it is damaged")
            about = json.loads(said)
        except (OSError, ValueError, RecursionError):
            raise self._trouble("it is damaged") from None
        sums = about.pop("crc32", None) if isinstance(about, dict) else None
        if about != expected or not isinstance(sums, list) or len(sums) != len(self.sizes):
            raise self._trouble("it holds other weights")
        return sums

    def _now(self) -> tuple[int, int]:
        about = os.fstat(self._handle)
        return about.st_size, about.st_mtime_ns

    def _read_past_cache(self) -> bool:
        """Whether the system reads it past its page cache from now on. Not every file system does."""
        import fcntl

        if hasattr(fcntl, "F_NOCACHE"):  # macOS
            fcntl.fcntl(self._handle, fcntl.F_NOCACHE, 1)
            return True
        with suppress(OSError):
            fcntl.fcntl(self._handle, fcntl.F_SETFL, fcntl.fcntl(self._handle, fcntl.F_GETFL) | os.O_DIRECT)
            with suppress(OSError):
                page = zeroed_bytes(_PAGE).numpy().data
                return os.preadv(self._handle, [page], self._starts[0]) > 0
            fcntl.fcntl(self._handle, fcntl.F_SETFL, fcntl.fcntl(self._handle, fcntl.F_GETFL) & ~os.O_DIRECT)
        return False

    def _trouble(self, why: str) -> PackedWeightsError:
        return PackedWeightsError(f"{self.path} cannot be used: {why}; load the pair again, which packs it anew")


def packed_layers(
    limit: WeightLimit, sizes: Sequence[int], room: Tensor, pack: Callable[[int, Tensor], None]
) -> LayerFile:
    """The file of a network's layers, packed now if need be.

    Args:
        sizes: bytes of each layer, packed.
        room: uint8, for the largest layer: each is packed there before it is written.
        pack: packs a layer into zeros.

    Raises:
        PackedWeightsError: it cannot be written, or another process packs for too long.
    """
    expected = {"format": _FORMAT, "layout": _layout(), "source": limit.source_sha256(), "sizes": list(sizes)}
    file = limit.file
    try:
        private_dir(file.parent)
        with locked(file.with_name(f"{file.name}.lock"), _PATIENCE_S):
            try:
                return LayerFile(file, expected)
            except PackedWeightsError:
                _write(file, expected, room, pack)
            return LayerFile(file, expected)
    except OSError as error:
        needed = f"{_starts(sizes)[-1] / 1e9:.2f} GB"
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise PackedWeightsError(
                f"not enough space in {file.parent} for {needed} of packed layers: the disk is full; make room, or "
                f"state more memory than {limit.stated}"
            ) from None
        raise PackedWeightsError(
            f"{needed} of packed layers cannot be written to {file.parent}: {error.strerror or error}"
        ) from None


def _write(file: Path, about: dict[str, Any], room: Tensor, pack: Callable[[int, Tensor], None]) -> None:
    sizes, sums = about["sizes"], list[int]()
    starts = _starts(sizes)
    file.unlink(missing_ok=True)
    if shutil.disk_usage(file.parent).free < starts[-1]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with replacing(file, alone=True) as draft, draft.open("r+b") as out:
        for layer, size in enumerate(sizes):
            packed = room[: aligned(size)].zero_()
            pack(layer, packed)
            data = packed.numpy().data
            sums.append(zlib.crc32(data[:size]))
            out.seek(starts[layer])
            out.write(data)
            out.flush()
            put_on_disk(draft)  # only then can it be dropped from the page cache
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        said = json.dumps({**about, "crc32": sums}).encode()
        out.seek(0)
        out.write((_MAGIC + hashlib.blake2b(said, digest_size=32).digest() + said).ljust(starts[0], b"\0"))


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each layer begins behind the header, and where the last ends."""
    starts = [aligned(1024 + 32 * len(sizes))]
    for size in sizes:
        starts.append(starts[-1] + aligned(size))
    return starts


@cache
def _layout() -> str:
    """Changes with everything that decides how weights are packed: the C, and what the processor can do."""
    parts = sorted(Path(__file__).parent.glob("*.[ch]"))
    about = [machine(), sys.byteorder, *sorted(cpu_flags())]
    return hashlib.blake2b(b"\n".join([*(part.read_bytes() for part in parts), *map(str.encode, about)])).hexdigest()


@dataclass
class _Buffer:
    """Memory for one layer. It is empty, being filled, full, or held by a pass that computes with it."""

    data: Tensor
    layer: int | None = None
    turn: int = 0
    filling: bool = False
    full: bool = False
    held: bool = False

    def empty(self) -> None:
        self.layer, self.full = None, False


class _ReadAhead:
    """Two buffers, and a thread that fills them in the order in which passes take the layers, round after round."""

    def __init__(self, file: LayerFile, buffers: Sequence[Tensor]) -> None:
        """`order` may change until the first layer is taken."""
        self._file = file
        self.order = tuple(range(len(file.sizes)))
        self._buffers = [_Buffer(data) for data in buffers]
        self._changed = threading.Condition()
        self._next = self._turn = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None
        self.bytes_read, self.reading_s = 0, 0.0

    def take(self, layer: int) -> _Buffer:
        """The buffer with this layer, once it is full. Layers that were expected before it are dropped."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="streamed weights", daemon=True)
                self._thread.start()
            wanted = next((one for one in self._buffers if one.layer == layer), None)
            if wanted is None:
                self._next = self.order.index(layer)
            for one in self._buffers:
                if not one.held and (wanted is None or one.turn < wanted.turn):
                    one.empty()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.error is not None or self._full(layer) is not None)
            found = self._full(layer)
            if found is None:
                assert self.error is not None, "one of both was waited for"
                raise self.error
            found.held = True
            return found

    def give_back(self, buffer: _Buffer) -> None:
        with self._changed:
            buffer.held = False
            buffer.empty()
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            if self._thread is None and not self._stopped:
                self._file.close()
                self._buffers = []
            self._stopped = True
            self._changed.notify_all()

    def _full(self, layer: int) -> _Buffer | None:
        return next((one for one in self._buffers if one.layer == layer and one.full), None)

    def _free(self) -> _Buffer | None:
        return next((one for one in self._buffers if one.layer is None and not one.filling), None)

    def _work(self) -> None:
        try:
            while (buffer := self._begin()) is not None:
                layer = buffer.layer
                assert layer is not None, "it was chosen"
                began = time.perf_counter()
                whole = self._file.read(layer, buffer.data.numpy().data, lambda: self._stopped)
                with self._changed:
                    self.reading_s += time.perf_counter() - began
                    buffer.filling = False
                    buffer.full = whole and buffer.layer == layer
                    self.bytes_read += aligned(self._file.sizes[layer])
                    self._changed.notify_all()
        except Exception as error:  # whoever waits for a layer gets it
            with self._changed:
                self.error = error
                self._changed.notify_all()
        finally:
            self._file.close()

    def _begin(self) -> _Buffer | None:
        """A free buffer, now that of the next layer, which is to be read; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._free() is not None)
            buffer = self._free()
            if self._stopped or buffer is None:
                return None
            buffer.layer, buffer.turn, buffer.filling = self.order[self._next], self._turn, True
            self._next, self._turn = (self._next + 1) % len(self.order), self._turn + 1
            return buffer


class StreamedLayers:
    """A network's layers in a file, some of them in memory as well; the others are read in every pass.

    They are spread evenly between those that stay, so that reading goes on while these are computed.

    Args of `__init__`:
        products: of each layer, each product as C sees it, with the address of its data in the first buffer.
        buffers: two, uint8, each as large as the largest layer.
    """

    def __init__(self, file: LayerFile, products: Sequence[Sequence[Any]], buffers: Sequence[Tensor]) -> None:
        first = buffers[0].data_ptr()
        self._file = file
        self._products = [[(product, product.data - first) for product in layer] for layer in products]
        self._buffer_bytes = sum(map(len, buffers))
        self._kept: dict[int, Tensor] = {}
        self._passing = threading.RLock()
        self._ahead = _ReadAhead(file, buffers)
        weakref.finalize(self, self._ahead.stop)

    def keep(self, room_bytes: int) -> int:
        """Keep as many layers in memory as fit into so much; the bytes taken. Once, before the first pass.

        Where all fit, the memory of the buffers counts, which is given back.

        Raises:
            PackedWeightsError: the file cannot be read.
        """
        sizes, count = [aligned(size) for size in self._file.sizes], len(self._products)
        total, streamed = sum(sizes), tuple[int, ...]()
        if self.all_bytes > room_bytes:
            spread = (
                tuple((2 * i + 1) * count // (2 * some) for i in range(some)) for some in range(LEAST_LAYERS, count)
            )
            fitting = (some for some in spread if total - sum(sizes[layer] for layer in some) <= room_bytes)
            streamed = next(fitting, tuple(range(count)))
        for layer in sorted(set(range(count)) - set(streamed)):
            self._kept[layer] = data = zeroed_bytes(sizes[layer])
            self._file.read(layer, data.numpy().data)
            self._point(layer, data)
        self._ahead.order = streamed
        if not streamed:
            self._ahead.stop()
        return sum(map(len, self._kept.values())) - (0 if streamed else self._buffer_bytes)

    @property
    def streamed(self) -> tuple[int, ...]:
        return self._ahead.order

    @property
    def pass_bytes(self) -> int:
        """Bytes that a pass through all layers reads."""
        return sum(aligned(self._file.sizes[layer]) for layer in self.streamed)

    @property
    def all_bytes(self) -> int:
        """Bytes that keeping all of them takes on top of what the buffers take now."""
        return sum(map(aligned, self._file.sizes)) - self._buffer_bytes

    @property
    def bytes_read(self) -> int:
        """Bytes that were read since the first pass, those for the next pass included."""
        return self._ahead.bytes_read

    @property
    def read_rate(self) -> float:
        """Bytes a second that the disk gave so far, while something was read; 0 before the first pass."""
        return self._ahead.bytes_read / self._ahead.reading_s if self._ahead.reading_s else 0.0

    @property
    def failed(self) -> bool:
        """Whether a layer could not be read; then no pass can be computed any more."""
        return self._ahead.error is not None

    def __str__(self) -> str:
        count, size = len(self._products), self.pass_bytes
        amount = f"{size / 1e9:.2f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"
        return f"{count - len(self.streamed)} of {count} layers stay in memory; {amount} are read each pass"

    def run(self, layers: range, takes_part: Callable[[int], bool], compute: Callable[[range], None]) -> None:
        """Compute some layers in their order, each once its weights are there.

        Args:
            takes_part: whether anything of a layer is computed; what is left out is not waited for.
        """
        first = layers.start
        with self.layer_by_layer() as ready:
            for layer in filter(takes_part, (layer for layer in self.streamed if layer in layers)):
                if first < layer:
                    compute(range(first, layer))
                ready(layer)
                compute(range(layer, layer + 1))
                ready(None)
                first = layer + 1
            if first < layers.stop:
                compute(range(first, layers.stop))

    @contextmanager
    def layer_by_layer(self) -> Iterator[Callable[[int | None], None]]:
        """For one pass, a function that waits for a layer's weights, and lets go of those that it waited for before.

        Passes of one network take turns.
        """
        held: list[_Buffer] = []

        def ready(layer: int | None) -> None:
            while held:
                self._ahead.give_back(held.pop())
            if layer in self.streamed:
                held.append(self._ahead.take(layer))
                self._point(layer, held[0].data)

        with self._passing:
            try:
                yield ready
            finally:
                ready(None)

    def _point(self, layer: int, data: Tensor) -> None:
        at = data.data_ptr()
        for product, offset in self._products[layer]:
            product.data = at + offset
