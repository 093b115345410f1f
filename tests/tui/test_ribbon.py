"""The whole reply stands below its tree: a column a round, to click or to walk to; replies of old chats have theirs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from driving import Driver, driving, in_one_app
from fake import rounds_of
from hypothesis import given
from hypothesis import strategies as st
from test_stored_rounds import stored_id

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.round_parts import Draw
from specchat.tui.text.cells import width_of
from specchat.tui.tree import UNICODE
from specchat.tui.tree.panel_lines import Column, colours_of, column_of, earlier_rounds_lines, ribbon, ribbon_height

NAMES = ("", "suffix", "draft_model", "other", "more")


def text_of(line) -> str:
    return "".join(text for text, _ in line)


def proposed(round: ev.RoundDone, *names: str) -> ev.RoundDone:
    """The round with every node proposed by these."""
    draws = [Draw(node, "point", name) for node in range(1, len(round.tree.texts)) for name in names]
    return msgspec.structs.replace(round, tree=msgspec.structs.replace(round.tree, draws=draws))


def test_a_column_is_as_high_as_the_tokens_gained():
    columns = [Column(tokens, "suffix" if tokens > 1 else "") for tokens in (1, 2, 4, 8)]
    assert text_of(ribbon(columns, 10, 1).lines[0]) == "▁▂▄█"
    higher = [*columns, Column(16, "suffix")]
    assert text_of(ribbon(higher, 10, 1).lines[0])[-2:] == "▄█"


def test_tokens_of_earlier_rounds_are_whole_where_there_is_room():
    kept = next(round for round in rounds_of() if len(round.verdict.path) == 3)
    texts = [" mathematics"] * len(kept.tree.texts)
    round = msgspec.structs.replace(kept, tree=msgspec.structs.replace(kept.tree, texts=texts))
    wide, narrow = (text_of(earlier_rounds_lines([round], width, 20, UNICODE, room=5)[1]) for width in (70, 40))
    assert wide.startswith("●●●★  ·mathematics·mathematics·mathematics")
    assert "·mathemat…" in narrow
    assert len(narrow) <= 40


def test_a_column_has_the_colour_of_who_proposed_most_of_what_was_kept():
    kept = next(round for round in rounds_of() if len(round.verdict.path) == 3)
    alone = next(round for round in rounds_of() if not round.verdict.path)
    rounds = [proposed(kept, "suffix"), proposed(kept, "draft_model"), proposed(alone, "suffix")]
    assert [column_of(round) for round in rounds] == [Column(4, "suffix"), Column(4, "draft_model"), Column(1, "")]
    assert column_of(proposed(kept, "suffix+lookup")).proposer == "suffix"
    drawn = ribbon([column_of(round) for round in rounds], 43, 3)
    roles = [role for _, role in drawn.lines[1]]
    assert roles[2] == "target"
    assert len(set(roles)) == 3
    assert not {"accepted", "drafted"} & set(roles), "blue means kept, whoever guessed it"
    assert text_of(drawn.lines[2]) == "█ suffix  █ draft_model  █ target alone"


def test_a_drafter_keeps_its_colour_in_other_replies():
    given: dict[str, str] = {}
    both = colours_of([Column(2, "suffix"), Column(2, "draft_model")], given)
    turned = colours_of([Column(2, "draft_model"), Column(1, ""), Column(2, "suffix")], given)
    assert both == turned
    assert len(set(both.values())) == 3
    assert colours_of([Column(2, "suffix")], {})["suffix"] == colours_of([Column(2, "suffix")], given)["suffix"]


@given(st.integers(1, 500), st.integers(10, 70), st.integers(6, 40), st.data())
def test_every_cell_of_the_ribbon_is_the_round_it_shows(count, width, height, data):
    columns = [Column(at % 9, NAMES[at % 5]) for at in range(count)]
    shown = data.draw(st.none() | st.integers(0, len(columns) - 1))
    lines = ribbon_height(height, width, len(columns))
    drawn = ribbon(columns, width, lines, shown)
    assert len(drawn.lines) == lines
    assert all(width_of(line) <= width for line in drawn.lines)
    cells = {drawn.round_at(x, y): (x, y) for y in range(-1, lines + 1) for x in range(-1, width + 1)}
    found = sorted(at for at in cells if at is not None)
    assert found == list(range(found[0], found[-1] + 1)), "no round is left out between two"
    assert (len(columns) - 1 if shown is None else shown) in found
    for at in found:
        x, y = cells[at]
        role = [role for text, role in drawn.lines[y] for _ in text][x]
        assert (role == "column") == (at == shown)


async def a_click_on_a_column_turns_to_its_round(d: Driver) -> None:
    await d.say("How does it work?")
    rounds = await d.reply()
    panel = d.view.tree_panel
    lines = d.drawn(panel).split("\n")
    screen_line = next(y for y, line in enumerate(lines) if f"{len(rounds)} rounds" in line) + 1
    await d.pilot.click(panel, offset=(4 + panel.gutter.left, screen_line + panel.gutter.top))
    assert panel.round is rounds[4]
    drawn = d.drawn(panel)
    assert f"5 of {len(rounds)}: " in drawn
    assert "by scripted" in drawn or "no guess kept" in drawn


async def page_up_walks_to_the_first_round_of_the_reply_and_ten_rounds_at_once(d: Driver) -> None:
    await d.say("How does it work?")
    rounds = await d.reply()
    panel = d.view.tree_panel
    panel.focus()
    await d.pilot.press("ctrl+pageup")
    assert panel.round is rounds[-11]
    for _ in range(len(rounds)):
        await d.pilot.press("ctrl+pageup")
    assert panel.round is rounds[0]
    await d.pilot.press("pagedown", "ctrl+pagedown")
    assert panel.round is rounds[11]


async def pointing_at_an_earlier_reply_shows_its_rounds_until_esc_or_the_next_reply(d: Driver) -> None:
    await d.say("How does it work?")
    first = await d.reply("one two three four five six seven")
    await d.say("And then?")
    second = await d.reply("other words for the same thing and more of them")
    panel = d.view.tree_panel
    d.view.transcript.focus()
    await d.pilot.press("k", "k", "k")
    await d.settle()
    assert [r.pieces for r in panel._rounds] == [r.pieces for r in first]
    assert "earlier reply" in str(panel.border_title)
    panel.focus()
    await d.pilot.press("pageup", "escape")
    assert [r.pieces for r in panel._rounds] == [r.pieces for r in first], "the first Esc leaves the round"
    await d.pilot.press("escape")
    await d.settle()
    assert panel._rounds[-1].pieces == second[-1].pieces
    d.view.transcript.focus()
    await d.pilot.press("g", "j")
    await d.settle()
    assert "earlier reply" in str(panel.border_title)
    d.view.prompt.focus()
    await d.say("More?")
    third = await d.reply("something else", upto=1, finish=False)
    assert panel.round is third[0]


async def test_an_old_chat_shows_each_replys_ribbon_and_says_where_none_was_kept(tmp_path: Path):
    store = tmp_path / "chats.db"

    async def ribbon_line(d: Driver, *keys: str) -> str:
        d.view.transcript.focus()
        await d.pilot.press(*keys)
        await d.settle()
        lines = d.drawn(d.view.tree_panel).split("\n")
        at = [y for y, line in enumerate(lines) if "rounds, higher" in line]
        return lines[at[0] + 1] if at else lines[0]

    async with driving(store=store) as d:
        for text in ("one two three four five six seven eight", "other words for the same thing and more"):
            await d.say("How does it work?")
            await d.reply(text)
        lines = [await ribbon_line(d), await ribbon_line(d, "k", "k", "k")]
    async with driving(store=store) as d:
        await d.view.current_chat.open(stored_id(store))
        await d.settle()
        assert [await ribbon_line(d), await ribbon_line(d, "k", "k", "k")] == lines
        await d.app.context.archive.change(lambda chats: chats.forget_rounds(0))
        await d.say("/new")
        await d.view.current_chat.open(stored_id(store))
        assert await ribbon_line(d) == "no rounds were kept of this reply"


@pytest.mark.parametrize("height", [5, 6, 14, 15, 26, 60])
def test_a_small_panel_has_a_small_ribbon(height):
    lines = ribbon_height(height, 43, 500)
    assert lines == {5: 0, 6: 1, 14: 1, 15: 4, 26: 6, 60: 12}[height]
    assert lines <= max(1, height // 3)


async def test_the_ribbon_is_clicked_and_walked():
    await in_one_app(
        a_click_on_a_column_turns_to_its_round,
        page_up_walks_to_the_first_round_of_the_reply_and_ten_rounds_at_once,
        pointing_at_an_earlier_reply_shows_its_rounds_until_esc_or_the_next_reply,
    )
