"""The engine's memory: what its models take, the setting `memory`, giving memory back, and running out of it."""

from __future__ import annotations

import dataclasses
import errno
import gc
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from specchat.compiled.machine import peak_process_bytes, process_bytes, reset_peak
from specchat.config.values import ModelSpec
from specchat.core.memory import LEAST_TOKENS, MemoryLimit, PairMemory
from specchat.decoding.assemble import early_map_bytes, made_networks
from specchat.drafters.choice import choose_drafter
from specchat.errors import CombinationError, MemoryLimitTooLow, NoMemoryLeft, NotEnoughMemory, cut
from specchat.models.cpu_kernels.streamed_weights import WeightLimit
from specchat.models.hub.model_state import packed_file
from specchat.models.machine import available_bytes
from specchat.models.model_loading import Loaded, can_stream, streaming_network
from specchat.models.weights.model_files import describe_model
from specchat.settings import Settings, memory_text, parse_memory


def set_aside() -> None:
    """Take what there is now out of the search for garbage: looking through it between two rounds takes 0.1 s."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def free_memory() -> None:
    """Give back the memory of models that nothing refers to."""
    set_aside()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # else what was freed still counts as taken


def memory_bytes(device: torch.device) -> int:
    """Bytes that the models on this device take: torch's tensors on CUDA, elsewhere the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return process_bytes()


def no_memory_left(error: Exception) -> NoMemoryLeft | None:
    """The line about an allocation on the host that failed, or a thread that could not be started; None: it is neither.

    torch says both with a RuntimeError. What CUDA could not allocate is left to whoever asked for it.
    """
    if isinstance(error, NoMemoryLeft):
        return error
    said = cut(str(error))
    by_torch = isinstance(error, RuntimeError) and ("can't allocate memory" in said or "can't start new thread" in said)
    by_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (isinstance(error, MemoryError) or by_torch or by_system):
        return None
    return NoMemoryLeft(f"the engine has no memory left, so it ends{f': {said}' if said else ''}")


