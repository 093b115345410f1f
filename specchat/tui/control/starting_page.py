"""The empty page: lets a recorded tree grow on it, and asks the question that is chosen there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specchat.engine.client.replay import Recording
from specchat.engine.protocol.events import RoundDone
from specchat.errors import RecordingError
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.tree.growing_tree import GrowingTree
from specchat.tui.view_ports import ViewPorts


class StartingPage:
    """What happens on the empty page.

    Args:
        recording: the file whose first reply is shown; None shows none.
    """

    def __init__(
        self,
        views: ViewPorts,
        session: EngineSession,
        context_limit: ContextLimit,
        ports: AppPorts,
        recording: Path | None,
    ) -> None:
        self._views, self._session, self._context_limit, self._ports = views, session, context_limit, ports
        self._recording = recording

    @property
    def asks(self) -> bool:
        """Whether a question can be chosen now."""
        return self._views.start_pages.welcome_shown and self._session.player is None

    def show_tree(self) -> None:
        """Read the recording and let its trees grow, or show one of them where the app does not move."""
        if self._recording is None:
            return
        with suppress(RecordingError):  # the page does without
            recording = Recording.read(self._recording)
            rounds = [event for event in recording.replies()[0] if isinstance(event, RoundDone)]
            tree = GrowingTree(rounds, recording.ready().target)
            if not self._ports.animated():
                tree.show_branching()
            self._views.start_pages.play(tree)

    async def ask(self, question: str) -> None:
        """Send a question as if it had been typed; the text in the prompt stays there."""
        await self._context_limit.ask(question, lambda: self._views.prompt.sent.add(question))
