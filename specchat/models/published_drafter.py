"""Published EAGLE-3 checkpoints, read and added as trained drafters of our family `eagle`.

Two layouts are known. The authors' has a flat configuration and names its layer `midlayer`; that of vLLM's
`speculators` keeps the layer's configuration in `transformer_layer_config` and names it `layers.0`. Both hold the
guessable tokens as `d2t`: what is to be added to a row's number to get the target's token. EAGLE-3.1's norms of taps
have factors, which are part of our matrix that fuses the taps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.config import HubSource, ModelSpec, own_drafters_dir
from specchat.config.directories import expanded
from specchat.config.kept_files import replacing, unfinished
from specchat.config.toml_file import NAME
from specchat.config.trained_drafters import WEIGHTS, TrainedDrafter, read_drafter, write_drafter
from specchat.errors import DamagedWeights, ModelError, UsageError, short
from specchat.models.decoder.shape import Shape, said_by, unsupported
from specchat.models.draft_heads.eagle import FREQUENCIES, EagleSizes
from specchat.models.draft_heads.head import OWN_EMBED, OWN_HEAD, TOKENS
from specchat.models.draft_heads.loading import MOST_TOKENS
from specchat.models.hub import fetching, model_state
from specchat.models.hub.checksum import weights_sha256
from specchat.models.hub.disk import OnProgress
from specchat.models.model_loading import open_config
from specchat.models.weights.config_file import read_object, shown
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.safetensors_header import tensors_in, weight_files

_TAPS_BY_DEFAULT = "eagle_aux_hidden_state_layer_ids"
_TAP_NORMS = {"fc_norm": 1, "norm_before_fc": 2}
"""Norms in front of the matrix that fuses the taps, each tap's own and one of all, and `unit_taps` of each."""
_UNUSED = "t2d"
_METHOD = "eagle"


def add_published(name: str, target: ModelSpec, source: str, report: OnProgress) -> TrainedDrafter:
    """Read a checkpoint and write it as a trained drafter for this target, whose weights are here. The source is a
    folder, or a repository of the hub.

    Raises:
        UsageError: the name is taken or not valid, or the source is neither.
        WeightsError, ModelError: the checkpoint or the target cannot be read, or they do not belong together.
    """
    place = own_drafters_dir() / name
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name: letters, digits, '.', '_' and '-'")
    if place.exists():
        raise UsageError(f"a trained drafter is called {name!r} already; `specchat models remove {name}` makes room")
    fetched = _in_the_hub(source, name)
    sha256 = weights_sha256(target, report)
    folder = expanded(source) if fetched is None else fetching.fetch(fetched, report)
    _, config = open_config(model_state.locate(target))
    fits = TargetSizes(config.hidden_size, config.num_hidden_layers, config.vocab_size)
    sizes, tensors = read_eagle3(folder, fits)
    with unfinished(place) as made:
        with replacing(made / WEIGHTS, alone=True) as draft:
            write_eagle3(tensors, draft)
        write_drafter(
            made, method=_METHOD, target=target.name, target_sha256=sha256, licence=f"see {source}",
            options=sizes.options(), data={"source": source}, figures={},
        )  # fmt: skip
        made.rename(place)
    if fetched is not None:
        fetching.remove(fetched)
    return read_drafter(place, (_METHOD,))


def _in_the_hub(source: str, name: str) -> ModelSpec | None:
    """The checkpoint to be fetched first; None for a folder."""
    own = expanded(source, "--drafter")
    if os.path.isdir(own):  # never raises
        return None
    if os.path.exists(own) or source.count("/") != 1:
        raise UsageError(f"--drafter {short(source)} is neither a folder nor a repository of the hub (owner/name)")
    return ModelSpec(f"checkpoint-of-{name}", (HubSource(source),))


@dataclass(frozen=True)
class TargetSizes:
    """Sizes of the target that a checkpoint must fit."""

    hidden: int
    layers: int
    vocab_size: int


