"""Every token of a reply and every node of a tree opens what else could stand there, and begins a branch."""

from __future__ import annotations

import math

import msgspec
from driving import Driver, driving, in_one_app, wait_for
from fake import ready, started, stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Cancel, Generate, ReplyConstraint
from specchat.engine.protocol.round_parts import (
    Draw,
    ForbiddenGuess,
    Likely,
    Piece,
    Timings,
    TokenLogprob,
    Tree,
    Verdict,
)
from specchat.store.records import Facts
from specchat.tui.screens.alternatives import AlternativesScreen
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.stored_chat import message_of, turn_of
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.text.cells import width_of
from specchat.tui.tree import ASCII, UNICODE, draw, picture_of
from specchat.tui.tree.alternatives import (
    Alternative,
    alternative_lines,
    alternatives,
    before_line,
    emitted_by,
    explanation_lines,
    fork_at,
    fork_at_node,
    readable_pieces,
    sentence,
)
from specchat.tui.tree.panel_lines import legend_lines

WORDS = {20: "Once", 21: " upon", 22: " a", 23: " time", 24: " hill", 25: " moon", 26: ",", 27: " the", 28: " sea"}
END = 2


def told(
    index: int, id: int, root: int, tree: Tree, path: list[int], bonus: int, text: str | None = None
) -> ev.RoundDone:
    reasons = ["accepted" if node in (0, *path) else "rejected" for node in range(len(tree.tokens))]
    pieces = [Piece(tree.tokens[node], WORDS[tree.tokens[node]], "drafted") for node in path]
    shown = WORDS.get(bonus, "<|im_end|>")
    return ev.RoundDone(
        id, index, 0.1 * (index + 1), 9, {"nodes": 4}, msgspec.structs.replace(tree),
        Verdict(path, bonus, shown, math.log(0.07), reasons),  # type: ignore[arg-type]
        [*pieces, Piece(bonus, WORDS.get(bonus, "") if text is None else text, "target")], Timings(0.001, 0.001, 0.001),
    )  # fmt: skip


def story(id: int = 1) -> list[ev.RoundDone]:
    """`Once upon a time, the` in three rounds; in the second the drafter guessed `hill` and `hill moon` for `time`."""
    plain = Tree([1], [-1], ["<s>"], [], [None])
    tree = Tree(
        [20, 21, 22, 24, 25], [-1, 0, 1, 2, 3], [WORDS[token] for token in (20, 21, 22, 24, 25)],
        [Draw(child, "point", "hydra", math.log(0.31)) for child in range(1, 5)],
        [None, math.log(0.9), math.log(0.8), math.log(0.64), None],
        [ForbiddenGuess(2, 28, WORDS[28], "hydra")],
    )  # fmt: skip
    last = Tree([23, 26], [-1, 0], [WORDS[23], WORDS[26]], [Draw(1, "point", "hydra")], [None, math.log(0.5)])
    return [told(0, id, 1, plain, [], 20), told(1, id, 20, tree, [1, 2], 23), told(2, id, 23, last, [1], 27)]


def reply_of(rounds: list[ev.RoundDone], **facts: object) -> Reply:
    reply = Reply(1, Figures(), stop="end", facts=Facts(pair="smol", seed=7, **facts))  # type: ignore[arg-type]
    for round in rounds:
        reply.rounds.append(round)
        for piece in round.pieces:
            reply.add(piece.text, piece.origin)
    return reply


def texts(emitted) -> list[str]:
    return [one.text for one in emitted]


def test_the_place_of_a_token_is_known_by_the_tokens_before_it():
    rounds = story()
    emitted = emitted_by(reply_of(rounds))
    assert texts(emitted) == ["Once", " upon", " a", " time", ",", " the"]
    fork = fork_at(emitted, 3)
    assert (fork.tokens, fork.round, fork.parent) == ([20, 21, 22], rounds[1], 2)
    for node, tokens, drawn in [
        (1, [20], " upon"), (2, [20, 21], " a"), (3, [20, 21, 22], " time"), (5, [20, 21, 22], " time"),
        (4, [20, 21, 22, 24], None), (0, [], "Once"),
    ]:  # fmt: skip
        fork = fork_at_node(emitted, rounds[1], node)
        assert fork.tokens == tokens
        assert (fork.drawn and fork.drawn.text) == drawn
    assert fork_at_node(emitted, rounds[0], 0) is None, "the prompt's last token"
    assert fork_at_node(emitted, rounds[1], 6) is None, "there is no such node"
    assert fork_at_node(emitted, story()[1], 1) is None, "a round of another reply"


