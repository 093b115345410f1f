"""How much of the context the chat takes, asked of the engine where the figures of its last reply do not say so."""

from __future__ import annotations

from specchat.engine.protocol.events import Counted
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.ports import Redraw
from specchat.tui.state.chat import Chat
from specchat.tui.state.turn import Reply


class ContextUse:
    """Counts the chat after a reply that the engine did not write, such as an edited one."""

    def __init__(self, chat: Chat, context_limit: ContextLimit, redraw: Redraw) -> None:
        self._chat, self._context_limit, self._redraw = chat, context_limit, redraw
        self._asked: Reply | None = None  # the reply after which it was counted last

    def update(self) -> None:
        """Ask once for each such reply, as soon as the engine is free."""
        chat, reply = self._chat, self._chat.last_reply()
        if not chat.can_generate:
            self._asked = None  # an engine that is gone does not answer
        elif (
            reply is not None
            and reply is not self._asked
            and chat.context_tokens is None
            and not self._context_limit.busy
        ):
            self._asked = reply

            async def known(event: Counted) -> None:
                reply.counted_context_tokens = event.tokens
                self._redraw()

            self._context_limit.count(chat.messages(chat.turns_before_next()), known)
