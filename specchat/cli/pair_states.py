"""Every pair with its state: here, to be fetched, or impossible and why; a better one; what a training would take."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace

from specchat.compiled.machine import cpu_name, free_bytes, has_graphics_card
from specchat.config import Catalog, HubSource, ModelSpec, PairSpec, cache_dir, load_catalog, settings_of
from specchat.decoding.families import methods_with_weights
from specchat.drafters.choice import choose_drafter, drafts_used
from specchat.engine.protocol.text import visible
from specchat.engine.server.measured_passes import kept_profiles
from specchat.errors import UsageError, WeightsError
from specchat.models.hub import model_state
from specchat.models.hub import repositories as hub
from specchat.models.hub.disk import free_disk_bytes
from specchat.models.hub.model_state import State, StateKind
from specchat.models.hub.pair_check import check_pair, place_of
from specchat.models.hub.trained_drafters import ListedDrafter, drafters_of, listed_drafters
from specchat.models.weights.model_files import (
    describe_model,
    needed_bytes,
    parameters_of,
    processor_precision,
)
from specchat.training.limits import (
    refuse_hiding,
    refuse_impossible,
    refuse_replacing_start,
    start_named,
    trainable_target,
    training_cost,
)
from specchat.tui.services.training_runner import TrainingEstimate
from specchat.tui.state.pair_list import Offer, PairInfo
from specchat.tui.state.training import TrainingChoices


def known_pairs() -> list[PairInfo]:
    """Every pair of the catalog with what is here of its weights; quick."""
    catalog = load_catalog()
    listed = listed_drafters(catalog, methods_with_weights())
    timed = {} if has_graphics_card() else kept_profiles().plain_passes_s("cpu", cpu_name())
    return [_info(catalog, pair, listed, timed.get(pair.target)) for pair in catalog.pairs.values()]


def judged(info: PairInfo) -> PairInfo:
    """The same pair with whether it would work on this machine; reads what its files say of themselves."""
    catalog = load_catalog()
    pair = catalog.pair(info.name)
    settings = settings_of(pair)
    alike = choose_drafter(settings).draft_models(pair.draft or "", same_tokens=True)
    fit = check_pair(models_in_use(catalog, pair), settings.dtype, alike=alike)
    return replace(
        info,
        needed_bytes=fit.needed_bytes,
        free_bytes=None if has_graphics_card() else free_bytes(),
        trouble=fit.trouble,
        refusal="; ".join(fit.refusals),
        remark="; ".join(fit.remarks),
    )


def sized_by_hub(info: PairInfo) -> PairInfo:
    """The same pair with what it has to fetch and would take in memory, as the hub lists its files.

    Raises:
        WeightsError: the hub does not answer.
    """
    catalog = load_catalog()
    pair = catalog.pair(info.name)
    left = needed = 0
    for model in models_in_use(catalog, pair):
        state, total = model_state.state(model), _total_bytes(model)
        left += 0 if state.kind in ("ready", "unverified") else max(0, total - state.disk_bytes)
        precision = processor_precision(settings_of(pair).dtype, quantised=model.is_gguf, own=True)
        needed += needed_bytes(model.parameters or parameters_of(total, gguf=model.is_gguf), precision)
    free = None if has_graphics_card() else free_bytes()
    return replace(info, download_bytes=left, needed_bytes=info.needed_bytes or needed, free_bytes=free)


def _total_bytes(model: ModelSpec) -> int:
    """How large the model's files are, asked of its hub where that is not known here."""
    if (known := model_state.state(model).total_bytes) is not None:
        return known
    source = next((source for source in model.sources if isinstance(source, HubSource)), None)
    if source is None:
        raise WeightsError(f"{model.name} comes from no hub, and its size is not known")
    return hub.total_bytes(source)


def pairs_elsewhere() -> list[PairInfo]:
    """Every pair of the catalog, for an engine on a machine we cannot look at."""
    return [
        PairInfo(
            pair.name,
            pair.target,
            " + ".join(_used(pair)) or None,
            "elsewhere",
            summary=visible(pair.summary),
            notes=visible(pair.notes),
            unused=" + ".join(f"{name} unused" for name in unused_drafts(pair)),
        )
        for pair in load_catalog().pairs.values()
    ]


