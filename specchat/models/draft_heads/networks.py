"""The trained networks by the name of their drafter; made anew, saved, and loaded with every tensor checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specchat.errors import DamagedWeights, nearest
from specchat.models.draft_heads.amphista import Amphista
from specchat.models.draft_heads.clover import Clover
from specchat.models.draft_heads.draft_language_model import DraftLanguageModel
from specchat.models.draft_heads.eagle import Eagle
from specchat.models.draft_heads.eight_bits import STEPS, check_steps, fits, rounded, unrounded
from specchat.models.draft_heads.falcon import Falcon
from specchat.models.draft_heads.hydra import Hydra
from specchat.models.draft_heads.mask_network import MaskNetwork
from specchat.models.draft_heads.medusa import Medusa
from specchat.models.draft_heads.parallel_spec import ParallelSpec
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.models.draft_heads.sizes import (
    MOST_TOKENS,
    AmphistaSizes,
    CloverSizes,
    DraftModelSizes,
    EagleSizes,
    FalconSizes,
    HydraSizes,
    MedusaSizes,
    MtpSizes,
    NetworkSizes,
    ParallelSpecSizes,
    PromptTokenSizes,
)
from specchat.models.weights.config_file import shown
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.safetensors_header import read_entries

TOKENS = "tokens"
"""The tensor that lists the tokens that can be guessed, the most frequent first."""

OWN_HEAD, OWN_EMBED, FREQUENCIES = "head", "embed", "frequencies"
"""Tensors that only published networks have: a head and an embedding of their own, and the rotation's angles."""

_FORMATS = ("F32", "F16", "BF16")


class LearnedNetwork(Protocol):
    """A trained network, as training sees it; an `nn.Module`."""

    shared: SharedWeights

    @property
    def sizes(self) -> NetworkSizes: ...

    @property
    def fuse(self) -> nn.Module:
        """What `fused` multiplies with. It stays as it is while the network learns from replies."""

    @property
    def norm(self) -> Tensor:
        """(d,) the weights of the norm in front of the head."""

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) what the first step takes of (…, taps, d) states of the target."""

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, d) for each step: what `unroll` takes the logits of."""

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with; the target's is its last state, brought to a mean square of 1."""

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, H) logits for each step; see `Hydra.unroll`."""

    def state_dict(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Kind:
    """One kind of network: its sizes and the module."""

    sizes: type[NetworkSizes]
    module: type[nn.Module]


NETWORKS: Mapping[str, Kind] = {
    "hydra": Kind(HydraSizes, Hydra),
    "eagle": Kind(EagleSizes, Eagle),
    "medusa": Kind(MedusaSizes, Medusa),
    "amphista": Kind(AmphistaSizes, Amphista),
    "falcon": Kind(FalconSizes, Falcon),
    "parallel_spec": Kind(ParallelSpecSizes, ParallelSpec),
    "clover": Kind(CloverSizes, Clover),
}
"""Drafter → its network, which reads states of the target."""

DRAFT_MODELS: Mapping[str, Kind] = {"draft_model": Kind(DraftModelSizes, DraftLanguageModel)}
"""Drafter → the language model that is trained for it, which reads tokens alone and runs as draft models do."""

MASKS: Mapping[str, Kind] = {
    "prompt_tokens": Kind(PromptTokenSizes, MaskNetwork),
    "mtp": Kind(MtpSizes, MaskNetwork),
}
"""Drafter → its masks, which go through the target itself."""


def kind_of(method: str) -> Kind:
    """The network of a drafter.

    Raises:
        WeightsError: the drafter has none.
    """
    known = {**NETWORKS, **DRAFT_MODELS, **MASKS}
    if method not in known:
        raise DamagedWeights(f"method {shown(method)} has no trained network{nearest(method, known)}")
    return known[method]


def new_network(method: str, sizes: NetworkSizes, shared: SharedWeights, generator: torch.Generator) -> Any:
    """An untrained network: products keep the mean square of what goes in, and what an MLP or attention adds is
    small."""
    network: Any = kind_of(method).module(sizes, shared)
    if method in MASKS:
        network.begin_(generator)
        return network
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                scale = 0.1 if name.removesuffix(".weight").rpartition(".")[2] in ("down", "o") else 0.7
                parameter.normal_(std=scale * parameter.shape[1] ** -0.5, generator=generator)
    return network


def save_weights(network: LearnedNetwork, file: Path) -> None:
    """Write the trained tensors, matrices in 8 bits and the rest in bfloat16, and which tokens can be guessed.

    Of what is shared with the target nothing is written.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if fits(tensor):
            tensors[name], tensors[name + STEPS] = rounded(tensor.detach().cpu())
        else:
            tensors[name] = tensor.detach().to("cpu", torch.bfloat16)
    tensors[TOKENS] = network.shared.tokens.to("cpu", torch.int32)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def load_network(
    method: str, options: Mapping[str, Any], file: Path, share: Callable[[Tensor], SharedWeights], where: str = ""
) -> Any:
    """A trained network in float32.

    Args:
        options: its sizes, as `Sizes.options` gives them.
        share: (H,) int64 tokens that can be guessed → what the target shares.
        where: names the file and the table the options come from.

    Raises:
        ConfigError: the sizes are wrong.
        WeightsError: the file is damaged, or its tensors are not those of a network of these sizes.
    """
    kind = kind_of(method)
    sizes = kind.sizes.read(options, where or f"{file.parent / 'drafter.toml'}, [options]")
    with torch.device("meta"):
        network: Any = kind.module(sizes, SharedWeights(torch.nn.Identity(), torch.empty(0), torch.empty(0)))
    wanted = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    tokens, own = read_tokens(file), _own_tensors(file, sizes)
    tensors = read_tensors(file, {**wanted, **own})
    network.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    network.shared = _shared(share, tokens, tensors)
    if FREQUENCIES in own:
        network.rotation.frequencies = tensors[FREQUENCIES]
    return network.eval().requires_grad_(False)


