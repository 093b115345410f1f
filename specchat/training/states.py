"""Stage 3: the target reads its texts once more; its states and likeliest tokens are kept in files that are mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specchat.core.sampling import best_tokens
from specchat.core.seams import Model
from specchat.core.states import HiddenStateSink, TextStates
from specchat.errors import TrainingError
from specchat.training.disk import need_space, writing
from specchat.training.limits import LIKELIEST, bytes_of_token
from specchat.training.texts import TrainingText

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
    """Whether a shard made from this source is there; TrainingError if it is there and damaged."""
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
    """The metadata of a file, and its tensors, mapped."""
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get("specchat", "{}"))
            tensors = {name: opened.get_tensor(name) for name in _FORMATS}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise TrainingError(f"{file} is damaged: {error}; {_AGAIN}") from None
    return about if isinstance(about, dict) else {}, tensors


def _wrong(shard: StateShard) -> str:
    """The first disagreement between a shard's tensors; empty where there is none."""
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
    """The first kind of impossible numbers in a shard; empty where there is none. Reads all of them."""
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


TEXTS_PER_SHARD = 64
"""Some 10,000 tokens: what is lost where reading is cut off."""

_HEAD_ROWS = 64
"""Logits of so many places at a time: with a vocabulary of 150,000 they take 40 MB."""

_FRACTIONS = (0.1, 0.5, 0.9)

_LABELS = "softmax(logits)"
"""The law of the labels. Shards that were written before hold softmax(1.25 · logits) and are made again."""

_Read = tuple[Tensor, Tensor, Tensor, Tensor]
"""States, likeliest tokens, logarithms of their probabilities and the probability of the rest, along one text."""


def tapped_layers(layers: int) -> tuple[int, ...]:
    """The layers whose states are kept: an early one, the middle, a late one and the last."""
    return tuple(sorted({*(min(layers - 1, int(layers * part)) for part in _FRACTIONS), layers - 1}))


def grouped(texts: Sequence[TrainingText], reply_tokens: int) -> list[list[TrainingText]]:
    """The texts of every shard: in the order of their numbers, without refused and repeated prompts, up to so many
    tokens of replies. The last group may be small. Texts too short to be read in a pass of their own are left out."""
    seen: set[tuple[int, ...]] = set()
    chosen: list[TrainingText] = []
    for text in sorted(texts, key=lambda text: text.index):
        if reply_tokens <= 0:
            break
        if text.reply and text.readable and (prompt := tuple(text.prompt)) not in seen:
            seen.add(prompt)
            chosen.append(text)
            reply_tokens -= len(text.reply)
    return [chosen[first : first + TEXTS_PER_SHARD] for first in range(0, len(chosen), TEXTS_PER_SHARD)]


def source_of(texts: Sequence[TrainingText], layers: Sequence[int], target: str) -> str:
    """The identity of a shard: its texts, the layers, the target's checksum, and the law of its labels."""
    said = json.dumps([[text.prompt, text.reply] for text in texts] + [list(layers), target, _LABELS])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


class StateReading:
    """Reads texts with a target and keeps what its layers say, shard by shard; shards that are there stay."""

    def __init__(self, target: Model, checksum: str, folder: Path, *, states: bool = True) -> None:
        """`states`: whether states are kept, or the labels alone, for networks that read tokens."""
        self.layers = tapped_layers(target.layers) if states else ()
        self.vocab_size = target.vocab_size
        self._last = target.layers - 1
        self._target = target
        self._checksum = checksum
        self._folder = folder

    def run(self, groups: Sequence[Sequence[TrainingText]], progress: Callable[[float], None]) -> list[str]:
        """Make every shard that is missing; returns what each was made from.

        Args:
            progress: told after every text how many shards are there, in parts too; may raise to stop.

        Raises:
            TrainingError: the disk has no room for them.
        """
        sources = [source_of(group, self.layers, self._checksum) for group in groups]
        missing = [number for number, source in enumerate(sources) if not is_there(self._folder, number, source)]
        tokens = sum(len(text.tokens) for number in missing for text in groups[number])
        need_space(self._folder, tokens * bytes_of_token(len(self.layers), self._target.hidden_size), "the states")
        for done, number in enumerate(missing, len(groups) - len(missing)):
            texts = groups[number]
            read = []
            for place, text in enumerate(texts):
                progress(done + place / len(texts))
                read.append(self._read(text))
            write_shard(_shard(texts, read), shard_file(self._folder, number), sources[number])
        progress(len(groups))
        return sources

    def shard(self, texts: Sequence[TrainingText]) -> StateShard:
        """The target's states and labels along these texts."""
        return _shard(texts, [self._read(text) for text in texts])

    @torch.inference_mode()
    def _read(self, text: TrainingText) -> _Read:
        """States and labels at every token of one text."""
        tokens, taken = text.tokens, list[TextStates]()
        self._target.prefill(())
        self._target.prefill(tokens, tap=HiddenStateSink(frozenset({*self.layers, self._last}), taken.append))
        last = torch.cat([part.layers[self._last] for part in taken])
        kept = [torch.cat([part.layers[layer] for part in taken]).bfloat16() for layer in self.layers]
        states = torch.stack(kept, dim=1) if kept else last.new_empty((len(last), 0, 0), dtype=torch.bfloat16)
        first = len(text.prompt) - 1
        labels = list(self._labels(last[first:]))
        likeliest, log_p, rest = (torch.cat(parts) for parts in zip(_unsaid(first), *labels, strict=True))
        return states.cpu(), likeliest, log_p, rest

    def _labels(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Likeliest tokens, logarithms of their probabilities, and the probability of the rest."""
        for rows in torch.split(hidden, _HEAD_ROWS):
            logits = self._target.head(rows).float()
            scores, tokens = best_tokens(logits, LIKELIEST)
            log_p = scores - logits.logsumexp(dim=1, keepdim=True)
            rest = (1.0 - log_p.exp().sum(dim=1)).clamp_(min=0.0)
            yield tokens.int().cpu(), log_p.half().cpu(), rest.cpu()


def _unsaid(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Labels where nothing is drafted: no token has any probability."""
    log_p = torch.full((count, LIKELIEST), -torch.inf, dtype=torch.float16)
    return torch.zeros(count, LIKELIEST, dtype=torch.int32), log_p, torch.zeros(count)


def _shard(texts: Sequence[TrainingText], read: Sequence[_Read]) -> StateShard:
    """The shard of some texts, from what was read along each."""
    lengths = torch.tensor([0, *(len(text.tokens) for text in texts)])
    states, likeliest, log_p, rest = (torch.cat(parts) for parts in zip(*read, strict=True))
    return StateShard(
        tokens=torch.tensor([token for text in texts for token in text.tokens]),
        starts=lengths.cumsum(0),
        replies=torch.tensor([len(text.prompt) for text in texts]),
        states=states,
        likeliest=likeliest,
        log_p=log_p,
        rest=rest,
    )
