"""Draw every screen of the app: `python assets/make_screenshots.py [NAME …]`.

Opens the real app on the real engine, with a history of its own, and takes each picture as the screen stands. Nothing
is drawn or changed by hand; run it again when the app has changed. The pair is `qwen-coder` of the user's models.toml.
Pictures of one size are taken in one session, one after another, so that the chat is written once. The sizes share
the history, so that the lists of chats and of prompts have something to show.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_picture import picture_of
from textual.pilot import Pilot

from specchat.cli.chat import shipped_questions
from specchat.cli.pair_states import judged, known_pairs
from specchat.config import private_dir
from specchat.engine.client.start_engine import start_engine
from specchat.engine.protocol.events import RoundDone
from specchat.store.prompt_history import History
from specchat.tui.app import SpecchatApp
from specchat.tui.services.context import AppSetup

HERE = Path(__file__).parent
SETTINGS = {
    "pair": "qwen-coder", "seed": 1, "temperature": 0.0, "max_tokens": 1000,
    "policy": "best_first", "controller": "fixed", "nodes": 10, "width": 3, "depth": 5,
}  # fmt: skip
"""The pair's own drafter, and trees that branch in most rounds."""

OTHER_PAIR = "smol"
"""It races against the pair in use; small, so that loading it is quick."""

WIDE, SMALL, NARROW = (120, 40), (80, 24), (60, 20)
QUESTIONS = {
    WIDE: (
        "Write a Python class for a stack with push, pop and peek, and a unit test for each. No explanation.",
        "Now a queue in the same way, with its tests.",
    ),
    SMALL: (
        "Write a Python function that merges two sorted lists. No explanation.",
        "Now one that merges any number of them, with a docstring.",
    ),
    NARROW: ("Write a Python class for a point. No explanation.", "Add the distance between two points."),
}
"""Two a size; the replies end by themselves."""

PATIENCE_S = 900.0
"""A busy machine takes its time; what the engine does in it is not hurried."""