def _own_tensors(file: Path, sizes: NetworkSizes) -> dict[str, tuple[int, ...]]:
    """Which tensors a published network has besides those of ours, and of which shapes."""
    if not isinstance(sizes, EagleSizes):
        return {}
    entries, d = read_entries(file), sizes.hidden
    rows = {name: entry.shape[0] for name, entry in entries.items() if entry.shape}
    shapes = {
        OWN_HEAD: (rows.get(TOKENS, 0), d),
        OWN_EMBED: (rows.get(OWN_EMBED, 0), d),
        FREQUENCIES: (sizes.head_dim // 2,),
    }
    return {name: shape for name, shape in shapes.items() if name in entries}


def _shared(share: Callable[[Tensor], SharedWeights], tokens: Tensor, tensors: Mapping[str, Tensor]) -> SharedWeights:
    """What the target shares, with what the network has of its own in its place."""
    shared = share(tokens[:1] if OWN_HEAD in tensors else tokens)
    if OWN_HEAD in tensors:
        shared = replace(shared, tokens=tokens, head=tensors[OWN_HEAD], own_head=True)
    if OWN_EMBED in tensors:
        shared = replace(shared, embed=partial(_embedded, tensors[OWN_EMBED]))
    return shared


def _embedded(table: Tensor, tokens: Tensor) -> Tensor:
    return F.embedding(tokens, table)


def read_tensors(file: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Exactly these tensors of a file, in float32.

    Raises:
        WeightsError: one is missing, of another shape, of another format, not finite, or not asked for.
    """
    entries = read_entries(file)
    steps = {name: name + STEPS for name in wanted if name in entries and entries[name].dtype == "I8"}
    for name in entries:
        if name not in wanted and name != TOKENS and name not in steps.values():
            raise DamagedWeights(f"{file}: tensor {shown(name)} is not asked for{nearest(name, wanted)}")
    for name, shape in wanted.items():
        if name not in entries:
            raise DamagedWeights(f"{file} has no tensor {name}")
        if entries[name].shape != shape:
            raise DamagedWeights(f"{file}: tensor {name} is {shown(entries[name].shape)}, not {shape}")
        if name in steps:
            check_steps(name, entries, str(file))
        elif entries[name].dtype not in _FORMATS:
            raise DamagedWeights(f"{file}: tensor {name} is in {entries[name].dtype}, not {', '.join(_FORMATS)}")
    with one_line(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
        tensors = {
            name: unrounded(opened.get_tensor(name), opened.get_tensor(steps[name]))
            if name in steps
            else opened.get_tensor(name).float()
            for name in wanted
        }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise DamagedWeights(f"{file}: tensor {name} has numbers that are not finite")
    return tensors


def read_tokens(file: Path) -> Tensor:
    """(H,) int64 the tokens that a file says can be guessed, all different.

    Raises:
        WeightsError: it does not say so, or names a token twice or below 0.
    """
    entry = read_entries(file).get(TOKENS)
    if entry is None or entry.dtype != "I32" or len(entry.shape) != 1 or not 0 < entry.shape[0] <= MOST_TOKENS:
        raise DamagedWeights(f"{file} has no list of tokens, a tensor {TOKENS!r} of numbers of 32 bits")
    with one_line(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
        tokens: Tensor = opened.get_tensor(TOKENS).long()
    if int(tokens.min()) < 0 or len(torch.unique(tokens)) < len(tokens):
        raise DamagedWeights(f"{file}: tensor {TOKENS!r} names a token twice, or one below 0")
    return tokens
