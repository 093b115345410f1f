"""Rounds may be held, done one by one and slowed down, live as in a recording, and are told depth by depth then."""

from __future__ import annotations

import pytest
from driving import Driver, driving
from fake import rounds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.selection import SELECT_ALL

from specchat.config import AppOptions
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Pace
from specchat.tui.control import round_animation
from specchat.tui.draw.draft_preview import best_path, fallen, ghost
from specchat.tui.widgets.messages import text_of
from specchat.tui.widgets.reply_view import ReplyView
from specchat.tui.widgets.tinted_text import TintedText


def pace(d: Driver) -> Pace:
    return d.link.last(Pace)


async def writing(d: Driver, rounds: int = 4) -> list[ev.RoundDone]:
    """A reply of which some rounds have been written; the keys of the chat are at hand."""
    await d.say("How does it work?")
    made = await d.reply(upto=rounds, finish=False)
    await d.pilot.press("tab")
    return made


async def telling(d: Driver, round: ev.RoundDone) -> None:
    """The engine does one more round, which is told slowly."""
    d.link.put(round)
    for _ in range(100):
        await d.pilot.pause(0.01)
        if d.app.control.round_animation.round is round:
            d.app.control.round_animation._timer.pause()  # the test turns the pages itself
            return
    raise AssertionError("the round is not told")


async def test_space_holds_a_live_reply_and_lets_it_go_on():
    async with driving() as d:
        await writing(d)
        await d.pilot.press("space")
        assert pace(d) == Pace(1, hold=True)
        assert "‖ held" in str(d.app.views.tree_panel.border_title)
        assert "held" in d.drawn(d.app.views.notice)
        await d.pilot.press("space")
        assert pace(d) == Pace(1, hold=False)
        assert "held" not in str(d.app.views.tree_panel.border_title)


async def test_a_dot_does_one_round_and_holds():
    async with driving() as d:
        await writing(d)
        await d.pilot.press("full_stop", "full_stop")
        assert pace(d) == Pace(1, hold=True, rounds=1)
        assert len([c for c in d.link.sent if isinstance(c, Pace)]) == 2


