"""Ties are told apart from faults, and float32 excuses nothing."""

from __future__ import annotations

from specchat.bench.check_text import compare_texts
from specchat.bench.measured_reply import Measured, Written
from specchat.core.sampling import Sampling
from specchat.decoding.teacher_forcing import Comparer
from specchat.models.backends.scripted import ScriptedModel, random_says

SIZE, PROMPT = 10, (1, 2)
SAYS = random_says(SIZE, seed=9, sharpness=0.5)


def greedy(count: int) -> tuple[int, ...]:
    text = list(PROMPT)
    for _ in range(count):
        text.append(int(SAYS(text).argmax()))
    return tuple(text[len(PROMPT) :])


class Wobbly(ScriptedModel):
    """Moves two logits by 0.2 against each other in passes of several rows."""

    def read(self, tree, *arguments, **named):
        reading = super().read(tree, *arguments, **named)
        if len(tree) > 1:
            order = reading.logits.topk(2).indices
            reading.logits.scatter_add_(1, order, reading.logits.new_tensor([[-0.1, 0.1]]).expand(len(order), 2))
        return reading


def reply(who: str, tokens: tuple[int, ...]) -> Measured:
    return Measured(who, "q", "chat", 0, 0, PROMPT, 0, Written(tokens, "", "length", 0.0, 1.0))


def swapped(place: int, rank: int) -> tuple[int, ...]:
    """Plain's text with the token of another rank at one place."""
    plain = greedy(12)
    row = SAYS([*PROMPT, *plain[:place]])
    return (*plain[:place], int(row.topk(SIZE).indices[rank]), *plain[place + 1 :])


def compared(tokens: tuple[int, ...], exact: bool, model=Wobbly):
    comparer, plain = Comparer(model(SIZE, SAYS), exact), [reply("plain", greedy(12))]
    return compare_texts(comparer, plain, [reply("auto", tokens)], Sampling(), promised=True)


def closest_place() -> int:
    """Where the second-best token is closest behind: nearer than passes differ by."""
    plain = greedy(12)
    rows = [SAYS([*PROMPT, *plain[:place]]).topk(2).values for place in range(12)]
    gaps = [float(best - second) for best, second in rows]
    assert min(gaps) < 0.2
    return gaps.index(min(gaps))


def test_the_same_text_is_the_same():
    same = compared(greedy(12), exact=True)
    assert (same.equal, same.total, same.ok) == (1, 1, True)


def test_a_near_tie_is_excused_in_rounded_numbers_only():
    text = swapped(closest_place(), 1)
    (divergence,) = compared(text, exact=False).divergences
    assert divergence.tie
    assert divergence.margin.place == closest_place()
    assert compared(text, exact=False).ok
    assert not compared(text, exact=True).ok


def test_a_wrong_token_is_no_tie():
    same = compared(swapped(5, SIZE - 1), exact=False)
    assert not same.ok
    assert same.divergences[0].margin.place == 5


def test_a_model_that_does_not_wobble_excuses_nothing():
    assert not compared(swapped(closest_place(), 1), exact=False, model=ScriptedModel).ok


def test_a_text_that_ends_early_is_a_fault():
    assert not compared(greedy(12)[:6], exact=False).ok


def test_what_was_not_promised_is_reported_but_no_fault():
    comparer, plain = Comparer(ScriptedModel(SIZE, SAYS), exact=True), [reply("plain", greedy(12))]
    same = compare_texts(comparer, plain, [reply("auto", swapped(5, 4))], Sampling(), promised=False)
    assert (same.equal, same.ok) == (0, True)