def test_a_reply_that_lacks_rounds_or_tokens_is_known_by_its_texts():
    whole, rounds = reply_of(story()), story()
    bare = Reply(1, Figures(), whole.text, whole.lengths)
    assert texts(emitted_by(bare)) == texts(emitted_by(whole))
    assert fork_at(emitted_by(bare), 3).tokens is None
    assert fork_at(emitted_by(bare), 3).texts == ["Once", " upon", " a"]
    for round in rounds[1:]:
        bare.rounds.append(round)
    emitted = emitted_by(bare)
    assert texts(emitted) == texts(emitted_by(whole))
    assert [one.token for one in emitted] == [None, 21, 22, 23, 26, 27]
    assert fork_at(emitted, 3).tokens is None
    begun = Reply(1, Figures(), "Once upon", [-4, -5], facts=Facts(begun=[(20, 4), (21, 5)]))
    assert fork_at(emitted_by(begun), 1).tokens == [20]
    forged = Reply(1, Figures(), "other", [-5], facts=Facts(begun=[(20, 4), (21, 5)]))
    forged.rounds.append(rounds[1])
    assert texts(emitted_by(forged)) == ["other"]


def test_what_a_reply_was_held_to_and_began_with_is_kept_with_the_chat():
    reply, held = reply_of(story(), begun=[(20, 4)]), ReplyConstraint("json_schema", "{}")
    reply.hold_to(held)
    kept = message_of(Turn("assistant", reply=reply))
    facts = msgspec.json.decode(msgspec.json.encode(kept.facts), type=Facts)
    again = turn_of(msgspec.structs.replace(kept, facts=facts)).reply
    assert again.constraint == held
    assert again.facts.begun == [(20, 4)]
    forged = msgspec.structs.replace(facts, constraint={"kind": "no such", "text": 1})
    assert turn_of(msgspec.structs.replace(kept, facts=forged)).reply.constraint is None


def test_parts_of_a_character_are_one_piece_and_the_end_of_a_reply_is_a_place():
    rounds = [*story()[:1], *[told(at, 1, 20, Tree([20], [-1], ["x"], [], [None]), [], bonus, text)
              for at, (bonus, text) in enumerate([(21, ""), (22, "é"), (END, "")], 1)]]  # fmt: skip
    emitted = emitted_by(reply_of(rounds))
    assert readable_pieces(emitted) == [(0, "Once"), (1, "é"), (3, "")]
    assert [one.text for one in alternatives(fork_at(emitted, 3))] == ["<|im_end|>"]


def answer(id: int, *likely: tuple[int, float], walls: tuple[int, ...] = ()) -> ev.RoundDone:
    """What the engine says of a place: the one token that it writes, and the likeliest."""
    tops = [Likely(token, WORDS[token].encode(), math.log(share)) for token, share in likely]
    round = told(
        0, id, 20, Tree([20], [-1], ["x"], [], [None], [ForbiddenGuess(0, one, WORDS[one]) for one in walls]), [], 27
    )
    piece = msgspec.structs.replace(round.pieces[0], likely=TokenLogprob(27, b" the", -1.0, tops))
    return msgspec.structs.replace(round, pieces=[piece])


