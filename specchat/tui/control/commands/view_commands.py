"""Commands about what is shown and how fast: tree, figures, tokens, theme, speed, races."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.errors import UsageError, nearest
from specchat.tui.control.actions import Actions
from specchat.tui.system.desktop import format_and_file
from specchat.tui.tree import MODES
from specchat.tui.tree.clip_files import FORMATS as CLIP_FORMATS


async def tree(actions: Actions, mode: str) -> None:
    if not mode:
        actions.side_panel.toggle_tree()
    elif mode in MODES:
        actions.side_panel.set_tree_mode(mode)
    else:
        raise UsageError(f"no tree is drawn as {mode!r}{nearest(mode, MODES)}")


async def show(actions: Actions, prompt: str) -> None:
    await actions.show.toggle(prompt)


async def stats(actions: Actions, _: str) -> None:
    actions.side_panel.turn_stats()


async def tokens(actions: Actions, _: str) -> None:
    actions.toggle_tokens()


async def theme(actions: Actions, name: str) -> None:
    if not name:
        actions.ports.search_themes()
    elif name in actions.ports.theme_names():
        actions.ports.set_theme(name)
    else:
        raise UsageError(f"no theme is called {name!r}{nearest(name, actions.ports.theme_names())}")


def theme_names(actions: Actions, given: list[str]) -> Sequence[str]:
    return () if given else sorted(actions.ports.theme_names())


async def clip(actions: Actions, text: str) -> None:
    file = await actions.clips.write(*format_and_file(text, CLIP_FORMATS))
    actions.ports.notify(f"written to {file.absolute()}", "good")


async def pause(actions: Actions, _: str) -> None:
    actions.speed.hold()


async def step(actions: Actions, rounds: str) -> None:
    if rounds and not (rounds.isdecimal() and len(rounds) < 5 and 0 < int(rounds) <= 1000):
        raise UsageError(f"/step takes a number of rounds, 1 to 1000, not {rounds!r}")
    actions.speed.step(int(rounds or 1))


async def speed(actions: Actions, speed: str) -> None:
    if speed:
        actions.speed.set_speed(speed)
    else:
        actions.ports.notify(actions.speed.describe())


async def race(actions: Actions, prompt: str) -> None:
    actions.races.race(prompt)


async def benchmark(actions: Actions, amount: str) -> None:
    actions.races.bench(amount)
