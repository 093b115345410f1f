"""Draw the pictures of the README: `python assets/make_screenshots.py`.

Opens the real app on the real engine and the default pair (fetched where it is missing), asks a question, and takes
each picture in the middle of the reply. Nothing is drawn or changed by hand; run it again after the app has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from specchat.cli.chat import known_pairs
from specchat.cli.engines import start_engine
from specchat.tui.app import SpecchatApp

HERE = Path(__file__).parent
QUESTIONS = ("Write four lines about a fox.", "Write the same four lines, but about a cat.")
SETTINGS = {"seed": 1, "drafter": "merge", "nodes": 12, "width": 3}
PICTURES = {"screenshot-120x40": (120, 40), "screenshot-80x24": (80, 24)}
PATIENCE_S = 30.0


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Let the app run until something is so."""
    for _ in range(int(PATIENCE_S / 0.1)):
        if true():
            return
        await pilot.pause(0.1)
    raise TimeoutError("the app did not get there")


async def picture(name: str, size: tuple[int, int]) -> None:
    """One picture: a reply in its second half, with several tokens accepted in the round that is shown."""
    app = SpecchatApp(lambda wake: start_engine("", SETTINGS, wake), settings=SETTINGS, pairs=known_pairs)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.chat.ready is not None)
        for question in QUESTIONS:
            await pilot.press(*question, "enter")
            await until(pilot, lambda: app.chat.running is not None)
            await until(pilot, lambda: app.chat.running is None or telling(app))
        (HERE / f"{name}.svg").write_text(app.export_screenshot(title="specchat"))
    if app.talk.link is not None:
        app.talk.link.close()


def telling(app: SpecchatApp) -> bool:
    """Whether the tree on screen has accepted and rejected branches, some way into the chat."""
    rounds = app.chat.rounds
    shown = rounds[-1] if rounds else None
    if shown is None or shown.context_tokens < 120:
        return False
    return len(shown.verdict.path) >= 2 and "rejected" in shown.verdict.reasons


async def main() -> None:
    """All pictures."""
    for name, size in PICTURES.items():
        await picture(name, size)


if __name__ == "__main__":
    asyncio.run(main())
