"""What tests of the command line share."""

from __future__ import annotations

import pytest
import typer.main
import typer.testing

from specchat.cli import app as whole

_command = typer.main.get_command(whole)
_build = typer.main.get_command


@pytest.fixture(autouse=True)
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the whole program, which typer builds from their functions at each call: 30 ms each time."""

    def command_of(app: typer.Typer) -> object:
        return _command if app is whole else _build(app)

    monkeypatch.setattr(typer.main, "get_command", command_of)
    monkeypatch.setattr(typer.testing, "_get_command", command_of)
