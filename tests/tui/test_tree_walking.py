"""The tree can be walked with keys and pointed at with the mouse; every node says what is known about it."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving, in_one_app, wait_for
from fake import broad, nodes_of, rounds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_token_tree import any_round, big_round

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.round_parts import Source, Verdict
from specchat.tui.tree.node_details import bonus_of, children_of, depth_of, neighbour, parent_of

STEPS = ["parent", "child", "previous", "next", "root", "bonus"]


async def walking(d: Driver, round: ev.RoundDone, *keys: str) -> str:
    """A reply ended with this round; the tree has the focus, these keys were pressed."""
    await d.say("How does it work?")
    await d.reply(upto=2)
    d.app.chat.rounds.append(round)
    d.view.tree_panel.show(d.app.chat.rounds, None, frozen=True)
    d.view.tree_panel.focus()
    await d.pilot.press(*keys)
    await d.pilot.pause()
    return d.drawn(d.view.tree_panel)


@settings(max_examples=200, deadline=None)
@given(any_round(), st.lists(st.sampled_from(STEPS), max_size=30))
def test_every_step_ends_on_a_node(round, steps):
    node = 0
    for step in steps:
        before, node = node, neighbour(round, node, step)
        assert 0 <= node < nodes_of(round)
        if step in ("previous", "next"):
            assert depth_of(round, node) == depth_of(round, before)


@settings(max_examples=100, deadline=None)
@given(any_round())
def test_every_node_can_be_walked_to(round):
    reached, waiting = {0}, [0]
    while waiting:
        at = waiting.pop()
        for step in STEPS:
            if (node := neighbour(round, at, step)) not in reached:
                reached.add(node)
                waiting.append(node)
    assert reached == set(range(nodes_of(round)))


def test_children_begin_with_the_path_and_parents_lead_back():
    round = broad()
    first, second, third = round.verdict.path
    assert children_of(round, 0)[0] == first
    assert neighbour(round, first, "child") == second
    assert neighbour(round, third, "child") == bonus_of(round) == neighbour(round, 0, "bonus")
    assert parent_of(round, bonus_of(round)) == third


async def arrows_walk_from_node_to_node_and_the_node_tells_about_itself(d: Driver) -> None:
    round = broad()
    drawn = await walking(d, round, "right")
    assert d.view.tree_panel.chosen == round.verdict.path[0]
    assert "─ this token ─" in drawn
    assert "the target wrote it too" in drawn
    await d.pilot.press("right", "right", "right")
    assert d.view.tree_panel.chosen == bonus_of(round)
    await d.pilot.press("left", "down")
    assert d.view.tree_panel.chosen not in round.verdict.path
    await d.pilot.press("home")
    assert d.view.tree_panel.chosen == 0
    await d.pilot.press("escape")
    assert not d.view.tree_panel.walking
    assert "earlier rounds" in d.drawn(d.view.tree_panel)
    assert d.view.tree_panel.has_focus, "the first Esc only leaves the node"
    await d.pilot.press("escape")
    assert d.view.prompt.has_focus


async def a_copied_token_tells_which_message_it_was_copied_from(d: Driver) -> None:
    round = broad()
    source = Source(3, "user", 1, "does it")
    pieces = [msgspec.structs.replace(round.pieces[0], source=source), *round.pieces[1:]]
    drawn = await walking(d, msgspec.structs.replace(round, pieces=pieces), "right")
    assert "copied from your message 1, after does·it" in drawn
    await d.pilot.press("right")
    await d.pilot.pause()
    drawn = d.drawn(d.view.tree_panel)
    assert "the target wrote it too" in drawn
    assert "copied" not in drawn


async def the_round_that_is_walked_stays_while_others_are_written(d: Driver) -> None:
    await d.say("How does it work?")
    rounds = await d.reply(upto=3, finish=False)
    d.view.tree_panel.focus()
    await d.pilot.press("right")
    await d.hear(*rounds[3:6])
    assert d.view.tree_panel.round is rounds[2]
    assert "round 3" in str(d.view.tree_panel.border_title)
    await d.pilot.press("pagedown")
    assert d.view.tree_panel.round is rounds[3]
    await d.pilot.press("pageup", "pageup", "pageup", "pageup", "pageup")
    assert d.view.tree_panel.round is rounds[0]
    await d.pilot.press("escape")
    assert d.view.tree_panel.round is rounds[5]


async def the_next_reply_is_followed_though_a_round_of_the_one_before_is_selected(d: Driver) -> None:
    await d.say("hi")
    first = await d.reply()
    panel = d.view.tree_panel
    panel.focus()
    await d.pilot.press("pageup", "right")
    assert panel.round is first[-2]
    d.view.prompt.focus()
    await d.say("and now?")
    await d.settle()
    assert panel.round is first[-2], "there is nothing else to show yet"
    second = await d.reply(upto=3, finish=False)
    assert panel.round is second[2]
    assert not panel.walking


async def past_the_last_round_the_panel_follows_again(d: Driver) -> None:
    await d.say("How does it work?")
    rounds = await d.reply(upto=3, finish=False)
    d.view.tree_panel.focus()
    await d.pilot.press("pageup", "pagedown", "pagedown")
    assert not d.view.tree_panel.walking
    assert d.view.tree_panel.round is rounds[2]


async def test_a_reply_that_is_over_rests_on_its_best_round_until_a_key_walks():
    async with driving() as d:
        await d.say("hi")
        rounds = await d.reply()
        panel = d.view.tree_panel
        best = max(len(round.verdict.path) for round in rounds)
        assert len(panel.round.verdict.path) == best > len(rounds[-1].verdict.path)
        assert str(panel.border_title) == f"best of {len(rounds)}: kept {best}"
        await d.pilot.press("tab", "tab", "pageup")
        assert panel.round is rounds[-2]
        await d.pilot.press("escape")
        assert len(panel.round.verdict.path) == best
        d.view.prompt.focus()
        await d.say("again")
        await d.reply(upto=3, finish=False)
        assert panel.round.index == 2, "while a reply is written its last round is shown"


async def test_a_node_of_the_first_round_stays_chosen_while_the_round_is_still_being_told():
    async with driving() as d:
        d.app.animation_level = "full"
        await d.say("How does it work?")
        await d.reply(upto=0, finish=False)
        d.view.hold()
        d.link.put(broad())
        await wait_for(d.pilot, lambda: not d.view.animation.finished)
        d.view.animation.timer.pause()
        d.view.tree_panel.focus()
        await d.pilot.press("right", "less_than_sign")
        assert d.view.tree_panel.chosen == d.view.tree_panel.round.verdict.path[0]
        await d.pilot.press("home")
        assert "the last token before this round" in d.drawn(d.view.tree_panel)
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert not d.view.tree_panel.walking, "another chat has other rounds"


async def the_next_step_leaves_the_node_that_was_looked_at(d: Driver) -> None:
    await d.say("How does it work?")
    await d.reply(upto=3, finish=False)
    d.view.tree_panel.focus()
    await d.pilot.press("space", "right")
    assert d.view.tree_panel.walking
    await d.pilot.press("full_stop")
    assert not d.view.tree_panel.walking


async def the_mouse_tells_about_the_node_under_it_and_a_click_chooses_it(d: Driver) -> None:
    round = broad()
    drawn = await walking(d, round)
    screen_line = next(y for y, line in enumerate(drawn.split("\n")) if "✕" in line)
    column = drawn.split("\n")[screen_line].index("✕")
    panel = d.view.tree_panel
    await d.pilot.hover(panel, offset=(column + panel.gutter.left, screen_line + panel.gutter.top))
    await d.pilot.pause()
    assert "the target wrote" in d.drawn(panel)
    assert panel.chosen is None
    await d.pilot.hover(d.view.prompt)
    await d.pilot.pause()
    assert "the target wrote" not in d.drawn(panel)
    await d.pilot.click(panel, offset=(column + panel.gutter.left, screen_line + panel.gutter.top))
    assert round.verdict.reasons[panel.chosen] == "rejected"
    assert panel.has_focus


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_what_is_chosen_is_never_out_of_sight(size):
    async with driving(size) as d:
        round = max(rounds_of(), key=lambda r: len(r.tree.tokens))
        await walking(d, round, "home")
        for node in range(nodes_of(round)):
            d.view.tree_panel.choose(node)
            await d.pilot.pause()
            d.drawn(d.view.tree_panel)
            assert node in d.view.tree_panel.drawing.shown


async def test_what_is_chosen_is_seen_without_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with driving() as d:
        await walking(d, broad(), "right")
        assert d.app.no_color
        assert d.view.tree_panel.style_of("selected").reverse
        assert d.view.tree_panel.style_of("ancestor").underline


async def a_map_stays_a_map_until_small_trees_have_become_usual(d: Driver) -> None:
    await walking(d, big_round(200))
    panel = d.view.tree_panel

    def is_map() -> bool:
        return d.drawn(panel).split("\n")[1].split()[:2] == ["1", "2"]

    assert is_map()
    small = [msgspec.structs.replace(broad(), index=index) for index in range(12)]
    maps = []
    for round in small:
        panel.show([round], None)
        maps.append(is_map())
    assert maps == [True] * 7 + [False] * 5


async def test_the_command_draws_any_tree_as_a_map():
    async with driving() as d:
        await d.say("How does it work?")
        await d.reply(upto=4)
        await d.say("/tree map")
        assert d.drawn(d.view.tree_panel).split("\n")[1].startswith("1 ")


@pytest.mark.parametrize("size", [(59, 24), (40, 12), (120, 10)])
async def test_where_there_is_no_room_beside_the_chat_the_tree_is_walked_in_its_place(size):
    async with driving(size) as d:
        await d.say("How does it work?")
        rounds = await d.reply(upto=8)
        panel, page = d.view.tree_panel, d.view.transcript
        assert not panel.size or not panel.region
        await d.pilot.press("ctrl+t")
        await d.settle()
        assert panel.has_focus
        assert panel.outer_size.width >= size[0] - 2
        assert not any(beside.display for beside in (page, d.view.tree_strip, d.view.stats))
        await d.pilot.press("right")
        assert panel.chosen == rounds[7].verdict.path[0]
        assert rounds[7].tree.texts[panel.chosen].strip() in d.drawn(panel)
        await d.pilot.press("escape", "escape")
        await d.settle()
        assert page.display
        assert d.view.prompt.has_focus
        await d.pilot.press("ctrl+t", "ctrl+t")
        await d.settle()
        assert page.display
        assert not d.view.tree_strip.display
        await d.pilot.press("ctrl+t")
        await d.settle()
        assert d.view.tree_strip.display


async def test_a_window_that_grows_has_the_tree_beside_the_chat_again():
    async with driving((50, 24)) as d:
        await d.say("How does it work?")
        await d.reply(upto=8)
        await d.pilot.press("ctrl+t")
        await d.pilot.resize_terminal(120, 40)
        await d.settle()
        assert d.view.transcript.display
        assert d.view.tree_panel.size.width < 60


async def a_node_under_the_pointer_is_forgotten_with_its_round(d: Driver) -> None:
    round = broad()
    await walking(d, round)
    panel = d.view.tree_panel
    panel._hover(bonus_of(round))
    assert "this token" in d.drawn(panel)
    ended = msgspec.structs.replace(round, verdict=Verdict([], None, "", None, round.verdict.reasons))
    panel.show([ended], None, frozen=True)
    assert "this token" not in d.drawn(panel)


async def test_the_tree_is_walked_with_keys_and_pointed_at():
    await in_one_app(
        arrows_walk_from_node_to_node_and_the_node_tells_about_itself,
        a_copied_token_tells_which_message_it_was_copied_from,
        the_round_that_is_walked_stays_while_others_are_written,
        the_next_reply_is_followed_though_a_round_of_the_one_before_is_selected,
        past_the_last_round_the_panel_follows_again,
        the_next_step_leaves_the_node_that_was_looked_at,
        the_mouse_tells_about_the_node_under_it_and_a_click_chooses_it,
        a_map_stays_a_map_until_small_trees_have_become_usual,
        a_node_under_the_pointer_is_forgotten_with_its_round,
    )