App, Keys = SpecchatApp, Pilot[Any]
Act = Callable[[App, Keys], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """A picture: what is done before it is taken, and what leads back to the chat."""

    name: str
    act: Act
    leave: tuple[str, ...] = ()


async def until(pilot: Keys, true: Callable[[], bool]) -> None:
    """Let the app run until something is so; an app that has ended by an error is not waited for."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if not pilot.app.is_running or pilot.app.return_code:
            raise RuntimeError("the app has ended")
        if time.monotonic() > end:
            raise TimeoutError("the app did not get there")
        await pilot.pause(0.1)


async def say(app: App, pilot: Keys, text: str) -> None:
    """Type something and send it."""
    app.chat_screen.prompt.focus()
    app.chat_screen.prompt.write(text)
    await pilot.press("enter")
    await pilot.pause(0.3)


async def ask(app: App, pilot: Keys, text: str) -> None:
    """Ask, and wait until the reply is begun."""
    replies = len(app.chat.turns) + 2
    await say(app, pilot, text)
    await until(pilot, lambda: len(app.chat.turns) == replies and bool(app.chat.figures and app.chat.figures.rounds))


async def replied(app: App, pilot: Keys) -> None:
    """Wait for the end of the reply."""
    await until(pilot, lambda: app.chat.running is None)
    await pilot.pause(0.8)


def tells(round: RoundDone) -> bool:
    """Whether several guesses of the round were kept and some rejected, and the reply went on after them."""
    reasons = round.verdict.reasons
    return len(round.verdict.path) >= 3 and reasons.count("rejected") >= 2 and "cut" not in reasons


def branches(round: RoundDone) -> bool:
    """Whether two guesses of the round follow one token."""
    parents = round.tree.parents
    return len(set(parents)) < len(parents)


def is_large(round: RoundDone | None) -> bool:
    """Whether the tree of the round fills a window, and the target went a long way down in it."""
    return round is not None and len(round.tree.tokens) > 12 and len(round.verdict.path) >= 4


async def in_the_middle(app: App, pilot: Keys) -> None:
    """The chat while its second reply is written, at a round with branches."""
    first, second = QUESTIONS[app.size.width, app.size.height]
    await ask(app, pilot, first)
    await replied(app, pilot)
    await ask(app, pilot, second)
    rounds = app.chat.rounds
    await until(pilot, lambda: app.chat.running is None or (len(rounds) > 8 and tells(rounds[-1])))


async def whole(app: App, pilot: Keys) -> None:
    """The chat when both replies are there, its tree turned back to a round that has something to show."""
    if not app.chat.turns:
        await in_the_middle(app, pilot)
    await replied(app, pilot)
    panel = app.chat_screen.tree_panel
    panel.focus()
    for _ in app.chat.rounds:
        if panel.round is not None and tells(panel.round):
            break
        await pilot.press("pageup")
    app.chat_screen.prompt.focus()
    await pilot.pause(0.3)


def press(*keys: str) -> Act:
    """The whole chat, and some keys."""

    async def act(app: App, pilot: Keys) -> None:
        await whole(app, pilot)
        await pilot.press(*keys)
        await pilot.pause(5.0)  # lists are filled in the background

    return act


def command(text: str) -> Act:
    """The whole chat, and a command."""

    async def act(app: App, pilot: Keys) -> None:
        await whole(app, pilot)
        await say(app, pilot, text)
        await pilot.pause(0.8)

    return act


async def touring(app: App, pilot: Keys) -> None:
    """The tour, as at the first start: beside it the recording plays."""
    await app.chat_screen.start_pages.show_tour()
    await until(pilot, lambda: re.search(r"kept [2-9] of", text_of(app)) is not None)


async def walking(app: App, pilot: Keys) -> None:
    """A node of a round that has something to show."""
    await command("/tree auto")(app, pilot)
    app.chat_screen.tree_panel.focus()
    await pilot.press("right", "right", "down")
    await pilot.pause(0.5)


async def choosing(app: App, pilot: Keys) -> None:
    """What else could stand at the place of a node where a guess was rejected."""
    await walking(app, pilot)
    await pilot.press("enter")
    await until(pilot, lambda: "asking" not in text_of(app))
    await pilot.pause(0.5)


async def asking_what_if(app: App, pilot: Keys) -> None:
    """A round beside what it would have been with a larger tree."""
    await command("/whatif nodes=24 width=4")(app, pilot)
    await until(pilot, lambda: "the price" in text_of(app))
    await pilot.pause(0.5)


async def learning(app: App, pilot: Keys) -> None:
    """The lesson on trees, with the numbers of the last reply."""
    await command("/lesson 4")(app, pilot)
    await until(pilot, lambda: "the engine does your" not in text_of(app))
    await pilot.pause(1.0)


async def racing_models(app: App, pilot: Keys) -> None:
    """A race of two models that is over; nothing else stands still as long as the other is loaded."""
    await whole(app, pilot)
    await say(app, pilot, f"/race {OTHER_PAIR} Name three colours, with a few words about each.")
    await until(pilot, lambda: "two models write two texts" in text_of(app))
    await pilot.pause(1.0)


async def looking_into(app: App, pilot: Keys) -> None:
    """The layers at which a token was decided, below its tree, and a heat line under the reply."""
    await whole(app, pilot)
    await say(app, pilot, "/lens on")
    await until(pilot, lambda: bool(app.chat.engine.settings.get("lens")))
    await ask(app, pilot, "What does LIFO mean? One sentence.")
    await replied(app, pilot)
    app.context.session.change("lens", False)  # the scenes behind this one do without
    panel = app.chat_screen.tree_panel
    panel.focus()
    await pilot.press("right", "right")
    await pilot.pause(0.5)


async def racing(app: App, pilot: Keys) -> None:
    """A race that is over."""
    await whole(app, pilot)
    await say(app, pilot, "/race Write the stack again, with a docstring for each method.")
    await until(pilot, lambda: re.search(r"identical|part|same", text_of(app)) is not None)
    await pilot.pause(1.0)


async def measuring(app: App, pilot: Keys) -> None:
    """A benchmark of four questions."""
    await whole(app, pilot)
    await say(app, pilot, "/bench 4")
    await until(pilot, lambda: "4 of 4" in text_of(app))
    await pilot.pause(1.0)


async def slowly(app: App, pilot: Keys) -> None:
    """A reply in slow motion, its draft hanging at the cursor."""
    await whole(app, pilot)
    panel = app.chat_screen.tree_panel
    panel.action_leave()
    await say(app, pilot, "/speed 0.2")
    await ask(app, pilot, "Now a stack that also knows its largest element.")
    await until(pilot, lambda: panel.round is not None and branches(panel.round) and text_of(app).count("◌") > 4)


def text_of(app: App) -> str:
    """What stands on the screen."""
    return app.export_screenshot().replace("&#160;", " ")


async def showing(app: App, pilot: Keys) -> None:
    """Trees that fill the window, at a round that has something to show and whose verdict is told, else at the best."""
    await ask(app, pilot, "/show Why do leaves turn red in autumn? Three sentences.")
    panel, rounds = app.chat_screen.tree_panel, app.chat.rounds

    def told() -> bool:
        return re.search(r"kept \d+ of", text_of(app)) is not None

    await until(pilot, lambda: app.chat.running is None or (len(rounds) > 8 and is_large(panel.round) and told()))
    await pilot.pause(0.2)


SESSIONS: dict[tuple[int, int], tuple[Scene, ...]] = {
    SMALL: (Scene("chat-80x24", in_the_middle), Scene("settings-80x24", press("f2"))),
    NARROW: (Scene("chat-60x20", in_the_middle),),
    WIDE: (
        Scene("tour", touring, ("escape",)),
        Scene("tokens", press("f8"), ("f8",)),
        Scene("settings", press("f2"), ("f2",)),
        Scene("pairs", press("f4"), ("escape",)),
        Scene("chats", press("ctrl+o"), ("escape",)),
        Scene("search", press("ctrl+r"), ("escape",)),
        Scene("commands", press("ctrl+p", *"tree"), ("escape",)),
        Scene("help", press("f1"), ("escape",)),
        Scene("tree-log", command("/tree log")),
        Scene("tree-map", command("/tree map")),
        Scene("tree-walking", walking, ("escape", "escape")),
        Scene("alternatives", choosing, ("escape", "escape", "escape")),
        Scene("what-if", asking_what_if, ("escape",)),
        Scene("lesson", learning, ("escape", "escape")),
        Scene("race", racing, ("escape",)),
        Scene("race-models", racing_models, ("escape",)),
        Scene("bench", measuring, ("escape",)),
        Scene("chat-light", command("/theme specchat-light")),
        Scene("lens", looking_into, ("escape", "escape")),
        Scene("show", showing, ("ctrl+l", "escape")),
        Scene("tree-slow-motion", slowly),
    ),
}


async def session(size: tuple[int, int], scenes: list[Scene], home: Path) -> None:
    """Open the app, play the scenes, and take the picture of each."""
    setup = AppSetup(
        lambda wake: start_engine("", SETTINGS, wake),
        pairs=known_pairs,
        judge=judged,
        store=home / "chats.db",
        questions=shipped_questions,
        demo=HERE / "demo.jsonl",
    )
    app = SpecchatApp(setup, settings=SETTINGS, history=History(home / "prompts.jsonl", private_dir))
    app.remember_theme = lambda *given: None  # type: ignore[method-assign]  # the user's settings stay as they are
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.chat.engine.ready is not None)
        theme = app.theme
        for scene in scenes:
            await scene.act(app, pilot)
            (HERE / f"screenshot-{scene.name}.svg").write_text(picture_of(app))
            print(scene.name, flush=True)
            app.theme = theme
            await pilot.press(*scene.leave)
            await pilot.pause(0.5)
    app.context.archive.close()
    app.context.session.close()


async def main(names: list[str]) -> None:
    """The pictures named, or all of them."""
    with tempfile.TemporaryDirectory() as home:
        for size, scenes in SESSIONS.items():
            if wanted := [scene for scene in scenes if not names or scene.name in names]:
                await session(size, wanted, Path(home))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
