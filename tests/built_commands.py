"""The program's commands built once: typer builds them from their functions at each call, which takes 30 ms."""

from __future__ import annotations

from typing import Any

import typer.main
import typer.testing

from specchat.cli import app as whole

_build = typer.main.get_command
_command = _build(whole)


def command_of(app: typer.Typer) -> Any:
    """Instead of `typer.main.get_command`."""
    return _command if app is whole else _build(app)


PLACES = ((typer.main, "get_command"), (typer.testing, "_get_command"))
"""Where typer finds it."""
