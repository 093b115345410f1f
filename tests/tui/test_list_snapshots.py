"""How lists look that open on the way: the commands after a slash, and the models of other programs."""

from __future__ import annotations

import sys

import pytest
from driving import connected, wait_for
from fake import FakeLink, hello, ready
from test_snapshots import app_of, settle

SIZES = pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")

FOUND = """
import json
def pair(name, target, draft, summary, size):
    found = {"name": name, "target": target, "draft": draft, "summary": summary, "disk_bytes": size * 10**6}
    return found | {"needed_bytes": size * 12 * 10**5, "free_bytes": 8 * 10**9, "added": ""}
pairs = [
    pair("llama3.2-3b", "llama3.2:3b", "llama3.2:1b", "llama3.2:3b, drafted for by llama3.2:1b · of Ollama", 2000),
    pair("qwen2.5-7b", "qwen2.5:7b", None, "qwen2.5:7b, drafts looked up in the text · of Ollama", 4700),
    pair("giant-gguf", "giant.gguf", None, "giant.gguf, drafts looked up in the text · of LM Studio", 40000),
]
print(json.dumps({"pairs": pairs, "refused": []}))
"""


async def begin(pilot, links: list[FakeLink]) -> None:
    await connected(pilot, links)
    links[0].put(hello(), ready())
    await settle(pilot, links[0])


@SIZES
@pytest.mark.parametrize("typed", ["/", "/s"], ids=["all", "some"])
def test_the_list_of_commands(snap_compare, size, typed):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await begin(pilot, links)
        for letter in typed:
            await pilot.press("slash" if letter == "/" else letter)
        await pilot.press("down")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@SIZES
def test_found_models(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await begin(pilot, links)
        pairs = pilot.app.context.pairs
        pairs.command = lambda *words: [sys.executable, "-c", FOUND, *words]
        await pilot.press("f4")
        await wait_for(pilot, lambda: pairs.found.pairs)
        await wait_for(pilot, lambda: all(w.is_finished for w in pilot.app.workers if w.node is pilot.app.screen))
        await pilot.press("end", "up", "up")
        await pilot.pause()

    assert snap_compare(app_of(links, finds_models=True, engine_here=True), terminal_size=size, run_before=before)
