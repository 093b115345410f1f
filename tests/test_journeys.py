"""The journeys through the code that docs/design.md lists: their files exist, each connected to one before it."""

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
