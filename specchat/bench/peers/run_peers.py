"""Which other engines can run here on the same weights, prompts and stop rule, for comparison with ours."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specchat.bench.peer import Peer
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.bench.contestants import Contestant
    from specchat.engine.server.loaded_pair import LoadedPair


@dataclass
class Found:
    """The peers that can run here, and why others cannot."""

    peers: list[Contestant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_peers(pair: LoadedPair, settings: Settings, sample: list[int]) -> Found:
    """Every peer that is installed and can read this pair's weights, each with its best number of threads.

    Args:
        sample: a prompt to try thread counts on.
    """

    from specchat.bench.peers.transformers_generate import transformers_peers
    from specchat.config import load_catalog
    from specchat.models.hub import model_state

    found = Found()
    catalog = load_catalog()
    spec = catalog.model(catalog.pair(pair.name).target)
    draft = pair.draft.name if pair.draft else None
    if spec.scripted:
        found.notes.append("no peer can run a model without weights")
        return found
    if not _comparable(settings):
        found.notes.append("peers are left out: they are compared greedily, without penalties and stop strings")
        return found
    target_path = model_state.locate(spec)
    draft_path = model_state.locate(catalog.model(draft)) if draft else None
    found.peers += transformers_peers(pair, settings, target_path, draft_path)
    if importlib.util.find_spec("llama_cpp") is None:
        found.notes.append("llama.cpp is not measured: llama-cpp-python is not installed")
    elif not _is_gguf(target_path):
        found.notes.append("llama.cpp is not measured: this target is not a GGUF file")
    else:
        from specchat.bench.peers.llama_cpp import llama_peers, why_not

        if (problem := why_not(target_path)) is None:
            found.peers += llama_peers(pair, settings, target_path)
        else:
            found.notes.append(f"llama.cpp is not measured: {problem}")
    for peer in found.peers:
        assert isinstance(peer, Peer), "every peer is one"
        peer.choose_threads(sample, pair.threads)
    return found


def _comparable(settings: Settings) -> bool:
    penalties = (settings.repetition_penalty, settings.presence_penalty, settings.frequency_penalty)
    return settings.temperature == 0 and penalties == (1.0, 0.0, 0.0) and not settings.stop


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"
