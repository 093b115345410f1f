"""Everything that commands and keys can do, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specchat.tui.control.branches import Branches
from specchat.tui.control.clips import Clips
from specchat.tui.control.current_chat import CurrentChat
from specchat.tui.control.demo import Demo
from specchat.tui.control.engine_server import EngineServer
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.control.learning import LearningControl
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.control.races import Races
from specchat.tui.control.show_mode import ShowMode
from specchat.tui.control.side_panel import SidePanel
from specchat.tui.control.tour import Tour
from specchat.tui.control.trainings import Trainings
from specchat.tui.ports import AppPorts
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.pair_library import PairLibrary
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.state.chat import Chat
from specchat.tui.view_ports import ViewPorts


@dataclass(frozen=True)
class Actions:
    """The controllers by name, and what needs no controller of its own."""

    chat: Chat
    views: ViewPorts
    ports: AppPorts
    session: EngineSession
    demo: Demo
    branches: Branches
    current_chat: CurrentChat
    archive: ChatArchive
    pairs: PairLibrary
    settings_files: SettingsFiles
    speed: PlaybackSpeed
    races: Races
    tour: Tour
    side_panel: SidePanel
    show: ShowMode
    clips: Clips
    server: EngineServer
    learning: LearningControl
    trainings: Trainings
    keys: Mapping[str, str]  # the user's own, by binding

    def choose_pair(self) -> None:
        """Let the user choose a pair, and load it."""
        self.chat.background.fetched = ""
        held = self.chat.engine.ready.memory_bytes if self.chat.engine.ready else 0

        async def chosen(name: str | None) -> None:
            if name:
                await self.ports.attempt(self.pairs.choose(name))

        self.ports.push_screen(PairsScreen(self.pairs, self.chat.engine.pair, held, self.chat.written_with), chosen)

    def copy_reply(self) -> None:
        """Copy the last reply."""
        if (text := self.views.transcript.reply_text()) is not None:
            self.ports.copy(text, "reply")

    def copy(self, text: str, what: str) -> None:
        """Copy a text to the clipboard; an empty one is refused with a remark."""
        if text:
            self.ports.copy(text, what)
        else:
            self.ports.notify(f"there is no {what} to copy")

    def toggle_tokens(self) -> None:
        """Show a reply as Markdown or as tokens."""
        self.views.transcript.toggle_tokens()
