"""A model as its files describe it before it is loaded: whether it can run here, how large it is, its tokens.

Torch-free and quick, so that a list of pairs can be judged while a chat goes on. Loading checks again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from specchat.compiled.machine import native_bfloat16
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.weights.config_file import CONFIG, GGUF_NAMES, read_config, wrong_number
from specchat.models.weights.families import FAMILIES, GGUF_FAMILIES
from specchat.models.weights.gguf_header import FOUR_BIT, KEPT, read_header, rotation_scaling
from specchat.models.weights.safetensors_header import tensors_in
from specchat.models.weights.tokenizer_files import tokens_of

REWINDABLE = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose cache can go back to before a rejected draft."""

SMALLEST_WINDOW = 2048

_TOKENIZER = "tokenizer.json"

_NO_TEXT = ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "gemma-embedding", "t5encoder", "clip", "whisper")

HYBRIDS = frozenset((
    "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid", "granitemoehybrid",
    "bamba", "zamba2", "falcon_h1", "nemotron_h", "lfm2", "lfm2_moe",
))  # fmt: skip
"""Architectures with recurrent layers whose states are kept for every node of a tree: gated delta nets, Mamba-2 and
short convolutions. They are read from safetensors alone, and run through transformers."""

_GGUF_HYBRIDS = (
    "qwen3next", "qwen35", "qwen35moe", "granitehybrid", "falcon-h1", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe",
)  # fmt: skip
_STATEFUL = (
    "mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv6", "rwkv7", "recurrent_gemma", "jamba", "zamba", "plamo2", "xlstm",
    "kimi_linear", "kimi-linear", "minimax",
)  # fmt: skip
_RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "attention", "conv", "hybrid", "moe", "mlp"})
"""Kinds of layers in configurations of those architectures, besides the rewindable ones."""


@dataclass(frozen=True)
class ModelDescription:
    """One model as its files describe it. `refusal` says why it cannot run, `remark` why it is slow.

    `four_bit` counts the parameters that the file holds in 4 bits, `kept_bytes` what its tensors take where those of
    `KEPT` stay in their own bits and all others have 16; `hidden` is the width of its states, 0 if not said.
    """

    architecture: str
    parameters: int
    context_tokens: int | None
    quantised: bool
    four_bit: int = 0
    hidden: int = 0
    refusal: str = ""
    remark: str = ""
    kept_bytes: int = 0

    @property
    def own(self) -> bool:
        """Whether our own decoder runs it."""
        return _is_own(self.architecture)


def describe_model(path: Path) -> ModelDescription:
    """Describes a GGUF file, or a folder of safetensors, from its headers; WeightsError if it cannot be read."""
    if not path.is_file():
        return _of_folder(path)
    about = path.stat()
    return _of_gguf(path, about.st_size, about.st_mtime_ns)


def differing_tokens(target: Path, draft: Path) -> tuple[int, str]:
    """How many tokens differ between two models' tables, and one of them; WeightsError if one cannot be read."""
    one, other = token_table(target), token_table(draft)
    differing = [word for word in one.keys() | other.keys() if one.get(word) != other.get(word)]
    return len(differing), min(differing, default="")


def token_table(path: Path) -> Mapping[str, int]:
    """Every token with its number; WeightsError without a tokenizer that can be read."""
    file = path if path.is_file() else path / _TOKENIZER
    try:
        about = file.stat()
    except OSError:
        raise WeightsError(f"{path} has no tokenizer.json, so its tokens are not known before it is loaded") from None
    return _token_table(file, about.st_size, about.st_mtime_ns)


def token_digest(path: Path) -> str:
    """The same text for two models if, and only if, their token tables are the same; WeightsError without a table."""
    table = token_table(path)
    if not table:
        raise DamagedWeights(f"{path} names no tokens")
    digest = hashlib.blake2b(digest_size=16)
    for token, number in sorted(table.items()):
        digest.update(f"{number} {len(token)} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _token_table(file: Path, size: int, mtime_ns: int) -> Mapping[str, int]:
    """The table of a file as it is now; size and time make a changed file another one."""
    if file.name != _TOKENIZER:
        tokens = read_header(file, lists=True).metadata.get("tokenizer.ggml.tokens")
        return {token: number for number, token in enumerate(tokens if isinstance(tokens, list) else ())}
    return tokens_of(file)


@lru_cache(maxsize=64)
def _of_gguf(path: Path, size: int, mtime_ns: int) -> ModelDescription:
    header = read_header(path)
    if wrong := wrong_number({name: header.about(key) for key, name in GGUF_NAMES.items()}):
        raise DamagedWeights(f"{path}: {wrong}")
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors)
    four_bit = sum(math.prod(tensor.shape) for tensor in header.tensors if tensor.kind in FOUR_BIT)
    architecture = header.architecture
    scaling = rotation_scaling(header)
    adapter = _refused_adapter(tensor.name for tensor in header.tensors)
    refusal = adapter or _refused_architecture(architecture) or scaling.refusal
    if not refusal and architecture in _GGUF_HYBRIDS:
        refusal = (
            f"is a GGUF file of architecture {architecture}, whose recurrent layers are read from safetensors alone: "
            "choose the folder of the original weights"
        )
    if not refusal and scaling.changes and not _is_own(architecture):
        refusal = f"is of architecture {architecture}, whose rotation for long texts cannot be read from a GGUF file"
    if not refusal and not any(tensor.name.startswith("blk.") for tensor in header.tensors):
        refusal = "has no layers: it is not a language model"
    context, hidden = header.about("context_length"), header.about("embedding_length") or 0
    kept = sum(each.nbytes if each.kind in KEPT else 2 * math.prod(each.shape) for each in header.tensors)
    return ModelDescription(
        architecture, parameters, context, True, four_bit, hidden, refusal, _remark(architecture), kept
    )