def models_in_use(catalog: Catalog, pair: PairSpec) -> tuple[ModelSpec, ...]:
    """The pair's target and the draft models that its settings use; each once."""
    return tuple(catalog.model(name) for name in dict.fromkeys((pair.target, *_used(pair))))


def unused_drafts(pair: PairSpec) -> tuple[str, ...]:
    """The names of the draft models that its settings do not use."""
    used = _used(pair)
    return tuple(name for name in pair.drafts if name not in used)


def _used(pair: PairSpec) -> tuple[str, ...]:
    try:
        return drafts_used(settings_of(pair), pair.drafts)
    except UsageError:  # settings that loading refuses: until they are right, all of its draft models may be used
        return pair.drafts


def _as_unused(model: ModelSpec) -> str:
    total = model_state.state(model).total_bytes
    return f"{model.name} unused, {total / 1e6:.0f} MB" if total else f"{model.name} unused"


def _info(catalog: Catalog, pair: PairSpec, listed: list[ListedDrafter], pass_s: float | None) -> PairInfo:
    target, *drafts = models_in_use(catalog, pair)
    states = [model_state.state(model) for model in (target, *drafts)]
    return PairInfo(
        name=pair.name,
        target=pair.target,
        draft=" + ".join(draft.name for draft in drafts) or None,
        state=_together({state.kind for state in states}),
        download_bytes=_left(states),
        summary=visible(pair.summary),
        notes=visible(pair.notes),
        disk_bytes=sum(state.disk_bytes for state in states),
        unused=visible(" + ".join(_as_unused(catalog.model(name)) for name in unused_drafts(pair))),
        yours=pair.yours,
        parameters=catalog.model(pair.target).parameters or 0,
        licence=visible(catalog.model(pair.target).licence),
        read_bytes=_read_bytes(target, states[0]),
        plain_tokens_per_s=1.0 / pass_s if pass_s else 0.0,
        trained=tuple(_words(one) for one in drafters_of(listed, catalog.model(pair.target))),
    )


def _read_bytes(target: ModelSpec, state: State) -> int:
    """What our own kernels read of its weights for each token; 0 where that is not known, or others run it."""
    if target.scripted or target.backend == "llama.cpp":
        return 0
    return state.total_bytes or int((target.parameters or 0) * (_GGUF_BYTES if target.is_gguf else 2))


_GGUF_BYTES = 0.61
"""Of a weight in a file that is called Q4_K_M, which most are."""


def _words(drafter: ListedDrafter) -> str:
    """A trained drafter in a few words: `smol-hydra (hydra)`."""
    if drafter.problem:
        return visible(f"{drafter.name} (cannot be used: {drafter.problem})")
    state = "" if drafter.state == "ready" else f", specchat models pull {drafter.name}"
    return visible(f"{drafter.name} ({drafter.method}{state})")


def _together(kinds: set[StateKind]) -> StateKind:
    """The state of a pair, from the states of its models."""
    if len(kinds) == 1:
        return next(iter(kinds))
    return "unverified" if kinds == {"ready", "unverified"} else "partial"


def _left(states: list[State]) -> int | None:
    """Bytes still to fetch; None where a source has not said how large it is."""
    missing = [state for state in states if state.kind in ("partial", "missing")]
    if any(state.total_bytes is None for state in missing):
        return None
    return sum(max(0, (state.total_bytes or 0) - state.disk_bytes) for state in missing)


def estimate_training(request: TrainingChoices) -> TrainingEstimate:
    """Disk and time that this training would take.

    Raises:
        UsageError: such a training is not possible.
        WeightsError: the target's files cannot be read.
    """
    refuse_impossible(request.drafter, request.prompts, request.tokens, request.hours, request.name)
    refuse_hiding(request.name)
    refuse_replacing_start(request.name, request.start)
    target = trainable_target(request.pair)
    if request.start:
        start_named(request.start, target, request.drafter)
    if (place := place_of(target)) is None:
        raise UsageError(f"{target.name} is not on this machine; `specchat models pull {request.pair}` fetches it")
    described = describe_model(place)
    cost = training_cost(request.drafter, request.tokens, described.parameters, described.hidden)
    return TrainingEstimate(cost.disk_bytes, cost.seconds, free_disk_bytes(cache_dir()))


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
    if fetched * _SPARE > free_disk_bytes(cache_dir()):
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