def read_eagle3(folder: Path, target: TargetSizes) -> tuple[EagleSizes, dict[str, Tensor]]:
    """The sizes and tensors of a checkpoint, as our network `eagle` has them.

    Raises:
        WeightsError: the folder holds something else, or is damaged.
        ModelError: a checkpoint of a kind that we do not run, or for another target.
    """
    said = read_object(folder / "config.json")
    layer = said.get("transformer_layer_config")
    published = layer if isinstance(layer, dict) else said
    shape = _layer_shape(published, folder)
    norms = _norms(said, folder)
    if shape.hidden != target.hidden:
        raise ModelError(f"{folder} guesses with states of {shape.hidden} numbers, the target's have {target.hidden}")
    sizes = EagleSizes(
        hidden=shape.hidden,
        taps=_taps(said, target, folder),
        epsilon=shape.epsilon,
        inner=shape.inner,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        unit_taps=max((_TAP_NORMS[key] for key in norms if key in _TAP_NORMS), default=0),
        norm_residual=int(bool(said.get("norm_before_residual", layer is not None))),
        norm_fed_back=int("norm_output" in norms),
    )
    tensors = _tensors(_Checkpoint(folder), sizes, target)
    frequencies = shape.attention_kinds[0].frequencies
    assert frequencies is not None, "its rotation was looked at"
    return sizes, {**tensors, FREQUENCIES: frequencies.float()}


