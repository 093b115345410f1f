"""Commands about what is shown and how fast (tree, figures, theme, speed, races), and about the app and its engine."""

from __future__ import annotations

from specchat.engine.client.client import Engine
from specchat.errors import UsageError, nearest
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.screens.help_and_log import LogScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.tree import MODES


async def tree(screen: ChatScreen, mode: str) -> None:
    if not mode:
        screen.side_panel.toggle_tree()
    elif mode in MODES:
        screen.side_panel.set_tree_mode(mode)
    else:
        raise UsageError(f"no tree is drawn as {mode!r}{nearest(mode, MODES)}")


async def theme(screen: ChatScreen, name: str) -> None:
    app = screen.context.app
    if not name:
        app.search_themes()
    elif name in app.available_themes:
        app.theme = name
    else:
        raise UsageError(f"no theme is called {name!r}{nearest(name, list(app.available_themes))}")


async def step(screen: ChatScreen, rounds: str) -> None:
    if rounds and not (rounds.isdecimal() and len(rounds) < 5 and 0 < int(rounds) <= 1000):
        raise UsageError(f"/step takes a number of rounds, 1 to 1000, not {rounds!r}")
    screen.step(int(rounds or 1))


async def speed(screen: ChatScreen, speed: str) -> None:
    if speed:
        screen.context.speed.set_speed(speed)
    else:
        screen.context.app.say(screen.context.speed.describe())


async def race(screen: ChatScreen, prompt: str) -> None:
    screen.context.app.push_screen(RaceScreen(screen.context, prompt))


async def benchmark(screen: ChatScreen, amount: str) -> None:
    screen.context.app.push_screen(BenchScreen(screen.context, amount))


async def tour(screen: ChatScreen, _: str) -> None:
    await screen.start_pages.show_tour()
    screen.prompt.focus()


async def show_log(screen: ChatScreen, _: str) -> None:
    app, link, engine = screen.context.app, screen.context.session.link, screen.chat.engine
    if isinstance(link, Engine):
        app.push_screen(LogScreen(link.log, engine.problem if engine.phase == "dead" else ""))
    else:
        app.say("there is no engine here, and so no log")
