"""What is written for people agrees with what the program does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from readme_tables import ROOT, SECTIONS, up_to_date
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers import CONTROLLERS
from specchat.drafters import DRAFTERS
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, Message
from specchat.engine.protocol.events import MethodInfo, OptionInfo
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.settings import OPTIONS
from specchat.trees import TREE_POLICIES

README = ROOT / "README.md"
PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

INSTALL_AND_CHAT = "pip install -e . && specchat"
INSTALL_AND_TEST = "pip install -e '.[test]' && pytest"


def fenced_lines(text: str) -> list[str]:
    """The lines inside fenced blocks of shell commands."""
    return [line for block in re.findall(r"^\s*```sh\n(.*?)^\s*```", text, re.M | re.S) for line in block.splitlines()]


def anchors(text: str) -> set[str]:
    """What headings of a page can be linked by."""
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", SECTIONS)
def test_every_table_is_what_the_program_lists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == up_to_date(page, text), "run: python tests/readme_tables.py"


@pytest.mark.parametrize("page", SECTIONS)
def test_a_stale_table_would_be_noticed(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in SECTIONS[page]:
        stale = text.replace(f"<!-- {name} -->\n", f"<!-- {name} -->\nstale\n")
        assert stale != text
        assert up_to_date(page, stale) == up_to_date(page, text)


def test_the_readme_is_short_and_names_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    assert [page.name for page in ROOT.glob("docs/*.md") if f"](docs/{page.name})" not in text] == []


def test_two_commands_do_all_the_set_up() -> None:
    lines = fenced_lines(README.read_text(encoding="utf-8"))
    assert lines[:2] == [INSTALL_AND_CHAT, INSTALL_AND_TEST]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.name)
def test_every_link_inside_the_project_leads_somewhere(paper: Path) -> None:
    text = paper.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        page = paper.parent / file if file else paper
        assert page.exists(), f"{paper.name} links to {target}"
        if anchor:
            assert anchor in anchors(page.read_text(encoding="utf-8")), f"{paper.name} links to {target}"


@each_row("message", [*get_args(events.Event), *get_args(Command)], ids=lambda m: m.__name__)
def test_every_message_and_field_is_described(message: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    tag = message.__struct_config__.tag
    if message in get_args(events.Event):
        section = re.search(rf"^### {tag}\n(.*?)(?=^##)", text, re.M | re.S)
    else:
        section = re.search(rf"^\| (`{tag}` .*)$", text, re.M)
    assert section is not None, f"docs/recording.md does not describe {tag!r}"
    for name in message.__struct_fields__:
        assert f"`{name}`" in section[1], f"docs/recording.md does not describe {tag}.{name}"


@pytest.mark.parametrize(
    "part",
    [Tree, Draw, Verdict, Piece, Timings, events.Stats, events.Losslessness,
     Message, MethodInfo, OptionInfo],
    ids=lambda part: part.__name__,
)  # fmt: skip
def test_every_part_of_a_message_is_described(part: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    assert [name for name in part.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_described_version_is_the_one_spoken() -> None:
    text = (ROOT / "docs/recording.md").read_text(encoding="utf-8")
    assert f"**Version {events.PROTOCOL}.**" in text


def test_the_settings_page_names_every_setting() -> None:
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in text] == []


def test_the_checks_take_the_readmes_own_command() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, ".ci/run must be executable"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    source = script.read_text(encoding="utf-8")
    program = re.search(r"awk '(.*?)' README.md", source)
    assert program is not None
    found = subprocess.run(
        ["awk", program[1], "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == INSTALL_AND_TEST


def published_systems() -> list[tuple[set[str], str]]:
    """Of every system in the map the methods that it is here, and what is missing of it."""
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+? \| (?:draft|model)-centric \| (.+) \| (.+) \|$", text, re.M)
    return [(set(re.findall(r"`(\w+)`", here)), missing) for here, missing in rows]


def test_the_map_of_published_systems_names_methods_that_there_are() -> None:
    """Only its own column is read, and all names in it are a method's of any family."""
    rows = published_systems()
    named = {name for names, _ in rows for name in names}
    listed = {name for table in (DRAFTERS, TREE_POLICIES, ACCEPTANCE_RULES, CONTROLLERS) for name in table}
    assert len(rows) > 25
    assert sorted(named - listed) == []
    assert sorted(listed - named - {"none", "off", "fixed", "cascade"}) == []


def test_the_map_says_what_is_missing_of_systems_from_which_the_code_says_that_it_differs() -> None:
    drafters = {name: method for name, method in DRAFTERS.items() if not method.needs_weights}
    differing = {name for name, method in drafters.items() if "Differs" in (method.load().__doc__ or "")}
    assert {"pruned", "sparse_context", "jacobi"} <= differing
    silent = {name for names, missing in published_systems() if missing == "–" for name in names}
    assert silent & differing <= {"prompt_lookup", "suffix"}, "these differ from their papers in what guesses claim"
