"""The command line: made readable before it is parsed, and what the parser refuses said in one line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, cut, meant

_MAY_BE_ALONE = ("-r", "--resume", "--serve")
_TAKE_NOTHING = ("--no-mouse", "--ascii", "--print-transcript", "-c", "--continue", "--version", "-h", "--help")
"""The chat's options without a value."""

_NEGATIVE = re.compile(r"-[0-9.][0-9.e+-]*")


def prepared(arguments: list[str]) -> list[str]:
    """The arguments as the parser wants them: all text, and the chat's `--resume` without an id and `--serve`
    without a port have an empty one; a question in the place of a command is what the chat begins with.

    `specchat train --resume` takes no id, and `specchat bench --serve` no port.

    Raises:
        UsageError: an argument is not text in the encoding of the terminal.
    """
    for number, argument in enumerate(arguments, 1):
        _refuse_bytes(number, argument)
    arguments = _with_question_as_option(arguments)
    if arguments[:1] in (["train"], ["bench"]):
        return arguments
    if arguments[:2] == ["config", "set"]:
        negative = [argument for argument in arguments if _NEGATIVE.fullmatch(argument)]
        if not negative or "--" in arguments:
            return arguments
        return [*(argument for argument in arguments if argument not in negative), "--", *negative]
    return [
        word
        for argument, after in pairwise([*arguments, "-"])
        for word in ([argument, ""] if argument in _MAY_BE_ALONE and after.startswith("-") else [argument])
    ]


def _with_question_as_option(arguments: list[str]) -> list[str]:
    """A question in the place of a command as the option `--ask`: no command's name contains a blank."""
    value = False  # whether the next one is an option's value
    for at, argument in enumerate(arguments):
        if value:
            value = False
        elif argument.startswith("-"):
            value = "=" not in argument and argument not in _TAKE_NOTHING
        elif " " in argument.strip():
            return [*arguments[:at], f"--ask={argument}", *arguments[at + 1 :]]
        else:
            break
    return arguments


def one_prompt(words: list[str]) -> str | None:
    """The prompt, if there is one.

    Raises:
        UsageError: there are several arguments: a question without quotes, or a stray argument.
    """
    if len(words) > 1:
        raise UsageError(f"put the prompt in quotes (found {len(words)} arguments): {asking(words)}")
    return words[0] if words else None


def asking(words: Sequence[str]) -> str:
    """The command that asks these words as one question."""
    return f"specchat run {shlex.quote(cut(' '.join(words)))}"


def _refuse_bytes(number: int, argument: str) -> None:
    """Bytes of an argument that are not UTF-8 arrive as halves of surrogate pairs, which cannot be printed or sent."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        start = f"{visible(argument[max(0, error.start - 40) : error.start])!r}"
        byte = ord(argument[error.start]) & 0xFF
        raise UsageError(
            f"argument {number} is not UTF-8: after {start} comes the byte 0x{byte:02x}; "
            "a file of such a name must be renamed first"
        ) from None


def refuse_options_before_command(context: typer.Context) -> None:
    """Refuse options of the chat that stand before a subcommand: they would not act on it."""
    name = context.invoked_subcommand
    assert name is not None, "only asked where there is a subcommand"
    given = [parameter for parameter in context.command.params if _was_typed(context, parameter.name)]
    if not given:
        return
    flags = [next(flag for flag in parameter.opts if flag.startswith("--")) for parameter in given]
    command = context.command.get_command(context, name)  # type: ignore[attr-defined]
    takers = [command, *getattr(command, "commands", {}).values()]
    known = {option for one in takers for parameter in one.params for option in parameter.opts}
    if unknown := [flag for flag in flags if flag not in known]:
        raise UsageError(f"specchat {name} takes no {' and no '.join(unknown)}")
    where = f"specchat {name} {'' if len(takers) == 1 else 'COMMAND '}{' … '.join(flags)} …"
    raise UsageError(f"{' and '.join(flags)} before {name!r} would have no effect; write it after the command: {where}")


def _was_typed(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name) if name else None
    return source is not None and source.name == "COMMANDLINE"


UNREADABLE: Any = typer.BadParameter.__base__
"""The error of a command line that cannot be parsed; typer exports only kinds of it."""

_KINDS = {"int": "a whole number", "float": "a number"}
"""The parser's words for numbers, and a person's."""


def in_one_line(error: Any, arguments: Sequence[str]) -> UsageError | None:
    """The error with the nearest that works; None where help was asked for by naming no command of a group."""
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
