"""Writes the last rounds of the chat to a file, as a moving picture that says how it was made."""

from __future__ import annotations

import asyncio
from pathlib import Path

from specchat.engine.client.race_result import settings_line
from specchat.engine.protocol.environment import machine
from specchat.engine.protocol.events import Ready
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.state.chat import Chat
from specchat.tui.state.turn import changes_text
from specchat.tui.system.desktop import free_name, stem_of, write_new_file
from specchat.tui.tree.clip_files import FORMATS
from specchat.tui.tree.clip_frames import frames_of


class Clips:
    """Writes clips of this chat."""

    def __init__(self, chat: Chat, session: EngineSession) -> None:
        self._chat, self._session = chat, session

    async def write(self, format: str, file: Path | None) -> Path:
        """Write the clip, beside the app's own work; returns its file.

        Raises:
            UsageError: there is nothing to show, or the file is there already.
        """
        if not self._chat.rounds:
            raise UsageError("there is no round yet for a clip to show")
        file = file or free_name(f"clip-{stem_of(self._chat.title, self._chat.id)}", format, Path.cwd())
        frames = frames_of(list(self._chat.rounds), self._about())
        await asyncio.to_thread(write_new_file, await asyncio.to_thread(FORMATS[format], frames), file)
        return file

    def _about(self) -> list[str]:
        """Model, hardware, settings and figures of the reply; of a pair that is not loaded only its name is known."""
        ready, reply = self._chat.engine.ready, self._chat.last_reply()
        if reply is None:
            return []
        same = ready if ready is not None and reply.facts.pair in ("", ready.pair) else None
        settings = reply.facts.settings or self._chat.engine.settings
        return [
            visible(
                f"{self._models(same)} · {same.device} · {self._machine()}" if same else f"pair {reply.facts.pair}"
            ),
            visible(settings_line(settings, reply.facts.seed or 0, same.dtype if same else ""))
            + visible(changes_text(reply.facts)),
            visible(f"{reply.figures.line()} · shown slowed down"),
        ]

    @staticmethod
    def _models(ready: Ready) -> str:
        return ready.target + (f", draft model {ready.draft}" if ready.draft else "")

    def _machine(self) -> str:
        """The machine that the engine runs on."""
        if self._session.player is not None:
            return self._session.player.recording.header.machine
        return machine() if self._session.engine_pid else "another machine"
