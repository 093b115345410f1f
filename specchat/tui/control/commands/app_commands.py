"""Commands about the app and its engine."""

from __future__ import annotations

from specchat.engine.client.client import Engine
from specchat.tui.control.actions import Actions
from specchat.tui.screens.help_and_log import LogScreen


async def restart(actions: Actions, _: str) -> None:
    await actions.session.reconnect()


async def demo(actions: Actions, _: str) -> None:
    await actions.demo.watch()


async def serve(actions: Actions, argument: str) -> None:
    await actions.views.transcript.add_note(actions.server.serve(argument))


async def learn(actions: Actions, argument: str) -> None:
    await actions.learning.run(argument)


async def train(actions: Actions, argument: str) -> None:
    await actions.trainings.train(argument)


async def tour(actions: Actions, _: str) -> None:
    await actions.tour.start()


async def show_log(actions: Actions, _: str) -> None:
    if isinstance(actions.session.link, Engine):
        engine = actions.chat.engine
        ended = engine.problem if engine.phase == "dead" else ""
        actions.ports.push_screen(LogScreen(actions.session.link.log, ended))
    else:
        actions.ports.notify("there is no engine here, and so no log")


async def exit_app(actions: Actions, _: str) -> None:
    actions.ports.exit()
