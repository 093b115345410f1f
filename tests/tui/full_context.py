"""What tests of a full context share: a chat of a small context, counts of the engine, a message that does not fit."""

from __future__ import annotations

from driving import Driver
from fake import hello, ready

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate

LIMIT = 200
MORE = "one more " + "x" * 240


def generates(d: Driver) -> list[Generate]:
    return [command for command in d.link.sent if isinstance(command, Generate)]


async def small(d: Driver) -> None:
    await d.hear(hello(), ready(context_tokens=LIMIT))


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


async def over_by_one_turn(d: Driver) -> None:
    """A chat of one answered question, and a second question that fits only without the first."""
    await small(d)
    await d.say("one " + "x" * 200)
    await counted(d, 150)
    await d.reply("first answer")
    await d.say("two " + "x" * 200)
    await counted(d, 310, 150)


async def press(d: Driver, button: str) -> None:
    d.app.views.alert.query_one(f"#{button}").press()
    await d.pilot.pause()
    await d.settle()
