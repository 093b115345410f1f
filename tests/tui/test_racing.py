"""A race in the app: two heats, one after the other, told as what they are; the chat is left as it was."""

from __future__ import annotations

import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, TEXT, hello, ready
from races import (
    Clock,
    asked,
    begun,
    ended,
    fast_heat,
    fast_rounds,
    plain_heat,
    plain_rounds,
    racing,
    screen_of,
    shown,
    warm_up,
)

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_command, encode
from specchat.engine.protocol.commands import Cancel, Change, Compare, Generate
from specchat.tui.screens.help_and_log import HelpScreen
from specchat.tui.screens.race import RaceScreen

APART = {"controller": "off"}


def column_text(d: Driver, side: str) -> str:
    return screen_of(d).query_one(f"#{side}").text  # type: ignore[attr-defined, no-any-return]


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
        assert asked.messages == [ev.Message("user", "Hello")]
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
        assert column_text(d, "plain") == "", "speculation has not had its turn"
        fast = await fast_heat(d, upto=3)  # 0.15 s, in which plain decoding wrote five tokens
        assert column_text(d, "speculative") == "".join(p.text for r in fast[:3] for p in r.pieces)
        assert column_text(d, "plain") == "".join(r.pieces[0].text for r in plain[:5])
        assert shown(d, "bars").count("0.15 s") == 2


async def test_what_was_written_first_goes_on_at_its_own_pace():
    async with racing() as (d, clock):
        await warm_up(d)
        plain = await plain_heat(d)
        fast = await fast_heat(d)
        seen = int(fast[-1].at_s / plain[0].at_s)
        assert column_text(d, "plain") == "".join(r.pieces[0].text for r in plain[:seen])
        assert column_text(d, "speculative") == TEXT
        await at(d, clock, clock.now + 0.031)
        assert column_text(d, "plain") == "".join(r.pieces[0].text for r in plain[: seen + 1])


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
        assert " won by " in shown(d, "outcome")
        assert " s · " in shown(d, "outcome")
        assert f"identical: all {len(plain)} tokens are the same, one by one" in shown(d, "outcome")
        board = shown(d, "bars")
        assert f"{plain[-1].at_s:.2f} s" in board
        assert f"{fast[-1].at_s:.2f} s" in board
        assert column_text(d, "plain") == column_text(d, "speculative") == TEXT


async def test_nothing_ticks_once_all_is_shown_and_a_key_shows_it_at_once():
    async with racing() as (d, _):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        assert screen_of(d)._refresh_timer._active.is_set()
        await d.pilot.press("end")
        assert "identical" in shown(d, "outcome")
        assert not screen_of(d)._refresh_timer._active.is_set()


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
        assert d.view.prompt.has_focus
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
        assert d.app.return_code is None


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
        assert column_text(d, "plain") == column_text(d, "speculative") == ""
        await warm_up(d)
        await plain_heat(d, upto=3)
        assert "both write by turns" in shown(d, "outcome")


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
        assert said in d.drawn(d.view.notice)
        assert not any(isinstance(c, Generate) for c in d.link.sent)


async def test_a_race_needs_a_question_and_a_free_engine():
    async with driving() as d:
        await d.say("/race")
        assert "there is no question to race on yet" in d.drawn(d.view.notice)
        await d.say("hi")
        await d.reply(upto=2, finish=False)
        await d.say("/race hi")
        assert "a reply is being written" in d.drawn(d.view.notice)


async def test_a_race_without_an_engine_names_the_key_that_starts_one():
    async with driving() as d:
        await d.hear(ev.Died(-9, "killed"))
        await d.say("/race hi")
        assert "there is no engine; F5 starts it again" in d.drawn(d.view.notice)
    async with driving(loaded=False) as d:
        await d.hear(hello(), ev.Failed("ModelError", "not a model", during="load"))
        await d.say("/race hi")
        assert "no pair is loaded; F5 loads it again" in d.drawn(d.view.notice)


async def test_f1_shows_the_keys_during_a_race_and_other_keys_of_the_chat_do_nothing(store):
    async with racing(store=store) as (d, _):
        race = screen_of(d)
        for key in ("ctrl+o", "ctrl+n", "f2", "f3", "f4", "f8", "ctrl+t"):
            await d.pilot.press(key)
            assert d.app.screen is race, key
        await d.pilot.press("f1")
        await d.pilot.pause()
        assert isinstance(d.app.screen, HelpScreen)
        await warm_up(d)
        await d.pilot.press("f1")
        await d.pilot.pause()
        assert d.app.screen is race
        assert "both write by turns" in shown(d, "outcome")


@pytest.mark.parametrize("above", ["f1", "ctrl+p"], ids=["help", "palette"])
async def test_ctrl_c_leaves_a_race_with_what_is_open_above_it(above):
    async with racing() as (d, _):
        await d.pilot.press(above)
        await d.pilot.pause()
        assert not isinstance(d.app.screen, RaceScreen)
        await d.pilot.press("ctrl+c")
        await d.pilot.pause()
        assert len(d.app.screen_stack) == 1
        assert isinstance(d.link.sent[-1], Cancel)


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
        assert column_text(d, "plain") == "[red]stop[/red]"
