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
from specchat.decoding.systems import SYSTEMS, System
from specchat.drafters import DRAFTERS
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Command, Message
from specchat.engine.protocol.events import MethodInfo, OptionInfo
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.models.draft_heads import FAMILIES
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


LITERATURE = [
    "2211.17192", "2302.01318", "2305.09781", "2410.11744", "2402.14160", "2406.02532", "2402.13485", "2407.16207",
    "2503.03434", "2309.04255", "2402.12374", "2405.19715", "2406.14066", "2408.11850", "2510.13161", "2504.05598",
    "2410.06916", "2305.11627", "2506.01986", "2408.08696", "2411.04975", "2304.04487", "2411.05894", "2405.19325",
    "2402.02057", "2305.10427", "2310.08461", "2403.00858", "2510.19779", "2310.07177", "2407.01955", "2507.02659",
    "2506.22694", "2302.07863", "2501.19309", "2509.02133", "2510.22876", "2401.10774", "2402.05109", "2406.16858",
    "2503.01840", "2405.00263", "2406.13170", "2408.15562", "2412.12639", "2410.05589", "2402.11809", "2507.11851",
    "2405.18628", "2408.05636", "2504.20456", "2402.11131", "2404.11912", "2502.20330", "2505.14969",
]  # fmt: skip
"""Papers that specchat set out to implement, by their numbers on arXiv."""


def test_every_published_system_is_in_the_table_once() -> None:
    papers = [system.paper for system in SYSTEMS]
    assert sorted(set(LITERATURE) - set(papers)) == []
    assert len(set(papers)) == len(papers)


def test_every_method_is_of_a_published_system_in_the_table() -> None:
    listed = [method for table in (DRAFTERS, TREE_POLICIES, ACCEPTANCE_RULES, CONTROLLERS) for method in table.values()]
    named = {name for system in SYSTEMS for name in system.methods()}
    assert sorted({method.name for method in listed} - named - {"none", "off", "fixed"}) == []
    cited = {number for method in listed for number in re.findall(r"arXiv:(\d{4}\.\d{5})", method.source)}
    stochastic_beams = "1903.06059"  # how rsd_s draws; no system of its own
    assert sorted(cited - {system.paper for system in SYSTEMS} - {stochastic_beams}) == []


@each_row("system", SYSTEMS, ids=lambda system: system.name)
def test_the_tests_of_every_published_system_exist(system: System) -> None:
    """A system that is here names one at least, one that is absent says why."""
    here = system.methods() or system.also
    assert system.tests if here else system.differs and not system.tests
    assert system.group in ("draft", "model")
    for test in system.tests:
        file, name = test.split("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?:async )?def {name}\(", text, re.M), f"{test} does not exist"


def test_the_table_says_what_is_missing_of_systems_from_which_the_code_says_that_it_differs() -> None:
    tables = (DRAFTERS, TREE_POLICIES, ACCEPTANCE_RULES, CONTROLLERS)
    classes = {name: method.load() for table in tables for name, method in table.items()}
    classes |= {name: family.load() for name, family in FAMILIES.items()}
    differing = {name for name, its_class in classes.items() if "Differs" in (its_class.__doc__ or "")}
    assert {"pruned", "sparse_context", "jacobi", "eagle2", "transfer", "memory"} <= differing
    silent = {name for system in SYSTEMS if not system.differs for name in system.methods()}
    said = {name for system in SYSTEMS if system.differs for name in system.methods()}
    assert sorted(differing & silent - said) == []
