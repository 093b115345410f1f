"""What docs/design.md names exists: its files, and its journeys through the code, each file connected to one before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_import_circles import PACKAGE, imports

DESIGN = Path(__file__).parents[1] / "docs" / "design.md"
MOST = {"From `Enter` in the prompt to tokens on the screen": 35, "From a GGUF file to a running pass": 20}
"""How many files a reader has to open at most."""


def listed(title: str) -> list[str]:
    """The files below this title, in their order."""
    section = DESIGN.read_text(encoding="utf-8").partition(f"### {title}\n")[2].partition("\n#")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`: ", section, re.M)


def unconnected(files: list[str]) -> list[str]:
    """Those that neither import a file before them nor are imported by one."""
    graph = imports(PACKAGE)
    names = ["specchat." + file.removesuffix(".py").replace("/", ".") for file in files]
    return [
        name
        for place, name in enumerate(names[1:], 1)
        if not any(name in graph[before] or before in graph[name] for before in names[:place])
    ]


@pytest.mark.parametrize("title", MOST)
def test_every_file_of_a_journey_exists_and_is_connected_to_one_before_it(title: str) -> None:
    files = listed(title)
    assert 10 < len(files) <= MOST[title]
    assert [file for file in files if not (PACKAGE / file).is_file()] == []
    assert unconnected(files) == []


def test_a_file_that_is_elsewhere_in_the_program_is_noticed() -> None:
    assert unconnected(["models/decoder/decoder.py", "tui/widgets/prompt.py"]) == ["specchat.tui.widgets.prompt"]


def test_what_a_journey_names_in_a_file_is_there() -> None:
    lines = re.findall(r"^\d+\. `([\w/]+\.py)`: (.+)$", DESIGN.read_text(encoding="utf-8"), re.M)
    named = [(file, name) for file, said in lines for name in re.findall(r"`([A-Z][a-z]\w+)`", said) if name != "Enter"]
    assert {name for _, name in named} >= {"Generate", "RoundDone"}
    missing = [(file, name) for file, name in named if f"class {name}" not in (PACKAGE / file).read_text("utf-8")]
    assert missing == []


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|c|h))`", DESIGN.read_text(encoding="utf-8"))
    assert len(named) > 60
    assert [file for file in named if not any((root / file).is_file() for root in (PACKAGE, DESIGN.parents[1]))] == []
