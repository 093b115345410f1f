"""The preview of draft tokens behind the text: what it shows, when it goes, and that it is no part of the text."""

from __future__ import annotations

import math

import pytest
from driving import Driver, driving, telling, writing
from fake import rounds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from rows import each_row
from textual.selection import SELECT_ALL

from specchat.config import AppOptions
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.round_parts import Tree, Verdict
from specchat.tui.widgets import round_animation
from specchat.tui.widgets.messages import text_of
from specchat.tui.widgets.reply_view import ReplyView
from specchat.tui.widgets.round_animation import best_path, preview, rejected_guess
from specchat.tui.widgets.tinted_text import TintedText


async def test_the_preview_is_shown_and_is_no_part_of_the_text():
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


@each_row("round", rounds_of(), ids=lambda round: str(round.index))
def test_a_preview_ends_as_the_text_it_announced(round):
    pending = preview(round, 0)
    assert all(role == "pending" for _, role in pending)
    last = preview(round, len(round.verdict.path) + 1)
    kept = [text for text, role in last if role != "rejected"]
    assert "".join(kept) == "".join(piece.text for piece in round.pieces).replace("\n", "⏎")
    assert [role for _, role in last if role != "rejected"] == [piece.origin for piece in round.pieces]
    assert "pending" not in {role for _, role in last}


def lines_of(tinted: TintedText) -> list[str]:
    return [line for y in range(tinted.size.height) if (line := tinted.render_line(y).text.rstrip())]


async def full_speed(d: Driver, rounds: int) -> list[ev.RoundDone]:
    """A reply at full speed after so many rounds, the last of which has just been drawn."""
    d.app.animation_level = "full"
    await d.say("How does it work?")
    made = await d.reply(upto=rounds - 1, finish=False)
    await d.hear(made[rounds - 1])
    return made


async def test_at_full_speed_the_rejected_guess_is_seen_behind_the_text_until_the_next_round(monkeypatch):
    monkeypatch.setattr(round_animation, "REJECTED_S", 3600.0)
    async with driving() as d:
        monkeypatch.setattr(type(d.app.context.pump), "_schedule_redraw", lambda *_: None)
        made = await full_speed(d, 2)
        view = d.app.query_one(ReplyView)
        for before, after in (made[1:3], made[2:4]):
            text, (mark, guess) = view._tail.text, "".join(text for text, _ in rejected_guess(before)).split("✕")
            assert lines_of(view._tail)[-1].endswith(f"{text.split(chr(10))[-1]}{mark}✕{guess}")
            assert view._tail.get_selection(SELECT_ALL) == (text, "\n")
            assert "✕" not in text_of(view)
            await d.hear(after)
            assert guess not in lines_of(view._tail)[-1].removesuffix(
                "".join(text for text, _ in rejected_guess(after))
            )


async def test_the_rejected_guess_vanishes_without_another_round():
    async with driving() as d:
        await full_speed(d, 3)
        view = d.app.query_one(ReplyView)
        assert d.app.context.pump.idle
        assert "✕" not in "".join(lines_of(view._tail))


