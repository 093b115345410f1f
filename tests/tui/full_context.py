"""What tests of a full context share: a chat of a small context, counts of the engine, a message that does not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from driving import Driver, driving
from fake import hello, ready

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate

LIMIT = 200
MORE = "one more " + "x" * 240
LONG = "x" * 500
"""A message that is counted before it is sent."""


def generates(d: Driver) -> list[Generate]:
    return [command for command in d.link.sent if isinstance(command, Generate)]


async def small(d: Driver) -> None:
    await d.hear(hello(), ready(context_tokens=LIMIT))


@asynccontextmanager
async def small_context(**options: Any) -> AsyncIterator[Driver]:
    """The app on a small context."""
    async with driving(loaded=False, **options) as d:
        await small(d)
        yield d


@asynccontextmanager
async def counting(text: str = LONG) -> AsyncIterator[Driver]:
    """The app on a small context, while the tokens of a message are counted."""
    async with small_context() as d:
        await d.say(text)
        yield d


async def counted(d: Driver, *tokens: int) -> None:
    """The engine answers so many counts."""
    for number in tokens:
        await d.hear(ev.Counted(d.link.last(Count).id, number, LIMIT))


async def full(d: Driver) -> None:
    """A chat of three answered questions, and a fourth that does not fit."""
    await small(d)
    for number in range(3):
        await d.say(f"question {number}")
        if d.link.sent and isinstance(d.link.sent[-1], Count):
            await counted(d, 50)
        await d.reply(f"answer {number} " + "word " * 20)
    await d.say(MORE)
    await counted(d, 260, 4)


async def over_by_one_turn(d: Driver, *counts: int) -> None:
    """A chat of one answered question, and a second question that fits only without the first.

    `counts`: what the engine answers about the second question, where that is not all that it is asked.
    """
    await small(d)
    await d.say("one " + "x" * 200)
    await counted(d, 150)
    await d.reply("first answer")
    await d.say("two " + "x" * 200)
    await counted(d, *(counts or (310, 150)))


async def left_out_and_answered(d: Driver, answer: str) -> str:
    """The oldest turns are left out, the message is answered, and the chat is closed; returns its id."""
    await press(d, "leave_out")
    await counted(d, 120)
    await d.reply(answer)
    d.app.context.archive.close()
    return d.app.chat.id


async def press(d: Driver, button: str) -> None:
    d.view.alert.query_one(f"#{button}").press()
    await d.pilot.pause()
    await d.settle()