def test_alternatives_are_the_targets_likeliest_the_guesses_and_what_was_drawn():
    emitted = emitted_by(reply_of(story()))
    fork = fork_at(emitted, 3)
    assert alternatives(fork) == [
        Alternative(24, " hill", math.log(0.64), math.exp(math.log(0.31)), "hydra"),
        Alternative(23, " time", math.log(0.07), drawn=True),
        Alternative(28, " sea", proposers="hydra", forbidden=True),
    ]
    asked = alternatives(fork, answer(9, (24, 0.64), (25, 0.1), (28, 0.08), (23, 0.07), walls=(28,)))
    assert [(one.text, one.drawn, one.forbidden, one.proposers) for one in asked] == [
        (" hill", False, False, "hydra"), (" moon", False, False, ""), (" sea", False, True, "hydra"),
        (" time", True, False, ""),
    ]  # fmt: skip
    known = alternatives(fork, answer(9, (25, 0.5)))
    assert [one.text for one in known if one.drawn] == [" time"], "though the target does not name it"
    said = sentence(asked, 0, UNICODE, 0.5).replace("\u00a0", " ")
    assert said == "temperature 0.5 drew ·time (7 %); ·hill had 64 %"
    assert "does not fit what the reply is held to" in sentence(asked, 2, UNICODE, 0.5)
    assert sentence(alternatives(fork_at_node(emitted, story()[1], 4) or fork), 0, UNICODE, None)


def test_alternatives_are_drawn_in_the_room_there_is():
    fork = fork_at(emitted_by(reply_of(story())), 3)
    rows = alternatives(fork, answer(9, (24, 0.64), (25, 0.1), (28, 0.08), walls=(28,)))
    for marks in (UNICODE, ASCII):
        for width in range(1, 90, 7):
            for height in (1, 2, 3, 9):
                for chosen in range(len(rows)):
                    first, lines = alternative_lines(rows, chosen, width, height, marks)
                    assert first <= chosen < first + len(lines) <= first + height
                    below = explanation_lines(rows, chosen, width, marks, 0.8)
                    assert all(width_of(line) <= width for line in [*lines, *below, before_line(fork, width)])
    _, lines = alternative_lines(rows, 0, 76, 9, UNICODE)
    drawn = ["".join(text for text, _ in line) for line in lines]
    assert "·hill" in drawn[0]
    assert "64" in drawn[0]
    assert "hydra guessed 31" in drawn[0]
    wall = next(line for line in drawn if "·sea" in line)
    assert wall.startswith(UNICODE.forbidden)
    assert "forbidden" in wall


def test_the_tree_shows_forbidden_guesses_as_walls_and_forced_tokens_in_a_colour():
    round = story()[1]
    tree = msgspec.structs.replace(round.tree, draws=[Draw(1, "point", "grammar", 0.0), *round.tree.draws[1:]])
    picture = picture_of(msgspec.structs.replace(round, tree=tree), UNICODE)
    assert picture.drafted == 4, "a wall is no node"
    for mode in ("river", "log"):
        drawing = draw(picture, 70, 12, mode, UNICODE)
        runs = [run for line in drawing.lines for run in line]
        assert ("·sea", "forbidden") in runs
        assert ("·upon", "forced") in runs
        assert ("·a", "accepted") in runs
        assert drawing.shown <= set(range(6))
    legend = "".join(text for line in legend_lines(picture, 90, 20, UNICODE) for text, _ in line)
    assert "forced" in legend
    assert "forbidden" in legend
    free = picture_of(story()[0], UNICODE)
    assert "forbidden" not in "".join(text for line in legend_lines(free, 90, 20, UNICODE) for text, _ in line)


# ------------------------------------------------------------------------------------------------------ the app


async def told_story(d: Driver) -> list[ev.RoundDone]:
    await d.say("Tell me a story")
    generate = d.link.last(Generate)
    rounds = story(generate.id)
    await d.hear(started(generate.messages, generate.id), *rounds)
    await d.hear(ev.Finished(generate.id, "end", "", stats_of(rounds), 1.0))
    return rounds


