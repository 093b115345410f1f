"""The engine's side of a race, for tests: two replies made of the same scripted rounds, plain and speculative."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from driving import Driver, driving
from fake import LOSS, SETTINGS, TEXT, rounds_of, stats_of, tokens_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.engine.protocol.round_parts import Piece, Timings, Tree, Verdict
from specchat.tui.screens.race import RaceScreen

PLAIN_S, FAST_S = 0.03, 0.05
"""Seconds of a round, plain and speculative."""


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sides(command: Generate) -> dict[str, Generate]:
    """A command for two replies as one for each, by side."""
    assert command.beside is not None
    other = Generate(command.beside.id, command.messages, command.seed, command.beside.apart)
    plainly = (command.apart or {}).get("controller") == "off"
    return dict(zip(("plain", "speculative") if plainly else ("speculative", "plain"), (command, other), strict=True))


def asked(d: Driver, side: str) -> Generate:
    """What the engine was asked for last, for one side."""
    return sides(d.link.last(Generate))[side]


def begun(command: Generate, loss: ev.Losslessness = LOSS, **settings: Any) -> ev.Started:
    chosen = SETTINGS | settings | (command.apart or {})
    return ev.Started(command.id, command.messages, 40, 39, command.seed or 0, chosen, loss, "smol")


def plain_rounds(id: int, text: str = TEXT) -> list[ev.RoundDone]:
    """One token a round."""
    return [
        ev.RoundDone(
            id, index, PLAIN_S * (index + 1), 40 + index, {"nodes": 0},
            Tree([0], [-1], ["x"], [], [None]), Verdict([], 1, word, -0.2, ["accepted"]),
            [Piece(index, word, "target")], Timings(0.0, PLAIN_S, 0.0),
        )
        for index, word in enumerate(tokens_of(text))
    ]  # fmt: skip


def fast_rounds(id: int, text: str = TEXT) -> list[ev.RoundDone]:
    """The same tokens, several a round."""
    place, rounds = 0, []
    for round in rounds_of(text, id=id, step_s=FAST_S):
        pieces = [Piece(place + i, piece.text, piece.origin) for i, piece in enumerate(round.pieces)]
        place += len(pieces)
        took = Timings(0.0, FAST_S, 0.0)
        values = {name: getattr(round, name) for name in round.__struct_fields__}
        rounds.append(ev.RoundDone(**{**values, "pieces": pieces, "timings": took}))
    return rounds


def ended(rounds: list[ev.RoundDone], stop: ev.StopReason = "end", tail: str = "") -> ev.Finished:
    return ev.Finished(rounds[-1].id, stop, tail, stats_of(rounds, prefill_s=0.0), rounds[-1].at_s)


async def warm_up(d: Driver) -> None:
    """Both sides write a few tokens that are not counted."""
    for command in sides(d.link.last(Generate)).values():
        rounds = plain_rounds(command.id, "one two")
        await d.hear(begun(command), *rounds, ended(rounds, "length"))


async def plain_heat(d: Driver, upto: int | None = None, **settings: Any) -> list[ev.RoundDone]:
    command = asked(d, "plain")
    rounds = plain_rounds(command.id)
    await d.hear(begun(command, **settings), *rounds[:upto])
    if upto is None:
        await d.hear(ended(rounds))
    return rounds


async def fast_heat(d: Driver, upto: int | None = None, text: str = TEXT, **settings: Any) -> list[ev.RoundDone]:
    command = asked(d, "speculative")
    rounds = fast_rounds(command.id, text)
    await d.hear(begun(command, **settings), *rounds[:upto])
    if upto is None:
        await d.hear(ended(rounds))
    return rounds


async def answer(d: Driver, text: str = "one two three four five six", last: int | None = None) -> None:
    """A whole race; `last` is put in place of speculation's last token."""
    plain, fast = asked(d, "plain"), asked(d, "speculative")
    rounds, other = plain_rounds(plain.id, text), fast_rounds(fast.id, text)
    if last is not None:
        values = {name: getattr(other[-1], name) for name in other[-1].__struct_fields__}
        pieces = [*other[-1].pieces[:-1], Piece(last, other[-1].pieces[-1].text, "target")]
        other[-1] = ev.RoundDone(**{**values, "pieces": pieces})
    await d.hear(begun(plain), begun(fast), *rounds, *other, ended(rounds), ended(other))


@asynccontextmanager
async def racing(
    prompt: str = "Hello", *, before: ev.Event | None = None, **options: Any
) -> AsyncIterator[tuple[Driver, Clock]]:
    """The app with a race just begun, and a clock that stands still."""
    clock = Clock()
    async with driving(clock=clock, **options) as d:
        if before is not None:
            await d.hear(before)
        await d.say(f"/race {prompt}")
        await d.settle()
        yield d, clock


def screen_of(d: Driver) -> RaceScreen:
    assert isinstance(d.app.screen, RaceScreen)
    return d.app.screen


def shown(d: Driver, part: str) -> str:
    return d.drawn(screen_of(d).query_one(f"#{part}"))  # type: ignore[arg-type]
