"""The pair of the catalog that is better than a small one and fits this machine: memory, disk, and the network."""

from __future__ import annotations

import shutil
import subprocess
import time

from specchat.cli.pair_states import known_pairs, models_in_use, sized_by_hub
from specchat.compiled.machine import cpu_name, free_bytes, has_graphics_card
from specchat.config import Catalog, HubSource, ModelSpec, PairSpec, cache_dir, load_catalog
from specchat.engine.server.measured_passes import kept_profiles
from specchat.errors import WeightsError
from specchat.models.hub import repositories as hub
from specchat.tui.state.pair_list import Offer, PairInfo

SMALL = 500_000_000
"""A model with fewer weights is called a toy."""

_READ_A_TOKEN = 1_600_000_000
"""Bytes that a processor reads for each token at most: some ten tokens a second from ordinary memory."""

_SPARE = 1.1
"""What is fetched or held takes so many times its size, so that something stays free."""


def offer_for(name: str, patience_s: float = 0.0) -> Offer | None:
    """What to offer a user of this pair; None where its model is not small.

    Pairs are tried from the largest that fits to the smallest, until one is on the disk or can be reached.

    Args:
        patience_s: how long to wait for the idle engine to time this pair's passes, which tell how quick another is.
    """
    catalog = load_catalog()
    target = catalog.model(catalog.pair(name).target)
    if not 0 < (target.parameters or 0) < SMALL:
        return None
    size = f"{round((target.parameters or 0) / 1e6)}M"
    infos = {info.name: info for info in known_pairs()}
    chat_pairs = [pair for pair in catalog.pairs.values() if _may_be_offered(catalog, pair, target)]
    for pair in sorted(chat_pairs, key=lambda pair: -(catalog.model(pair.target).parameters or 0)):
        found = _fitting(catalog, pair, infos[pair.name])
        if found is not None:
            return Offer(size, pair.name, found, _expected(target.name, infos[name], infos[pair.name], patience_s))
    return Offer(size)


def _expected(target: str, known: PairInfo, offered: PairInfo, patience_s: float) -> float:
    """Tokens a second of plain decoding with a pair, by its own passes or another's here; 0 where none were timed.

    A processor reads all weights for every token, so that times go as their bytes do.
    """
    if offered.plain_tokens_per_s:
        return offered.plain_tokens_per_s
    if has_graphics_card() or not (known.read_bytes and offered.read_bytes):
        return 0.0
    store, until = kept_profiles(), time.monotonic() + patience_s
    while (timed := store.plain_passes_s("cpu", cpu_name()).get(target)) is None and time.monotonic() < until:
        time.sleep(0.5)
    return known.read_bytes / offered.read_bytes / timed if timed else 0.0


def _may_be_offered(catalog: Catalog, pair: PairSpec, than: ModelSpec) -> bool:
    """Whether it has a known larger model that chats, needs no licence to be accepted, and was tried by us."""
    model = catalog.model(pair.target)
    notes = f"{pair.notes} {pair.summary} {model.notes}"
    unfit = any(word in notes for word in ("gated", "untested", "base model"))
    return not unfit and (model.parameters or 0) > 2 * (than.parameters or 0)


def _fitting(catalog: Catalog, pair: PairSpec, info: PairInfo) -> int | None:
    """The bytes to fetch for this pair; None where it does not fit this machine or cannot be had."""
    models = models_in_use(catalog, pair)
    try:
        info = sized_by_hub(info)
        if info.download_bytes:
            for source in (source for model in models for source in model.sources[:1]):
                if isinstance(source, HubSource):
                    hub.list_repository(source)  # whether it is reachable
    except WeightsError:
        return None
    fetched, needed = info.download_bytes or 0, info.needed_bytes or 0
    folder = next(step for step in (cache_dir(), *cache_dir().parents) if step.exists())
    if fetched * _SPARE > shutil.disk_usage(folder).free:
        return None
    room = _card_bytes() if has_graphics_card() else min(free_bytes() or 0, _READ_A_TOKEN / _SPARE)
    return fetched if 0 < needed * _SPARE <= room else None


def _card_bytes() -> int:
    """Free memory of the graphics card, as its driver says; 0 where it says nothing."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, encoding="ascii", timeout=10, check=True).stdout
        return int(said.split()[0]) * 2**20
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0
