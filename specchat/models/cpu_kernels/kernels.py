"""The compiled kernels as Python calls them, and the threads they work with."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from specchat.compiled.build import NativeUnavailable
from specchat.errors import ModelError, NotNumbers
from specchat.models.cpu_kernels.build import load
from specchat.models.cpu_kernels.c_interface import LAYER_READY, CHeadAsked, CHeads, declare_functions, pointer
from specchat.models.cpu_kernels.logits_buffer import LogitsBuffer
from specchat.models.decoder.kv_cache import KeysValues

PHASES = ("rounding", "products", "attention", "head", "waiting")
"""Parts of a pass's time; team.h has the same in the same order."""

_POINTER = ctypes.c_void_p

MOST_THREADS = 1024
"""As many threads as a team may have; team.h has the same number."""

_NO_MEMORY, _NOT_NUMBERS = 1, 5


class Kernels:
    """One compiled library with a team of threads, asleep when there is no work. One pass runs at a time.

    Calls from other threads wait: the team's threads work on one pass at a time, of any network.
    """

    def __init__(self, processor: str) -> None:
        library = load(processor).library
        declare_functions(library)
        self._library = library
        self._passing = RLock()  # compiled code may let several networks of one team read
        self._threads = 0
        self._team: Any = None
        self._let_go: Any = None
        self._moved: tuple[weakref.ref[Tensor] | None, weakref.ref[Tensor] | None, tuple[int, ...]] = None, None, ()

    def check(self, function: str, about: Any) -> None:
        """Raise ModelError if sizes do not agree with one another, and NotNumbers if a weight is not finite.

        Args:
            function: the name of a function of the library that checks.
            about: the structure that it checks, as its header declares it.
        """
        self._done(getattr(self._library, function)(ctypes.byref(about)))

    def layers(self, threads: int, decoder: Any, rows: Any, layers: range) -> None:
        """Run some layers over rows; `decoder`, which was checked, and `rows` as decoder.h declares them."""
        about = ctypes.byref(decoder), ctypes.byref(rows), layers.start, layers.stop
        self._done(self._with_team(threads, self._library.decoder_layers, *about))

    def read(self, threads: int, decoder: Any, cache: Any, whole: Any) -> None:
        """Embeddings, layers and head of a pass; `cache` is `Rows` of decoder.h, `whole` as whole_pass.h has it."""
        about = ctypes.byref(decoder), ctypes.byref(cache), ctypes.byref(whole)
        self._done(self._with_team(threads, self._library.decoder_read, *about))

    def read_together(
        self,
        threads: int,
        decoder: Any,
        caches: Sequence[Any],
        wholes: Sequence[Any],
        ready: Callable[[int], None] | None = None,
    ) -> None:
        """`read` of several texts in one pass; what is asked of the head is what the first of `wholes` says.

        `ready` is called before each layer, for its weights to be there; what it raises ends the pass.
        """
        count = len(caches)
        addresses = (_POINTER * count)(*map(ctypes.addressof, caches))
        together = (type(wholes[0]) * count)(*wholes)
        failed: list[BaseException] = []

        def told(layer: int) -> int:
            try:
                assert ready is not None, "it is told where there is somebody to tell"
                ready(layer)
            except BaseException as error:
                failed.append(error)
            return len(failed)

        about = ctypes.byref(decoder), addresses, together, count, LAYER_READY(told) if ready else None
        outcome = self._with_team(threads, self._library.decoder_read_together, *about)
        if failed:
            raise failed[0]
        self._done(outcome)

    def move_rows(self, keys: Tensor, values: Tensor, moves: Sequence[tuple[int, int]]) -> None:
        """Copy rows of a cache onto others, one after another: (to, from) of each.

        Args:
            keys, values: (layers, heads, capacity, head_dim) bfloat16, as decoder.h lays them out.
        """
        of_keys, of_values, about = self._moved
        if of_keys is None or of_values is None or of_keys() is not keys or of_values() is not values:
            layers, heads, capacity, head_dim = sizes = keys.shape
            cache = pointer("keys", keys, torch.bfloat16, *sizes), pointer("values", values, torch.bfloat16, *sizes)
            about = *cache, layers * heads, capacity, head_dim
            self._moved = weakref.ref(keys), weakref.ref(values), about
        flat = array("i", itertools.chain.from_iterable(moves))
        self._done(self._library.cache_move(*about, flat.buffer_info()[0], len(moves)))

    def copy_rows(self, to: KeysValues, of: KeysValues, rows: Sequence[int], first: int) -> None:
        """Copy rows of one layer of another cache: row i becomes a copy of `rows[i]`, from row `first` on.

        Args:
            to, of: (heads, capacity, head_dim) bfloat16 each, keys and values, as decoder.h lays them out.
        """
        heads, _, head_dim = to[0].shape
        flat, own, theirs = array("i", rows), _heads(to, heads, head_dim), _heads(of, heads, head_dim)
        about = ctypes.byref(own), ctypes.byref(theirs), heads, head_dim, flat.buffer_info()[0]
        self._done(self._library.cache_copy(*about, first, len(flat)))

    def head(self, threads: int, decoder: Any, hidden: int, rows: int, said: LogitsBuffer) -> None:
        """Final norm and head of (rows, d) float32 states at this address."""
        about = ctypes.byref(decoder), hidden, rows, ctypes.byref(CHeadAsked(*said.asked))
        self._done(self._with_team(threads, self._library.decoder_head, *about))

    def logprobs(self, threads: int, said: LogitsBuffer, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of these tokens by a head's output, each in its row.

        Tokens of one row stand side by side: a row's logits are summed up once.
        """
        count = len(tokens)
        assert len(rows) == count, "of each token its row"
        asked, found = array("i", [*rows, *tokens]), (ctypes.c_float * count)()
        if count:
            best, named, _, _, logits, _ = said.asked
            about = (logits, best, named, said.rows, said.width, count)
            places = asked.buffer_info()[0], asked.buffer_info()[0] + 4 * count
            self._done(self._with_team(threads, self._library.log_probabilities, *about, *places, found))
        return list(found)

    def working_bytes(self, threads: int, decoder: Any, rows: int, seen: int) -> int:
        """Working memory of layers and head in a pass of so many rows over so many cache rows."""
        return int(self._library.decoder_bytes(threads, ctypes.byref(decoder), rows, seen))

    def hydra_read(self, threads: int, head: Any, hydra: Any, tree: Any, rows: int, search: Any = None) -> None:
        """The next rows of a tree through a checked sequential MLP and a checked head, and those that a search wants.

        `tree` and `search` are as hydra_search.h declares them.
        """
        about = ctypes.byref(head), ctypes.byref(hydra), ctypes.byref(tree), rows
        looking = None if search is None else ctypes.byref(search)
        self._drafted(self._with_team(threads, self._library.hydra_read, *about, looking))

    def selector_read(self, threads: int, reader: Any, rows: int, *about: int) -> None:
        """The next rows of a tree; `reader` and what is `about` them as `selector_read_rows` takes them."""
        with self._passing:
            reader.team = self._team_of(threads)
            self._drafted(self._library.selector_read_rows(ctypes.byref(reader), rows, *about))

    def linear(self, threads: int, product: Any, rows: int, x: int, out: int) -> None:
        """A checked product with some rows; addresses of (rows, in) and (rows, out) float32."""
        self._done(self._with_team(threads, self._library.linear, ctypes.byref(product), x, rows, out))

    def linear_of_stored(self, threads: int, stored: Any, epsilon: float, product: Any, out: int) -> None:
        """A checked product with rows of a matrix, brought to a mean square of 1; the address of (rows, out) float32.

        `stored` is as pack.c declares it.
        """
        about = ctypes.byref(stored), epsilon, ctypes.byref(product), out
        self._done(self._with_team(threads, self._library.linear_of_stored, *about))

    def gather(self, product: Any, outputs: Sequence[int], room: int, room_bytes: int, place: int) -> None:
        """Copy outputs of a product to this address, behind the first `place` that are there.

        Raises:
            ModelError: the product does not have the output, or there is too little room.
        """
        which = array("i", outputs)
        about = which.buffer_info()[0], len(which), room, room_bytes, place
        self._done(self._library.gather_outputs(ctypes.byref(product), *about))

    def recurrent(self, function: str, threads: int, about: Any) -> None:
        """A step of a recurrent layer, by the name of a function and what it is `about`, as recurrence.h declares."""
        self._done(self._with_team(threads, getattr(self._library, function), ctypes.byref(about)))

    def time_phases(self, threads: int, timed: bool) -> None:
        """Time the phases of what follows, or no longer; forget what was timed."""
        self._with_team(threads, self._library.team_time, timed)

    def spent(self, threads: int) -> dict[str, float]:
        """Seconds by phase since then, as the thread that asks for a pass sees them."""
        seconds = (ctypes.c_double * len(PHASES))()
        count = self._with_team(threads, self._library.team_spent, seconds)
        assert count == len(PHASES), "team.h names as many phases"
        return dict(zip(PHASES, seconds, strict=True))

    def floor(self, threads: int, data: Tensor) -> tuple[float, float]:
        """Bytes of memory and operations on 8-bit numbers that all threads together manage in a second.

        Args:
            data: uint8, a multiple of 65 536 and far more than caches hold, on a line's boundary.
        """
        with self._passing:
            team = self._team_of(threads)
            rates = (self._library.floor_bytes(team, data.data_ptr(), len(data)), self._library.floor_operations(team))
        if not all(rates):
            raise MemoryError("no memory for a measurement")
        return rates

    def take_team(self, threads: int) -> int:
        """The team's address, for compiled code that uses it; no other call does so until it is given back."""
        self._passing.acquire()
        try:
            return int(self._team_of(threads))
        except BaseException:
            self._passing.release()
            raise

    def give_team_back(self) -> None:
        self._passing.release()

    def address_of(self, function: str) -> int:
        """Address of a function, for other compiled code."""
        address = ctypes.cast(self._library[function], _POINTER).value
        assert address is not None, "the library has it"
        return address

    def packs(self, kind: int) -> bool:
        """Whether rows of this kind, by GGUF's number, can be packed."""
        return bool(self._library.packs(kind))

    def pack(self, stored: Any, bits: int, blocks: int, room: int) -> None:
        """Write blocks of outputs to so many bytes at this address; `stored` as pack.c declares it.

        Any number of threads may do so.
        """
        self._done(self._library.pack(ctypes.byref(stored), bits, blocks, room))

    def unpack(self, stored: Any, to: int) -> None:
        """Write rows as float32 to this address, (rows, length); `stored` as pack.c declares it."""
        self._done(self._library.unpack_rows(ctypes.byref(stored), to))

    def _with_team(self, threads: int, function: Any, *about: Any) -> Any:
        """Call a function of the library with the team, which works on nothing else meanwhile."""
        with self._passing:
            return function(self._team_of(threads), *about)

    def _team_of(self, threads: int) -> Any:
        assert 1 <= threads <= MOST_THREADS, f"a team of {threads} threads"
        if threads != self._threads:
            if self._let_go is not None:
                self._let_go()
            self._threads = 0
            self._team = self._library.team_new(threads)
            if not self._team:
                raise MemoryError("no memory for threads")
            self._threads = threads
            self._let_go = weakref.finalize(self, self._library.team_free, self._team)
        return self._team

    def _drafted(self, outcome: int) -> None:
        if outcome == _NOT_NUMBERS:
            raise NotNumbers("a trained drafter")
        self._done(outcome)

    def _done(self, outcome: int) -> None:
        if outcome == _NO_MEMORY:
            raise MemoryError("no memory for a pass")
        if outcome == _NOT_NUMBERS:
            raise NotNumbers
        if outcome:
            raise ModelError(f"the native kernels refuse this: {self._library.refusal().decode(errors='replace')}")


def _heads(cache: KeysValues, heads: int, head_dim: int) -> CHeads:
    capacity = cache[0].shape[1]
    sizes = torch.bfloat16, heads, capacity, head_dim
    return CHeads(pointer("keys", cache[0], *sizes), pointer("values", cache[1], *sizes), capacity)


def kernels_for(processor: str = "native", team: str = "") -> Kernels:
    """The kernels for this processor (or, by name, an older one), compiled if need be; the same at every call.

    Args:
        team: whose threads work for it; another name means other threads.

    Raises:
        NativeUnavailable: they cannot be built or loaded here.
    """
    return loaded_kernels(processor, team)


def native_works() -> bool:
    """Whether the kernels are available for this processor."""
    try:
        kernels_for()
    except NativeUnavailable:
        return False
    return True


@lru_cache(maxsize=4)  # it tells arguments that are given from those that are left out, so all are given
def loaded_kernels(processor: str, team: str) -> Kernels:
    """`kernels_for`, which remembers what it gave."""
    del team
    return Kernels(processor)
