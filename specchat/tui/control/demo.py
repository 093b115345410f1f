"""The demo: plays the shipped recording in place of the chat, and gives the chat and its engine back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specchat.engine.client.client import Link
from specchat.engine.client.replay import Player, Recording
from specchat.errors import UsageError
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.state.chat import Chat, set_aside, take_back
from specchat.tui.view_ports import ViewPorts


class Demo:
    """Shows the recording, and ends it.

    Args:
        wake: asks for another tick.
        recording: the shipped one; None where there is none.
    """

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        session: EngineSession,
        ports: AppPorts,
        wake: Callable[[], None],
        recording: Path | None,
    ) -> None:
        self._chat, self._views, self._session, self._ports = chat, views, session, ports
        self._wake, self._recording = wake, recording
        self._aside: tuple[Link | None, dict[str, Any]] | None = None  # engine and chat, while it is played

    @property
    def shipped(self) -> bool:
        """Whether there is a recording to play."""
        return self._recording is not None and self._recording.exists()

    async def watch(self) -> None:
        """Play the recording instead of talking to the engine; raises UsageError while other programs use that."""
        if self._recording is None or not self.shipped:
            self._ports.notify("no demo is shipped with this installation", "warn")
            return
        if self._chat.background.serving:
            raise UsageError("other programs use the engine; /serve off ends that, and then the demo can be played")
        recording = Recording.read(self._recording)
        if self._aside is None:
            self._aside = (self._session.detach(), set_aside(self._chat))
        await self._ports.new_chat()
        await self._session.connect_to(lambda wake: Player(recording, wake))

    async def leave(self) -> None:
        """Return to the chat and the engine; end the app if it was started to play a recording."""
        if self._aside is None:
            self._ports.exit()
            return
        player = self._end()
        self._session.show_replay()
        self._views.status.repaint()
        await self._ports.show_chat()
        self._wake()  # for what the engine said meanwhile
        if player is not None:
            await asyncio.to_thread(player.close)

    def close(self) -> None:
        """The app ends: take the chat and the engine back if the demo is played, and show nothing of it."""
        if (player := self._end()) is not None:
            player.close()

    def _end(self) -> Link | None:
        """Take the chat and the engine back; the recording's link, which the caller closes."""
        if self._aside is None:
            return None
        (engine, chat), self._aside = self._aside, None
        take_back(self._chat, chat)
        return self._session.attach(engine)