async def a_token_of_a_reply_opens_its_alternatives_and_begins_a_branch(d: Driver) -> None:
    await told_story(d)
    first = d.app.chat.turns[-1]
    d.view.transcript.focus()
    await d.pilot.press("left", "left", "left")
    await d.settle()
    assert "token 4 of 6: ·time" in d.drawn(d.view.notice)
    await d.pilot.press("enter")
    await d.settle()
    asked = d.link.last(Generate)
    assert asked.begun_tokens == [20, 21, 22]
    assert asked.messages == d.generates()[0].messages
    assert (asked.top_logprobs, asked.apart["max_tokens"]) == (10, 1)
    assert "·hill" in d.screen()
    assert "·moon" not in d.screen()
    await d.hear(started(asked.messages, asked.id), answer(asked.id, (24, 0.64), (25, 0.1), (23, 0.07)))
    await d.hear(ev.Finished(asked.id, "length", "", stats_of([]), 0.1))
    assert "·moon" in d.screen()
    assert "asking" not in d.screen()
    assert d.app.chat.turns[-1] is first, "the question leaves no trace in the chat"
    await d.pilot.press("up", "enter")
    await d.settle()
    branch = d.link.last(Generate)
    assert branch.begun_tokens == [20, 21, 22, 25]
    assert branch.seed == 7, "all else is drawn as it was"
    heard = msgspec.structs.replace(started(branch.messages, branch.id), begun=["Once", " upon", " a", " moon"])
    tree = Tree([25], [-1], [" moon"], [], [None])
    await d.hear(heard, told(0, branch.id, 25, tree, [], 26))
    await d.hear(ev.Finished(branch.id, "end", "", stats_of([]), 1.0))
    turn = d.app.chat.turns[-1]
    assert turn.reply.text == "Once upon a moon,"
    assert (turn.place, first.place) == ((2, 2), (1, 2))
    assert first.reply.text == "Once upon a time, the"
    assert fork_at(emitted_by(turn.reply), 4).tokens == [20, 21, 22, 25], "a branch has branches"
    await d.pilot.press("[")
    await d.settle()
    assert d.app.chat.turns[-1] is first


async def a_node_of_the_tree_opens_what_else_could_stand_there(d: Driver) -> None:
    await told_story(d)
    d.view.tree_panel.focus()
    await d.pilot.press("pageup", "right", "right", "right", "down", "right", "enter")
    await d.settle()
    assert isinstance(d.app.screen, AlternativesScreen)
    asked = d.link.last(Generate)
    assert asked.begun_tokens == [20, 21, 22, 24], "a place behind a guess that was not kept"
    assert "not reached: the target went elsewhere" in " ".join(d.screen().split())
    await d.pilot.press("escape")
    await d.settle()
    assert d.link.last(Cancel).id == asked.id
    assert d.view.tree_panel.has_focus


async def escape_leaves_the_token_and_then_the_chat(d: Driver) -> None:
    await told_story(d)
    d.view.transcript.focus()
    await d.pilot.press("right")
    view = d.view.transcript.reply_view()
    assert view.token_view
    await d.pilot.press("escape")
    assert not view.token_view, "it is Markdown again"
    assert d.view.transcript.has_focus
    await d.pilot.press("enter")
    assert not isinstance(d.app.screen, AlternativesScreen)
    await d.pilot.press("escape")
    assert d.view.prompt.has_focus


async def a_token_of_an_earlier_reply_begins_a_branch_there(d: Driver) -> None:
    await told_story(d)
    earlier = d.app.chat.turns[-1]
    await told_story(d)
    d.view.transcript.focus()
    await d.pilot.press("k", "k", "k", "right", "right", "enter")
    await d.settle()
    asked = d.link.last(Generate)
    assert (asked.begun_tokens, len(asked.messages)) == ([20], 1)
    await d.pilot.press("enter")
    await d.settle()
    branch = d.link.last(Generate)
    assert (branch.begun_tokens, branch.messages) == ([20, 21], asked.messages)
    assert branch.seed is None, "with the token that was drawn, what follows is drawn anew"
    assert [turn.role for turn in d.app.chat.turns] == ["user", "assistant"]
    assert earlier.place == (1, 2)


