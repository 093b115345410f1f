"""The target's states and likeliest tokens along texts, in safetensors files that are mapped, not read, into memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.errors import TrainingError
from specchat.training.files import writing

_AGAIN = "remove it and it is made again"

_DIMENSIONS = {"states": 3, "likeliest": 2, "log_p": 2}

_FORMATS = {
    "tokens": torch.int32,
    "starts": torch.int32,
    "replies": torch.int32,
    "states": torch.bfloat16,
    "likeliest": torch.int32,
    "log_p": torch.float16,
    "rest": torch.float32,
}


@dataclass(frozen=True)
class StateShard:
    """Some texts, one behind the other.

    Args:
        tokens: (T,) of all texts.
        starts: (n + 1,) where each text begins, and where the last one ends.
        replies: (n,) how many tokens into its text each reply begins.
        states: (T, taps, d) after the tapped layers, the last layer's before the final norm.
        likeliest: (T, LIKELIEST) the target's likeliest next tokens, best first.
        log_p: (T, LIKELIEST) the logarithms of their probabilities, of softmax(logits). −∞ in front of the last token
            of a prompt, where nothing is drafted.
        rest: (T,) the probability of all other tokens.
    """

    tokens: Tensor
    starts: Tensor
    replies: Tensor
    states: Tensor
    likeliest: Tensor
    log_p: Tensor
    rest: Tensor

    def __len__(self) -> int:
        return len(self.replies)

    @property
    def reply_tokens(self) -> int:
        return int((self.starts[1:] - self.starts[:-1] - self.replies).sum())


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.safetensors"


def write_shard(shard: StateShard, file: Path, source: str) -> None:
    """Write a shard in one step.

    Args:
        source: what it was made from; `read_shard` refuses a shard made from something else.

    Raises:
        TrainingError: the disk is full, or cannot be written.
    """
    tensors = {name: getattr(shard, name).to(format).contiguous() for name, format in _FORMATS.items()}
    about = {name: _digest(tensor) for name, tensor in tensors.items()} | {"source": source}
    with writing(file) as draft:
        save_file(tensors, draft, {"specchat": json.dumps(about)})


def is_there(folder: Path, number: int, source: str) -> bool:
    """Whether a shard made from this source is there.

    Raises:
        TrainingError: there is one, and it is damaged.
    """
    file = shard_file(folder, number)
    return file.exists() and _opened(file)[0].get("source") == source


def read_shard(file: Path, source: str, verify: bool = False, vocab_size: int | None = None) -> StateShard:
    """A shard, mapped into memory.

    Args:
        verify: whether all of it is read once and compared with what was written.
        vocab_size: of the target, for which its numbers must make sense; None where that is not asked.

    Raises:
        TrainingError: it is damaged, or made from something else; it is named, and what to do about it.
    """
    about, tensors = _opened(file)
    if about.get("source") != source:
        raise TrainingError(f"{file} was made from other texts or by another target; {_AGAIN}")
    shard = StateShard(**tensors)
    if wrong := _wrong(shard) or ("" if vocab_size is None else _impossible(shard, vocab_size)):
        raise TrainingError(f"{file} is damaged: {wrong}; {_AGAIN}")
    if verify:
        for name, tensor in tensors.items():
            if _digest(tensor) != about.get(name):
                raise TrainingError(f"{file} is damaged: its {name} are not those that were written; {_AGAIN}")
    return shard


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says of itself, and its tensors, mapped."""
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get("specchat", "{}"))
            tensors = {name: opened.get_tensor(name) for name in _FORMATS}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise TrainingError(f"{file} is damaged: {error}; {_AGAIN}") from None
    return about if isinstance(about, dict) else {}, tensors


def _wrong(shard: StateShard) -> str:
    """What of a shard's tensors does not go together; empty where all does."""
    count = shard.tokens.numel()
    for field in fields(shard):
        tensor = getattr(shard, field.name)
        if tensor.dtype != _FORMATS[field.name]:
            return f"its {field.name} are {tensor.dtype}"
        if tensor.dim() != _DIMENSIONS.get(field.name, 1):
            return "its tensors have other shapes"
        if field.name not in ("starts", "replies") and len(tensor) != count:
            return f"{len(tensor)} {field.name} for {count} tokens"
    lengths = shard.starts[1:] - shard.starts[:-1]
    ends = len(shard.starts) == len(shard.replies) + 1 and int(shard.starts[0]) == 0 and int(shard.starts[-1]) == count
    if not ends or bool((lengths <= shard.replies).any()) or bool((shard.replies < 1).any()):
        return "its texts do not fill it"
    if shard.likeliest.shape != shard.log_p.shape or not shard.log_p.numel():
        return "its tensors have other shapes"
    return ""


def _impossible(shard: StateShard, vocab_size: int) -> str:
    """Which of a shard's numbers cannot be; empty where all can. Reads all of them."""
    for name in ("tokens", "likeliest"):
        tokens: Tensor = getattr(shard, name)
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
            return f"its {name} are not all tokens of the target"
    rounding = 2e-3
    if not bool(shard.states.isfinite().all()):
        return "its states are not all finite"
    if not bool((shard.log_p <= rounding).all()):  # nan neither
        return "its log_p are not logarithms of probabilities"
    if not bool(((shard.rest >= 0) & (shard.rest <= 1 + rounding)).all()):
        return "its rest are not probabilities"
    return ""


def _digest(tensor: Tensor) -> str:
    data = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.blake2b(data.data, digest_size=16).hexdigest()
