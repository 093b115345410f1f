"""What the parser of the command line refuses, in one line as every other refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from specchat.cli.arguments import asking
from specchat.errors import UsageError, cut, meant

UNREADABLE: Any = typer.BadParameter.__base__
"""The error of a command line that cannot be parsed; typer exports only kinds of it."""

_KINDS = {"int": "a whole number", "float": "a number"}
"""What the parser calls numbers, and what a person does."""


def in_one_line(error: Any, arguments: Sequence[str]) -> UsageError | None:
    """What is wrong and what is nearest to it; None where help was asked for by naming no command of a group."""
    said = cut(str(error.format_message())).rstrip(".")
    if not said:
        return None
    for kind, words in _KINDS.items():
        said = re.sub(rf"is not a valid {kind}(eger)?( range)?$", f"is not {words}", said)
    said = said[0].lower() + said[1:].replace(". Did you mean", "; did you mean")
    command = error.ctx.command_path if error.ctx else ""
    if options := getattr(error, "possibilities", None):
        return UsageError(f"no such option: {cut(error.option_name)}{meant(error.option_name, options)}")
    if said.endswith("?") or not command:
        return UsageError(said)
    if said.startswith("no such command") and command == "specchat" and len(arguments) > 1:
        return UsageError(f"{said}; to ask a question: {asking(arguments)}")
    return UsageError(f"{said}; {command} -h shows what exists")
