"""Log-probabilities of emitted tokens: with and without speculation the same as by teacher forcing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import add_tiny_pair

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load, ReplyConstraint
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker

READABLE = ReplyConstraint("regex", "[a-dfg]{60}")
"""Text that is tokenised as it was written. The constraint must not be seen in the probabilities."""

SAMPLED = {"temperature": 0.3, "top_k": 40, "presence_penalty": 0.1}


class Asked:
    """An engine in this process, over a model of a few kilobytes."""

    def __init__(self, home: Path, kernels: str) -> None:
        self.heard: list[ev.Event] = []
        add_tiny_pair(home)
        self.worker = Worker(CommandQueue(), self.heard.append)
        settings = {"pair": "tiny", "dtype": "float32", "kernels": kernels, "max_tokens": 40}
        self.worker.answer(Load({**settings, **SAMPLED}))

    def reply(self, settings: dict, text: str = "hello hello he", **asked) -> list[ev.RoundDone]:
        self.worker.answer(Change(settings))
        self.heard.clear()
        self.worker.answer(Generate(1, [], 7, text=text, constraint=READABLE, **asked))
        assert not [event for event in self.heard if isinstance(event, ev.Failed)], self.heard
        return [event for event in self.heard if isinstance(event, ev.RoundDone)]


def told(rounds: list[ev.RoundDone]) -> list:
    return [piece.likely for round in rounds for piece in round.pieces]


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_log_probabilities_are_the_targets_own_with_and_without_guesses(away_from_home, tmp_path, kernels):
    asked = Asked(tmp_path, kernels)
    plain = asked.reply({"controller": "off"}, top_logprobs=3)
    assert {len(round.pieces) for round in plain} == {1}
    for drafter in ("prompt_lookup", "several"):  # with token_recycling
        guessed = asked.reply({"controller": "fixed", "drafter": drafter, "nodes": 6}, top_logprobs=3)
        assert max(len(round.pieces) for round in guessed) > 1
        for one, other in zip(told(plain), told(guessed), strict=True):
            assert one.token == other.token
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [best.token for best in one.top] == [best.token for best in other.top]
            assert [best.logprob for best in one.top] == pytest.approx([best.logprob for best in other.top], abs=1e-5)
    for round in plain:
        (one,) = told([round])
        assert (one.token, one.logprob) == (round.pieces[0].token, pytest.approx(round.verdict.bonus_logprob))
        assert [best.logprob for best in one.top] == sorted((best.logprob for best in one.top), reverse=True)
        assert one.top[0].logprob >= one.logprob
    text = "hello hello he" + "".join(piece.text for round in plain for piece in round.pieces)
    asked.reply({}, text, top_logprobs=3, prompt_logprobs=True)
    read = [one for event in asked.heard if isinstance(event, ev.PromptLogprobs) for one in event.tokens]
    assert b"".join(one.spelling for one in read[-len(plain) :]) == b"".join(one.spelling for one in told(plain))
    for one, other in zip(read[-len(plain) :], told(plain), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [best.token for best in one.top] == [best.token for best in other.top]
    assert any(best.spelling not in b"abcdfg" for one in read for best in one.top)
