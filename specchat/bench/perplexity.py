"""The quality of a number format: perplexity of a fixed text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from specchat.decoding.teacher_forcing import chained
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.models.backends.scripted import ScriptedVocabulary

TEXT = Path(__file__).with_name("text.txt")
"""A short story of our own, the same for every model and precision."""

_ROWS = 32


@dataclass(frozen=True)
class Perplexity:
    """e to the mean negative log-probability per token; comparable between precisions of one model only."""

    value: float
    tokens: int


def measure_perplexity(pair: LoadedPair, text: str | None = None) -> Perplexity | None:
    """Perplexity of the fixed text, read through the same passes that verify drafts; None for less than two tokens."""
    target = pair.target.model
    text = TEXT.read_text(encoding="utf-8") if text is None else text
    encode = ScriptedVocabulary().encode if pair.target.tokenizer is None else pair.target.tokenizer.encode
    tokens = encode(text)[: target.context_tokens - _ROWS]
    if len(tokens) < 2:
        return None
    with torch.inference_mode():
        surprise = 0.0
        for token, logits in zip(tokens[1:], chained(target, tokens[:1], tokens[1:], _ROWS), strict=True):
            surprise -= float(torch.log_softmax(logits.float(), dim=-1)[token])
    target.prefill(())
    return Perplexity(math.exp(surprise / (len(tokens) - 1)), len(tokens) - 1)
