"""Rounds may be held, done one by one and slowed down, live as in a recording, and are told depth by depth then."""

from __future__ import annotations

from driving import Driver, driving, telling, writing

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Pace


def pace(d: Driver) -> Pace:
    return d.link.last(Pace)


async def test_space_holds_a_live_reply_and_lets_it_go_on():
    async with driving() as d:
        await writing(d)
        await d.pilot.press("space")
        assert pace(d) == Pace(1, hold=True)
        assert "‖ held" in str(d.view.tree_panel.border_title)
        assert "held" in d.drawn(d.view.notice)
        await d.pilot.press("space")
        assert pace(d) == Pace(1, hold=False)
        assert "held" not in str(d.view.tree_panel.border_title)


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
        assert not d.app.context.speed.held
        d.view.prompt.focus()
        await d.say("and then?")
        assert d.link.sent[-2:] == [Pace(2, gap_s=0.5), d.link.last(Generate)]
        await d.pilot.press("greater_than_sign", "greater_than_sign", "greater_than_sign")
        assert pace(d).gap_s == 0.5, "in the prompt they are text"
        assert d.view.prompt.text == ">>>"


async def test_the_commands_do_what_the_keys_do():
    async with driving() as d:
        await writing(d, 2)
        d.view.prompt.focus()
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
        assert "speed: full" in d.drawn(d.view.notice)
        for wrong, why in (("/speed fast", "rounds per second"), ("/step none", "a number of rounds")):
            await d.say(wrong)
            assert why in d.drawn(d.view.notice)


async def test_nothing_can_be_held_while_nothing_is_written():
    async with driving() as d:
        await d.say("/pause")
        assert "nothing is being written" in d.drawn(d.view.notice)
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
        while not d.view.animation.finished:
            await d.pilot.pause()
            pictures.append(d.drawn(d.view.tree_panel).split("\n─")[0].split("─ earlier")[0])
            assert d.app.chat.turns[-1].reply.text == before, "it is no part of the chat yet"
            d.view.animation.advance()
        await d.settle()
        pictures.append(d.drawn(d.view.tree_panel).split("─ earlier")[0])
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
        assert d.view.animation.round is None


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
        d.app.context.speed.set_speed("20")
        await d.hear(rounds[3])
        assert d.app.chat.rounds[-1] is rounds[3]
        d.app.context.speed.set_speed("4")
        await telling(d, rounds[4])


async def test_without_animations_rounds_appear_whole():
    async with driving() as d:
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await d.hear(rounds[3])
        assert d.app.chat.rounds[-1] is rounds[3]
        assert d.view.animation.round is None


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
        assert "‖" in d.drawn(d.view.tree_strip)


async def test_a_new_chat_forgets_the_round_that_was_being_told():
    async with driving() as d:
        d.app.animation_level = "full"
        rounds = await writing(d, 3)
        await d.pilot.press("space")
        await telling(d, rounds[3])
        await d.pilot.press("ctrl+n")
        await d.settle()
        assert "each round's token tree" in d.drawn(d.view.tree_panel)
        await d.hear(ev.Finished(1, "cancelled", "", ev.Stats(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0), 1.0))
        assert d.view.animation.round is None
        assert not d.app.chat.rounds
