"""`/race PAIR`: a second model on an engine of its own; the chat's stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import PAIRS, Driver, driving, wait_for
from fake import hello, ready
from races import Clock, begun, ended, fast_rounds

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load
from specchat.errors import UsageError
from specchat.tui.screens.model_race import ModelRaceScreen, split_pair

CROWDED = [
    *PAIRS,
    replace(PAIRS[0], name="giant", needed_bytes=9_000_000_000, free_bytes=2_000_000_000),
    replace(PAIRS[0], name="broken", refusal="broken has an unsupported shape"),
    replace(PAIRS[0], name="kept-elsewhere", state="found"),
]


def shown(d: Driver, part: str) -> str:
    return " ".join(d.drawn(d.app.screen.query_one(f"#{part}")).split())


async def warm(d: Driver) -> None:
    """Both engines write a few tokens that are not counted."""
    for link in d.links:
        command = link.last(Generate)
        rounds = fast_rounds(command.id, "one two")
        link.put(begun(command), *rounds, ended(rounds, "length"))
        await d.settle()


async def write(d: Driver, at: int, text: str) -> None:
    """One engine writes its whole reply, turn by turn as it is let."""
    link = d.links[at]
    command = link.last(Generate)
    rounds = fast_rounds(command.id, text)
    link.put(begun(command, drafter=f"drafter{at}"), *rounds, ended(rounds))
    await d.settle()


async def race_to_the_end(d: Driver, pair: str, question: str) -> None:
    await d.say(f"/race {pair} {question}")
    await wait_for(d.pilot, lambda: len(d.links) == 2)
    d.links[1].put(hello(), ready(pair=pair))
    await d.settle()
    await warm(d)
    await write(d, 0, "one two three four five six")
    await write(d, 1, "red green blue")
    await d.pilot.press("end")
    await d.settle()


async def test_two_models_race_on_two_engines_and_the_chat_stays_as_it_was():
    async with driving(clock=Clock()) as d:
        await d.say("first")
        await d.reply("one")
        settings = dict(d.app.chat.engine.settings)
        await d.say("/race qwen Name three colours.")
        assert isinstance(d.app.screen, ModelRaceScreen)
        await wait_for(d.pilot, lambda: len(d.links) == 2)
        own, other = d.links
        assert other.sent == [Load({"pair": "qwen"})]
        other.put(hello(), ev.Loading("weights", "qwen", 43, 100, 10, "bytes"))
        await d.settle()
        assert "loading qwen beside smol, which stays as it is" in shown(d, "outcome")
        assert "43 %" in shown(d, "outcome")
        assert not any(isinstance(c, Load) for c in own.sent[1:]), "the chat's own model stays loaded"

        other.put(ready(pair="qwen"))
        await d.settle()
        await warm(d)
        assert own.last(Generate).messages[-1].content == "Name three colours."
        await write(d, 0, "one two three four five six")
        await write(d, 1, "red green blue")
        await d.pilot.press("end")
        titles = [d.app.screen.query_one(f"#{side}").border_title for side in ("own", "other")]
        assert titles == ["smol · drafter0", "qwen · drafter1"]
        said = shown(d, "outcome")
        assert said.count("tok/s") == said.count("τ") == 2
        assert "×" not in said + shown(d, "bars"), "two texts have no ratio"
        assert "the chat stays as it was" in said

        await d.pilot.press("escape")
        await wait_for(d.pilot, lambda: other.closed)
        assert not own.closed
        assert d.app.chat.engine.settings == settings
        assert [turn.content for turn in d.app.chat.turns if turn.role == "user"] == ["first"]
        d.links.pop()
        await d.say("second")
        assert own.last(Generate).messages[-1].content == "second"
        assert own.last(Generate).apart is None


async def test_a_model_is_named_by_its_pair_or_by_itself():
    async with driving() as d:
        for words, found in (
            ("qwen Why?", ("qwen", "Why?")),
            ("Qwen3-0.6B Why?", ("qwen", "Why?")),
            ("smollm2-1.7b-instruct", ("smol-1.7b", "")),
            ("Why is it so?", ("", "Why is it so?")),
        ):
            assert split_pair(d.app.context, words) == found
        with pytest.raises(UsageError, match=r"no pair is called 'Qwen3-0\.6'; did you mean 'qwen3-0\.6b'"):
            split_pair(d.app.context, "Qwen3-0.6")


async def test_leaving_while_the_other_model_is_read_ends_its_engine():
    async with driving() as d:
        await d.say("/race qwen hi")
        await wait_for(d.pilot, lambda: len(d.links) == 2)
        await d.pilot.press("ctrl+c")
        await wait_for(d.pilot, lambda: d.links[1].closed)
        assert d.app.chat.can_generate
        assert not any(isinstance(c, Generate) for c in d.links[0].sent)


async def test_a_pair_that_cannot_run_beside_the_chats_is_refused_in_one_line_before_anything_is_started():
    async with driving(pairs=CROWDED) as d:
        for words, said in [
            ("qwem", "no pair is called 'qwem'; did you mean 'qwen'?"),
            ("qwen", "there is no question to race on yet"),
            ("giant hi", "giant does not fit beside smol: it takes about 9.0 GB of memory, and 2.0 GB are free"),
            ("broken hi", "broken has an unsupported shape"),
            ("kept-elsewhere hi", "kept-elsewhere is not added yet; /pair kept-elsewhere adds and loads it"),
        ]:
            await d.say(f"/race {words}")
            await d.settle()
            assert said in " ".join(d.drawn(d.view.notice).split()), words
            assert len(d.app.screen_stack) == len(d.links) == 1
            d.view.prompt.clear()


async def test_at_60_columns_the_speeds_and_the_length_of_both_are_still_shown():
    async with driving(size=(60, 20), clock=Clock()) as d:
        await race_to_the_end(d, "smol", "hi")
        assert shown(d, "bars").count("tok/s τ") == 2
        assert "smol again" in shown(d, "bars")
