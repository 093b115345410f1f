"""Lets the drafter learn from replies, says what it has learnt, and lets it forget."""

from __future__ import annotations

from specchat.engine.protocol import commands
from specchat.engine.protocol.events import Learnt
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, nearest
from specchat.tui.draw.learning_report import PRIVACY, learning_report
from specchat.tui.services.context import Context
from specchat.tui.text import numbers

_WORDS = ("on", "off", "forget")


class Learning:
    """Sends what the user wants learnt to the engine, keeps the setting, and notes the answers in the chat."""

    def __init__(self, context: Context) -> None:
        self._app, self._chat, self._session = context.app, context.chat, context.session
        self._files = context.settings_files
        self._asked: list[str] = []  # what each answer that is to come is about

    async def run(self, argument: str) -> None:
        """What follows `/learn`.

        Raises:
            UsageError: the argument is unknown, or no pair is ready.
            ConfigError: the setting cannot be kept.
        """
        if self._chat.engine.phase != "ready" or self._session.player is not None:
            raise UsageError("no pair is ready whose drafter could learn")
        match argument:
            case "":
                self._ask("report")
            case "on" | "off":
                self._session.change("learn", argument == "on")
                self._ask(argument)
                self._files.keep("learn", argument == "on")
            case "forget":
                raise UsageError("this erases what the drafter has learnt and the replies it keeps: /learn forget yes")
            case "forget yes":
                self._ask("forget", forget=True)
            case _:
                raise UsageError(f"/learn does not know {argument!r}{nearest(argument, _WORDS)}")

    async def answered(self, learnt: Learnt) -> None:
        """The engine has reported what was learnt."""
        about = self._asked.pop(0) if self._asked else "report"
        await self._app.note(visible(_note(about, learnt)))

    def failed(self) -> None:
        """No answer will come."""
        self._asked.clear()

    def _ask(self, about: str, forget: bool = False) -> None:
        if self._session.send(commands.Learning(forget)):
            self._asked.append(about)


def _note(about: str, learnt: Learnt) -> str:
    match about:
        case "on" if learnt.drafter:
            privacy = PRIVACY.format(most=numbers.size(learnt.most_bytes))
            return f"{learnt.drafter} learns while the engine is idle: {privacy}"
        case "off":
            return "nothing more is learnt or kept; what was learnt stays in use until /learn forget"
        case "forget" if learnt.drafter:
            return f"{learnt.drafter} has forgotten what it learnt: {numbers.size(learnt.freed_bytes)} are erased"
        case _:
            return learning_report(learnt)