def watch_peak(device: torch.device) -> Callable[[], int]:
    """Measure the most that is held from now on; what is returned says how much that was so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: int(torch.cuda.max_memory_allocated(device))
    return peak_process_bytes if reset_peak() else process_bytes


_RESERVE_BYTES = 48_000_000
"""Bytes that Python, torch and the tokenizer take in the first replies and keep."""

_LEAST_BYTES, _MOST_BYTES = 0.5625, 1.0625
"""Bytes that a weight takes at least and, of whole numbers, at most: 4 or 8 bits, and a scale for every 32 of them."""


def refuse_by_size(name: str, path: Path, settings: Settings) -> None:
    """MemoryLimitTooLow for a model whose weights alone are beyond the limit, before they are read."""
    limit = parse_memory(settings.memory)
    if not limit:
        return
    least = int(describe_model(path).parameters * _LEAST_BYTES)
    if least > limit:
        raise MemoryLimitTooLow(
            f"memory = {settings.memory} is too little for {name}: its weights alone take {memory_text(least)} or more"
        )


def bytes_besides(drafts: Sequence[Path], trained_bytes: int) -> int:
    """Bytes that draft models with these files take, and trained drafters whose files have so many."""
    models = sum(int(describe_model(draft).parameters * _MOST_BYTES) for draft in drafts)
    return models + _TRAINED_AT_FIRST * trained_bytes


def weight_limit(
    settings: Settings,
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    besides: int,
    sha256: Callable[[], str],
) -> WeightLimit | None:
    """The limit of a target's weights where one is stated, and what is beyond it can stay on the disk.

    Args:
        besides: bytes of what is loaded after it, see `bytes_besides`.
    """
    stated = parse_memory(settings.memory)
    if not stated or not can_stream(spec, path, device, settings.dtype, settings.kernels, settings.backend):
        return None

    def left() -> int:
        return stated - memory_bytes(device) - _RESERVE_BYTES

    return WeightLimit(left, besides, packed_file(spec), sha256, settings.memory)


def limit_memory(
    settings: Settings,
    device: torch.device,
    target: Loaded,
    drafts: Sequence[Loaded],
    trained_bytes: int = 0,
    alone: bool = True,
) -> tuple[MemoryLimit, tuple[str, ...]]:
    """The models' limit of memory; limits the context for it where needed, with a note.

    Without a stated limit it is what the machine has free now. On CUDA the caches take their memory now, so that none
    is wanting in the middle of a reply.

    Args:
        trained_bytes: of the files of trained drafters in use, which are read with the first reply.
        alone: no other pair takes memory that it could give back.

    Raises:
        MemoryLimitTooLow: with the least that works.
        NotEnoughMemory: not even the shortest context fits on the device, or less than without the other pair.
    """
    base = memory_bytes(device) + (0 if device.type == "cuda" else _RESERVE_BYTES)
    stated = parse_memory(settings.memory)
    if not stated and device.type == "cuda":
        return _limit_by_device(settings, device, base, target, drafts, alone)
    if not stated:
        return MemoryLimit(base + (available_bytes(device) or 1 << 50), base, watch_peak(device)), ()
    made = made_networks(settings, target.prunable)
    map_bytes = early_map_bytes(settings, target.model)
    pair = PairMemory(target.model, tuple(draft.model for draft in drafts), made=made, map_bytes=map_bytes)
    streams = streaming_network(target.model) is not None
    base += _keep_layers(settings, stated - base, pair, trained_bytes)
    tokens = pair.most_tokens(stated - base - (_TRAINED * trained_bytes if streams else 0)) or pair.most_tokens(
        stated - base
    )
    if not tokens and map_bytes:  # early pruning works without its map
        pair = dataclasses.replace(pair, map_bytes=0)
        tokens = pair.most_tokens(stated - base)
    if not tokens:
        least = memory_text(base + pair.plain_bytes(LEAST_TOKENS))
        raise MemoryLimitTooLow(
            f"memory = {settings.memory} is too little for pair {settings.pair!r}: {least} is the least that works"
        )
    notes = _limit_contexts(pair, tokens, stated - base, f"memory = {settings.memory}")
    return MemoryLimit(stated, base, watch_peak(device)), notes


_TRAINED, _TRAINED_AT_FIRST = 8, 14
"""Bytes of a trained drafter with its part of the head for each byte of its file, and while it is read, measured."""

_STREAMED: dict[str, int] = {"nodes": 128, "width": 16}
_STREAMED_OPTIONS = {"hydra.tokens": 16384}
"""Where layers are read from the disk in every pass: the least ceilings of a tree, and how many tokens a network can
guess, each unless the user stated it. Rows and drafting cost next to nothing there until they take as long as reading,
which `goodput` measures."""


def widened(settings: Settings, stated: Collection[str]) -> Settings:
    """The settings of a target whose layers are read in every pass; what the user stated stays as it is.

    A draft model's passes take longer the wider a tree is, and the disk rests once both buffers are full. So its trees
    stay as they are.
    """
    if settings.controller != "goodput" or choose_drafter(settings).needs_draft_model:
        return settings
    wider = {name: max(most, getattr(settings, name)) for name, most in _STREAMED.items() if name not in stated}
    return settings.but({**wider, "method_options": {**_STREAMED_OPTIONS, **settings.method_options}})


_USEFUL_TOKENS = 2048
"""The context that there is room for before layers stay in memory."""


def _keep_layers(settings: Settings, room_bytes: int, pair: PairMemory, trained_bytes: int) -> int:
    """Keep layers that were left on the disk in memory; the bytes taken.

    All of them, if the shortest context fits beside them; else as many as leave room for a useful one, and for a tree.
    Both beside the trained drafters in use.
    """
    network = streaming_network(pair.target)
    if network is None or network.streamed is None:
        return 0
    tokens, nodes = min(_USEFUL_TOKENS, pair.target.context_tokens), settings.nodes
    useful = max(pair.plain_bytes(tokens), pair.round_bytes(nodes, tokens) + pair.kept_bytes(nodes))
    least = pair.plain_bytes(LEAST_TOKENS) + _TRAINED_AT_FIRST * trained_bytes
    room = room_bytes - least
    if network.streamed.all_bytes > room:
        room = room_bytes - max(least, useful + _TRAINED * trained_bytes)
    return network.keep_layers(room)


def _limit_contexts(pair: PairMemory, tokens: int, room_bytes: int, by: str) -> tuple[str, ...]:
    """Take no longer texts; a note where the target could. NotEnoughMemory: no memory for the caches of such."""
    limited = tokens < pair.target.context_tokens
    pair.fit_chunks_(tokens, room_bytes)
    try:
        for model in (pair.target, *pair.drafts, *(network.stand_in for network in pair.made)):
            model.limit_context_(min(tokens, model.context_tokens))
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(f"no memory for a context of {tokens} tokens: {cut(str(error))}") from None
    return (f"context limited to {tokens} tokens by {by}",) if limited else ()


_SHARE = 0.75
"""Of what is free on a device, for the caches that are taken at once and the passes over them. The rest is for
recordings, trained drafters, draft models and texts that come later, and for the device's libraries."""


