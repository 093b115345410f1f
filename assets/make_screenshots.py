"""Draw the pictures of the README from a recording: `python assets/make_screenshots.py [RECORDING]`.

Writes SVG files beside this script. A recording is played in steps, so the pictures are the same every time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from specchat.engine.events import RoundDone
from specchat.engine.replay import Player, Recording
from specchat.tui.app import SpecchatApp

HERE = Path(__file__).parent
PICTURES = {"chat": (120, 40), "chat-80x24": (80, 24), "chat-light": (120, 40)}


async def picture(recording: Recording, name: str, size: tuple[int, int]) -> None:
    """One picture: the recording held in the middle of its first reply, controls hidden."""
    players: list[Player] = []

    def play(wake: object) -> Player:
        players.append(Player(recording, wake))  # type: ignore[arg-type]
        players[0].pause()
        return players[0]

    theme = "specchat-light" if name.endswith("light") else "specchat"
    app = SpecchatApp(play, settings={}, theme=theme)
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.2)
        rounds = sum(isinstance(event, RoundDone) for event in recording.replies()[0])
        for _ in range(max(1, rounds * 2 // 3)):
            players[0].step()
        await pilot.pause(1.0)
        app.replay_bar.display, app.prompt.display = False, True
        app.screen.remove_class("-replay")
        await pilot.pause(0.2)
        (HERE / f"{name}.svg").write_text(app.export_screenshot(title="specchat"))
    players[0].close()


async def main() -> None:
    """All pictures."""
    recording = Recording.read(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "demo.jsonl")
    for name, size in PICTURES.items():
        await picture(recording, name, size)


if __name__ == "__main__":
    asyncio.run(main())
