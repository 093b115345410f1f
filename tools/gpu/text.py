"""Real text at a large model's cost: a small model widened, drafted for by text alone."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specchat.bench.check_text import check_greedy
from specchat.bench.checked_combination import EFFORTS, FAILED, CheckedCombination
from specchat.bench.peer_engines import Peer, peers_over
from specchat.core.costs import Costs
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.drafters.choice import choose_drafter
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.errors import CombinationError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.machine import available_bytes
from specchat.models.model_loading import Loaded, open_config, own_network
from specchat.models.weights.gguf_source import GgufSource
from specchat.models.weights.tokenizer_files import end_tokens, open_tokenizer
from specchat.models.weights.weight_source import TensorSource, WeightSource
from specchat.settings import Settings
from tools.gpu.random_model import large, middling
from tools.gpu.results import Goal, Outcome, Results
from tools.gpu.rounds import wide_trees
from tools.gpu.setup import Setup
from tools.gpu.text_comparison import (
    ContestantResult,
    compare_on_text,
    contestants_table,
    faults,
    greedy,
    timed_costs,
)
from tools.gpu.widened import Sizes, WidenedSource, widened_config

WANTED_SHARE = 0.90

BY_TEXT = ("merge", "suffix", "token_recycling", "prompt_lookup", "none")
"""Drafters that guess from what was written. The model that was widened would guess everything, by construction."""


@dataclass(frozen=True)
class Small:
    """A small model's parts before it is widened."""

    config: Any
    source: WeightSource
    vocabulary: TransformersVocabulary


def measure(setup: Setup, results: Results) -> Outcome:
    """The small model at the cost of a large and of a middling one."""
    assert setup.weights is not None, "not asked for without weights"
    small = open_small(setup.weights)
    outcomes = [
        _at_the_cost_of(setup, small, name, Sizes.of(config)) for name, config in (large(setup), middling(setup))
    ]
    return Outcome(
        figures={"weights": setup.weights.name, "widened": [outcome.figures for outcome in outcomes]},
        tables=tuple(table for outcome in outcomes for table in outcome.tables),
        goals=tuple(goal for outcome in outcomes for goal in outcome.goals),
        notes=tuple(note for outcome in outcomes for note in outcome.notes),
        wrong=tuple(fault for outcome in outcomes for fault in outcome.wrong),
    )


def open_small(path: Path) -> Small:
    """The parts of a GGUF file or of a folder of safetensors."""
    folder, config = open_config(path)
    tokenizer = open_tokenizer(folder)
    source: WeightSource = GgufSource(path) if path.is_file() else TensorSource.of_folder(path)
    return Small(config, source, TransformersVocabulary(tokenizer, end_tokens(folder, config, tokenizer)))


def widened_pair(setup: Setup, small: Small, name: str, sizes: Sizes) -> tuple[LoadedPair, WidenedSource, Any]:
    """The small model at these sizes as a target without a draft model, and what it was made of."""
    began = time.perf_counter()
    config = widened_config(small.config, sizes.with_room_for(Sizes.of(small.config)))
    source = WidenedSource(small.source, small.config, config, setup.device, setup.dtype)
    network, _ = own_network(Shape.of(config), source, setup.precision, setup.device, setup.kernels)
    model = Decoder(network, small.config.max_position_embeddings)
    loaded = Loaded(
        name,
        model,
        small.vocabulary.tokenizer,
        small.vocabulary.eos_ids,
        network.nbytes,
        setup.precision,
        network.kernels,
    )
    pair = LoadedPair(
        name=name,
        target=loaded,
        vocabulary=small.vocabulary,
        device=setup.device,
        precision=setup.precision,
        notes=[],
        load_s=time.perf_counter() - began,
        threads=torch.get_num_threads(),
    )
    return pair, source, config


