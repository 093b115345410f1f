"""The context limit: what is asked is counted where it may not fit, and what can be done then is offered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from specchat.engine.protocol.chat_message import Message
from specchat.engine.protocol.commands import Count
from specchat.engine.protocol.events import Counted, Died, Failed
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.session import Chat
from specchat.tui.state.turn import Turn
from specchat.tui.text.numbers import count
from specchat.tui.widgets.chat_views import ChatViews

CHARACTERS_PER_TOKEN = 2.0
"""Fewer than in most texts: what surely fits is not counted first."""

KEPT_SHARE = 0.6
"""How full the context is after the oldest turns were left out."""

SUMMARY_SHARE = 0.75
SUMMARY_WISH = (
    "Summarise our conversation so far in at most 200 words, so that it can be continued without its text. "
    "Keep names, facts, decisions and open questions."
)
SUMMARY_HEAD = "Summary of the conversation so far:"
_FIRST_ID = 1_000_000_000  # far from the replies' own

Then = Callable[[Counted], Awaitable[None]]


def newest(turns: Sequence[Turn], tokens: int, allowed: float) -> int:
    """How many of the oldest turns to leave out, so that the rest takes about `allowed` of all these `tokens`.

    At least one question leaves, together with its answer; the last one stays.
    """
    sizes = [len(turn.message().content) + 1 for turn in turns]
    per_token = sum(sizes) / max(1, tokens)
    later = [at for at, turn in enumerate(turns) if turn.role == "user"][1:]
    fits = [at for at in later if sum(sizes[at:]) / per_token <= allowed]
    return fits[0] if fits else (later[-1] if later else 0)


class ContextLimit:
    """Stands between what the user asks and the talk with the engine."""

    def __init__(self, chat: Chat, session: EngineSession, views: ChatViews, ports: AppPorts) -> None:
        self._chat, self._session, self._views, self._ports = chat, session, views, ports
        self._asked: dict[int, Then] = {}  # counts that were not answered yet
        self._ids = _FIRST_ID
        self._pending: str | None = None  # what the user wants to say, and what did not fit
        self._summarising: str | None = None  # what is to be said after the summary
        self._tokens = 0  # what everything together would take
        self.problem = ""  # one line, while the user is to choose what leaves

    @property
    def waiting(self) -> bool:
        """A message is being counted, or waits for the user to choose."""
        return self._pending is not None

    async def ask(self, text: str) -> bool:
        """Say it if it fits; else count, and offer what can be done. False if it cannot be taken now."""
        chat = self._chat
        if self.waiting:
            self._ports.notify("the message before this one waits for room in the context", "warn")
            return False
        limit = chat.engine.ready.context_tokens if chat.engine.ready else 0
        surely = chat.context_tokens + len(text) / CHARACTERS_PER_TOKEN + 64
        if not chat.can_generate or not limit or surely < limit or chat.editing is not None:
            return await self._session.ask(text)
        self._pending = text
        self._ports.notify(f"counting tokens … {self._ports.key_hint('stop', 'takes it back')}")
        self.count([*chat.messages(), Message("user", text)], self._counted)
        return True

    def count(self, messages: list[Message], then: Then) -> None:
        """Ask the engine how many tokens these messages take."""
        self._ids += 1
        if self._session.send(Count(self._ids, messages)):
            self._asked[self._ids] = then

    async def apply(self, event: Counted | Failed | Died) -> None:
        """An answer to a count, or what went wrong with it or with a prompt."""
        if isinstance(event, Died):
            text = self._pending
            self.forget()
            self._chat.queued = self._chat.queued or text  # sent when there is an engine again
        elif isinstance(event, Counted):
            if then := self._asked.pop(event.id, None):
                await then(event)
        elif event.during == "count" and self._asked.pop(event.id or 0, None) == self._counted:
            text, self._pending = self._pending, None
            if text is not None:
                await self._session.ask(text)
        elif event.during == "generate" and event.kind == "PromptTooLong":
            self._pending = None
            self.count(self._chat.messages(), self._counted)

    async def ended(self) -> None:
        """No reply is being written any more: a summary may be complete."""
        if self._summarising is None:
            return
        text, self._summarising = self._summarising, None
        reply = self._chat.last_reply()
        summary = thoughts.spoken(reply.text).strip() if reply is not None and reply.stop in ("end", "length") else ""
        if not summary:
            self._back(text, "there is no summary, so the chat stays as it is")
            return
        await self._go_on_from(summary, text)

    async def answered(self, choice: str) -> None:
        """The user has chosen what to do about a full context, or does not want to wait for a count."""
        text, self._pending, self.problem = self._pending, None, ""
        self._asked.clear()
        match choice:
            case "leave_out":
                self._leave_out(KEPT_SHARE, text or "")
                left = self._chat.left_out
                await self._views.transcript.note(f"from here on the {left} oldest messages are not sent any more")
                await self._say_again(text)
            case "summary":
                self._leave_out(SUMMARY_SHARE, "")
                self._summarising = text or self._last_question()
                await self._session.ask(SUMMARY_WISH)
            case _:
                self._back(text)
        self._views.prompt.focus()
        self._ports.redraw()

    def forget(self) -> None:
        """Another chat is being read: what was counted for this one is of no use."""
        self._asked.clear()
        self._pending, self._summarising, self.problem = None, None, ""

    async def _counted(self, event: Counted) -> None:
        if event.tokens < event.context_tokens:
            self._ports.notify("")
            text, self._pending = self._pending, None
            if text is not None:
                await self._session.ask(text)
            return
        self._tokens = event.tokens
        if self._pending is not None and not self._chat.messages():
            await self._alone(event)
            return
        last = self._pending if self._pending is not None else self._last_question()
        self.count([Message("user", last)], self._alone)

    async def _alone(self, event: Counted) -> None:
        """What the last message takes by itself decides whether leaving out others can help."""
        if event.tokens >= event.context_tokens:
            text, self._pending = self._pending, None
            holds = count(event.context_tokens)
            self._back(text, f"this message alone takes {count(event.tokens)} tokens, the context holds {holds}")
        else:
            self._ports.notify("")
            if not self._views.prompt.text:  # Enter must not choose what the user did not read
                self._ports.after_refresh(self._views.alert.take_focus)
            self.problem = (
                f"the chat would take {count(self._tokens)} tokens, its context holds {count(event.context_tokens)}: "
                "send it without its oldest turns, or begin a new chat from a summary?"
            )

    def _leave_out(self, share: float, pending: str) -> None:
        """Send only the newest messages from now on, so that this one fits behind them."""
        chat = self._chat
        turns = chat.sent()
        limit = chat.engine.ready.context_tokens if chat.engine.ready else 0
        left = newest(turns, self._tokens, share * limit - len(pending) / CHARACTERS_PER_TOKEN)
        if left:
            chat.sent_from = turns[left].id

    async def _say_again(self, text: str | None) -> None:
        if text is not None:
            await self.ask(text)
        else:
            await self._ports.attempt(self._session.ask_again())

    async def _go_on_from(self, summary: str, text: str) -> None:
        """A new chat whose system message is the summary; the old one stays as it is."""
        system, title = self._chat.system, self._chat.title
        await self._ports.new_chat()
        self._chat.system = "\n\n".join(part for part in (system, f"{SUMMARY_HEAD}\n{summary}") if part)
        await self._views.transcript.note(f"goes on from a summary of “{title}”, which is its system message now")
        await self._session.ask(text)

    def _last_question(self) -> str:
        question = self._chat.question()
        return question.content if question else ""

    def _back(self, text: str | None, why: str = "") -> None:
        """What was to be said is in the prompt again, unless something else is."""
        if text is not None and not self._views.prompt.text:
            self._views.prompt.write(attachments.split(text)[0])
        self._ports.notify(why, "warn")