def _of_folder(path: Path) -> ModelDescription:
    text = read_config(path / CONFIG)
    architecture = text.get("model_type") or ""
    context = text.get("max_position_embeddings")
    tensors = tensors_in(path)
    parameters = sum(math.prod(entry.shape) for entry in tensors.values())
    refusal = _refused_adapter(tensors) or _refused_architecture(architecture)
    refusal = refusal or refused_layers(text, _is_own(architecture)) or _refused_head(text)
    hidden = text.get("hidden_size") or 0
    return ModelDescription(architecture, parameters, context, False, 0, hidden, refusal, _remark(architecture))


def _is_own(architecture: str) -> bool:
    return architecture in FAMILIES or architecture in GGUF_FAMILIES


def _refused_adapter(names: Iterable[str]) -> str:
    adapted = any(".lora_a" in name.lower() for name in names)
    return "holds a LoRA adapter, and none is applied here: merge it into its model's weights first" if adapted else ""


def _refused_architecture(architecture: str) -> str:
    if not architecture:
        return "does not say of what architecture it is"
    if architecture in _NO_TEXT:
        return f"writes no text: it is of architecture {architecture}"
    if architecture in _STATEFUL:
        return f"is of architecture {architecture}, whose state cannot go back to before a rejected draft"
    return ""


def refused_layers(config: Mapping[str, Any], own: bool) -> str:
    """Why layers of a configuration cannot go back to before a rejected draft, empty where they can.

    Args:
        own: whether our own decoder runs them, whose cache keeps what a sliding window leaves behind.
    """
    kinds = config.get("layer_types") or config.get("layers_block_type") or ()
    strange = sorted(set(kinds) - REWINDABLE - (_RECURRENT_LAYERS if config.get("model_type") in HYBRIDS else set()))
    if strange:
        return f"has layers of kind {', '.join(strange)}, whose state cannot go back to before a rejected draft"
    window = None if own else config.get("sliding_window")
    used = config.get("use_sliding_window", True)
    if window and used and window < min(SMALLEST_WINDOW, config.get("max_position_embeddings") or SMALLEST_WINDOW):
        return f"forgets what lies {window} tokens back, and cannot go back to before a rejected draft"
    return ""


def _refused_head(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or ["ForCausalLM"]
    if not any("CausalLM" in name or "ConditionalGeneration" in name or "LMHead" in name for name in names):
        return f"writes no text: it is a {names[0]}"
    return ""


def _remark(architecture: str) -> str:
    return "" if _is_own(architecture) else f"architecture {architecture} runs through transformers, which is slower"


_BYTES_EACH = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.65}
_WORKING_BYTES = 200_000_000


def needed_bytes(parameters: int, precision: str, four_bit: int | None = None, others: str = "int8") -> int:
    """Weights in this precision plus a cache of 2048 tokens and working space, roughly.

    Args:
        four_bit: how many of the parameters the file holds in 4 bits, which are all that int4 keeps so. None: all
            of them.
        others: the precision of those that it does not.
    """
    if precision == "int4" and four_bit is not None:
        weights = _BYTES_EACH["int4"] * four_bit + _BYTES_EACH[others] * (parameters - four_bit)
    else:
        weights = _BYTES_EACH[precision] * parameters
    return with_working_bytes(weights)


def with_working_bytes(weights: float) -> int:
    """These bytes of weights, a cache of 2048 tokens and working space, roughly."""
    return int(weights * 1.1) + _WORKING_BYTES


def parameters_of(size: int, *, gguf: bool) -> int:
    """Parameters as a size suggests: GGUF files have 4 to 6 bits a weight, safetensors 16."""
    return size * 8 // 5 if gguf else size // 2


def processor_precision(wanted: str, *, quantised: bool, own: bool) -> str:
    """The precision in which a processor runs a model: `auto` takes the fastest that keeps what the file holds.

    Args:
        quantised: whether the weights come in about 4 bits.
        own: whether our own decoder runs the model.
    """
    if wanted != "auto":
        return wanted
    if own and quantised:
        return "int4"
    return "bfloat16" if native_bfloat16() else "float32"
