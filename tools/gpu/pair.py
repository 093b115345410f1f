"""A true pair on real text: a draft model against transformers' assisted generation with the same two models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from specchat.bench.peer_engines import transformers_peers
from specchat.config import ModelSpec, PathSource
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.engine.server.loaded_pair import LoadedDraft, LoadedPair
from specchat.models.model_loading import Loaded, compare_tokenizers, load_model
from tools.gpu.results import Goal, Outcome, Results
from tools.gpu.setup import Setup
from tools.gpu.text_comparison import (
    ContestantResult,
    compare_on_text,
    contestants_table,
    faults,
    greedy,
    timed_costs,
)

WANTED_RATIO = 5.0

_ASSISTED = "transformers assisted"


def measure(setup: Setup, results: Results) -> Outcome:
    """Plain decoding, the draft model in trees, and transformers."""
    assert setup.target is not None, "not asked for without a pair"
    assert setup.draft is not None, "not asked for without a pair"
    pair = load_pair(setup, setup.target, setup.draft)
    costs = timed_costs(pair, setup.extent)
    peers = transformers_peers(pair, greedy(setup.extent), setup.target, setup.draft)
    for peer in peers:
        peer.threads = pair.threads
    contestants = compare_on_text(pair, configurations(setup), peers, setup.extent, costs)
    title = f"{pair.name}: {setup.extent.prompts} of our own prompts, {setup.extent.reply_tokens} tokens, greedy"
    return Outcome(
        figures={
            "target": pair.target.name,
            "draft": setup.draft.stem,
            "weight_bytes": pair.target.weight_bytes,
            "load_s": pair.load_s,
            "verify": list(costs.verify),
            "drafting": list(costs.draft),
            "lanes": [contestant.figures() for contestant in contestants],
        },
        tables=(contestants_table(title, contestants),),
        goals=(Goal("best of ours over transformers assisted", best_over_assisted(contestants), WANTED_RATIO),),
        wrong=faults(contestants),
    )


def load_pair(setup: Setup, target: Path, draft: Path) -> LoadedPair:
    """Both models from their files, checked to share their tokens."""
    began = time.perf_counter()
    loaded = [_load(setup, path) for path in (target, draft)]
    compare_tokenizers(*loaded)
    return LoadedPair(
        name=f"{target.stem} + {draft.stem}",
        target=loaded[0],
        vocabulary=TransformersVocabulary(loaded[0].tokenizer, loaded[0].eos_ids),
        device=setup.device,
        precision=setup.precision,
        notes=[],
        load_s=time.perf_counter() - began,
        threads=torch.get_num_threads(),
        loaded_drafts=(LoadedDraft(loaded[1]),),
    )


def configurations(setup: Setup) -> dict[str, dict[str, Any]]:
    """Configurations compared with plain decoding."""
    tree = {"drafter": "draft_model", "policy": "best_first", "controller": "fixed", "width": 4, "depth": 8}
    widest = setup.extent.nodes
    merged = {"drafter": "merge", "controller": "goodput", "method_options": {"merge.of": "suffix,draft_model"}}
    return {
        f"draft_model, {widest // 4} nodes": tree | {"nodes": widest // 4},
        "draft_model, goodput": tree | {"nodes": widest, "controller": "goodput"},
        "suffix + draft_model, goodput": tree | merged | {"nodes": widest},
    }


def best_over_assisted(contestants: list[ContestantResult]) -> float:
    """Seconds a token of transformers' assisted generation over those of our fastest configuration."""
    ours = max(contestant.group.tokens_per_s for contestant in contestants if contestant.same_text is not None)
    assisted = next(contestant.group.tokens_per_s for contestant in contestants if contestant.name == _ASSISTED)
    return ours / assisted


def _load(setup: Setup, path: Path) -> Loaded:
    spec = ModelSpec(path.stem, (PathSource(path),))
    return load_model(spec, path, setup.device, setup.precision, kernels=setup.kernels)
