"""`specchat fill`: the blanks of a text, filled in by speculation with an any-order model."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specchat.cli.flags import Output
from specchat.cli.progress import stage_reporter
from specchat.cli.streams import piped_text
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, short
from specchat.settings import Settings

_STEPS = 2000
"""Of a training, where none are named."""


class FillDrafter(StrEnum):
    """The drafters of `specchat fill`: each guesses the tokens of blanks."""

    self = "self"
    ngram = "ngram"


def fill(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="A text with blanks, in quotes: ____ is a blank of as many tokens as underscores, __12__ of twelve. "
            "Standard input is read where there is none.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="An XLNet in transformers' form: config.json, tokenizer and safetensors.",
            show_default="the one that --train made",
        ),
    ] = "",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest tokens.")] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="<int>", min=-1, help="Same seed, same text; -1 draws a fresh one.")
    ] = -1,
    draft: Annotated[
        int, typer.Option("--draft", "-k", min=1, max=1024, help="The most tokens guessed in a round.")
    ] = 10,
    drafter: Annotated[
        FillDrafter, typer.Option(help="self: a pass of the model guesses; ngram: pairs of tokens counted in the text.")
    ] = FillDrafter.self,
    plain: Annotated[
        bool, typer.Option("--plain", help="Fill in one token after the other, without guessing.")
    ] = False,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Train a small model on this text instead; may be given again."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="<int>", min=1, max=10**6, help="Of a training.", show_default=str(_STEPS)),
    ] = None,
    output: Annotated[Output, typer.Option(help="text; json, one object; or jsonl, the same.")] = Output.text,
) -> None:
    """Fill in the blanks of a text.

    A blank sees the text on both sides of it. Several of its tokens are guessed at once, and one pass of the model
    judges them: the text is distributed as if they had been filled in one after the other, from left to right.
    """
    from specchat.config.directories import data_dir, expanded

    checked = Settings().but({"temperature": temperature, "seed": seed})
    seed = checked.seed if checked.seed >= 0 else secrets.randbits(53)
    folder = expanded(model, "--model") if model else data_dir() / "infill"
    os.environ.update(engine_environment())  # before torch and transformers are imported
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
    if train:
        if text is not None:
            raise UsageError("--train makes a model and fills in no text: leave one of them out")
        _train(train, folder, steps or _STEPS, seed, output)
        return
    if steps is not None:
        raise UsageError("--steps is for a training: --train FILE names its text")
    from specchat.core.noise import Noise
    from specchat.decoding.infill import Blanks, Infilling, sampling_of_text
    from specchat.decoding.vocabulary import TransformersVocabulary
    from specchat.models.any_order import load_any_order

    blanks = Blanks.of(piped_text(have_prompt=False) if text is None else text)
    if not model and not folder.is_dir():
        raise UsageError("there is no model to fill in blanks: --train FILE makes one of a text, --model names another")
    network, tokenizer = load_any_order(folder)
    vocabulary = TransformersVocabulary(tokenizer, frozenset())
    sampling = sampling_of_text(temperature, vocabulary, network.vocab_size)
    most = 0 if plain else draft
    filling = Infilling(
        network, blanks.tokens(vocabulary), sampling, Noise(seed), most, by_pairs=drafter is FillDrafter.ngram
    )
    began = time.perf_counter()
    while filling.filled < len(filling.places):
        filling.round()
    filled = [filling.tokens[place] for place in filling.places]
    parts = blanks.filled(filled, vocabulary)
    stats = {
        "tokens": len(filled),
        "passes": network.counters.passes,
        "passes_without_speculation": len(filled),
        "rounds": filling.rounds,
        "drafted": filling.drafted,
        "accepted": filling.accepted,
        "seconds": round(time.perf_counter() - began, 4),
    }
    if output is Output.text:
        _print(parts, stats)
    else:
        how = {"model": str(folder), "drafter": "none" if plain else drafter.value, "temperature": temperature}
        _print_json(parts, {"tokens": filled, **how, "lossless": True, "seed": seed, "stats": stats})


def _print(parts: Sequence[tuple[str, bool]], stats: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    line = Text()
    for part, is_filled in parts:
        line.append(visible(part), "bold" if is_filled else "")
    Console(file=sys.stdout, highlight=False, emoji=False).print(line, soft_wrap=True)
    if sys.stderr.isatty():
        share = f", {stats['accepted']} of {stats['drafted']} guesses accepted" if stats["drafted"] else ""
        told = f"{stats['tokens']} tok · {stats['passes']} passes, {stats['tokens']} without speculation{share}"
        print(told, file=sys.stderr)


def _print_json(parts: Sequence[tuple[str, bool]], result: dict[str, Any]) -> None:
    import msgspec

    text = "".join(part for part, _ in parts)
    said = [{"text": part, "filled": is_filled} for part, is_filled in parts]
    print(msgspec.json.encode({"text": text, "parts": said, **result}).decode())


def _train(files: Sequence[str], folder: Path, steps: int, seed: int, output: Output) -> None:
    import msgspec

    from specchat.config.directories import expanded
    from specchat.config.file_reading import read_named
    from specchat.training.infill import train_any_order
    from specchat.training.job import Stage

    text = "\n".join(read_named(expanded(file, "--train"), f"--train {short(file)}") for file in files)
    with stage_reporter(time.monotonic, as_reports=False) as tell:

        def told(done: int, loss: float) -> None:
            tell(Stage("learning", done, steps, "steps", f"{loss:.2f} nats a token"))

        unseen = train_any_order(text, folder, steps, seed, told)
    if output is Output.text:
        print(f"{folder}: {unseen:.2f} nats a token on the end of the text, which was not learnt from")
    else:
        print(msgspec.json.encode({"model": str(folder), "steps": steps, "seed": seed, "unseen_nats": unseen}).decode())
