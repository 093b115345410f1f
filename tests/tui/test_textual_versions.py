"""With a version of Textual that was not tested, the app works without what relies on its private attributes."""

from __future__ import annotations

import ast
import logging
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
import textual
from driving import driving

import specchat.tui
from specchat.tui.textual_fixes import version
from specchat.tui.textual_fixes.compositing import DiffingCompositor
from specchat.tui.textual_fixes.keys import key_of_character

TUI = Path(specchat.tui.__file__).parent


@pytest.fixture
def newer_textual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(textual, "__version__", "8.99.0")
    version.tested.cache_clear()
    yield
    version.tested.cache_clear()


def test_the_installed_version_is_tested():
    version.tested.cache_clear()
    assert version.tested()


def test_another_version_is_logged_once(newer_textual: None, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert not version.tested()
        assert not version.tested()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Textual 8.99.0 is not one of the tested versions (8.2.*)"
    ]


def test_keys_have_the_same_names_in_both_ways(monkeypatch: pytest.MonkeyPatch):
    known = {character: key_of_character(character) for character in string.printable if character.isprintable()}
    monkeypatch.setattr("specchat.tui.textual_fixes.keys.tested", lambda: False)
    assert {character: key_of_character(character) for character in known} == known


async def test_a_reply_is_shown_with_another_version(newer_textual: None):
    async with driving() as d:
        assert not isinstance(d.app.screen._compositor, DiffingCompositor)
        await d.say("hi")
        await d.reply("one two\n\n" * 60)
        assert "one two" in d.screen()
        assert d.app.views.transcript.scroll_y > 0


def test_private_modules_of_textual_are_imported_in_one_place():
    found: dict[str, set[str]] = {}
    for file in TUI.rglob("*.py"):
        name = file.relative_to(TUI).as_posix()
        if not name.startswith("textual_fixes/"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                named = [module, *(one.name for one in node.names)] if module.startswith("textual") else []
                if any(part.startswith("_") for one in named for part in one.split(".")):
                    found.setdefault(name, set()).add(module)
    assert found == {}