async def a_failure_of_the_question_is_said_on_the_page(d: Driver) -> None:
    await told_story(d)
    d.view.transcript.focus()
    await d.pilot.press("left", "enter")
    await d.settle()
    asked = d.link.last(Generate)
    await d.hear(ev.Failed("ConstraintError", "the reply so far does not fit", id=asked.id, during="generate"))
    assert "the reply so far does not fit" in d.screen()
    assert "·the" in d.screen()


async def the_target_is_asked_once_a_model_is_loaded(d: Driver) -> None:
    await told_story(d)
    d.app.chat.engine.load()
    d.view.transcript.focus()
    await d.pilot.press("left", "left", "left", "enter")
    await d.settle()
    asked = len(d.generates())
    assert "no model yet" in d.screen()
    await d.hear(ready())
    assert len(d.generates()) == asked + 1
    assert d.link.last(Generate).begun_tokens == [20, 21, 22]


async def the_token_that_ends_a_reply_is_called_its_end(d: Driver) -> None:
    await d.say("Tell me a story")
    generate = d.link.last(Generate)
    *before, last = story(generate.id)
    changed = msgspec.structs.replace
    last = changed(last, pieces=[*last.pieces[:-1], changed(last.pieces[-1], text="")])
    await d.hear(started(generate.messages, generate.id), *before, last)
    await d.hear(ev.Finished(generate.id, "end", "", stats_of([*before, last]), 1.0))
    d.view.transcript.focus()
    await d.pilot.press("left")
    await d.settle()
    assert "token 6 of 6: end of reply" in d.drawn(d.view.notice)


async def a_token_is_pointed_at_with_the_mouse_too(d: Driver) -> None:
    await told_story(d)
    view = d.view.transcript.reply_view()
    view.token_view = True
    await d.settle()
    region = view._tokens.content_region
    await d.pilot.click(offset=(region.x + 7, region.y))
    await d.settle()
    assert "token 2 of 6: ·upon" in d.drawn(d.view.notice)
    await d.pilot.click(offset=(region.x + 8, region.y))
    await d.settle()
    assert isinstance(d.app.screen, AlternativesScreen)


async def test_tokens_and_nodes_open_their_places():
    await in_one_app(
        a_token_of_a_reply_opens_its_alternatives_and_begins_a_branch,
        a_node_of_the_tree_opens_what_else_could_stand_there,
        escape_leaves_the_token_and_then_the_chat,
        a_token_of_an_earlier_reply_begins_a_branch_there,
        a_failure_of_the_question_is_said_on_the_page,
        the_target_is_asked_once_a_model_is_loaded,
        the_token_that_ends_a_reply_is_called_its_end,
        a_token_is_pointed_at_with_the_mouse_too,
    )


async def test_the_tokens_of_a_kept_chat_open_their_places_too(store):
    async with driving(store=store) as d:
        await told_story(d)
        d.app.context.archive.close()
        id = d.app.chat.id
    async with driving(store=store, chat=id) as d:
        await wait_for(d.pilot, d.view.transcript.reply_view)
        await d.settle()
        d.view.transcript.focus()
        await d.pilot.press("left", "left", "left", "enter")
        await d.settle()
        assert d.link.last(Generate).begun_tokens == [20, 21, 22]
        await d.hear(ready(pair="qwen"))
        await d.pilot.press("escape", "enter")
        await d.settle()
        asked = d.link.last(Generate)
        assert (asked.begun_tokens, asked.begun) == ([], ["Once", " upon", " a"]), "another model has other tokens"


async def test_a_narrow_window_shows_the_alternatives_too():
    async with driving((60, 20)) as d:
        await told_story(d)
        d.view.transcript.focus()
        await d.pilot.press("left", "left", "left", "enter")
        await d.settle()
        shown = d.screen()
        assert "·hill" in shown
        assert "64" in shown
        page = d.app.screen
        assert isinstance(page, AlternativesScreen)
        page._state = "a recording: only guesses are known"
        page.redraw()
        await d.settle()
        assert "a recording: only guesses are known" in d.screen(), "what is missing matters more than the title"
        await d.pilot.press("up", "enter")
        await d.settle()
        assert d.link.last(Generate).begun_tokens == [20, 21, 22, 24]
