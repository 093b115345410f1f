"""Switches the screen to a new chat or a stored one."""

from __future__ import annotations

from contextlib import suppress

from specchat.engine.protocol.text import visible
from specchat.errors import StoreError
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.control.unsent_message import as_typed
from specchat.tui.ports import AppPorts
from specchat.tui.screens.chats import ChatsScreen
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.state.chat import Chat
from specchat.tui.text.cells import cut
from specchat.tui.view_ports import ViewPorts


class CurrentChat:
    """Begins or opens chats; a running reply is cancelled, and a message that waits goes back into the prompt."""

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        session: EngineSession,
        context_limit: ContextLimit,
        archive: ChatArchive,
        ports: AppPorts,
    ) -> None:
        self._chat, self._views, self._session, self._ports = chat, views, session, ports
        self._context_limit, self._archive = context_limit, archive
        self._offers_pair = False  # a chat was opened, and its pair not compared with the one loaded
        self._remark = ""  # what became of the message that waited in the chat before

    async def new(self, said: str = "") -> None:
        """Begin a new chat, and say this."""
        self._leave()
        await self._views.transcript.clear()
        await self._views.start_pages.show_welcome()
        self._show(said)

    def choose(self, words: str = "") -> None:
        """Let the user choose a stored chat that contains these words, and go on with it.

        Where the chat on the screen is deleted there, a new one takes its place.
        """
        if self._session.player is not None or not self._archive.has_file:
            why = self._ports.recording_reason if self._session.player else "chats are not kept here"
            self._ports.notify(why, "warn")
            return

        async def chosen(id: str | None) -> None:
            if id and id != self._chat.id:
                await self.open(id)
            elif self._archive.current_is_deleted:
                await self._leave_deleted()
            else:
                self._ports.tick()  # a queued message is not sent to a chat that is deleted, but restored it may be

        self._ports.push_screen(ChatsScreen(self._archive, self._ports.key_of, words, self._chat.id), chosen)

    async def _leave_deleted(self) -> None:
        """Begin a new chat in place of the deleted one, and say how to restore that."""
        keys = self._ports.key_of
        undo = keys("chats.undo").split(", ")[0]
        restores = f" · {keys('chats') or '/chats'} Tab {undo} brings it back" if undo else ""
        await self.new(f"deleted {cut(visible(self._chat.title), 40)!r}{restores}")

    async def open(self, id: str) -> None:
        """Go on with a stored chat; why it cannot be opened is shown as a remark."""
        await self._ports.attempt(self._open(id))

    async def _open(self, id: str) -> None:
        draft = await self._archive.open(id, self._leave)
        await self.show()
        if draft and not self._views.prompt.text:
            self._views.prompt.write(draft)
            self._archive.keep_draft("")

    async def show(self) -> None:
        """Show the chat from its beginning, or the welcome page where nothing has been said."""
        transcript = self._views.transcript
        await transcript.restore(self._chat.turns)
        if not self._chat.turns:
            await self._views.start_pages.show_welcome()
        if left := self._chat.left_out:
            await transcript.add_note(f"the {left} oldest messages are not sent on: there was no room for them")
        self._show()
        self._offers_pair = True
        await self.offer_pair()
        self._ports.tick()  # its tokens may have to be counted

    async def offer_pair(self) -> None:
        """Once a pair is loaded, say if the chat that was opened was written with another one."""
        chat = self._chat
        if not self._offers_pair or not chat.engine.pair:
            return
        self._offers_pair = False
        if chat.written_with not in ("", chat.engine.pair):
            key = self._ports.key_of("pair")
            other = visible(chat.written_with)
            loads = f"{f'{key} Enter or ' if key else ''}/pair {other} loads it"
            note = f"this chat was written with {other}; {chat.engine.pair} is loaded; {loads}"
            await self._views.transcript.add_note(note)

    async def offer_draft(self) -> None:
        """The app begins with a new chat: put what was not sent in the last one into the prompt."""
        with suppress(StoreError):  # it stays where it is kept, for the next start
            draft = await self._archive.ask(lambda chats: chats.draft(None))
            if draft and not self._views.prompt.text:
                self._views.prompt.write(draft)
                self._archive.keep_draft("")

    def keep_draft(self) -> None:
        """The app ends: keep the message that waits and the text in the prompt until the chat is opened again."""
        waiting = self._context_limit.take_waiting()
        typed = "" if self._chat.editing is not None else self._views.prompt.full_text.strip("\n")
        text = "\n\n".join(filter(None, (as_typed(waiting or ""), typed)))
        if text or self._archive.stored():
            self._archive.keep_draft(text)

    def _leave(self) -> None:
        self._remark = self._context_limit.leave_chat()
        self._session.reset_chat()

    def _show(self, said: str = "") -> None:
        self._ports.notify(" · ".join(filter(None, (said, self._remark))))
        self._remark = ""
        self._ports.redraw()
        self._views.prompt.focus()
