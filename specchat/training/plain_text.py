"""Plain text that a draft model learns to go on with before it is brought to the target's law."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specchat.config.directories import expanded
from specchat.config.file_reading import read_named
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import TrainingError
from specchat.models.draft_heads.head import STEPS
from specchat.training.corpus import Corpus
from specchat.training.distillation import LOSSES, Distillation
from specchat.training.fitting import Fitting
from specchat.training.states import StateShard

PIECE_TOKENS = 256
"""Texts are learnt in pieces of so many tokens."""

FEWEST_PIECES = 40
_TOGETHER = 4096
"""Characters that are encoded at once at most: a longer line is cut in front of a space."""

next_token = Distillation(LOSSES["forward_kl"])
"""The loss: with one certain token as the law it is that token's negative log-likelihood."""


@dataclass(frozen=True)
class PlainText:
    """The text of a file, as tokens of the target.

    Args:
        label: the file's name and the checksum of its text.
        shard: pieces of it, whose law at every place is the token that follows.
    """

    label: str
    shard: StateShard

    @classmethod
    def of(cls, file: str, vocabulary: Vocabulary) -> PlainText:
        """Raises UsageError where the file cannot be read, and TrainingError where it is too short."""
        path = expanded(file, "--plain")
        text = read_named(path, f"--plain {path}")
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        return cls(f"{Path(path).name} ({digest})", shard_of(tokens_of(text, vocabulary), f"--plain {path}"))


def tokens_of(text: str, vocabulary: Vocabulary) -> list[int]:
    """The tokens of a text, which is encoded line by line."""
    opening, found = vocabulary.encode_text(""), list[int]()
    for line in text.splitlines(keepends=True):
        rest = line
        while rest:
            at = len(rest) if len(rest) <= _TOGETHER else rest.rfind(" ", 1, _TOGETHER)
            part, rest = (rest[:at], rest[at:]) if at > 0 else (rest[:_TOGETHER], rest[_TOGETHER:])
            tokens = vocabulary.encode_text(part)
            found += tokens[len(opening) :] if tokens[: len(opening)] == opening else tokens
    return found


def shard_of(tokens: list[int], named: str) -> StateShard:
    """The pieces of a text, without what is left behind the last whole one."""
    count = len(tokens) // PIECE_TOKENS
    if count < FEWEST_PIECES:
        raise TrainingError(
            f"{named} has {len(tokens)} tokens, too few to learn from; at least {FEWEST_PIECES * PIECE_TOKENS}"
        )
    every = torch.tensor(tokens[: count * PIECE_TOKENS])
    return StateShard(
        tokens=every,
        starts=torch.arange(count + 1) * PIECE_TOKENS,
        replies=torch.ones(count, dtype=torch.int64),
        states=torch.empty(len(every), 0, 0, dtype=torch.bfloat16),
        likeliest=every.roll(-1)[:, None],
        log_p=torch.zeros(len(every), 1, dtype=torch.float16),
        rest=torch.zeros(len(every)),
    )


def learn_plain(text: PlainText, make: Callable[[Corpus], Fitting], tell: Callable[[float, str], None]) -> None:
    """Let a network learn the text, from where it stands.

    Reference: Goel et al., Direct Alignment of Draft Model for Speculative Decoding with Chat-Fine-Tuned LLMs,
    arXiv:2403.00858, whose draft model is a language model before it is aligned. Differs: a text of the user's, some
    megabytes at most, instead of 600 billion tokens; embedding and head are the target's.
    """
    corpus = Corpus([text.shard], STEPS, reads_back=True, measured=64, reads_states=False)
    fitting = make(corpus)
    fitting.run(lambda standing: tell(fitting.done, f"plain text, {standing.tokens} tokens"))
