"""The way that a model's files take: looked at for the list of pairs, loaded, asked for a token."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

from specchat.config import ModelSpec, PathSource
from specchat.core.tree import TokenTree
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.errors import SpecchatError
from specchat.models.hub.pair_check import PairCheck, check_pair
from specchat.models.model_loading import load_model

_MESSAGES = [{"role": "user", "content": "hello"}]
_LONGEST_LINE = 1000


def look_at(path: Path) -> PairCheck:
    """Judge the model as the list of pairs does, which shows what is wrong instead of failing."""
    spec = ModelSpec("fuzzed", (PathSource(path),))
    try:
        fit = check_pair([spec, spec])
    except SpecchatError as error:
        raise AssertionError(f"looking at it failed: {error}") from error
    for line in (*fit.refusals, *fit.remarks):
        _check_line(line)
    return fit


def must_work(path: Path) -> None:
    """The undamaged model is accepted and writes tokens: a fuzzer that damaged nothing would find nothing."""
    assert not look_at(path).refusals, "an undamaged model is refused"
    try:
        _speak(path, "auto", "auto", guesses=False)
    except SpecchatError as error:
        raise AssertionError(f"an undamaged model is refused: {error}") from error


def speak(path: Path, random: Random) -> None:
    """Load the model, as a target or as a draft model, in any precision, and read a prompt and a root."""
    wanted, kernels = random.choice(("auto", "int8", "int4", "float32")), random.choice(("auto", "torch"))
    _speak(path, wanted, kernels, guesses=random.random() < 0.5)


def _speak(path: Path, wanted: str, kernels: str, guesses: bool) -> None:
    spec = ModelSpec("fuzzed", (PathSource(path),))
    try:
        loaded = load_model(spec, path, torch.device("cpu"), wanted, kernels=kernels, guesses=guesses)
        ids = TransformersVocabulary(loaded.tokenizer, loaded.eos_ids).encode_chat(_MESSAGES)
    except SpecchatError as error:
        _check_line(str(error))
        raise
    model = loaded.model
    ids = [token for token in ids if token < model.vocab_size][-64:] or [0]
    model.prefill(ids[:-1])
    logits = model.read(TokenTree(ids[-1], model.vocab_size).freeze()).logits
    assert logits.shape == (1, model.vocab_size), f"logits of shape {tuple(logits.shape)}"


def _check_line(line: str) -> None:
    assert "\n" not in line, f"more than one line: {line!r}"
    assert len(line) <= _LONGEST_LINE, f"{len(line)} characters in one line"
