"""The context limit: counts the tokens of a message that may not fit, and offers what to leave out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from specchat.engine.protocol.commands import Count, Message
from specchat.engine.protocol.events import Counted, Died, Failed
from specchat.engine.protocol.text import visible
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.replies import Replies
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.message_tree import SentTurns
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text.numbers import count

MOST_BYTES_PER_TOKEN = 64
"""A message with more bytes per token of the context is refused uncounted: counting it would block the engine."""

KEPT_SHARE = 0.6
"""The share of the context that is used after the oldest turns were left out."""

SUMMARY_SHARE = 0.75
SUMMARY_REQUEST = (
    "Summarise our conversation so far in at most 200 words, so that it can be continued without its text. "
    "Keep names, facts, decisions and open questions."
)
SUMMARY_TOKENS = 1024
"""What a summary may take at least, whatever the settings say of replies: 200 words of any script, and then some."""

SUMMARY_HEAD = "Summary of the conversation so far:"
_FIRST_ID = 1_000_000_000  # far from the replies' own


def _nothing() -> None: ...


def _bytes(text: str) -> int:
    """The most tokens that a text takes: a token has a byte at least."""
    return len(text.encode("utf-8", "replace"))


OnCount = Callable[[Counted], Awaitable[None]]


def turns_to_leave_out(turns: Sequence[Turn], tokens: int, allowed: float, *, all_may_go: bool = False) -> int:
    """How many of the oldest turns to leave out, so that the others take about `allowed` of all these `tokens`.

    At least one question and its answer are left out; the last question always stays, unless all may go.
    """
    sizes = [len(turn.message().content) + 1 for turn in turns]
    per_token = sum(sizes) / max(1, tokens)
    later = [at for at, turn in enumerate(turns) if turn.role == "user"][1:] + [len(turns)] * all_may_go
    fits = [at for at in later if sum(sizes[at:]) / per_token <= allowed]
    return fits[0] if fits else (later[-1] if later else 0)


class ContextLimit:
    """Checks each message against the context limit before it is sent, and counts what the chat takes."""

    def __init__(self, view: ChatView, replies: Replies) -> None:
        self._view, self._chat, self._app, self._replies = view, view.chat, view.context.app, replies
        self._session = view.context.session
        self._counted_after: Reply | None = None  # the reply after which the whole chat was counted last
        self._asked: dict[int, OnCount] = {}  # counts without an answer yet
        self._ids = _FIRST_ID
        self._pending: str | None = None  # the message that is counted or did not fit
        self._accept: Callable[[], None] = _nothing  # called once the pending message is taken
        self._summarising = False  # the chat's queued message is sent after the summary that is being written
        self._sent_before = SentTurns()  # what was sent before turns were left out for a summary
        self._tokens = 0  # tokens of the chat with the message
        self._message_tokens = 0  # tokens of the message alone, with the system message

    @property
    def waiting(self) -> bool:
        """A message is being counted, or waits for the user to choose."""
        return self._pending is not None

    async def ask(self, text: str, accept: Callable[[], None] = _nothing) -> None:
        """Send the message if it fits; else count its tokens first.

        `accept` is called once the message is sent, queued, or waits for a choice of the user. A message that is too
        long by itself is refused without that, and so is one while another is being counted.
        """
        chat = self._chat
        if self.waiting:
            self._app.say("the message before this one waits for room in the context", "warn")
            return
        limit = chat.engine.ready.context_tokens if chat.engine.ready else 0
        size = _bytes(text)
        if limit and size > MOST_BYTES_PER_TOKEN * limit:
            self._app.say(f"{size:,} bytes do not fit into the context, which holds {count(limit)} tokens", "warn")
            return
        before = chat.context_tokens or sum(_bytes(message.content) + 64 for message in chat.messages())
        if not chat.can_generate or not limit or before + size + 64 < limit or chat.editing is not None:
            if await self._replies.ask(text):
                accept()
            return
        self._pending, self._accept = text, accept
        self._app.say(f"counting tokens … {self._app.key_hint('stop', 'takes it back')}")
        self.count([*chat.messages(chat.turns_before_next()), Turn("user", text).message()], self._on_count)

    def count(self, messages: list[Message], then: OnCount) -> None:
        self._ids += 1
        if self._session.send(Count(self._ids, messages)):
            self._asked[self._ids] = then

    def count_unknown(self) -> None:
        """Count the chat, once, after a reply that the engine did not write, such as an edited one."""
        chat, reply = self._chat, self._chat.last_reply()
        if not chat.can_generate:
            self._counted_after = None  # an engine that is gone does not answer
        elif self._asked or self._view.choice or chat.context_tokens is not None:
            return  # an answer is awaited, or none is needed
        elif reply is not None and reply is not self._counted_after:
            self._counted_after = reply

            async def known(event: Counted) -> None:
                reply.counted_context_tokens = event.tokens
                self._app.redraw()

            self.count(chat.messages(chat.turns_before_next()), known)

    async def apply(self, event: Counted | Failed | Died) -> None:
        """Take the answer to a count, or a failure of a count or of a prompt."""
        if isinstance(event, Died):
            if (text := self._pending) is not None:
                self._accept()
            self._forget()
            self._chat.queued = self._chat.queued or text  # sent once there is an engine again
        elif isinstance(event, Counted):
            if then := self._asked.pop(event.id, None):
                await then(event)
        elif event.during == "count":
            asked = self._asked.pop(event.id or 0, None)
            if asked == self._on_count:
                await self._send_counted()
            elif asked == self._on_last_message_count and self._pending is not None:
                why = f"the chat has no room for this message, and it was not counted: {visible(event.message)}"
                self._return_to_prompt(self._take_pending(), why)
        elif event.during == "generate" and event.kind == "PromptTooLong" and not self._summarising:
            self._pending = None
            text, self._chat.queued = self._chat.queued, None  # it would follow a question that has no answer
            self.count(self._chat.messages(), self._on_count)
            if text is not None:
                self._app.say(put_back(text, self._view), "warn")

    async def reply_ended(self) -> None:
        if not self._summarising:
            return
        self._summarising = False
        text, self._chat.queued = self._chat.queued, None
        reply = self._chat.last_reply()
        stop = reply.stop if reply is not None else None
        summary = thoughts.without_thoughts(reply.text).strip() if reply is not None else ""
        if summary and stop in ("end", "length"):
            await self._continue_from_summary(summary, text, cut=stop == "length")
            return
        request = self._chat.question()
        if request is not None and request.content == SUMMARY_REQUEST:
            self._chat.end_before(request)
            self._chat.sent = self._sent_before
            await self._view.transcript.change(self._chat.turns)
        why = "there is no room for a summary" if stop == "context" else "there is no summary"
        self._return_to_prompt(text, f"{why}, so the chat stays as it is")

    async def answered(self, choice: str) -> None:
        """The user chose what to do about a full context, or cancelled the count."""
        match choice:
            case "leave_out":
                text = self._pending
                self._forget()
                self._leave_out(KEPT_SHARE, pending=text is not None, all_may_go=text is not None)
                left = self._chat.left_out
                await self._app.note(f"from here on the {left} oldest messages are not sent any more")
                if text is not None:
                    await self.ask(text)
                else:
                    await self._app.attempt(self._replies.ask_again())
            case "summary":
                await self._app.attempt(self._summarise())
            case _:
                self._return_to_prompt(self._take_pending())
        self._view.prompt.focus()
        self._app.redraw()

    def leave_chat(self) -> str:
        """Another chat is shown now: put the message that waits into the prompt; what to say of it."""
        waiting = self.take_waiting()
        return "" if waiting is None else put_back(waiting, self._view)

    def take_waiting(self) -> str | None:
        """Drop all counts; the message that waits for a reply, for room or for a summary, which waits no longer."""
        waiting = self._take_pending() or self._chat.queued
        self._chat.queued = None
        return waiting

    def _take_pending(self) -> str | None:
        """Drop all counts; the message that waited for one, unless it is in the prompt still."""
        in_prompt = self._accept is not _nothing and bool(self._view.prompt.text)
        text = None if in_prompt else self._pending
        self._forget()
        return text

    def _forget(self) -> None:
        self._asked.clear()
        self._pending, self._accept, self._summarising, self._view.choice = None, _nothing, False, ""

    async def _on_count(self, event: Counted) -> None:
        if event.tokens < event.context_tokens:
            self._app.say("")
            await self._send_counted()
            return
        self._tokens = event.tokens
        if self._pending is not None and not self._chat.turns_before_next():
            await self._on_last_message_count(event)
            return
        last = self._pending if self._pending is not None else self._last_question()
        self.count([*self._chat.messages(()), Turn("user", last).message()], self._on_last_message_count)

    async def _on_last_message_count(self, event: Counted) -> None:
        """Offer the choice if the last message fits by itself; else leaving out others cannot help."""
        holds = f"context holds {count(event.context_tokens)}"
        if event.tokens >= event.context_tokens:
            alone = "this message and the system message take" if self._chat.system else "this message alone takes"
            self._return_to_prompt(self._take_pending(), f"{alone} {count(event.tokens)} tokens, the {holds}")
        else:
            self._message_tokens = event.tokens
            self._app.say("")
            self._accept()
            self._accept = _nothing
            # The focus stays in the prompt: Enter must not press a button that the user did not read.
            keys = self._app.key_hint("prompt.complete", "chooses", " ") + self._app.key_hint(
                "stop", "goes back", " · "
            )
            self._view.choice = (
                f"the chat would take {count(self._tokens)} tokens, its {holds}: "
                f"leave out its oldest turns, or go on from a summary?{keys}"
            )

    async def _send_counted(self) -> None:
        """The pending message fits, or its tokens cannot be counted."""
        text, self._pending = self._pending, None
        if text is not None and await self._replies.ask(text):
            self._accept()
        self._accept = _nothing

    def _leave_out(self, share: float, *, pending: bool, all_may_go: bool = False) -> None:
        """Send only the newest turns from now on, so that the prompt takes about this share of the context.

        `pending`: the message that did not fit is not one of the turns.
        """
        chat, message = self._chat, self._message_tokens if pending else 0
        limit = chat.engine.ready.context_tokens if chat.engine.ready else 0
        allowed, turns = share * limit - (message if all_may_go else 0), chat.turns_before_next()
        if left := turns_to_leave_out(turns, self._tokens - message, allowed, all_may_go=all_may_go):
            chat.sent.leave_out(chat.turns, left)

    async def _summarise(self) -> None:
        """Ask for a summary, for which the message waits; raises UsageError if nothing can be asked now."""
        self._session.require_free()
        text = self._pending
        waiting = text if text is not None else self._last_question()
        self._forget()
        self._sent_before = replace(self._chat.sent)
        self._leave_out(SUMMARY_SHARE, pending=text is not None)
        self._summarising, self._chat.queued = True, self._chat.queued or waiting
        longest = max(SUMMARY_TOKENS, self._chat.engine.settings.get("max_tokens", 0))
        await self._replies.ask_apart(SUMMARY_REQUEST, {"max_tokens": longest})

    async def _continue_from_summary(self, summary: str, text: str | None, *, cut: bool) -> None:
        """Begin a chat with the summary as its system message, and send the message; the old chat stays as it is."""
        system, title = self._chat.system, self._chat.title
        await self._view.begin_chat()
        self._chat.system = "\n\n".join(part for part in (system, f"{SUMMARY_HEAD}\n{summary}") if part)
        await self._app.note(f"goes on from a summary of “{title}”, which is its system message now")
        if cut:
            await self._app.note("the summary is not complete: it was cut at its length limit", "warn")
        if text is not None:
            await self.ask(text)

    def _last_question(self) -> str:
        question = self._chat.question()
        return question.content if question else ""

    def _return_to_prompt(self, text: str | None, why: str = "") -> None:
        """Put the message back into the prompt, and say why, and of the message if another text is there."""
        lost = text is not None and bool(self._view.prompt.text)
        remark = "" if text is None else put_back(text, self._view)
        self._app.say(" · ".join(filter(None, (why, remark * lost))), "warn")


def as_typed(message: str) -> str:
    """What to type to send this message: its files are named in it, and one that begins with a slash has two."""
    spoken = attachments.split(message)[0]
    return "/" * spoken.startswith("/") + spoken


def put_back(message: str, view: ChatView) -> str:
    """Write a message that waited into the prompt if that is empty; what to say of it."""
    if view.prompt.text:
        return "the message that waited was not sent" + view.context.app.key_hint("search", "finds it", " · ")
    view.prompt.write(as_typed(message))
    return "the message that waited was not sent: it is in the prompt again"
