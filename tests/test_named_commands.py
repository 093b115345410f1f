"""Every command that docs and the program's own texts name is one that the program has, with these options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from readme_tables import ROOT
from typer.main import get_command

from specchat.cli import app
from specchat.cli.arguments import prepared
from specchat.cli.flags import method_options
from specchat.settings import OPTIONS, Settings, parse_method_options
from specchat.tui.commands.registry import COMMANDS

PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(ROOT / "specchat").rglob("*.md")])
SOURCES = sorted(file for ending in ("py", "toml", "html", "js") for file in (ROOT / "specchat").rglob(f"*.{ending}"))

FILLED_IN = "1"
"""Stands for a value that the program fills in: it can be a word as well as a number."""

LEFT_OPEN = (None, FILLED_IN, "…")
"""Values of settings that are not looked at."""

PROSE = re.compile(r"specchat (chat$|begins with|came with|is |measures|reads|runs|serves)")
"""Sentences that begin with the program's name, and the name of the format of an exported chat."""

ANY_COMMAND = "command"
"""What the empty prompt says for every slash command."""


@cache
def command_line() -> Any:
    """The program's commands; what they need may be left out, as a text does that names a command."""
    whole: Any = get_command(app)
    commands = [whole]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            parameter.required = False
    return whole


@cache
def strings(file: Path) -> list[str]:
    """Every string of a module, docstrings included, with `FILLED_IN` in place of values; of other files the text."""
    text = file.read_text(encoding="utf-8")
    return list(_strings(ast.parse(text))) if file.suffix == ".py" else [text]


def _strings(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED_IN for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def in_blocks(page: str) -> list[str]:
    """The commands in blocks of shell lines, without comments and what is redirected."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page, re.M | re.S) + re.findall(r"^    (specchat .*)", page, re.M)
    parts = [part for block in blocks for part in re.split(r"\||&&|\n", re.sub(r"\\\n|  #.*|[<>] .*", "", block))]
    return [part.strip() for part in parts if part.split()[:1] == ["specchat"]]


def in_backticks(text: str) -> list[str]:
    """The commands between backticks, with the program's name or without it, as in `run --record`."""
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`", outside)]
    unnamed = [
        f"specchat {span}" for span in spans if span.partition(" ")[0] in command_line().commands and " " in span
    ]
    return unnamed + [span for span in spans if span.startswith("specchat ")]


def after_a_mark(text: str) -> list[str]:
    """The commands of a text that stand at its beginning or after a mark, as in `run: specchat doctor`."""
    found = re.findall(r"(?:^ *|[:;·(\n] *)(specchat [^`;)·\n]+)", text)
    return [one for one in found if not PROSE.match(one)]


@cache
def commands_of(file: Path) -> list[str]:
    """Every command that a file names."""
    if file.suffix == ".md":
        page = file.read_text(encoding="utf-8")
        return in_blocks(page) + in_backticks(page)
    texts = [text for text in strings(file) if "specchat " in text or "`" in text]
    return [found for text in texts for found in in_backticks(text) + after_a_mark(text)]


def check(line: str) -> None:
    """Parse a command as the command line does, without running it; raises where it would be refused."""
    command = command_line()
    words = [word for word in prepared(shlex.split(line)[1:]) if word != "--install-completion"]
    while words and words[0] in (known := getattr(command, "commands", {})):
        command, words = known[words[0]], words[1:]
    is_group = hasattr(command, "commands")
    if is_group and words[:1] in ([], ["COMMAND"], [FILLED_IN]):
        return
    if words and any(words[-1] in parameter.opts and not parameter.is_flag for parameter in command.params):
        words.append(FILLED_IN)  # an option is named without a value
    context = command.make_context(command.name, words)
    assert not is_group or not (rest := [*context._protected_args, *context.args]), f"there is no command {rest[0]!r}"
    Settings().but(
        {name: value for name, value in context.params.items() if name in OPTIONS and value not in LEFT_OPEN}
    )
    chosen = parse_method_options(context.params.get("set") or [])
    unknown = [name for name in chosen if name not in method_options() and not name.startswith(f"{FILLED_IN}.")]
    assert not unknown, f"there is no option {unknown[0]}"


def what_is_wrong(line: str) -> str:
    """Why the command line would refuse this; empty if it would not."""
    try:
        check(line)
    except Exception as error:
        return str(getattr(error, "message", error))
    return ""


def test_every_command_that_is_named_exists() -> None:
    named = [(file, line) for file in [*PAPERS, *SOURCES] for line in commands_of(file)]
    found = [f"{file.relative_to(ROOT)} names `{line}`: {why}" for file, line in named if (why := what_is_wrong(line))]
    assert found == []


def test_every_method_option_that_is_set_in_a_text_exists() -> None:
    known = {*re.findall(r"^\| `(\w+\.\w+)` \|", (ROOT / "docs/methods.md").read_text(encoding="utf-8"), re.M)}
    set_in = {(file.name, key) for file in PAPERS for key in re.findall(r'--set "?([a-z_.]+)=', "".join(strings(file)))}
    assert len(set_in) > 3
    assert [(file, key) for file, key in sorted(set_in) if key not in known] == []


def _words(command: Any, before: str = "specchat") -> Iterable[str]:
    """A command that does something, and those below it, as they are typed."""
    for name, inner in getattr(command, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from _words(inner, f"{before} {name}")
        else:
            yield f"{before} {name}"


def test_every_command_is_on_the_page_about_the_command_line() -> None:
    shown = [f"{line} " for line in in_blocks((ROOT / "docs/command-line.md").read_text(encoding="utf-8"))]
    named = [*_words(command_line())]
    assert len(named) > 25
    assert [one for one in named if not any(line.startswith(f"{one} ") for line in shown)] == []


def test_commands_are_found_in_blocks_in_backticks_and_after_marks() -> None:
    assert "specchat serve --watch" in commands_of(ROOT / "docs/serve.md")
    assert "specchat run --record" in commands_of(ROOT / "specchat/cli/__init__.py")
    assert "specchat --resume 1" in commands_of(ROOT / "specchat/tui/state/stored_chat.py")
    assert "specchat models pull 1" in commands_of(ROOT / "specchat/models/hub/fetching.py")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("specchat chat 1", "chat"),
        ("specchat chats read", "read"),
        ("specchat train smol --draft hydra", "--draft"),
        ("specchat run hi --set hydra.weight=mine", "hydra.weight"),
        ("specchat config get a b", "unexpected"),
        ("specchat --nodes many", "many"),
        ("specchat serve --port http", "http"),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line: str, wrong: str) -> None:
    assert wrong in what_is_wrong(line)


def test_every_slash_command_that_is_named_exists() -> None:
    spans = {page: re.findall(r"`(/[^`]+)`", page.read_text(encoding="utf-8")) for page in PAPERS}
    of_the_app = [file for file in SOURCES if "tui" in file.relative_to(ROOT).parts and file.suffix == ".py"]
    texts = {**spans, **{file: strings(file) for file in of_the_app}}
    slashed = re.compile(r"(?<![\w/.<~:}\"'*)-])/([a-z]+)(?![/.\w*-])")
    named = {(file.name, word) for file, found in texts.items() for text in found for word in slashed.findall(text)}
    assert {word for _, word in named} > {"serve", "learn", "train", "race"}
    assert sorted((file, word) for file, word in named if word not in {*COMMANDS, ANY_COMMAND}) == []
