"""Where the target decided, in the app: a strip of layers for a chosen token, a heat line under the reply, `/lens`."""

from __future__ import annotations

from driving import driving, in_one_app
from fake import LOSS, SETTINGS, broad, ready, rounds_of, started, stats_of
from msgspec.structs import replace

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event, encode
from specchat.engine.protocol.commands import Change, Generate
from specchat.engine.protocol.packed_rounds import pack_rounds, unpack_rounds
from specchat.engine.protocol.round_parts import LayerTop, Lens
from specchat.tui.tree import UNICODE
from specchat.tui.tree.node_details import bonus_of, details, heat_line, parent_of


def with_lens(round: ev.RoundDone, decided: int = 21, layers: int = 30) -> ev.RoundDone:
    """The round, whose tokens were all decided at this layer; in place of the bonus another was likelier."""
    pieces = []
    for piece in round.pieces:
        last = piece.token + (piece.origin == "target")
        pieces.append(replace(piece, lens=Lens(layers, [LayerTop(1, 5, " a"), LayerTop(decided, last, piece.text)])))
    return replace(round, pieces=pieces)


def told(round: ev.RoundDone, node: int, width: int = 60) -> str:
    return " ".join("".join(text for text, _ in line) for line in details(round, node, width, UNICODE))


def test_a_strip_of_layers_stands_at_every_place_that_the_target_was_asked_about():
    round = with_lens(broad())
    first = round.verdict.path[0]
    assert "layers " + "·" * 20 + "█" * 10 in told(round, first)
    assert "decided at layer\u00a021 of\u00a030, ·a before" in told(round, first)
    assert "another was drawn" not in told(round, first)
    assert "likeliest, but another was drawn" in told(round, bonus_of(round))
    rejected = next(
        node for node, why in enumerate(round.verdict.reasons)
        if why == "rejected" and parent_of(round, node) in (0, *round.verdict.path)
    )  # fmt: skip
    unreached = round.verdict.reasons.index("unreached")
    assert "decided at layer" in told(round, rejected), "what the target wrote instead"
    assert "layers" not in told(round, unreached) + told(round, 0) + told(broad(), first)


def test_a_strip_that_is_wider_than_the_panel_claims_no_layer_that_it_cannot_show():
    round = with_lens(broad(), decided=90, layers=100)
    strip = told(round, round.verdict.path[0], 28).split("layers ")[1].split()[0]
    assert strip == "·" * 18 + "█" * 2, "a cell of five layers is full where all five are"


def test_the_heat_line_means_over_tokens_that_have_no_cell_of_their_own():
    assert heat_line(rounds_of()) == ""
    short = [with_lens(rounds_of("one two")[0], 15)]
    assert heat_line(short).startswith("▄" * len(short[0].pieces) + " decided at layer 15 of 30 on average")
    long = [with_lens(round, 30) for round in rounds_of("one two three four five six seven eight " * 20)]
    assert heat_line(long).startswith("█" * 48 + " decided at layer 30 of 30")
    assert "each some" in heat_line(long)


def test_layers_come_back_from_the_stream_and_from_a_kept_chat():
    round = with_lens(broad())
    assert decode_event(encode(round)) == round
    assert [piece.lens for piece in unpack_rounds(pack_rounds([round], 1 << 16))[0].pieces] == [
        piece.lens for piece in round.pieces
    ]
    assert b'"lens"' not in encode(broad()), "takes no room where it was not asked for"


async def test_the_command_turns_it_on_and_off_and_the_reply_shows_it():
    async def turned(d):
        await d.say("/lens")
        assert d.link.last(Change).settings == {"lens": True}
        await d.hear(ev.Changed({**SETTINGS, "lens": True}, LOSS))
        assert "at which layer it was decided" in d.drawn(d.view.notice)
        await d.say("hi")
        asked = d.link.last(Generate)
        rounds = [with_lens(round) for round in rounds_of("one two three four five", id=asked.id)]
        begun = replace(started(asked.messages, asked.id), settings={**SETTINGS, "lens": True})
        await d.hear(begun, *rounds, ev.Finished(asked.id, "end", "", stats_of(rounds), 9.0))
        assert "decided at layer 21 of 30 on average" in " ".join(d.screen().replace("│", " ").split())
        d.view.tree_panel.focus()
        await d.pilot.press("end", "right")
        await d.settle()
        assert "layers ····" in d.screen()
        d.view.prompt.focus()
        await d.say("/lens")
        assert d.link.last(Change).settings == {"lens": False}

    async def refused(d):
        await d.say("/lens of")
        assert "/lens does not know 'of'; did you mean 'off'?" in d.drawn(d.view.notice)
        d.view.prompt.clear()

    await in_one_app(turned, refused)


async def test_an_engine_that_cannot_look_says_so_in_one_line():
    async with driving() as d:
        await d.say("/lens on")
        why = "lens = true needs the head on the states of early layers, which llama.cpp does not allow"
        await d.hear(ev.Failed("CombinationError", why, during="change"))
        assert "lens = true needs the head" in d.drawn(d.view.notice)
        assert not d.app.chat.engine.settings["lens"]
        assert ready().settings["lens"] is False
