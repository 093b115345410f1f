"""How a race ends: a dead engine, a failure, texts that differ, and the result to copy."""

from __future__ import annotations

import pytest
from races import asked, begun, ended, fast_heat, fast_rounds, plain_heat, racing, screen_of, shown, warm_up

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Compare, Generate, Load
from specchat.engine.protocol.round_parts import Piece
from specchat.tui.screens.race import RaceScreen
from specchat.tui.state import race_lines


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
        assert d.view.alert.display
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
        assert d.link.last(Generate).messages == [ev.Message("user", "hi")]


async def test_texts_that_part_at_a_tie_are_told_with_the_margin():
    async with racing() as (d, _):
        await warm_up(d)
        plain = await plain_heat(d)
        fast = fast_rounds(asked(d, "speculative").id)
        last = fast[-1]
        pieces = [*last.pieces[:-1], Piece(9999, last.pieces[-1].text, "target")]
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
        assert "though less is promised: distributed exactly as the target's" in shown(d, "outcome")


async def test_a_race_that_ends_while_its_screen_is_drawn_is_drawn_to_its_end(monkeypatch):
    async with racing() as (d, clock):
        await warm_up(d)
        await plain_heat(d)
        await fast_heat(d)
        head = screen_of(d)._head
        repaint = head.repaint

        def late() -> None:
            clock.now += 60
            repaint()

        monkeypatch.setattr(head, "repaint", late)
        screen_of(d).show()
        await d.until("identical: all")


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


@pytest.mark.parametrize(
    ("plain_s", "speculative_s", "said"),
    [
        (4.0, 1.5, "speculation won by 2.50 s"),
        (1.5, 4.0, "plain decoding won by 2.50 s"),
        (2.0, 2.001, "a dead heat"),
        (2.6149, 2.4851, "speculation won by 0.12 s"),
        (2.0049, 1.9951, "a dead heat"),
    ],
)
def test_a_race_ends_with_who_won_by_how_many_seconds(plain_s, speculative_s, said):
    assert race_lines._winner(plain_s, speculative_s) == said
