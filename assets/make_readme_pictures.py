"""Make the pictures of the README from the demo recording: `python assets/make_readme_pictures.py`.

Plays `demo.jsonl` in the real app. `screenshot-chat-120x40.svg` is the screen after the first reply, turned back to the
round that shows most; `clip.svg` is what the app's own `/clip` writes at the end, and `demo.html` what
`specchat replay --html` does. Nothing is drawn by hand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from app_picture import picture_of
from textual.pilot import Pilot

from specchat.cli.run_output import write_recording_page
from specchat.engine.client.replay import FASTEST, Player, Recording
from specchat.engine.protocol.events import Finished, RoundDone
from specchat.tui.app import SpecchatApp
from specchat.tui.commands.chat_commands import write_clip
from specchat.tui.services.context import AppSetup

HERE = Path(__file__).parent
KEPT = 3
"""The round in the screenshot kept so many guesses at least, where one did."""


async def main() -> None:
    """Play the first reply for the one picture, and the whole recording for the other."""
    recording = Recording.read(HERE / "demo.jsonl")
    end = next(at for at, event in enumerate(recording.events) if isinstance(event, Finished))
    (HERE / "demo.html").unlink(missing_ok=True)
    write_recording_page(HERE / "demo.jsonl", HERE / "demo.html")
    async with played(Recording(recording.header, recording.events[: end + 1])) as (app, pilot):
        await turn_back(app, pilot)
        (HERE / "screenshot-chat-120x40.svg").write_text(picture_of(app))
    async with played(recording) as (app, pilot):
        (HERE / "clip.svg").unlink(missing_ok=True)
        await write_clip(app.context, "svg", HERE / "clip.svg")


@asynccontextmanager
async def played(recording: Recording) -> AsyncIterator[tuple[SpecchatApp, Pilot[Any]]]:
    """The app after it has played the recording to its end."""
    app = SpecchatApp(AppSetup(lambda wake: Player(recording, wake, speed=FASTEST)), settings={})
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: ended(app, len(recording.replies())))
        yield app, pilot


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Let the app run until something is so."""
    while not true():
        await pilot.pause(0.05)


def ended(app: SpecchatApp, replies: int) -> bool:
    """Whether so many replies have been played to their end."""
    turns = [turn for turn in app.chat.turns if turn.reply is not None]
    return len(turns) >= replies and turns[replies - 1].reply.stop is not None


def worth(round: RoundDone) -> tuple[int, int, int]:
    """How much the tree of the round has to show: guesses that were kept, and nodes with several children."""
    parents = Counter(round.tree.parents)
    kept = len(round.verdict.path)
    return min(kept, KEPT), sum(count > 1 for count in parents.values()), kept


async def turn_back(app: SpecchatApp, pilot: Pilot[Any]) -> None:
    """Select the round of the reply that has most to show."""
    best = max(app.chat.rounds, key=worth)
    panel = app.chat_screen.tree_panel
    panel.focus()
    await pilot.press("pageup", "pageup")
    while panel.round is not best:
        await pilot.press("pageup")
    await pilot.pause(0.5)


if __name__ == "__main__":
    asyncio.run(main())