def refuse_models_as_drafters(settings: Settings) -> None:
    """Let a widened target be drafted for by text alone.

    Raises:
        CombinationError: a drafter that asks a model: the widened one's own origin would be accepted always, and the
            figure would mean nothing.
    """
    for choice in choose_drafter(settings).all():
        if choice.name not in BY_TEXT:
            raise CombinationError(
                f"drafter {choice.name!r} cannot draft for a widened model: the model it was made from says the same "
                f"by construction; nearest that means something: {', '.join(BY_TEXT[:-1])}"
            )


def configurations(setup: Setup) -> dict[str, dict[str, Any]]:
    """Configurations compared with plain decoding."""
    wide = wide_trees(setup.extent.nodes)
    chosen = {
        f"suffix + token_recycling, {setup.extent.nodes} nodes": wide,
        "suffix + token_recycling, goodput": wide | {"controller": "goodput"},
    }
    for changes in chosen.values():
        refuse_models_as_drafters(Settings().but(changes))
    return chosen


def _at_the_cost_of(setup: Setup, small: Small, like: str, sizes: Sizes) -> Outcome:
    name = f"{setup.weights.stem if setup.weights else 'a small model'} at the cost of {like}"
    pair, source, config = widened_pair(setup, small, name, sizes)
    costs = timed_costs(pair, setup.extent)
    peers, notes = _peers(setup, pair, source, config)
    contestants = compare_on_text(pair, configurations(setup), peers, setup.extent, costs)
    title = f"{name}: {setup.extent.prompts} of our own prompts, {setup.extent.reply_tokens} tokens, greedy"
    checked = _forced_through(setup, pair)
    return Outcome(
        figures=_figures(name, pair, costs, contestants),
        tables=(contestants_table(title, contestants),),
        goals=tuple(
            Goal(
                f"{like} cost, {contestant.name}: share of the predicted ratio",
                contestant.share_of_predicted,
                WANTED_SHARE,
            )
            for contestant in contestants
            if contestant.share_of_predicted is not None
        ),
        notes=(*notes, f"{name}: {checked[1]}"),
        wrong=(
            *(f"{name}: {fault}" for fault in faults(contestants)),
            *((f"{name}: {checked[1]}",) if checked[0] else ()),
        ),
    )


def _forced_through(setup: Setup, pair: LoadedPair) -> tuple[bool, str]:
    """Whether the text is wrong when forced through plain decoding; a planted wrong token must be noticed."""
    effort = dataclasses.replace(EFFORTS["small"], tokens=setup.extent.reply_tokens // 2)
    settings = greedy(setup.extent).but(next(iter(configurations(setup).values())))
    found = check_greedy(CheckedCombination.of(pair, settings, effort))
    return found.status == FAILED, found.detail


def _peers(setup: Setup, pair: LoadedPair, source: WidenedSource, config: Any) -> tuple[list[Peer], tuple[str, ...]]:
    """transformers over the same tensors, where a second copy of them fits."""
    free = available_bytes(setup.device)
    if free is not None and free < 1.3 * pair.target.weight_bytes:
        return [], (f"{pair.name}: transformers is left out, since a second copy of the weights does not fit",)
    peers = peers_over(_peer_network(setup, source, config), None, pair, greedy(setup.extent))
    for peer in peers:
        peer.threads = pair.threads
    return peers, ()


def _peer_network(setup: Setup, source: WidenedSource, config: Any) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    with torch.device(setup.device):
        network = AutoModelForCausalLM.from_config(config, dtype=setup.dtype, attn_implementation="sdpa").eval()
    network.generation_config = GenerationConfig()
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, tensor in source.hub_tensors():
            parameters.pop(name).copy_(tensor)
    assert not parameters, "every weight of the peer is the widened model's"
    return network


def _figures(name: str, pair: LoadedPair, costs: Costs, contestants: list[ContestantResult]) -> dict[str, Any]:
    return {
        "name": name,
        "weight_bytes": pair.target.weight_bytes,
        "load_s": pair.load_s,
        "verify": list(costs.verify),
        "lanes": [contestant.figures() for contestant in contestants],
    }
