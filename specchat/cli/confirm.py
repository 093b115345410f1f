"""Asks before something is deleted, or refuses where standard input is not a terminal."""

from __future__ import annotations

import sys

import typer


def confirmed(yes: bool, doing: str, question: str, otherwise: str) -> bool:
    """Whether the user agrees.

    Args:
        yes: they said so in advance.
        doing: what needs the answer, for the refusal, such as "removing chats".
        otherwise: printed where they do not want it.

    Raises:
        UsageError: standard input is not a terminal.
    """
    from specchat.errors import UsageError

    if yes:
        return True
    if not can_ask():
        raise UsageError(f"{doing} needs confirmation and standard input is not a terminal: add --yes")
    if typer.confirm(question):
        return True
    typer.echo(otherwise)
    return False


def can_ask() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()
