"""Several replies at once: each is the reply that it would be alone, whoever joins, leaves or fails beside it."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest
from contracts.kit import Letters, Reply, collect, converse
from contracts.models import V, native_decoder, native_is_here, own_decoder, shared_network
from contracts.tiny_networks import tiny_resources

from specchat.core.constraint import ConstraintSource
from specchat.decoding.emission import Stop
from specchat.decoding.reply_events import ReplyEnded, RoundWritten
from specchat.decoding.together import LEAST_SLICE_TOKENS, MOST_SLICE_TOKENS, JoinedReply, Together
from specchat.errors import SpecchatError
from specchat.models.decoder.cached_model import read_together

CONTEXT = 1024
FIXED = {"controller": "fixed", "nodes": 6, "depth": 3, "width": 2, "max_tokens": 24}

KINDS = {
    "plain, greedy": {"controller": "off"},
    "suffix, warm": {"drafter": "suffix", "temperature": 0.8},
    "recycled, penalised": {"drafter": "token_recycling", "repetition_penalty": 1.3, "presence_penalty": 0.4},
    "draft model, q rule": {"drafter": "draft_model", "rule": "multi_step", "temperature": 0.9},
    "draft model, greedy": {"drafter": "draft_model", "policy": "best_first"},
    "states, truncated": {"drafter": "eagle", "temperature": 0.7, "top_p": 0.8},
    "extra rows": {"drafter": "prompt_tokens", "temperature": 0.6},
    "own layers": {"drafter": "layer_skip", "policy": "chain"},
}
"""Settings of replies; extra rows keep a tree out of the joint pass."""

MAKERS = {"float32": own_decoder}
if native_is_here():
    MAKERS["native"] = native_decoder


@cache
def target(maker: str):
    return MAKERS[maker](shared_network("llama"), CONTEXT)


def prompt_of(number: int, tokens: int | None = None):
    noise = random.Random(number)
    return [noise.randrange(1, 40) for _ in range(tokens or 5 + 9 * number)] * 2


def conversation(maker: str, kind: str, ends=(), **more):
    """A conversation with a cache of its own over the shared weights."""
    model = target(maker).with_new_cache()
    return converse(
        model,
        target(maker).with_new_cache(),
        Letters(V, eos_ids=ends),
        tiny_resources(model),
        **{**FIXED, **KINDS[kind], **more},
    )


class Written:
    """A reply that is written with others, and its events."""

    def __init__(self, chat, steps, cancelled=lambda: False) -> None:
        self.chat, self.events, self.error = chat, [], None
        self.joined = JoinedReply(steps, self.events.append, self._failed, cancelled)

    def _failed(self, error: Exception) -> None:
        self.error = error

    @property
    def rounds(self) -> int:
        return sum(isinstance(event, RoundWritten) for event in self.events)

    @property
    def reply(self) -> Reply:
        return collect(self.events)


def held_to(chat):
    """What a reply is held to that has a token to end with: an expression."""
    return chat.compile(ConstraintSource("regex", "[B-Z]{4,40}")) if chat.vocabulary.eos_ids else None


def begun(maker: str, kind: str, number: int, tokens: int | None = None, cancelled=lambda: False, **more):
    chat = conversation(maker, kind, **more)
    steps = chat.steps(prompt_of(number, tokens), 100 + number, cancelled, constraint=held_to(chat))
    return Written(chat, steps, cancelled)


@cache
def alone(maker: str, kind: str, number: int, tokens: int | None = None, **more) -> Reply:
    chat = conversation(maker, kind, **more)
    return collect(chat.reply(prompt_of(number, tokens), 100 + number, constraint=held_to(chat)))


def write(*replies: Written, together: Together | None = None) -> None:
    """All of them to their ends."""
    together = together or Together()
    for reply in replies:
        together.add(reply.joined)
    while len(together):
        together.turn()


def same(one: Reply, other: Reply) -> None:
    assert one.tokens == other.tokens
    assert one.text == other.text
    assert [round.tree.tokens for round in one.rounds] == [round.tree.tokens for round in other.rounds]
    assert one.ended.stop is other.ended.stop


@pytest.mark.parametrize("maker", MAKERS)
def test_each_text_is_the_one_that_its_request_alone_would_get(maker):
    """Eight replies with rules, drafters, temperatures, seeds and a constraint of their own."""
    ends = [(V - 1,) if number == 1 else () for number, _ in enumerate(KINDS)]
    replies = {kind: begun(maker, kind, number, ends=ends[number]) for number, kind in enumerate(KINDS)}
    write(*replies.values())
    for number, (kind, written) in enumerate(replies.items()):
        assert written.error is None
        same(written.reply, alone(maker, kind, number, ends=ends[number]))
    joint = [round.timings.joint for round in replies["plain, greedy"].reply.rounds]
    assert max(one.texts for one in joint if one is not None) > len(KINDS) // 2


def test_replies_join_and_leave_in_the_middle():
    together, kinds = Together(), list(KINDS)[:4]
    replies = [begun("float32", kind, number, max_tokens=6 + 9 * number) for number, kind in enumerate(kinds)]
    waiting = list(replies)
    while waiting or len(together):
        if waiting:
            together.add(waiting.pop().joined)
        together.turn()
        together.turn()
    for number, (kind, written) in enumerate(zip(kinds, replies, strict=True)):
        same(written.reply, alone("float32", kind, number, max_tokens=6 + 9 * number))


def test_a_reply_that_is_cancelled_frees_its_place_within_a_round_and_leaves_the_others():
    left, other = [], begun("float32", "suffix, warm", 1)
    written = begun("float32", "plain, greedy", 0, cancelled=lambda: bool(left), max_tokens=200)
    reading = begun("float32", "plain, greedy", 2, tokens=200, cancelled=lambda: bool(left))
    together = Together()
    for each in (written, other, reading):
        together.add(each.joined)
    for _ in range(3):
        together.turn()
    rounds = written.rounds
    left.append(True)
    together.turn()
    assert written.reply.ended.stop is reading.reply.ended.stop is Stop.CANCELLED
    assert written.rounds <= rounds + 1
    assert len(together) == 1
    write(together=together)
    same(other.reply, alone("float32", "suffix, warm", 1))


class _Broken(SpecchatError):
    """What a part raises."""


def test_an_error_in_one_reply_leaves_the_others(monkeypatch):
    """One drafter fails in its third round, and the pass over all trees fails once: each is then read by itself."""
    chat = conversation("float32", "suffix, warm")
    proposed = []

    def propose(tree, frontier, width, context):
        proposed.append(tree)
        if len(proposed) == 3:
            raise _Broken("it broke")
        return [[] for _ in frontier]

    monkeypatch.setattr(chat.speculator.drafter, "propose", propose)
    monkeypatch.setattr(chat.speculator.drafter, "grow_at_once", lambda *given: None)
    broken = Written(chat, chat.steps(prompt_of(3), 5))
    failures = [RuntimeError("no room")]

    def failing(trees):
        if failures and len(trees) == 3:
            raise failures.pop()
        return read_together(trees)

    monkeypatch.setattr("specchat.decoding.together.read_together", failing)
    others = [begun("float32", "plain, greedy", 0), begun("float32", "draft model, greedy", 4)]
    write(others[0], broken, others[1])
    assert isinstance(broken.error, _Broken)
    assert broken.rounds == 2
    assert not failures
    same(others[0].reply, alone("float32", "plain, greedy", 0))
    same(others[1].reply, alone("float32", "draft model, greedy", 4))


def test_streams_get_a_round_in_every_turn_and_prompts_are_read_by_turns_in_bounded_slices():
    """Nobody waits for a whole prompt, and a short prompt not for a long one. Each slice is said to take 10 ms."""
    streams = [begun("float32", "plain, greedy", number, max_tokens=60) for number in (0, 1)]
    prompts = [begun("float32", "plain, greedy", 2, tokens=450, max_tokens=4), begun("float32", "suffix, warm", 3)]
    ticks = itertools.count()
    together = Together(lambda: 0.01 * next(ticks))
    for each in streams:
        together.add(each.joined)
        together.turn()
    for each in prompts:
        together.add(each.joined)
    turns, before = 0, [each.rounds for each in streams]
    while not prompts[0].rounds:
        held = prompts[0].chat.target.rows.held
        together.turn()
        turns += 1
        assert [each.rounds for each in streams] == [count + turns for count in before]
        assert prompts[0].chat.target.rows.held - held <= MOST_SLICE_TOKENS
        assert prompts[1].rounds or turns <= 4
    assert turns >= 900 // MOST_SLICE_TOKENS
    write(together=together)
    for each, number in zip(streams, (0, 1), strict=True):
        same(each.reply, alone("float32", "plain, greedy", number, max_tokens=60))
    same(prompts[0].reply, alone("float32", "plain, greedy", 2, tokens=450, max_tokens=4))


def test_slices_are_as_long_as_streams_may_wait():
    """Where a token of a prompt takes 10 ms they wait for the fewest that a slice has, or for ten of them."""
    now = [0.0]
    stream, reading = begun("float32", "plain, greedy", 0, max_tokens=400), begun("float32", "plain, greedy", 1, 300)
    real, slices = reading.chat.target.prefill, []

    def prefill(tokens, on_chunk=None, tap=None):
        slices.append(len(tokens) - reading.chat.target.cached(tokens))
        now[0] += 0.01 * slices[-1]
        real(tokens, on_chunk, tap)

    reading.chat.target.prefill = prefill
    together = Together(lambda: now[0])
    together.add(stream.joined)
    together.add(reading.joined)
    while not reading.rounds:
        together.turn()
    assert slices[:2] == [2 * LEAST_SLICE_TOKENS, LEAST_SLICE_TOKENS]
    assert set(slices[2:-1]) == {LEAST_SLICE_TOKENS}
    assert sum(slices) >= 599


def test_many_mixed_replies_leave_nothing_behind():
    """Places are used again and again: what is held does not grow with the number of replies."""
    chats = [conversation("float32", kind, max_tokens=3) for kind in list(KINDS)[:4]]
    together, done = Together(), 0
    noise = random.Random(3)
    free, running, sizes = list(chats), [], []
    while done < 200:
        if free and len(running) < 3:
            chat = free.pop()
            written = Written(chat, chat.steps(prompt_of(noise.randrange(4)), done))
            running.append((chat, written))
            together.add(written.joined)
        together.turn()
        for chat, written in [each for each in running if each[1].joined.over]:
            assert written.error is None
            assert isinstance(written.events[-1], ReplyEnded)
            running.remove((chat, written))
            free.append(chat)
            done += 1
            sizes.append(sum(one.target.cache.capacity for one in chats))
    assert len(set(sizes[20:])) == 1
    assert len(together) == len(running)
