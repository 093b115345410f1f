"""A race in the app: two heats, one after the other, told as what they are; the chat is left as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, TEXT, hello, ready
from races import Clock, asked, begun, ended, fast_heat, fast_rounds, plain_heat, plain_rounds, warm_up

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.chat_message import Message
from specchat.engine.protocol.codec import decode_command, encode
from specchat.engine.protocol.commands import Cancel, Change, Compare, Generate, Load
from specchat.tui.screens.race import RaceScreen

APART = {"controller": "off"}


@asynccontextmanager
async def racing(
    prompt: str = "Hello", *, before: ev.Event | None = None, **options: Any
) -> AsyncIterator[tuple[Driver, Clock]]:
    """The app with a race just begun, and a clock that stands still."""
    async with driving(**options) as d:
        if before is not None:
            await d.hear(before)
        clock = Clock()
        d.app.control.races.clock = clock
        await d.say(f"/race {prompt}")
        await d.settle()
        yield d, clock


def screen_of(d: Driver) -> RaceScreen:
    assert isinstance(d.app.screen, RaceScreen)
    return d.app.screen


def lane(d: Driver, side: str) -> str:
    return screen_of(d).query_one(f"#{side}").text  # type: ignore[attr-defined, no-any-return]


def shown(d: Driver, part: str) -> str:
    return d.drawn(screen_of(d).query_one(f"#{part}"))  # type: ignore[arg-type]


async def at(d: Driver, clock: Clock, now: float) -> None:
    """The clock says so, and the screen has noticed."""
    clock.now = now
    screen_of(d).show()
    await d.pilot.pause()


async def test_a_race_writes_both_replies_apart_by_turns_and_with_one_seed():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        warming, asked = [c for c in d.link.sent if isinstance(c, Generate)]
        assert warming.seed == asked.seed
        assert (asked.apart, asked.beside.apart) == ({**APART, "max_tokens": 512}, {"max_tokens": 512})
        assert asked.messages == [Message("user", "Hello")]
        assert not any(isinstance(c, Change) for c in d.link.sent)


async def test_a_race_is_greedy_where_the_chat_samples_as_its_pair_says():
    async with racing(before=ev.Changed({**SETTINGS, "temperature": 0.2, "top_p": 0.9}, LOSS)) as (d, _):
        await warm_up(d)
        apart = d.link.last(Generate).beside.apart
        assert (apart["temperature"], apart["top_p"]) == (0.0, 1.0)


async def test_a_race_samples_where_the_user_asked_for_a_temperature():
    async with racing(
        before=ev.Changed({**SETTINGS, "temperature": 0.7, "top_p": 0.9}, LOSS),
        settings={"pair": "smol", "temperature": 0.7},
    ) as (d, _):
        await warm_up(d)
        assert d.link.last(Generate).beside.apart == {"max_tokens": 512}


async def test_an_engine_understands_what_a_race_asks_for():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d, text=f"{TEXT} and more")
        sent = [c for c in d.link.sent if isinstance(c, Generate | Compare)]
        assert {type(c) for c in sent} == {Generate, Compare}
        assert [decode_command(encode(c)) for c in sent] == sent


async def test_both_columns_show_the_same_time_while_they_are_written():
    async with racing() as (d, _):
        assert "not counted" in shown(d, "outcome")
        await warm_up(d)
        plain = await plain_heat(d, upto=8)
        assert "both write by turns" in shown(d, "outcome")
        assert lane(d, "plain") == "", "speculation has not had its turn"
        fast = await fast_heat(d, upto=3)  # 0.15 s, in which plain decoding wrote five tokens
        assert lane(d, "speculative") == "".join(p.text for r in fast[:3] for p in r.pieces)
        assert lane(d, "plain") == "".join(r.pieces[0].text for r in plain[:5])
        assert shown(d, "board").count("0.15 s") == 2


async def test_what_was_written_first_goes_on_at_its_own_pace():
    async with racing() as (d, clock):
        await warm_up(d)
        plain = await plain_heat(d)
        fast = await fast_heat(d)
        seen = int(fast[-1].at_s / plain[0].at_s)
        assert lane(d, "plain") == "".join(r.pieces[0].text for r in plain[:seen])
        assert lane(d, "speculative") == TEXT
        await at(d, clock, clock.now + 0.031)
        assert lane(d, "plain") == "".join(r.pieces[0].text for r in plain[: seen + 1])


async def test_the_end_shows_both_times_the_ratio_and_the_proof():
    async with racing() as (d, clock):
        await warm_up(d)
        plain = await plain_heat(d)
        fast = await fast_heat(d)
        assert "the slower side goes on at its recorded pace" in shown(d, "outcome")
        assert "×" not in shown(d, "outcome"), "the result waits for the end of what is watched"
        await at(d, clock, clock.now + plain[-1].at_s)
        ratio = plain[-1].at_s / fast[-1].at_s
        assert f"{ratio:.2f}× plain decoding" in shown(d, "outcome")
        assert f"identical: all {len(plain)} tokens are the same, one by one" in shown(d, "outcome")
        board = shown(d, "board")
        assert f"{plain[-1].at_s:.2f} s" in board
        assert f"{fast[-1].at_s:.2f} s" in board
        assert lane(d, "plain") == lane(d, "speculative") == TEXT


async def test_nothing_ticks_once_all_is_shown_and_a_key_shows_it_at_once():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        assert screen_of(d)._beat._active.is_set()
        await d.pilot.press("end")
        assert "identical" in shown(d, "outcome")
        assert not screen_of(d)._beat._active.is_set()


async def test_without_a_prompt_the_last_question_races_with_its_history():
    async with driving() as d:
        await d.say("first")
        await d.reply("one")
        await d.say("second")
        await d.reply("two")
        await d.say("/race")
        told = [m.content for m in d.link.last(Generate).messages]
        assert told == ["first", "one", "second"]


async def test_a_prompt_follows_the_chat():
    async with driving() as d:
        await d.say("first")
        await d.reply("one")
        await d.say("/race third")
        assert [m.content for m in d.link.last(Generate).messages] == ["first", "one", "third"]


async def test_the_chat_is_untouched_by_a_whole_race():
    async with driving() as d:
        await d.say("first")
        await d.reply("one")
        before = (
            list(d.app.chat.turns),
            dict(d.app.chat.engine.settings),
            dict(d.app.chat.engine.wanted),
            d.app.chat.figures,
        )
        await d.say("/race")
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        await d.pilot.press("end", "escape")
        await d.pilot.pause()
        assert not isinstance(d.app.screen, RaceScreen)
        after = (
            list(d.app.chat.turns),
            dict(d.app.chat.engine.settings),
            dict(d.app.chat.engine.wanted),
            d.app.chat.figures,
        )
        assert after == before
        assert d.app.views.prompt.has_focus
        await d.say("second")
        assert [m.content for m in d.link.last(Generate).messages] == ["first", "one", "second"]
        assert d.link.last(Generate).apart is None


@pytest.mark.parametrize("key", ["escape", "q", "ctrl+c"])
async def test_leaving_stops_the_heat_and_what_still_comes_of_it_is_not_the_chats(key):
    async with racing() as (d, _):
        await warm_up(d)
        rounds = await plain_heat(d, upto=5)
        await d.pilot.press(key)
        await d.pilot.pause()
        assert d.link.sent[-1] == Cancel(rounds[0].id)
        assert not isinstance(d.app.screen, RaceScreen)
        await d.hear(*rounds[5:7], ended(rounds[:7], "cancelled"))
        assert d.app.chat.turns == []
        assert d.app.chat.can_generate
        assert not d.app._exit


async def test_r_runs_the_same_race_again():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await d.pilot.press("r")
        first = d.link.last(Generate)
        await fast_heat(d)
        await d.pilot.press("end", "r")
        again = d.link.last(Generate)
        assert again.id > first.id, "not before the first has ended"
        assert (again.messages, again.seed) == (first.messages, first.seed)
        assert lane(d, "plain") == lane(d, "speculative") == ""
        await warm_up(d)
        await plain_heat(d, upto=3)
        assert "both write by turns" in shown(d, "outcome")


async def test_an_engine_that_dies_in_a_race_is_told_there_and_in_the_chat():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d, upto=5)
        await d.hear(ev.Died(-9, "MemoryError"))
        assert "the engine stopped" in shown(d, "outcome")
        await d.pilot.press("r")
        assert isinstance(d.app.screen, RaceScreen)
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.app.views.alert.display
        await d.pilot.press("f5")
        await d.settle()
        assert d.link.sent == [Load({"pair": "smol"})], "settings are what they were before the race"


async def test_a_failure_is_said_and_the_chat_goes_on():
    async with racing() as (d, _):
        id = d.link.last(Generate).id
        await d.hear(ev.Failed("UsageError", "no [b]room[/b] in the context", id=id, during="generate"))
        assert "no [b]room[/b] in the context" in shown(d, "outcome")
        await d.pilot.press("escape")
        await d.say("hi")
        assert d.link.last(Generate).messages == [Message("user", "hi")]


async def test_texts_that_part_at_a_tie_are_told_with_the_margin():
    async with racing() as (d, _):
        await warm_up(d)
        plain = await plain_heat(d)
        fast = fast_rounds(asked(d, "speculative").id)
        last = fast[-1]
        pieces = [*last.pieces[:-1], ev.Piece(9999, last.pieces[-1].text, "target")]
        fast[-1] = ev.RoundDone(**{**{n: getattr(last, n) for n in last.__struct_fields__}, "pieces": pieces})

        await d.hear(begun(asked(d, "speculative")), *fast, ended(fast))
        compare = d.link.last(Compare)
        assert compare.plain == [p.token for r in plain for p in r.pieces]
        assert compare.other[-1] == 9999
        await d.hear(ev.Compared(compare.id, len(plain) - 1, "\n", " ", 0.01, 0.3, True))
        await d.pilot.press("end")
        assert "a near-tie, plain's own is 0.01 ahead" in " ".join(shown(d, "outcome").split())


async def test_rules_that_keep_only_the_law_say_so():
    async with racing() as (d, _):
        law = ev.Losslessness(True, "distributed exactly as the target's")
        settings = {"rule": "multi_step", "temperature": 0.8}
        await warm_up(d)
        await plain_heat(d, **settings)
        command = asked(d, "speculative")
        rounds = fast_rounds(command.id)
        await d.hear(begun(command, law, **settings), *rounds, ended(rounds))
        await d.pilot.press("end")
        assert "promised is less: distributed exactly as the target's" in shown(d, "outcome")


async def test_the_result_can_be_copied():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        await d.pilot.press("end", "c")
        copied = d.app.clipboard
        assert copied.splitlines()[0].startswith(
            "smol · prompt_lookup · expansion · 18 nodes · float32 · greedy · seed "
        )
        assert "× plain decoding" in copied
        assert "identical: all" in copied
        assert "copied" in shown(d, "keys")


async def test_what_is_compared_stands_on_the_screen_before_it_begins():
    async with racing("Why is the sky blue?", size=(80, 24)) as (d, _):
        assert "Why is the sky blue?" in shown(d, "head")
        assert "smol · prompt_lookup · expansion · 18 nodes · float32 · greedy · seed" in shown(d, "head")


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"controller": "off"}, "plain decoding already"), ({"nodes": 0}, "plain decoding already")],
)
async def test_plain_decoding_does_not_race_against_itself(changes, said):
    async with driving(loaded=False) as d:
        await d.hear(hello(), ready(settings=ready().settings | changes))
        await d.say("/race hi")
        assert said in d.drawn(d.app.views.notice)
        assert not any(isinstance(c, Generate) for c in d.link.sent)


async def test_a_race_needs_a_question_and_a_free_engine():
    async with driving() as d:
        await d.say("/race")
        assert "there is no question to race on yet" in d.drawn(d.app.views.notice)
        await d.say("hi")
        await d.reply(upto=2, finish=False)
        await d.say("/race hi")
        assert "a reply is being written" in d.drawn(d.app.views.notice)


@pytest.mark.parametrize(
    ("size", "stacked"), [((120, 40), False), ((80, 24), False), ((79, 24), True), ((40, 12), True)]
)
async def test_columns_are_stacked_where_they_would_be_too_narrow(size, stacked):
    async with racing(size=size) as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        await d.pilot.press("end")
        left, right = (screen_of(d).query_one(f"#{side}").region for side in ("plain", "speculative"))
        assert (left.x == right.x) is stacked
        assert left.height > 1
        assert right.height > 1
        assert "identical" in shown(d, "outcome")


async def test_model_text_in_a_race_is_never_markup():
    async with racing() as (d, _):
        await warm_up(d)
        command, other = asked(d, "plain"), asked(d, "speculative")
        rounds, fast = plain_rounds(command.id, "[red]stop[/red]"), fast_rounds(other.id)
        await d.hear(begun(command), begun(other), *rounds, *fast, ended(rounds))
        assert lane(d, "plain") == "[red]stop[/red]"
