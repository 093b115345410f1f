"""The target's own token after a row of logits: drawn in C, by torch where that cannot be, or for many rows at once.

Every rule that follows the target's own noise emits it.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from specchat.compiled.build import NativeUnavailable, Sources, find_compiler, load
from specchat.compiled.machine import cpu_flags, processor_option
from specchat.core.device_copy import to_device
from specchat.core.noise import Noise, Stream
from specchat.core.reading import RowInMemory
from specchat.core.sampling import Counts, Sampling, best_tokens, biased, law, looked_at, penalise, total_of, truncate

_NOTHING_SAID = Counts()

_FOLDER = Path(__file__).parent / "native"
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int32
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC")


def draw_token(
    logits: Tensor | RowInMemory,
    sampling: Sampling,
    noise: Noise,
    position: int,
    counts: Counts = _NOTHING_SAID,
    path: Sequence[int] = (),
) -> int:
    """The target's token at a position: one draw from the law of its penalised logits with the target stream's noise.

    In C where that is there, which makes the same decisions up to rounding. Which of the two draws depends on the
    machine and the format of the logits, never on the tree. Synchronises with the device.

    Args:
        logits: (V,) raw, or where they lie.
        path: tokens drafted since the history ended, down to the node whose logits these are.
    """
    if sampling.bias:  # so that C draws here too
        logits = biased(logits if isinstance(logits, Tensor) else logits.tensor(), sampling)
        sampling = sampling.without_bias
    place = (logits.address, logits.width) if isinstance(logits, RowInMemory) else None
    if isinstance(logits, Tensor) and takes(logits):
        place = logits.data_ptr(), logits.numel()
    if place is not None and (native := native_draw(place[1])) is not None:
        token = native.draw(place[0], sampling, counts, path, noise.key(Stream.TARGET, position))
        if token is not None:
            return token
    logits = logits if isinstance(logits, Tensor) else logits.tensor()
    return law(penalise(logits, sampling, counts, path), sampling).draw(noise, Stream.TARGET, position)


def takes(logits: Tensor) -> bool:
    """Whether C can read these (V,) logits."""
    return logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()


class CSampling(ctypes.Structure):
    """`Sampling` of sampling.h."""

    _fields_ = [
        *[(name, ctypes.c_double) for name in ("temperature", "top_p", "log_min_p")],
        *[(name, ctypes.c_double) for name in ("repetition", "presence", "frequency")],
        *[(name, ctypes.c_int32) for name in ("top_k", "penalised")],
    ]


@lru_cache(maxsize=8)
def as_c(sampling: Sampling) -> CSampling:
    """The same in C. It is kept for the next call: not to be changed."""
    return CSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        log_min_p=math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        top_k=sampling.top_k,
        penalised=sampling.penalised,
    )


class _CText(ctypes.Structure):
    _fields_ = [("tokens", _POINTER), ("count", ctypes.c_int64), ("often", _POINTER), ("known", ctypes.c_int64)]


_NO_TEXT, _NO_PATH = _CText(), array("q")


class NativeDraw:
    """Draws from rows of one length."""

    def __init__(self, library: ctypes.CDLL, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # Python's lock is kept during a call, so no two draws work in this at the same time.
        self._room = ctypes.create_string_buffer(library.draw_bytes(vocab_size))
        self._draw = library.draw

    def draw(self, logits: int, sampling: Sampling, counts: Counts, path: Sequence[int], key: int) -> int | None:
        """The token that `law(penalise(…)).draw(…)` gives; None for logits that torch must draw from.

        Args:
            logits: address of (V,) float32, contiguous, on the host.
        """
        about = ctypes.byref(as_c(sampling)), logits, self._vocab_size
        text, behind = _NO_TEXT, _NO_PATH
        if sampling.penalised:
            text, behind = _CText(*counts.addresses()), array("q", path)
        seen = ctypes.byref(text), *behind.buffer_info()
        token = self._draw(*about, *seen, key, self._room)
        return token if token >= 0 else None


@lru_cache(maxsize=2)
def native_draw(vocab_size: int) -> NativeDraw | None:
    """Draws from rows of this length; None where they cannot be compiled."""
    library = draw_library()
    return None if library is None else NativeDraw(library, vocab_size)


@lru_cache(maxsize=1)
def draw_library() -> ctypes.CDLL | None:
    """The compiled C, compiled now if need be; None where it cannot be."""
    try:
        compiler = find_compiler()
        command = (*compiler, processor_option(compiler), *_FLAGS)
        library = load(Sources(_FOLDER, "draw", command, tuple(sorted(cpu_flags())), brief=True)).library
    except NativeUnavailable:
        return None
    library.draw_bytes.restype = ctypes.c_int64
    library.draw_bytes.argtypes = [_INTEGER]
    library.draw.argtypes = [_POINTER, _POINTER, _INTEGER, *(_POINTER,) * 2, _INTEGER, ctypes.c_uint64, _POINTER]
    return library


def draw_batch(
    logits: Tensor,
    paths: Sequence[Sequence[int]],
    positions: Sequence[int],
    sampling: Sampling,
    counts: Counts,
    noise: Noise,
) -> list[int | None]:
    """One token per row, as `law(penalise(…)).draw(…)` gives them row by row with the target stream's noise.

    Nothing here waits for the device but the copy at the end.

    Args:
        logits: (n, V) raw.
        paths: for each row, the tokens drafted down to its node.
        positions: for each row, the index in the text of the token drawn.

    Returns:
        n tokens; None for a row whose surviving tokens are not all among the likeliest that were looked at, or whose
        scores are no finite numbers, which is then to be drawn by itself.
    """
    if sampling.by_logits:
        return _highest(logits)
    scores = penalise_batch(logits, sampling, counts, paths)
    if sampling.greedy:
        return _highest(scores)
    scores.div_(sampling.temperature)
    vocab_size = scores.shape[1]
    ids: Tensor | None = None
    enough = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    if sampling.truncates(vocab_size):
        best, best_ids = best_tokens(scores, looked_at(sampling, vocab_size))
        found = truncate(best, sampling, vocab_size, lambda: total_of(scores))
        if best.shape[1] > 1:
            scores, ids = best, best_ids
            enough = found.known & ((best[:, -1] < found.least[:, 0]) | (best.shape[1] == vocab_size))
        scores = scores.masked_fill(scores < found.least, -torch.inf)
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    noisy = torch.log_softmax(scores.double(), dim=-1) + noise.gumbels(Stream.TARGET, positions, ids)
    highest, places = noisy.max(dim=-1)
    drawn = ids.gather(1, places[:, None])[:, 0]
    return _where(enough & (highest < torch.inf), drawn)


def _highest(scores: Tensor) -> list[int | None]:
    highest, tokens = scores.max(dim=-1)
    return _where(highest < torch.inf, tokens)


def _where(sure: Tensor, tokens: Tensor) -> list[int | None]:
    return [token if token >= 0 else None for token in torch.where(sure, tokens, -1).tolist()]


def penalise_batch(logits: Tensor, sampling: Sampling, counts: Counts, paths: Sequence[Sequence[int]]) -> Tensor:
    """(n, V) float32 logits after bias and penalties, a new tensor; each row's own path is part of what was said."""
    if sampling.bias:
        logits = biased(logits, sampling)
    if not sampling.penalised:
        return logits.to(torch.float32, copy=not sampling.bias)
    device, vocab_size = logits.device, logits.shape[1]
    ids, often = counts.seen((), device)
    amounts = torch.zeros(vocab_size, device=device).index_copy_(0, ids, often).expand_as(logits).clone()
    places = [row * vocab_size + token for row, path in enumerate(paths) for token in path]
    ones = torch.ones(len(places), device=device)
    amounts.view(-1).index_add_(0, to_device(torch.tensor(places, dtype=torch.int64), device), ones)
    replied = amounts > 0
    scores = logits.to(torch.float32)
    factor = sampling.repetition_penalty
    if factor != 1.0:
        text = torch.zeros(vocab_size, dtype=torch.bool, device=device).index_fill_(0, ids, True)
        scores = torch.where(replied | text, torch.where(scores > 0, scores / factor, scores * factor), scores)
    taken = sampling.presence_penalty + sampling.frequency_penalty * amounts
    return torch.where(replied, scores - taken, scores)