def _limit_by_device(
    settings: Settings, device: torch.device, base: int, target: Loaded, drafts: Sequence[Loaded], alone: bool
) -> tuple[MemoryLimit, tuple[str, ...]]:
    """The limit that a device's memory is: a context that does not fit would end in the middle of a reply."""
    free = available_bytes(device) or 0
    pair = PairMemory(
        target.model, tuple(draft.model for draft in drafts), made=made_networks(settings, target.prunable)
    )
    tokens = pair.most_tokens(int(_SHARE * free))
    if not tokens:
        raise NotEnoughMemory(
            f"{memory_text(free)} are free on {device} beside the weights of pair {settings.pair!r}, too little for "
            "any context; choose a smaller model or close other programs"
        )
    by = f"the memory of {device}"
    if tokens < target.model.context_tokens and not alone:
        raise NotEnoughMemory(f"context limited to {tokens} tokens by {by}, which holds another pair")
    notes = _limit_contexts(pair, tokens, int(_SHARE * free), by)
    return MemoryLimit(base + free, base, watch_peak(device)), notes


def limit_with_drafts(
    limit: MemoryLimit, settings: Settings, target: Loaded, loaded: Sequence[Loaded], added: Sequence[Loaded]
) -> MemoryLimit:
    """The limit once these draft models are there too; their contexts become no longer than the target's.

    Raises:
        CombinationError: a stated limit, or the device, leaves too little for them beside that context.
    """
    base = limit.base_bytes + sum(draft.weight_bytes for draft in added)
    needs = f"drafter {settings.drafter!r} uses draft model {added[0].name}"
    try:
        for draft in added:
            if settings.memory or draft.model.device.type == "cuda":
                draft.model.limit_context_(min(target.model.context_tokens, draft.model.context_tokens))
                draft.model.chunk_bytes = target.model.chunk_bytes
    except torch.OutOfMemoryError:
        raise CombinationError(
            f"{needs}, for whose cache {target.model.device} has too little memory left; nearest that works: to start "
            "with this drafter, which limits the context"
        ) from None
    if settings.memory:
        models = tuple(draft.model for draft in (*loaded, *added))
        least = base + PairMemory(target.model, models).plain_bytes(target.model.context_tokens)
        if least > limit.bytes:
            raise CombinationError(
                f"{needs}, for which memory = {settings.memory} leaves too little with this context: "
                f"{memory_text(least)} is the least; nearest that works: to load the pair with this drafter, which "
                "limits the context"
            )
    return dataclasses.replace(limit, base_bytes=base)


def limit_without_drafts(limit: MemoryLimit | None, released: Sequence[Loaded]) -> MemoryLimit | None:
    """The limit once the memory of these draft models is given back; the context stays as it is."""
    return limit and dataclasses.replace(
        limit, base_bytes=limit.base_bytes - sum(draft.weight_bytes for draft in released)
    )
