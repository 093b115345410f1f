"""With a version of Textual that was not tested, the app works without what relies on its private attributes."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import re
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import textual.strip
from driving import driving
from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip

import specchat.tui
from specchat.tui import textual_patches
from specchat.tui.textual_patches.compositing import DiffingCompositor
from specchat.tui.textual_patches.fixed_app import key_of_character

pytestmark = pytest.mark.usefixtures("drawing_at_once")

TUI = Path(specchat.tui.__file__).parent


def test_the_installed_version_is_tested():
    textual_patches.tested.cache_clear()
    assert textual_patches.tested()


def test_another_version_is_logged_once(newer_textual: None, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert not textual_patches.tested()
        assert not textual_patches.tested()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Textual 8.99.0 is not one of the tested versions (8.2.*)"
    ]


def test_keys_have_the_same_names_in_both_ways(monkeypatch: pytest.MonkeyPatch):
    known = {character: key_of_character(character) for character in string.printable if character.isprintable()}
    monkeypatch.setattr("specchat.tui.textual_patches.fixed_app.tested", lambda: False)
    assert {character: key_of_character(character) for character in known} == known


def test_a_line_has_the_caches_of_textual_once_it_uses_them():
    [begin] = (
        node
        for node in ast.walk(ast.parse(Path(textual.strip.__file__).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and "segments" in ast.unparse(node.args)
    )
    line, empty = Strip([Segment("some words")]), {"_segments": [Segment("some words")]}
    for node in begin.body:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
        name = ast.unparse(target).removeprefix("self.")
        value = getattr(line, name)
        if isinstance(value, FIFOCache):
            assert f"FIFOCache({value._maxsize})" == ast.unparse(node.value)
            assert getattr(line, name) is value, "it is kept"
        else:
            assert value == empty.get(name), name
    assert line.crop(0, 4) is line.crop(0, 4)
    with pytest.raises(AttributeError, match="_no_cache"):
        line._no_cache  # noqa: B018


async def test_a_reply_is_shown_with_another_version(newer_textual: None):
    async with driving() as d:
        assert not isinstance(d.app.screen._compositor, DiffingCompositor)
        await d.say("hi")
        await d.reply("one two\n\n" * 60)
        assert "one two" in d.screen()
        assert d.view.transcript.scroll_y > 0


def test_private_modules_of_textual_are_imported_in_one_place():
    found: dict[str, set[str]] = {}
    for file in TUI.rglob("*.py"):
        name = file.relative_to(TUI).as_posix()
        if not name.startswith("textual_patches/"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                named = [module, *(one.name for one in node.names)] if module.startswith("textual") else []
                if any(part.startswith("_") for one in named for part in one.split(".")):
                    found.setdefault(name, set()).add(module)
    assert found == {}


def private_names(kind: type) -> set[str]:
    """The underscore attributes that Textual's classes among the bases of this one define or assign."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "textual"]
    return {name for base in bases for name in own_private_names(base)}


@cache
def own_private_names(kind: type) -> set[str]:
    assigned = re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(kind))
    return {name for name in (*vars(kind), *assigned) if re.match("_[a-z]", name)}


def private_uses(file: Path, module: ModuleType) -> Iterator[str]:
    """Underscore attributes of Textual that this file uses: overridden, of `self`, or of another object."""
    tree = ast.parse(file.read_text("utf-8"))
    own_modules = {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if owner in ("self", "cls"):
                continue
            case ast.Attribute(value=value, attr=attr) if re.match("_[a-z]", attr):
                if not (isinstance(value, ast.Name) and value.id in own_modules):
                    yield attr
            case ast.ClassDef(name=name) if inspect.isclass(kind := getattr(module, name, None)):
                used = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr.startswith("_")}
                defined = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
                yield from (used | defined) & private_names(kind)


def modules_elsewhere() -> Iterator[tuple[Path, ModuleType]]:
    for file in sorted(TUI.rglob("*.py")):
        name = file.relative_to(TUI).with_suffix("").as_posix()
        if not name.startswith("textual_patches/"):
            dotted = f"specchat.tui.{name.replace('/', '.')}".removesuffix(".__init__")
            yield file, importlib.import_module(dotted)


def test_private_attributes_of_textual_are_used_in_one_place():
    found = {file.name: uses for file, module in modules_elsewhere() if (uses := {*private_uses(file, module)})}
    assert found == {}


def test_the_search_finds_private_attributes():
    fixes = importlib.import_module("specchat.tui.textual_patches.fixed_app")
    markdown = importlib.import_module("specchat.tui.textual_patches.markdown")
    assert {"_driver", "_filters", "_end_batch"} <= {*private_uses(Path(str(fixes.__file__)), fixes)}
    assert {"_pending_children", "_parse_markdown"} <= {*private_uses(Path(str(markdown.__file__)), markdown)}
