"""Replies that a draft model writes itself while it learns, with the target's labels along them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from specchat.config import private_dir
from specchat.errors import TrainingError, os_errors_as
from specchat.models.decoder.differentiable_layer import DifferentiableLayer, mixed_values, seen_along
from specchat.models.draft_heads.draft_language_model import DraftLanguageModel
from specchat.training.corpus import Corpus
from specchat.training.limits import TARGETS_TEXTS
from specchat.training.states import TEXTS_PER_SHARD, StateReading, is_there, read_shard, shard_file, write_shard
from specchat.training.texts import TrainingText


@torch.inference_mode()
def written(
    network: DraftLanguageModel,
    prompts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    ends: Collection[int],
    generator: torch.Generator,
) -> list[list[int]]:
    """A reply to each prompt, drawn from the network's own law, of its number of tokens in `lengths` at most, the token
    that ends it included.

    Texts lie side by side. Keys and values are kept by layer: those of the prompts, padded behind the shorter ones,
    and behind them a column for each token that was drawn.
    """
    shape, device = network.shape, network.shared.head.device
    begun = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(begun.max())
    tokens = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    tables = [kind.rotations(longest + max(lengths)) for kind in shape.attention_kinds]

    def rotations(layer: int, positions: Tensor) -> Tensor | None:
        table = tables[shape.kind_of[layer]]
        return None if table is None else table.to(device)[positions]

    layers = [DifferentiableLayer(shape, network, index) for index in range(shape.layers)]
    kept: list[tuple[Tensor, Tensor]] = []
    hidden = network.shared.embed(tokens)
    for layer in layers:
        turned = rotations(layer.index, torch.arange(longest, device=device))
        queries, keys, values = layer.heads(hidden, turned)
        kept.append((keys, values))
        mixed = mixed_values(queries, keys, values, seen_along(longest, None, device))
        hidden = layer.output(hidden, mixed)
    every = torch.arange(len(prompts), device=device)
    seen = (torch.arange(longest, device=device) < begun[:, None])[:, None, None]  # (B, 1, 1, columns)
    last, replies = hidden[every, begun - 1], [list[int]() for _ in prompts]
    going = set(range(len(prompts)))
    for step in range(max(lengths)):
        law = torch.softmax(network.logits(last).float(), dim=1).cpu()
        drawn = network.shared.tokens[torch.multinomial(law, 1, generator=generator)[:, 0]]
        for text in sorted(going):
            replies[text].append(int(drawn[text]))
            if replies[text][-1] in ends or len(replies[text]) == lengths[text]:
                going.remove(text)
        if not going:
            break
        seen = torch.cat([seen, torch.ones_like(seen[..., :1])], dim=3)
        hidden = network.shared.embed(drawn.to(device)[:, None])
        for layer in layers:
            turned = rotations(layer.index, (begun + step)[:, None])
            queries, *new = layer.heads(hidden, turned)
            keys, values = (torch.cat(pair, dim=1) for pair in zip(kept[layer.index], new, strict=True))
            kept[layer.index] = keys, values
            mixed = mixed_values(queries, keys, values, seen)
            hidden = layer.output(hidden, mixed)
        last = hidden[:, 0]
    return replies


class DraftTexts:
    """Lets a draft model write the replies that it learns from, anew for every epoch; the target labels them.

    The first epoch of a network that begins with nothing is of the target's texts, since it would write noise. All
    others are of its own replies to the same prompts, as long as the target's at most; mixed, every second of them, by
    turns from epoch to epoch. What it wrote is kept until the next epoch has begun, for a training that is cut off.

    Reference: Zhou et al., DistillSpec, arXiv:2310.08461. Differs: it writes once an epoch, not before every step.
    """

    def __init__(
        self, corpus: Corpus, target: StateReading, folder: Path, kind: str, ends: Collection[int], seed: int,
        first: int, label: str, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Nothing is written yet.

        Args:
            target: reads what was written, and keeps no states.
            kind: `draft` or `mixed`, of `limits.TEXTS`.
            ends: tokens that end a reply.
            first: the first epoch that is written anew.
            label: of the training; what another one wrote is not taken for its own.
            tell: what is being done; may raise to stop.
        """
        self._corpus, self._target, self._folder = corpus, target, folder
        self._mixed, self._ends, self._seed, self._first = kind != "draft", ends, seed, first
        self._label, self._tell = label, tell

    def __call__(self, network: DraftLanguageModel, epoch: int) -> Corpus:
        """The texts of an epoch. Those that are not there are written with the network as it is now.

        Raises:
            TrainingError: the disk is full, or what was kept is damaged.
        """
        if epoch < self._first:
            return self._corpus
        folder = self._folder / f"{epoch:05}"
        for earlier in self._folder.glob("*"):
            if earlier != folder:
                shutil.rmtree(earlier, ignore_errors=True)
        with os_errors_as(TrainingError, f"{folder} cannot be made"):
            private_dir(folder)
        chosen = [at for at in range(len(self._corpus.learnt)) if not self._mixed or (at + epoch) % 2]
        shards = []
        for number, first in enumerate(range(0, len(chosen), TEXTS_PER_SHARD)):
            source = f"{self._label}/{epoch}/{number}"
            if not is_there(folder, number, source):
                self._tell(f"the draft model writes, {first} of {len(chosen)} texts")
                texts = self._written(network, chosen[first : first + TEXTS_PER_SHARD], epoch)
                write_shard(self._target.shard(texts), shard_file(folder, number), source)
            shards.append(read_shard(shard_file(folder, number), source, True, self._target.vocab_size))
        return self._corpus.rewritten(chosen, shards)

    def _written(self, network: DraftLanguageModel, some: Sequence[int], epoch: int) -> list[TrainingText]:
        texts = [self._corpus.text(at) for at in some]
        chance = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) * 1_000_003 + some[0])
        limits = [len(text.reply) for text in texts]
        replies = written(network, [text.prompt for text in texts], limits, self._ends, chance)
        made = [
            TrainingText(text.index, text.prompt, reply, greedy=False)
            for text, reply in zip(texts, replies, strict=True)
        ]
        return [one if one.readable else text for one, text in zip(made, texts, strict=True)]


def is_own(kind: str) -> bool:
    """Whether a draft model writes texts of this kind, of `limits.TEXTS`, in part at least."""
    return kind not in ("", TARGETS_TEXTS)
