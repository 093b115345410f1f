"""Draw every screen of the app: `python assets/make_screenshots.py [NAME …]`.

Opens the real app on the real engine and the default pair (fetched where it is missing), with a history of its own,
and takes each picture as the screen stands. Nothing is drawn or changed by hand; run it again when the app has changed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from specchat.cli.chat import shipped_questions
from specchat.cli.pair_states import judged, known_pairs
from specchat.cli.start_engine import start_engine
from specchat.config import AppOptions, private_dir
from specchat.tui.app import SpecchatApp
from specchat.tui.state.prompt_history import History

HERE = Path(__file__).parent
QUESTIONS = ("Write four lines about a fox.", "Write the same four lines, but about a cat.")
SETTINGS = {"seed": 1, "drafter": "merge", "controller": "fixed", "nodes": 12, "width": 3, "depth": 8}
WIDE, SMALL, NARROW = (120, 40), (80, 24), (60, 20)
PATIENCE_S = 90.0

Scene = Callable[[SpecchatApp, Pilot[Any]], Awaitable[None]]


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Let the app run until something is so."""
    for _ in range(int(PATIENCE_S / 0.1)):
        if true():
            return
        await pilot.pause(0.1)
    raise TimeoutError("the app did not get there")


async def say(app: SpecchatApp, pilot: Pilot[Any], text: str) -> None:
    """Type something and send it."""
    app.views.prompt.focus()
    app.views.prompt.write(text)
    await pilot.press("enter")
    await pilot.pause(0.2)


def telling(app: SpecchatApp) -> bool:
    """Whether the tree on screen is of the reply being written, some way into the chat, with branches of all sorts."""
    rounds, running = app.chat.rounds, app.chat.running
    shown = rounds[-1] if rounds else None
    if shown is None or running is None or shown.id != running.id or shown.context_tokens < 120:
        return False
    return len(shown.verdict.path) >= 2 and "rejected" in shown.verdict.reasons


async def talk(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """A chat in the middle of its second reply, with several tokens accepted in the round that is shown."""
    for question in QUESTIONS:
        await say(app, pilot, question)
        await until(pilot, lambda: app.chat.running is not None)
        await until(pilot, lambda: app.chat.running is None or telling(app))


async def talked(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """The same chat when both replies are there."""
    await talk(app, pilot)
    await until(pilot, lambda: app.chat.running is None)
    await pilot.pause(0.5)


def then(*keys: str, command: str = "", wait_s: float = 0.8) -> Scene:
    """A finished chat, a command, some keys."""

    async def scene(app: SpecchatApp, pilot: Pilot[Any]) -> None:
        await talked(app, pilot)
        if command:
            await say(app, pilot, command)
        await pilot.press(*keys)
        await pilot.pause(wait_s)

    return scene


async def walking(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """A node of the last tree, chosen."""
    await talked(app, pilot)
    for _ in range(60):  # back to a round that has something to show
        if telling(app):
            break
        app.views.tree_panel.focus()
        await pilot.press("pageup")
    app.views.tree_panel.focus()
    await pilot.press("pageup", "right", "right", "down")
    await pilot.pause(0.5)


async def slowly(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """A reply in slow motion, its draft hanging at the cursor."""
    await talked(app, pilot)
    await say(app, pilot, "/speed 0.2")
    await say(app, pilot, "Write the four lines about the fox again.")
    await until(pilot, lambda: "The fox is" in text_of(app).rpartition("again.")[2] and "◌" in text_of(app))


async def racing(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """A race that is over."""
    await talked(app, pilot)
    await say(app, pilot, "/race Quote the fox poem word by word, then say what it is about.")
    await until(pilot, lambda: "identical" in text_of(app) or "part" in text_of(app))
    await pilot.pause(0.5)


async def measuring(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """A benchmark of six questions."""
    await talked(app, pilot)
    await say(app, pilot, "/bench 6")
    await until(pilot, lambda: "6 of 6" in text_of(app) or "all" in text_of(app).split("\n")[-3:])
    await pilot.pause(1.0)


async def touring(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """The tour, as at the first start."""
    await say(app, pilot, "/tour")
    await pilot.pause(0.5)


def text_of(app: SpecchatApp) -> str:
    """What stands on the screen."""
    return app.export_screenshot().replace("&#160;", " ")


PICTURES: dict[str, tuple[tuple[int, int], Scene]] = {
    "chat-80x24": (SMALL, talk),
    "chat-60x20": (NARROW, talk),
    "chat-light": (WIDE, then(command="/theme specchat-light")),
    "tour": (WIDE, touring),
    "tree-log": (WIDE, then(command="/tree log")),
    "tree-map": (WIDE, then(command="/tree map")),
    "tree-walking": (WIDE, walking),
    "tree-slow-motion": (WIDE, slowly),
    "tokens": (WIDE, then("f8")),
    "settings": (WIDE, then("f2")),
    "settings-80x24": (SMALL, then("f2")),
    "pairs": (WIDE, then("f4")),
    "chats": (WIDE, then("ctrl+o")),
    "search": (WIDE, then("ctrl+r")),
    "commands": (WIDE, then("ctrl+p")),
    "help": (WIDE, then("f1")),
    "race": (WIDE, racing),
    "bench": (WIDE, measuring),
}


async def picture(name: str, home: Path) -> None:
    """Open the app, play the scene, take the picture."""
    size, scene = PICTURES[name]
    app = SpecchatApp(
        lambda wake: start_engine("", SETTINGS, wake),
        settings=SETTINGS,
        pairs=known_pairs,
        judge=judged,
        history=History(home / "prompts.jsonl", private_dir),
        options=AppOptions(),
        store=home / "chats.db",
        questions=shipped_questions,
    )
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.chat.engine.ready is not None)
        await scene(app, pilot)
        (HERE / f"screenshot-{name}.svg").write_text(app.export_screenshot(title="specchat"))
    app.control.archive.close()
    if app.control.session.link is not None:
        app.control.session.link.close()
    print(name)


async def main(names: list[str]) -> None:
    """The pictures named, or all of them."""
    with tempfile.TemporaryDirectory() as home:
        for name in names or PICTURES:
            await picture(name, Path(home))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
