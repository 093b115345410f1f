"""Switches the screen to a new chat, a stored one, or the demo: a recording in place of the chat and its engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from specchat.engine.client.client import Link
from specchat.engine.client.replay import Player, Recording
from specchat.engine.protocol.text import visible
from specchat.errors import StoreError, UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.chats import ChatsScreen
from specchat.tui.screens.context_limit import ContextLimit, as_typed
from specchat.tui.state.chat import set_aside, take_back
from specchat.tui.text.cells import cut


class CurrentChat:
    """Begins or opens chats; a running reply is cancelled, and a message that waits goes back into the prompt."""

    def __init__(self, view: ChatView, context_limit: ContextLimit) -> None:
        self._view, self._chat, self._context, self._app = view, view.chat, view.context, view.context.app
        self._session, self._archive = view.context.session, view.context.archive
        self._context_limit = context_limit
        self._offers_pair = False  # a chat was opened, and its pair not compared with the one loaded
        self._remark = ""  # what became of the message that waited in the chat before
        self._aside: tuple[Link | None, dict[str, Any]] | None = None  # engine and chat, while the demo is played

    async def begin(self, said: str = "") -> None:
        waiting = self._context_limit.leave_chat()
        await self._view.begin_chat(" · ".join(filter(None, (said, waiting))))

    def choose(self, words: str = "") -> None:
        """Let the user choose a stored chat that contains these words, and go on with it.

        Where the chat on the screen is deleted there, a new one takes its place.
        """
        if self._session.player is not None or self._archive.path is None:
            why = self._app.recording_reason if self._session.player else "chats are not kept here"
            self._app.say(why, "warn")
            return

        async def chosen(id: str | None) -> None:
            if id and id != self._chat.id:
                await self.open(id)
            elif self._archive.current_is_deleted:
                keys = self._app.key_of
                undo = keys("chats.undo").split(", ")[0]
                restores = f" · {keys('chats') or '/chats'} Tab {undo} brings it back" if undo else ""
                await self.begin(f"deleted {cut(visible(self._chat.title), 40)!r}{restores}")
            else:
                self._context.tick()  # a queued message is not sent to a chat that is deleted, but restored it may be

        self._app.push_screen(ChatsScreen(self._archive, words, self._chat.id), chosen)

    async def open(self, id: str) -> None:
        """Go on with a stored chat; why it cannot be opened is shown as a remark."""
        await self._app.attempt(self._open(id))

    async def _open(self, id: str) -> None:
        draft = await self._archive.open(id, self._leave)
        await self.show()
        self._put_draft(draft)

    def _put_draft(self, draft: str) -> None:
        if draft and not self._view.prompt.text:
            self._view.prompt.write(draft)
            self._archive.keep_draft("")

    async def show(self) -> None:
        transcript = self._view.transcript
        await transcript.restore(self._chat.turns)
        if not self._chat.turns:
            await self._view.start_pages.show_welcome()
        if left := self._chat.left_out:
            await self._app.note(f"the {left} oldest messages are not sent on: there was no room for them")
        self._view.chat_shown(self._remark)
        self._remark = ""
        self._offers_pair = True
        await self.offer_pair()
        self._context.tick()  # its tokens may have to be counted

    async def offer_pair(self) -> None:
        """Once a pair is loaded, say if the chat that was opened was written with another one."""
        chat = self._chat
        if not self._offers_pair or not chat.engine.pair:
            return
        self._offers_pair = False
        if chat.written_with not in ("", chat.engine.pair):
            key = self._app.key_of("pair")
            other = visible(chat.written_with)
            loads = f"{f'{key} Enter or ' if key else ''}/pair {other} loads it"
            await self._app.note(f"this chat was written with {other}; {chat.engine.pair} is loaded; {loads}")

    async def offer_draft(self) -> None:
        """The app begins with a new chat: put what was not sent in the last one into the prompt."""
        with suppress(StoreError):  # it stays where it is kept, for the next start
            self._put_draft(await self._archive.ask(lambda chats: chats.draft(None)))

    async def watch_demo(self) -> None:
        """Play the recording instead of talking to the engine; raises UsageError while other programs use that."""
        demo = self._context.setup.demo
        if demo is None or not self._context.setup.has_demo:
            self._app.say("no demo is shipped with this installation", "warn")
            return
        if self._chat.background.serving:
            raise UsageError("other programs use the engine; /serve off ends that, and then the demo can be played")
        recording = Recording.read(demo)
        if self._aside is None:
            self._aside = (self._session.detach(), set_aside(self._chat))
        await self.begin()
        await self._session.connect(lambda wake: Player(recording, wake))

    async def leave_replay(self) -> None:
        """Return to the chat and the engine; end the app if it was started to play a recording."""
        if self._aside is None:
            self._app.exit()
            return
        player = self._end_demo()
        self._app.link_changed()
        self._view.status.repaint()
        await self.show()
        self._context.pump.wake()  # for what the engine said meanwhile
        if player is not None:
            await asyncio.to_thread(player.close)

    def close(self) -> None:
        """The app ends: take the chat back if the demo is played, and write what is not written, the prompt too."""
        if (player := self._end_demo()) is not None:
            player.close()
        try:
            self._keep_draft()
        finally:
            self._archive.close()

    def _keep_draft(self) -> None:
        """Keep the message that waits and the text in the prompt until the chat is opened again."""
        waiting = self._context_limit.take_waiting()
        typed = "" if self._chat.editing is not None else self._view.prompt.full_text.strip("\n")
        text = "\n\n".join(filter(None, (as_typed(waiting or ""), typed)))
        if text or self._archive.stored():
            self._archive.keep_draft(text)

    def _end_demo(self) -> Link | None:
        """Take the chat and the engine back; the recording's link, which the caller closes."""
        if self._aside is None:
            return None
        (engine, chat), self._aside = self._aside, None
        take_back(self._chat, chat)
        return self._session.attach(engine)

    def _leave(self) -> None:
        self._remark = self._context_limit.leave_chat()
        self._view.leave_chat()
