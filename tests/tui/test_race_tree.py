"""Between the columns of a race stands speculation's tree, and its bars count tokens on one scale from start to end."""

from __future__ import annotations

import pytest
from races import FAST_S, ended, fast_heat, plain_heat, racing, screen_of, warm_up

from specchat.tui.widgets.painted_lines import LinesView


def filled(d) -> list[int]:
    """Cells of the bars, plain first."""
    return [line.count("━") for line in d.drawn(screen_of(d).query_one("#bars", LinesView)).split("\n")]


@pytest.mark.parametrize(
    ("size", "shown"), [((120, 40), True), ((200, 60), True), ((100, 40), False), ((120, 18), False)]
)
async def test_the_tree_stands_between_the_columns_where_there_is_room(size, shown):
    async with racing(size=size) as (d, _):
        await warm_up(d)
        await d.settle()
        screen = screen_of(d)
        plain, fast = (screen._columns[side].region for side in ("plain", "speculative"))
        assert screen._tree.display == shown
        assert (fast.x - plain.right >= 40) == shown
        assert min(plain.width, fast.width) >= 34


async def test_the_tree_is_of_the_round_that_the_clock_shows_and_can_be_walked_at_the_end():
    async with racing() as (d, clock):
        await warm_up(d)
        await plain_heat(d)
        rounds = await fast_heat(d)
        tree = screen_of(d)._tree
        screen_of(d).show()
        at = tree._rounds.index(tree.round)
        clock.now += 4 * FAST_S
        screen_of(d).show()
        assert tree.round is rounds[-1] or tree._rounds.index(tree.round) >= at + 3
        await d.pilot.press("end")
        assert tree.round is rounds[-1]
        tree.focus()
        await d.pilot.press("pageup", "right")
        assert tree.round is rounds[-2]
        await d.pilot.press("escape")
        assert screen_of(d), "the first Esc leaves the round, not the race"


async def test_bars_count_tokens_on_one_scale_and_end_at_the_same_place():
    async with racing(size=(80, 24)) as (d, clock):
        await warm_up(d)
        plain = await plain_heat(d, upto=40)
        fast = await fast_heat(d, upto=10)
        screen_of(d).show()
        assert "a full bar is 64 tokens" in d.screen()
        early = filled(d)
        await d.hear(*plain[40:], *fast[10:], ended(plain), ended(fast))
        screen_of(d).show()
        assert screen_of(d).playback.full_bar_tokens == 256
        tokens = [screen_of(d).playback.tokens(side) for side in ("plain", "speculative")]
        cells = filled(d)
        assert cells[1] == pytest.approx(cells[0] * tokens[1] / tokens[0], abs=1.1)
        assert "╌" in d.screen(), "how far it is to the end of the reply"
        clock.now += 60
        screen_of(d).show()
        assert filled(d)[0] == filled(d)[1] == cells[1] > cells[0]
        assert early[1] > 0
        assert "╌" not in d.screen()
