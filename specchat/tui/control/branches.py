"""Branches of a chat: which one is shown, and which message is being edited to begin another."""

from __future__ import annotations

from specchat.tui.ports import AppPorts
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.state.chat import Chat
from specchat.tui.state.turn import Turn
from specchat.tui.view_ports import ViewPorts


class Branches:
    """Switches between what was said at one place of a chat, and edits it."""

    def __init__(self, chat: Chat, views: ViewPorts, archive: ChatArchive, ports: AppPorts) -> None:
        self._chat, self._views, self._archive, self._ports = chat, views, archive, ports

    def edit(self, turn: Turn | None = None, *, reply: bool = False) -> None:
        """Put a message, or a reply, into the prompt; what is sent next begins a branch beside it."""
        if self._chat.background.replaying:
            self._ports.notify(self._ports.recording_reason, "warn")
            return
        found = self._chat.reply_turn(turn) if reply else self._chat.question(turn)
        if found is None:
            self._ports.notify("there is no message yet to say differently")
            return
        self._chat.editing = found
        self._views.prompt.write(found.editable)
        self._views.prompt.focus()
        self._ports.notify("")

    def leave_edit(self) -> None:
        """Stop editing: the next message goes to the end of the chat."""
        self._chat.editing = None
        self._views.prompt.clear()
        self._ports.notify("")

    async def switch(self, turn: Turn | None, step: int) -> None:
        """Show another branch at this turn, or at the last turn that has siblings."""
        if self._chat.background.replaying:
            self._ports.notify(self._ports.recording_reason, "warn")
        elif self._chat.running is not None:
            self._ports.notify(self._ports.busy_reason, "warn")
        elif (turn := turn or self._chat.branches.last_with_siblings()) is None or turn.place[1] < 2:
            again, edit = (self._ports.key_of(f"transcript.{id}") for id in ("retry", "edit"))
            self._ports.notify(f"nothing else was said here; {again} answers again, {edit} says it differently")
        elif (other := self._chat.switch(turn, step)) is None:
            self._ports.notify("this is the first branch" if step < 0 else "this is the last branch")
        else:
            await self.show(f"branch {other.place[0]} of {other.place[1]}")

    async def show(self, remark: str) -> None:
        """Show the branch that the chat is on, and say this of it."""
        await self._views.transcript.change(self._chat.turns)
        self._archive.save()
        self._ports.notify(remark)
        self._ports.redraw()
        self._ports.tick()  # its tokens may have to be counted