def write_eagle3(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Save what was read, weights in bfloat16."""
    kept = {
        name: tensor.bfloat16() if tensor.is_floating_point() and name != FREQUENCIES else tensor
        for name, tensor in tensors.items()
    }
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, file)


def _layer_shape(published: Mapping[str, Any], folder: Path) -> Shape:
    from transformers import LlamaConfig

    about = {key: value for key, value in published.items() if not key.startswith(("_", "torch_dtype"))}
    if published.get("model_type", "llama") != "llama":
        raise ModelError(f"{folder / 'config.json'}: model_type = {shown(published['model_type'])} is not 'llama'")
    if published.get("num_hidden_layers", 1) != 1:
        raise ModelError(
            f"{folder / 'config.json'}: num_hidden_layers = {shown(published['num_hidden_layers'])}, and EAGLE-3 has 1"
        )
    with one_line(f"{folder / 'config.json'} cannot be used"):
        config = LlamaConfig(**about)
    if why := unsupported(config):
        raise ModelError(f"{folder} cannot be run: {why}")
    with said_by(folder):
        shape = Shape.of(config)
    if shape.attention_kinds[0].scale != 1:
        raise ModelError(f"{folder} cannot be run: rotation 'yarn' scales what it rotates, which no network here does")
    return shape


def _norms(said: Mapping[str, Any], folder: Path) -> set[str]:
    """Those of EAGLE-3.1 that a configuration, or its `eagle_config`, asks for."""
    nested = said.get("eagle_config")
    about = {**said, **(nested if isinstance(nested, dict) else {})}
    known = (*_TAP_NORMS, "norm_output")
    if strange := next((key for key in known if about.get(key) not in (None, False, True)), None):
        raise ModelError(f"{folder / 'config.json'}: {strange} = {shown(about[strange])} is not true or false")
    found = {key for key in known if about.get(key)}
    if found >= _TAP_NORMS.keys():
        raise ModelError(f"{folder / 'config.json'} asks for both fc_norm and norm_before_fc, which exclude each other")
    return found


def _taps(said: Mapping[str, Any], target: TargetSizes, folder: Path) -> tuple[int, ...]:
    """Layers after which states are taken; published numbers name the layer that is fed with them."""
    named = said.get(_TAPS_BY_DEFAULT) or (2, target.layers // 2, target.layers - 3)
    whole = isinstance(named, list | tuple) and all(type(number) is int for number in named)
    if not whole or list(named) != sorted(set(named)) or not named or not 0 < named[0] <= named[-1] <= target.layers:
        raise ModelError(
            f"{folder / 'config.json'}: {_TAPS_BY_DEFAULT} = {shown(named)} are not ascending layers of a target "
            f"with {target.layers}"
        )
    return tuple(number - 1 for number in named)


class _Checkpoint:
    """The tensors of a folder by their names in either layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries = tensors_in(folder)  # that were not taken yet
        if not self._entries:
            pickled = any(folder.glob("*.bin"))
            why = "it has no .safetensors, and pickles are never read" if pickled else "it has no .safetensors"
            raise DamagedWeights(f"{folder} is refused: {why}")
        self.layer = "midlayer." if any(name.startswith("midlayer.") for name in self._entries) else "layers.0."
        self._entries.pop(_UNUSED, None)

    def has(self, name: str) -> bool:
        return name in self._entries

    def rows(self, name: str) -> int:
        if name not in self._entries or not self._entries[name].shape:
            raise DamagedWeights(f"{self.folder} has no tensor {name}")
        return self._entries[name].shape[0]

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape; WeightsError if it is missing, or of another shape."""
        if (entry := self._entries.pop(name, None)) is None:
            raise DamagedWeights(f"{self.folder} has no tensor {name}")
        if entry.shape != shape:
            raise DamagedWeights(f"{self.folder}: tensor {name} is {shown(entry.shape)}, not {shape}")
        for file in weight_files(self.folder):
            with one_line(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
                if name in opened.keys():  # noqa: SIM118  (no mapping)
                    tensor: Tensor = opened.get_tensor(name)
                    if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
                        raise DamagedWeights(f"{self.folder}: tensor {name} has numbers that are not finite")
                    return tensor
        raise AssertionError("the headers name it")

    def finish(self) -> None:
        """Refuse tensors that were not asked for: they would change what the layer computes."""
        if self._entries:
            raise DamagedWeights(
                f"{self.folder}: tensor {shown(min(self._entries))} is not part of an EAGLE-3 layer that specchat runs"
            )


def _tensors(found: _Checkpoint, sizes: EagleSizes, target: TargetSizes) -> dict[str, Tensor]:
    d, queries, keys = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    layer = found.layer
    qkv = [
        found.take(f"{layer}self_attn.{name}_proj.weight", rows, 2 * d)
        for name, rows in (("q", queries), ("k", keys), ("v", keys))
    ]
    gate_up = [found.take(f"{layer}mlp.{name}_proj.weight", sizes.inner, d) for name in ("gate", "up")]
    head_rows = found.rows("lm_head.weight")
    tensors = {
        "fuse.weight": found.take("fc.weight", d, len(sizes.taps) * d).float() * _tap_factors(found, sizes),
        "token_norm": found.take(f"{layer}input_layernorm.weight", d),
        "state_norm": found.take(f"{layer}hidden_norm.weight", d),
        "qkv.weight": torch.cat(qkv),
        "o.weight": found.take(f"{layer}self_attn.o_proj.weight", d, queries),
        "mlp_norm": found.take(f"{layer}post_attention_layernorm.weight", d),
        "gate_up.weight": torch.cat(gate_up),
        "down.weight": found.take(f"{layer}mlp.down_proj.weight", d, sizes.inner),
        "norm": found.take("norm.weight", d),
        OWN_HEAD: found.take("lm_head.weight", head_rows, d),
        TOKENS: _tokens(found, head_rows, target),
    }
    if found.has("embed_tokens.weight"):
        tensors[OWN_EMBED] = found.take("embed_tokens.weight", target.vocab_size, d)
    found.finish()
    return tensors


def _tap_factors(found: _Checkpoint, sizes: EagleSizes) -> Tensor:
    """(taps · d,) factors of the norms in front of the matrix that fuses the taps."""
    d, taps = sizes.hidden, len(sizes.taps)
    if sizes.unit_taps == 1:
        return torch.cat([found.take(f"fc_norm.{tap}.weight", d) for tap in range(taps)])
    return found.take("input_norm.weight", taps * d) if sizes.unit_taps else torch.ones(taps * d)


def _tokens(found: _Checkpoint, rows: int, target: TargetSizes) -> Tensor:
    """(H,) int32 the target's token of each row of the head."""
    if not 0 < rows <= MOST_TOKENS:
        raise DamagedWeights(f"{found.folder} has a head of {rows} tokens, not of 1 to {MOST_TOKENS}")
    tokens = torch.arange(rows)
    if found.has("d2t"):
        offsets = found.take("d2t", rows)
        if offsets.is_floating_point() or offsets.is_complex():
            raise DamagedWeights(f"{found.folder}: tensor d2t holds {offsets.dtype}, not whole numbers")
        tokens = tokens + offsets.long()
    elif rows != target.vocab_size:
        raise DamagedWeights(f"{found.folder} has a head of {rows} tokens and no tensor d2t that says which")
    if int(tokens.min()) < 0 or int(tokens.max()) >= target.vocab_size:
        raise ModelError(f"{found.folder}: d2t names tokens that a target of {target.vocab_size} tokens does not have")
    if len(torch.unique(tokens)) < rows:
        raise DamagedWeights(f"{found.folder}: d2t names a token twice")
    return tokens.int()
