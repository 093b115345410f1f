"""Trained drafters of a few kilobytes, for any target: folders like those that are trained, with random weights."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from contracts.random_networks import random_network
from contracts.tiny_datastore import tiny_datastores
from contracts.trained_folders import trained_folder

from specchat.config.trained_drafters import JUDGE, WEIGHTS, TrainedDrafter, TrainedDrafters, write_drafter
from specchat.core.drafting_networks import LeftOut, Ranking
from specchat.core.memory import NetworkMemory
from specchat.core.seams import Model, Weights
from specchat.core.vocabulary import TokenTable
from specchat.drafters.parts import PairResources
from specchat.models.draft_heads import methods
from specchat.models.draft_heads.amphista import AmphistaSizes
from specchat.models.draft_heads.clover import CloverSizes
from specchat.models.draft_heads.eagle import EagleSizes
from specchat.models.draft_heads.falcon import FalconSizes
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import save_weights
from specchat.models.draft_heads.masks import MtpSizes, PromptTokenSizes, StreamSizes, mask_rows
from specchat.models.draft_heads.medusa import MedusaSizes
from specchat.models.draft_heads.parallel_spec import ParallelSpecSizes
from specchat.models.draft_heads.selector import SelectorSizes
from specchat.models.draft_heads.sizes import MlpSizes, NetworkSizes
from specchat.models.draft_heads.specdiff import SpecDiffSizes, denoiser
from specchat.models.shipped_mtp import MtpModules, ShippedHead
from specchat.training.adapted_draft import adapted_draft
from specchat.training.learning_network import LearningNetwork
from specchat.training.limits import FORMS

_FOLDERS = tempfile.TemporaryDirectory(prefix="specchat-tiny-networks-")


def sizes_for(method: str, hidden: int, layers: int) -> NetworkSizes:
    """Sizes of a network that reads the first and the last layer's states."""
    taps = tuple(sorted({0, layers - 1}))
    match method:
        case "hydra":
            return MlpSizes(hidden, taps, inner=24)
        case "medusa":
            return MedusaSizes(hidden, taps, heads=3)
        case "selector":
            return SelectorSizes(hidden, taps, inner=24, heads=3, rank=8)
        case "amphista":
            return AmphistaSizes(hidden, taps, inner=24, heads=4, kv_heads=2, head_dim=8, positions=3)
        case "falcon":
            return FalconSizes(hidden, taps, inner=24, heads=4, kv_heads=2, head_dim=8, width=16)
        case "parallel_spec":
            return ParallelSpecSizes(hidden, taps, inner=24, heads=4, kv_heads=2, head_dim=8, masks=2)
        case "clover":
            return CloverSizes(hidden, taps, inner=24, heads=4, kv_heads=2, head_dim=8)
        case "specdiff":
            return SpecDiffSizes(hidden=hidden, width=32, layers=2, masks=4, inner=24, heads=4, kv_heads=2, head_dim=8)
        case "prompt_tokens":
            return PromptTokenSizes(hidden)
        case "mtp":
            return MtpSizes(hidden, layers=layers, queries=hidden, keys=hidden // 2, rank=3, sampler=8)
        case "speculative_streaming":
            return StreamSizes(
                hidden, layers=layers, queries=hidden, keys=hidden // 2, rank=3, first=max(0, layers - 2)
            )
        case _:
            return EagleSizes(hidden, taps, inner=24, heads=4, kv_heads=2, head_dim=8).of_form(method)


def tiny_trained(method: str, target: Weights, share: float = 2 / 3) -> TrainedDrafter:
    """A trained drafter of this method that fits the target's sizes.

    Args:
        method: a drafter, or a form of `eagle` besides the first.
        share: which part of all tokens are frequent ones, that it can guess.
    """
    return _made(method, target.hidden_size, target.layers, target.vocab_size, share)


def all_tiny_trained(target: Weights, share: float = 2 / 3) -> TrainedDrafters:
    """One of each method."""
    trained = [tiny_trained(method, target, share) for method in methods("head", "masks", "denoiser")]
    return TrainedDrafters("tiny", (*trained, tiny_judge(target.hidden_size, target.layers)))


@cache
def tiny_judge(hidden: int, layers: int) -> TrainedDrafter:
    """A judge of the last layer's states with random weights."""
    weight = torch.randn(hidden, generator=torch.Generator().manual_seed(5)) / hidden**0.5
    folder = Path(_FOLDERS.name) / f"{JUDGE}-{hidden}-{layers}"
    return trained_folder(folder, {"weight": weight, "bias": torch.zeros(1)}, JUDGE, layer=layers - 1)


class PrunedOfNothing:
    """A `Prunable` that leaves nothing out: what is made of the target is its twin. Ranking takes three pieces."""

    def __init__(self, target: Weights) -> None:
        self._target = target
        self.sizes = (target.layers, 2, 3, 4)

    def sizes_without(self, left_out: LeftOut) -> tuple[int, int, int, int]:
        return self.sizes

    def by_magnitude(self) -> Ranking:
        layers, heads, channels, dimensions = self.sizes
        return Ranking.of(torch.ones(layers, heads), torch.ones(layers, channels), torch.ones(dimensions))

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        layers, *counts, dimensions = self.sizes
        yield None
        yield None
        of_layers = (torch.arange(count).expand(layers, -1) for count in counts)
        yield Ranking.of(*of_layers, torch.arange(dimensions))

    def recover(self, ranking: Ranking, left_out: LeftOut, texts: Sequence[Sequence[int]], steps: int) -> Iterator[Any]:
        yield None
        yield {}

    def memory(self, left_out: LeftOut, texts: int, tokens: int, recovers: bool = False) -> NetworkMemory:
        return NetworkMemory(self._target.with_new_cache(), 0, 0)

    def pruned(self, ranking: Ranking, left_out: LeftOut, recovered: Any = None) -> Model:
        assert ranking.fits(*self.sizes)
        return self._target.with_new_cache()


def tiny_resources(target: Weights) -> PairResources:
    """All that a drafter may need of a pair, for any target."""
    stores = tiny_datastores(target.vocab_size)
    return trained_resources(
        trained=all_tiny_trained(target),
        datastores=stores,
        prunable=PrunedOfNothing(target),
        shipped=lambda: tiny_shipped(target.hidden_size, target.layers, target.vocab_size),
    )


def tiny_shipped(hidden: int, layers: int, vocab_size: int) -> ShippedHead:
    """A random head as it comes in files of targets of these sizes."""
    modules, rotary, embedding, head = _shipped_parts(hidden, vocab_size)
    target: Any = SimpleNamespace(
        layers=layers, context_tokens=4096, cache=None, rotary=rotary, final_norm=lambda states: states,
        embed=lambda tokens: embedding[list(tokens)], logits_of=lambda states: states @ head,
    )  # fmt: skip
    return ShippedHead(modules, target)


@cache
def _shipped_parts(hidden: int, vocab_size: int) -> tuple[MtpModules, Any, torch.Tensor, torch.Tensor]:
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=hidden, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=vocab_size,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = transformers.AutoModelForCausalLM.from_config(config).eval()
        modules = MtpModules(network).eval().requires_grad_(False)
        return modules, network.model.rotary_emb, torch.randn(vocab_size, hidden), torch.randn(hidden, vocab_size)


def trained_resources(*tokens: TokenTable, **about: Any) -> PairResources:
    """Resources of a pair whose trained weights become networks and masks."""
    return PairResources(
        *tokens,
        make_network=LearningNetwork,
        make_masks=mask_rows,
        make_denoiser=denoiser,
        make_learning=adapted_draft,
        **about,
    )


@cache
def _made(method: str, hidden: int, layers: int, vocab_size: int, share: float) -> TrainedDrafter:
    folder = Path(_FOLDERS.name) / f"{method}-{hidden}-{layers}-{vocab_size}-{share:.2f}"
    folder.mkdir()
    sizes, method = sizes_for(method, hidden, layers), "eagle" if method in FORMS else method
    tokens = torch.arange(round(share * vocab_size))
    shared = SharedWeights(torch.nn.Identity(), tokens, torch.empty(0))
    save_weights(random_network(method, sizes, shared, torch.Generator().manual_seed(3)), folder / WEIGHTS)
    return write_drafter(
        folder,
        method=method,
        target="tiny",
        target_sha256="ab" * 32,
        licence="Apache-2.0",
        options=sizes.options(),
        data={},
        figures={},
    )
