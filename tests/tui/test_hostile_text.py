"""Text from outside never steers the terminal, whichever widget shows it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from driving import driving
from fake import SETTINGS, hello, ready, rounds_of, started, stats_of
from msgspec.structs import replace

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message
from specchat.tui.app import SpecchatApp

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fuzz.message_mutations import HOSTILE

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ufeff]")


def hostile(value: Any) -> Any:
    """The value with every text in it replaced."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, dict):
        return {name: hostile(inner) for name, inner in value.items()}
    return [hostile(inner) for inner in value] if isinstance(value, list | tuple) else value


READY = ready(pair=HOSTILE, target=HOSTILE, draft=HOSTILE, device=HOSTILE, dtype=HOSTILE, notes=[HOSTILE],
              kernels=HOSTILE, settings=hostile(SETTINGS), loss=ev.Losslessness(True, HOSTILE))  # fmt: skip


KEYS = ["f1", "f2", "f3", "f4", "f8", "ctrl+o", "ctrl+p", "ctrl+r"]
"""They open every page that shows what an engine said."""


async def test_no_string_of_an_event_steers_the_terminal(monkeypatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(SpecchatApp, "write_to_terminal", lambda self, sequence: written.append(sequence))
    monkeypatch.setenv("TERM", "xterm-256color")
    async with driving(loaded=False, settings={}) as d:
        await d.hear(hello(), ev.Loading("fetch", HOSTILE, 1, 3))
        screens = [d.screen()]
        await d.hear(READY)
        await d.say("a " + HOSTILE.replace("\n", " "))
        rounds = [
            replace(round, why=HOSTILE, tree=replace(round.tree, texts=hostile(round.tree.texts)))
            for round in rounds_of("one two three four five six")
        ]
        begun = started([Message("user", HOSTILE)])
        await d.hear(replace(begun, settings=hostile(SETTINGS), pair=HOSTILE), *rounds)
        await d.hear(ev.Finished(1, "stop", HOSTILE, stats_of(rounds), 9.0, HOSTILE))
        await d.hear(ev.Failed(HOSTILE, HOSTILE, during=HOSTILE), ev.Counted(1, 2, 3))
        for key in KEYS:
            await d.pilot.press(key)
            await d.settle()
            screens.append(d.screen())
            await d.pilot.press("escape")
            await d.settle()
        await d.hear(ev.Died(1, HOSTILE))
        screens.append(d.screen())
    for screen in screens:
        assert not STEERING.search(screen), repr(screen)
    for sequence in written:
        said = re.sub(r"\x1b\[2[23];2t|\x1b\]2;|\x1b\]9;|\x07$", "", sequence)
        assert not STEERING.search(said), repr(sequence)


async def test_a_file_name_that_is_completed_does_not_steer_the_terminal(tmp_path: Path, monkeypatch) -> None:
    for end in ("1", "2"):
        (tmp_path / f"x\x1b]52;c;aGk=\x07\x9b31m\u202e{end}").write_text("text")
    monkeypatch.chdir(tmp_path)
    async with driving() as d:
        await d.pilot.press("@", "x")
        await d.settle()
        await d.pilot.press("tab")
        await d.pilot.press("tab")
        await d.settle()
        assert "\x1b]52" in d.view.prompt.text, "the name is offered"
        assert not STEERING.search(d.screen()), repr(d.screen())
