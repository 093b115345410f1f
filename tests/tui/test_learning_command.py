"""`/learn`: on, off, what was learnt, and forgetting, which asks first."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving
from fake import LOSS, SETTINGS, ready

from specchat.config import user_settings
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Learning, Load
from specchat.tui.screens.learning import learning_report
from specchat.tui.widgets.messages import NoteView

LEARNT = ev.Learnt(
    drafter="smol-hydra", learning=True, replies=12, tokens=1834, kept_tokens=1834, updates=140, chains=1000,
    before=[450, 200, 90, 40], now=[520, 280, 150, 80], disk_bytes=14_000_000, most_bytes=16_777_216,
)  # fmt: skip


def notes(d: Driver) -> str:
    """What the app itself has said in the chat, and the line above the prompt."""
    return " ".join([*(note.text for note in d.app.query(NoteView)), d.drawn(d.view.notice)])


def asked(d: Driver) -> list[Learning]:
    return [command for command in d.link.sent if isinstance(command, Learning)]


async def test_on_is_a_setting_that_is_kept_and_says_what_is_kept_where():
    async with driving(engine_here=True) as d:
        await d.say("/learn on")
        assert d.link.last(Change).settings == {"learn": True}
        assert asked(d) == [Learning()]
        await d.hear(ev.Changed({**SETTINGS, "learn": True}, LOSS), LEARNT)
        for words in ("smol-hydra learns while the engine is idle", "16.8 MB", "/learn forget erases them"):
            assert words in notes(d)
        assert user_settings()["learn"] is True
        await d.say("/learn off")
        assert d.link.last(Change).settings == {"learn": False}
        await d.hear(ev.Changed({**SETTINGS, "learn": False}, LOSS), ev.Learnt(drafter="smol-hydra"))
        assert "nothing more is learnt or kept" in notes(d)
        assert user_settings()["learn"] is False


async def test_alone_it_says_what_was_learnt_and_what_that_is_worth():
    async with driving() as d:
        await d.say("/learn")
        await d.hear(LEARNT)
        for words in (
            "12 replies of 1,834 tokens, in 140 updates",
            "14.0 MB on the disk",
            "tokens a round in lines of 4: 1.78 → 2.03",
        ):
            assert words in notes(d)


def test_the_last_replies_are_told_one_by_one_with_guesses_that_changed():
    judged = [
        ev.ReplyJudged(100, 60, 60),
        ev.ReplyJudged(200, 120, 160, 12, 14, 6, [ev.GuessChange(31, " the sky", " is", " appears", " appears")]),
    ]
    first, *lines = learning_report(msgspec.structs.replace(LEARNT, judged=judged)).split("\n")
    assert "12 replies" in first
    assert "each before it learnt from it: tokens a round in lines of 4" in lines[0]
    assert lines[0].endswith("had left: 1.60 → 1.60, 1.60 → 1.80")
    assert lines[1] == "in the newest reply, of 200 first guesses 14 became right by learning, and 6 wrong"
    assert lines[2] == (
        "token 31, after ' the sky': it would have guessed ' is', and now guessed ' appears'; "
        "the target wrote ' appears'"
    )
    alone = learning_report(msgspec.structs.replace(LEARNT, judged=judged[:1])).split("\n")
    assert alone[2:] == ["nothing had been learnt yet when the newest reply was measured"]


async def test_forgetting_asks_first():
    async with driving() as d:
        await d.say("/learn forget")
        assert asked(d) == []
        assert "/learn forget yes" in notes(d)
        await d.say("/learn forget yes")
        assert asked(d) == [Learning(forget=True)]
        await d.hear(ev.Learnt(drafter="smol-hydra", freed_bytes=14_000_000))
        assert "smol-hydra has forgotten what it learnt: 14.0 MB are erased" in notes(d)


@pytest.mark.parametrize("words", ["/learn on", "/learn", "/learn forget yes"])
async def test_where_no_drafter_can_learn_one_line_says_what_to_do(words):
    async with driving() as d:
        await d.say(words)
        await d.hear(ev.Learnt(why="no drafter was trained for X; `specchat train smol` makes one"))
        assert "nothing is learnt: no drafter was trained for X; `specchat train smol` makes one" in notes(d)


async def test_what_says_nothing_is_refused_with_the_nearest():
    async with driving() as d:
        await d.say("/learn forgt")
        assert "/learn does not know 'forgt'" in notes(d)
        assert "'forget'" in notes(d)
        assert asked(d) == []


async def test_before_a_pair_is_ready_nothing_is_asked():
    async with driving(loaded=False) as d:
        await d.say("/learn")
        assert "no pair is ready" in notes(d)


async def test_after_a_failure_the_next_answer_is_about_the_next_question():
    async with driving() as d:
        await d.say("/learn forget yes")
        await d.hear(ev.Failed("StoreError", "a file cannot be removed", 1, during="learning"))
        await d.say("/learn")
        await d.hear(LEARNT)
        assert "12 replies" in notes(d)


async def test_a_pair_is_loaded_with_the_setting_that_is_in_force():
    async with driving() as d:
        await d.say("/learn on")
        await d.hear(ev.Changed({**SETTINGS, "learn": True}, LOSS), LEARNT)
        await d.app.context.session.load({"threads": 2})
        assert d.link.last(Load).settings["learn"] is True
        await d.hear(ready())


def test_the_report_gives_both_networks_their_shares_at_every_depth():
    text = learning_report(LEARNT)
    assert "1, 2, 3, 4 tokens ahead were right 45, 44, 45, 44 % of the time with its first weights" in text
    assert "52, 54, 54, 53 % with those of that moment" in text
    assert "is not learning; /learn on starts it" in learning_report(ev.Learnt(drafter="x"))
    assert "went back to its original weights twice" not in text
    assert "went back to its original weights 2 times" in learning_report(ev.Learnt(drafter="x", went_back=2))
