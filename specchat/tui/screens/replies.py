"""Asks for replies and shows them: a new message, another answer, another wording, another branch of the chat."""

from __future__ import annotations

from typing import Any

from specchat.engine.protocol.commands import Generate
from specchat.errors import UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.state.turn import Turn
from specchat.tui.tree.alternatives import Alternative, Fork


class Replies:
    """The branches of the chat on the screen, and what grows at their ends."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._context, self._app = view, view.chat, view.context, view.context.app
        self._session = view.context.session

    async def ask(self, text: str) -> bool:
        """Send a message now, or queue it while a reply is written; False or UsageError if neither is possible."""
        if self._chat.editing is not None:
            await self.ask_in_place_of(self._chat.editing, text)
        elif self._chat.can_generate:
            await self._begin(self._chat.ask(text), 2)
        elif self._chat.queued is None:
            self._chat.queued = text
            self._app.say("")
            self._app.redraw()
        else:
            self._app.say("one message is waiting already; it is sent first", "warn")
            return False
        return True

    async def ask_apart(self, text: str, settings: dict[str, Any]) -> None:
        """Send a message now; the settings hold for its reply alone. Raises UsageError if nothing can be asked now."""
        self._session.require_free()
        await self._begin(self._chat.ask(text, settings), 2)

    async def ask_again(self, turn: Turn | None = None) -> None:
        """Answer a question once more, the last one or that of this turn; its other answers stay beside the new one.

        Raises UsageError if nothing can be asked now.
        """
        self._session.require_free()
        if not self._chat.cut_after_question(turn):
            self._app.say("there is no question to answer again")
            return
        await self._view.transcript.change(self._chat.turns)
        await self._begin(self._chat.generate(), 1)

    async def go_on(self) -> None:
        """Go on with the last reply where it was cut; raises UsageError if it is complete or nothing can be asked."""
        self._session.require_free()
        command = self._chat.go_on()
        await self._view.transcript.change(self._chat.turns[:-1])  # it is shown anew as it grows
        await self._begin(command, 1)

    async def branch_from(self, turn: Turn, fork: Fork, chosen: Alternative) -> None:
        """Write a reply beside this one, which begins as it does up to a place and goes on with another token.

        All else is drawn as it was. With the token that was drawn there, what follows is drawn anew.

        Raises:
            UsageError: nothing can be asked now.
        """
        self._session.require_free()
        assert turn.reply is not None, "only replies have such places"
        tokens, seed = fork.tokens, None if chosen.drawn else turn.reply.facts.seed
        known = None if tokens is None or chosen.token is None else [*tokens, chosen.token]
        command = self._chat.branch_from(turn, known, [*fork.texts, chosen.text], seed)
        await self._view.transcript.change(self._chat.turns[:-1])
        await self._begin(command, 1)
        place = self._chat.turns[-1].place
        self._app.say(
            f"branch {place[0]} of {place[1]}{self._app.key_hint('transcript.left', 'shows the other', ' · ')}"
        )

    async def ask_in_place_of(self, turn: Turn, text: str) -> None:
        """Begin a branch with this message beside another one; raises UsageError if nothing can be sent now.

        A reply in place of another is not answered: it takes its place as the model's own words.
        """
        self._session.require_free()
        self._chat.editing = None
        if turn.reply is not None:
            self._chat.replace_reply(turn, text)
            await self._show_branch("the reply is edited; /continue goes on from here")
            return
        self._chat.branches.cut(turn)
        await self._view.transcript.change(self._chat.turns)
        await self._begin(self._chat.ask(text), 2)

    def edit(self, turn: Turn | None = None, *, reply: bool = False) -> None:
        """Put a message, or a reply, into the prompt; what is sent next begins a branch beside it."""
        if self._chat.background.replaying:
            self._app.say(self._app.recording_reason, "warn")
            return
        found = self._chat.reply_turn(turn) if reply else self._chat.question(turn)
        if found is None:
            self._app.say("there is no message yet to say differently")
            return
        self._chat.editing = found
        self._view.prompt.write(found.editable)
        self._view.prompt.focus()
        self._app.say("")

    def leave_edit(self) -> None:
        self._chat.editing = None
        self._view.prompt.clear()
        self._app.say("")

    async def switch_branch(self, turn: Turn | None, step: int) -> None:
        """Show another branch at this turn, or at the last turn that has siblings.

        Raises UsageError where there is none, or none can be shown now.
        """
        if self._chat.background.replaying:
            raise UsageError(self._app.recording_reason)
        if self._chat.running is not None:
            raise UsageError(self._app.busy_reason)
        turn = turn or self._chat.branches.last_with_siblings()
        if turn is None or turn.place[1] < 2:
            again, edit = (self._app.key_of(f"transcript.{id}") for id in ("retry", "edit"))
            self._app.say(f"nothing else was said here; {again} answers again, {edit} says it differently")
        elif (other := self._chat.switch(turn, step)) is None:
            self._app.say("this is the first branch" if step < 0 else "this is the last branch")
        else:
            await self._show_branch(f"branch {other.place[0]} of {other.place[1]}")

    async def _show_branch(self, remark: str) -> None:
        await self._view.transcript.change(self._chat.turns)
        self._context.archive.save()
        self._app.say(remark)
        self._app.redraw()
        self._context.tick()  # its tokens may have to be counted

    async def _begin(self, command: Generate, new_turns: int) -> None:
        self._context.speed.begin(command.id)
        self._context.archive.save()
        await self._context.archive.wait_until_written()
        self._session.send(command)
        transcript = self._view.transcript
        await self._view.start_pages.leave_tour()
        await self._view.start_pages.remove_welcome()
        await transcript.prune()
        for turn in self._chat.turns[-new_turns:]:
            await transcript.show(turn)
        transcript.follow()
        self._app.say("")
        self._app.redraw()
        self._app.call_after_refresh(self._context.garbage.collect_if_many)  # the engine reads the prompt
