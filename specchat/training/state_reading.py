"""Stage 3: the target reads its texts once more, and what its layers say is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from specchat.core.sampling import best_tokens
from specchat.core.seams import Model
from specchat.core.states import HiddenStateSink, TextStates
from specchat.models.decoder.cache_rows import LAZY_TOKENS
from specchat.models.inspect.training_cost import LIKELIEST, bytes_of_token
from specchat.training.needs import need_space
from specchat.training.state_shards import StateShard, is_there, shard_file, write_shard
from specchat.training.text_store import TrainingText

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
        if text.reply and len(text.tokens) > LAZY_TOKENS and (prompt := tuple(text.prompt)) not in seen:
            seen.add(prompt)
            chosen.append(text)
            reply_tokens -= len(text.reply)
    return [chosen[first : first + TEXTS_PER_SHARD] for first in range(0, len(chosen), TEXTS_PER_SHARD)]


def source_of(texts: Sequence[TrainingText], layers: Sequence[int], target: str) -> str:
    """What identifies a shard: its texts, the layers, the target's checksum, and the law of its labels."""
    said = json.dumps([[text.prompt, text.reply] for text in texts] + [list(layers), target, _LABELS])
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


class StateReading:
    """Reads texts with a target and keeps what its layers say, shard by shard; shards that are there stay."""

    def __init__(self, target: Model, checksum: str, folder: Path) -> None:
        self.layers = tapped_layers(target.layers)
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
        """What the target says along these texts."""
        return _shard(texts, [self._read(text) for text in texts])

    @torch.inference_mode()
    def _read(self, text: TrainingText) -> _Read:
        """States and labels at every token of one text."""
        tokens, taken = text.tokens, list[TextStates]()
        self._target.prefill(())
        self._target.prefill(tokens, tap=HiddenStateSink(frozenset(self.layers), taken.append))
        last = torch.cat([part.layers[self.layers[-1]] for part in taken])
        states = torch.stack(
            [torch.cat([part.layers[layer] for part in taken]).bfloat16() for layer in self.layers], dim=1
        )
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