async def test_slow_motion_stays_for_the_next_reply_and_a_hold_does_not():
    async with driving() as d:
        await writing(d)
        await d.pilot.press("less_than_sign", "less_than_sign", "space")
        assert pace(d) == Pace(1, hold=True, gap_s=0.5)
        await d.hear(ev.Finished(1, "cancelled", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert not d.app.control.speed.held
        d.app.views.prompt.focus()
        await d.say("and then?")
        assert d.link.sent[-2:] == [Pace(2, gap_s=0.5), d.link.last(Generate)]
        await d.pilot.press("greater_than_sign", "greater_than_sign", "greater_than_sign")
        assert pace(d).gap_s == 0.5, "in the prompt they are text"
        assert d.app.views.prompt.text == ">>>"


async def test_the_commands_do_what_the_keys_do():
    async with driving() as d:
        await writing(d, 2)
        d.app.views.prompt.focus()
        for said, sent in (
            ("/pause", Pace(1, hold=True)),
            ("/step 3", Pace(1, hold=True, rounds=3)),
            ("/pause", Pace(1)),
            ("/speed 4", Pace(1, gap_s=0.25)),
            ("/speed full", Pace(1)),
        ):
            await d.say(said)
            assert pace(d) == sent
        await d.say("/speed")
        assert "speed: full" in d.drawn(d.app.views.notice)
        for wrong, why in (("/speed fast", "rounds per second"), ("/step none", "how many rounds")):
            await d.say(wrong)
            assert why in d.drawn(d.app.views.notice)


async def test_nothing_can_be_held_while_nothing_is_written():
    async with driving() as d:
        await d.say("/pause")
        assert "nothing is being written" in d.drawn(d.app.views.notice)
        await d.pilot.press("tab", "space")
        assert not [c for c in d.link.sent if isinstance(c, Pace)]


async def test_a_round_in_slow_motion_is_laid_out_first_and_judged_depth_by_depth():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        fresh = next(r for r in rounds[3:] if len(r.verdict.path) >= 2)
        before = d.app.chat.turns[-1].reply.text
        await telling(d, fresh)
        pictures = []
        while not d.app.control.round_animation.finished:
            await d.pilot.pause()
            pictures.append(d.drawn(d.app.views.tree_panel).split("\n─")[0].split("─ earlier")[0])
            assert d.app.chat.turns[-1].reply.text == before, "it is no part of the chat yet"
            d.app.control.round_animation.advance()
        await d.settle()
        pictures.append(d.drawn(d.app.views.tree_panel).split("─ earlier")[0])
        assert d.app.chat.turns[-1].reply.text == before + "".join(p.text for p in fresh.pieces)
        assert "●" not in pictures[0]
        assert "★" not in pictures[0]
        assert "◌" in pictures[0]
        assert [p.split("\n")[0].count("●") for p in pictures[:3]] == [0, 1, 2]
        assert "◌" not in pictures[-1]


async def test_a_faster_pace_tells_what_waits_at_once():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await telling(d, rounds[3])
        d.link.put(ev.Finished(1, "end", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        await d.pilot.pause(0.1)
        assert d.app.chat.running is not None, "the end waits behind the round"
        await d.pilot.press("space")
        await d.settle()
        assert d.app.chat.running is None
        assert d.app.control.round_animation.round is None


async def test_a_round_that_is_overtaken_is_told_at_once():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await telling(d, rounds[3])
        await telling(d, rounds[4])
        assert d.app.chat.rounds[-1] is rounds[3]


async def test_a_stopped_reply_waits_for_nothing():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await telling(d, rounds[3])
        await d.hear(ev.Finished(1, "cancelled", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert d.app.chat.running is None
        assert d.app.chat.rounds[-1] is rounds[3]


async def test_a_round_with_too_little_time_is_shown_whole():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        d.app.control.speed.speed("20")
        await d.hear(rounds[3])
        assert d.app.chat.rounds[-1] is rounds[3]
        d.app.control.speed.speed("4")
        await telling(d, rounds[4])


async def test_without_animations_rounds_appear_whole():
    async with driving() as d:
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await d.hear(rounds[3])
        assert d.app.chat.rounds[-1] is rounds[3]
        assert d.app.control.round_animation.round is None


async def test_the_ghost_is_seen_and_is_no_part_of_the_text():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        fresh = next(r for r in rounds[3:] if len(r.verdict.path) >= 2)
        await telling(d, fresh)
        tail = d.app.query_one(ReplyView)._tail
        text = tail.text
        seen = "".join(tail.render_line(y).text.rstrip() for y in range(tail.size.height))
        guess = "".join(fresh.tree.texts[node] for node in best_path(fresh))
        assert guess.split()[0] in seen.removeprefix(text)
        assert guess not in text
        assert tail.get_selection(SELECT_ALL) == (text, "\n")


@pytest.mark.parametrize("round", rounds_of(), ids=lambda round: str(round.index))
def test_a_ghost_ends_as_the_text_it_announced(round):
    pending = ghost(round, 0)
    assert all(role == "pending" for _, role in pending)
    last = ghost(round, len(round.verdict.path) + 1)
    kept = [text for text, role in last if role != "rejected"]
    assert "".join(kept) == "".join(piece.text for piece in round.pieces).replace("\n", "⏎")
    assert [role for _, role in last if role != "rejected"] == [piece.origin for piece in round.pieces]
    assert "pending" not in {role for _, role in last}


def rows_of(tinted: TintedText) -> list[str]:
    return [row for y in range(tinted.size.height) if (row := tinted.render_line(y).text.rstrip())]


async def full_speed(d: Driver, rounds: int) -> list[ev.RoundDone]:
    """A reply at full speed after so many rounds, the last of which has just been drawn."""
    d.app.animation_level = "full"
    await d.say("How does it work?")
    made = await d.reply(upto=rounds - 1, finish=False)
    await d.hear(made[rounds - 1])
    return made


async def test_at_full_speed_what_fell_is_seen_behind_the_text_until_the_next_round(monkeypatch):
    monkeypatch.setattr(round_animation, "FALLEN_S", 3600.0)
    async with driving() as d:
        monkeypatch.setattr(type(d.app.control.pump), "_owe", lambda *_: None)
        made = await full_speed(d, 2)
        view = d.app.query_one(ReplyView)
        for before, after in (made[1:3], made[2:4]):
            text, (mark, guess) = view._tail.text, "".join(text for text, _ in fallen(before)).split("✕")
            assert rows_of(view._tail)[-1].endswith(f"{text.split(chr(10))[-1]}{mark}✕{guess}")
            assert view._tail.get_selection(SELECT_ALL) == (text, "\n")
            assert "✕" not in text_of(view)
            await d.hear(after)
            assert guess not in rows_of(view._tail)[-1].removesuffix("".join(text for text, _ in fallen(after)))


async def test_what_fell_vanishes_without_another_round():
    async with driving() as d:
        await full_speed(d, 3)
        view = d.app.query_one(ReplyView)
        assert d.app.control.pump.idle
        assert "✕" not in "".join(rows_of(view._tail))


@pytest.mark.parametrize("shown", [False, True], ids=["markdown", "tokens"])
async def test_a_reply_that_ended_has_no_ghost(shown):
    async with driving() as d:
        made = await full_speed(d, 3)
        view = d.app.query_one(ReplyView)
        view.token_view = shown
        await d.hear(made[3], ev.Finished(1, "end", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert "✕" not in d.screen().split("╭─ tree")[0]
        assert not any(tinted._ghost for tinted in view.query(TintedText))


async def test_without_animations_nothing_trails_the_text():
    async with driving() as d:
        await d.say("How does it work?")
        made = await d.reply(upto=2, finish=False)
        d.link.put(made[2])
        for _ in range(20):
            await d.pilot.pause(0.01)
            assert not any(tinted._ghost for tinted in d.app.query(TintedText))


@pytest.mark.parametrize("options", [{}, {"ascii": True}], ids=["no colour", "ascii"])
async def test_what_fell_is_told_from_the_text_without_colour(monkeypatch, options):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(round_animation, "FALLEN_S", 3600.0)
    async with driving(options=AppOptions(**options)) as d:
        monkeypatch.setattr(type(d.app.control.pump), "_owe", lambda *_: None)
        await full_speed(d, 3)
        tail = d.app.query_one(ReplyView)._tail
        strip = [strip for strip in tail.render_lines(tail.size.region) if strip.text.strip()][-1]
        struck = "".join(segment.text for segment in strip if segment.style and segment.style.strike)
        assert struck == fallen(d.app.chat.rounds[-1])[1][0]
        assert ("x" if options else "✕") in strip.text.rstrip().removesuffix(struck)[-1]


@settings(deadline=None)
@given(
    st.lists(st.text("ab \n你", max_size=12), max_size=12),
    st.text("cd 你", min_size=1, max_size=30),
    st.integers(4, 12),
    st.integers(4, 12),
)
def test_a_ghost_within_the_last_row_moves_nothing(texts, guess, width, later):
    tinted = TintedText([(text, "drafted") for text in texts])
    tinted._fit(width)
    tinted.trail([(" ✕", "crossed"), (guess, "rejected")], within=True)
    for wide in (width, later):  # a scrollbar may come and go
        tinted._fit(wide)
        alone = TintedText([(text, "drafted") for text in texts])
        alone._fit(wide)
        assert tinted._height() == alone._height()
        assert tinted._rows == alone._rows
        for (_, start, end), (_, _, before) in zip(tinted._ghost_rows, alone._rows[-1:], strict=False):
            shown = (tinted._texts[-1] + " ✕" + guess)[start:end]
            assert end >= before
            assert cell_len(shown.rstrip()) <= wide
    tinted.add([("more", "drafted")])
    assert not tinted._ghost_rows


@pytest.mark.parametrize("round", rounds_of(), ids=lambda round: str(round.index))
def test_what_fell_is_what_was_guessed_in_place_of_the_bonus(round):
    last = round.verdict.path[-1] if round.verdict.path else 0
    row = fallen(round)
    children = [node for node, parent in enumerate(round.tree.parents) if parent == last and node]
    assert bool(row) == bool(children)
    assert all(round.verdict.reasons[node] == "rejected" for node in children)
    assert not row or row[1][0].startswith(
        tuple(round.tree.texts[node].strip().replace("\n", "⏎") for node in children)
    )


async def test_the_keys_mean_nothing_to_the_settings():
    async with driving() as d:
        await writing(d)
        await d.pilot.press("f2", "full_stop", "less_than_sign")
        assert not [c for c in d.link.sent if isinstance(c, Pace)]


async def test_a_small_window_says_that_it_is_held():
    async with driving((40, 12)) as d:
        await writing(d)
        await d.pilot.press("space")
        await d.pilot.pause()
        assert "‖" in d.drawn(d.app.views.tree_strip)


async def test_a_new_chat_forgets_the_round_that_was_being_told():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await telling(d, rounds[3])
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert "each round's token tree" in d.drawn(d.app.views.tree_panel)
        await d.hear(ev.Finished(1, "cancelled", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert d.app.control.round_animation.round is None
        assert not d.app.chat.rounds