@pytest.mark.parametrize("shown", [False, True], ids=["markdown", "tokens"])
async def test_a_reply_that_ended_has_no_preview(shown):
    async with driving() as d:
        made = await full_speed(d, 3)
        view = d.app.query_one(ReplyView)
        view.token_view = shown
        await d.hear(made[3], ev.Finished(1, "end", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        transcript = d.view.transcript.size.width
        assert not any("✕" in line[:transcript] for line in d.screen().splitlines())
        assert not any(tinted._preview for tinted in view.query(TintedText))


async def shown_large(d: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show mode at full speed, with a rejected guess behind the text, which no time removes."""
    monkeypatch.setattr(round_animation, "REJECTED_S", math.inf)
    monkeypatch.setattr(type(d.app.context.pump), "_schedule_redraw", lambda *_: None)
    await d.pilot.press("ctrl+l")
    await full_speed(d, 3)
    d.app.context.speed.slow_down_to(0.0)
    await d.hear(next(round for round in rounds_of()[3:] if rejected_guess(round)))
    assert "✕" in d.drawn(d.view.subtitle)


async def test_the_rejected_guess_leaves_the_subtitle_when_the_reply_ends(monkeypatch):
    async with driving() as d:
        await shown_large(d, monkeypatch)
        await d.hear(rounds_of()[5], ev.Finished(1, "end", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert "✕" not in d.drawn(d.view.subtitle)


async def test_the_rejected_guess_leaves_the_subtitle_with_a_round_that_has_none(monkeypatch):
    async with driving() as d:
        await shown_large(d, monkeypatch)
        alone = Tree([0], [-1], ["a"], [], [None])
        await d.hear(replace(rounds_of()[5], tree=alone, verdict=Verdict([], 7, " b", None, ["accepted"])))
        assert "✕" not in d.drawn(d.view.subtitle)


async def test_the_rejected_guess_leaves_the_subtitle_with_its_chat(monkeypatch):
    async with driving() as d:
        await shown_large(d, monkeypatch)
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert "✕" not in d.drawn(d.view.subtitle)


async def test_without_animations_nothing_trails_the_text():
    async with driving() as d:
        await d.say("How does it work?")
        made = await d.reply(upto=2, finish=False)
        d.link.put(made[2])
        for _ in range(20):
            await d.pilot.pause(0.01)
            assert not any(tinted._preview for tinted in d.app.query(TintedText))


@pytest.mark.parametrize("options", [{}, {"ascii": True}], ids=["no colour", "ascii"])
async def test_the_rejected_guess_is_told_from_the_text_without_colour(monkeypatch, options):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(round_animation, "REJECTED_S", 3600.0)
    async with driving(options=AppOptions(**options)) as d:
        monkeypatch.setattr(type(d.app.context.pump), "_schedule_redraw", lambda *_: None)
        await full_speed(d, 3)
        tail = d.app.query_one(ReplyView)._tail
        strip = [strip for strip in tail.render_lines(tail.size.region) if strip.text.strip()][-1]
        struck = "".join(segment.text for segment in strip if segment.style and segment.style.strike)
        assert struck == rejected_guess(d.app.chat.rounds[-1])[1][0]
        assert ("x" if options else "✕") in strip.text.rstrip().removesuffix(struck)[-1]


@settings(deadline=None)
@given(
    st.lists(st.text("ab \n你", max_size=12), max_size=12),
    st.text("cd 你", min_size=1, max_size=30),
    st.integers(4, 12),
    st.integers(4, 12),
)
def test_a_preview_within_the_last_line_moves_nothing(texts, guess, width, later):
    tinted = TintedText([(text, "drafted") for text in texts])
    tinted._set_width(width)
    tinted.set_preview([(" ✕", "crossed"), (guess, "rejected")], within=True)
    for wide in (width, later):  # a scrollbar may come and go
        tinted._set_width(wide)
        alone = TintedText([(text, "drafted") for text in texts])
        alone._set_width(wide)
        assert tinted._height() == alone._height()
        assert tinted._screen_lines == alone._screen_lines
        for (_, start, end), (_, _, before) in zip(tinted._preview_lines, alone._screen_lines[-1:], strict=False):
            shown = (tinted._texts[-1] + " ✕" + guess)[start:end]
            assert end >= before
            assert cell_len(shown.rstrip()) <= wide
    tinted.add([("more", "drafted")])
    assert not tinted._preview_lines


@each_row("round", rounds_of(), ids=lambda round: str(round.index))
def test_the_rejected_guess_is_what_was_guessed_in_place_of_the_bonus(round):
    last = round.verdict.path[-1] if round.verdict.path else 0
    line = rejected_guess(round)
    children = [node for node, parent in enumerate(round.tree.parents) if parent == last and node]
    assert bool(line) == bool(children)
    assert all(round.verdict.reasons[node] == "rejected" for node in children)
    assert not line or line[1][0].startswith(
        tuple(round.tree.texts[node].strip().replace("\n", "⏎") for node in children)
    )
