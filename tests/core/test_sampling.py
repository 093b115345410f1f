"""Logits become the law in one order: penalties, temperature, top-k, top-p, min-p; and a draw is a draw from it."""

from __future__ import annotations

import ctypes
import math
from collections import Counter

import pytest
import torch
from contracts.text_laws import chi_square_p
from hypothesis import assume, given
from hypothesis import strategies as st

from specchat.core import sampling as sampling_module
from specchat.core.context import Context
from specchat.core.noise import Noise, Stream
from specchat.core.sampling import Counts, Sampling, law, penalise, truncate

V = 12

logits = st.lists(st.floats(-8, 8, width=32), min_size=V, max_size=V, unique=True)
ids = st.lists(st.integers(0, V - 1), max_size=8)
settings = st.builds(
    Sampling,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, V + 3),
    top_p=st.one_of(st.just(1.0), st.floats(0, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-1, 1)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-1, 1)),
)


def slow_law(values: list[float], s: Sampling, prompt: list[int], reply: list[int]) -> tuple[dict[int, float], float]:
    """The law, one sentence of the definition after the other; and how near any decision was to going the other way."""
    z = list(values)
    for token in {*prompt, *reply}:
        z[token] = z[token] / s.repetition_penalty if z[token] > 0 else z[token] * s.repetition_penalty
    for token, count in Counter(reply).items():
        z[token] -= s.presence_penalty + s.frequency_penalty * count
    z = [value / s.temperature for value in z]
    order = sorted(range(V), key=lambda token: -z[token])
    margin = math.inf
    if 0 < s.top_k < V:
        margin = min(margin, z[order[s.top_k - 1]] - z[order[s.top_k]])
        order = order[: s.top_k]

    def probabilities() -> list[float]:
        weights = [math.exp(z[token] - z[order[0]]) for token in order]
        return [weight / sum(weights) for weight in weights]

    if s.top_p < 1:
        p, before, kept = probabilities(), 0.0, []
        for token, mass in zip(order, p, strict=True):
            if kept:
                margin = min(margin, abs(before - s.top_p))
            if before < s.top_p or not kept:
                kept.append(token)
            before += mass
        order = kept
    if s.min_p > 0:
        p = probabilities()
        margin = min([margin, *(abs(mass - s.min_p * p[0]) for mass in p[1:])])
        order = [token for token, mass in zip(order, p, strict=True) if mass >= s.min_p * p[0]]
    return dict(zip(order, probabilities(), strict=True)), margin


def fast_law(values, s, prompt, reply, path=()):
    counts = Counts(prompt, reply)
    return law(penalise(torch.tensor(values), s, counts, path), s)


@given(logits, settings, ids, ids, ids)
def test_the_law_is_what_the_definition_says(values, s, prompt, reply, path):
    expected, margin = slow_law(values, s, prompt, [*reply, *path])
    assume(margin > 1e-5)  # at a boundary, rounding decides which side a token is on
    found = fast_law(values, s, prompt, reply, path).dense(V)
    for token in range(V):
        assert float(found[token]) == pytest.approx(expected.get(token, 0.0), abs=1e-5)
    assert float(found.sum()) == pytest.approx(1)


@given(logits, settings, ids, ids)
def test_the_most_likely_token_always_survives(values, s, prompt, reply):
    counts = Counts(prompt, reply)
    penalised = penalise(torch.tensor(values), s, counts)
    assert float(law(penalised, s).dense(V)[penalised.argmax()]) > 0


@given(logits, settings, ids, ids, ids)
def test_penalties_see_the_path_as_if_it_were_the_reply(values, s, prompt, reply, path):
    on_path = penalise(torch.tensor(values), s, Counts(prompt, reply), path)
    in_reply = penalise(torch.tensor(values), s, Counts(prompt, [*reply, *path]))
    torch.testing.assert_close(on_path, in_reply)


@given(logits, settings, ids, ids, ids)
def test_penalising_changes_neither_the_logits_nor_the_counts(values, s, prompt, reply, path):
    raw, counts = torch.tensor(values), Counts(prompt, reply)
    penalise(raw, s, counts, path)
    assert raw.tolist() == torch.tensor(values).tolist()
    before, after = (each.seen((), raw.device) for each in (Counts(prompt, reply), counts))
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@given(st.lists(ids, min_size=1, max_size=4))
def test_the_counts_by_token_are_those_that_are_asked_for_one_by_one(texts):
    counts = Counts(texts[0])
    for text in texts[1:]:
        counts.add(text)
    _, _, address, known = counts.addresses()
    found = [-1.0] * V
    found[:known] = (ctypes.c_float * known).from_address(address) if known else []
    assert found == counts.often(range(V))


@given(ids, st.lists(ids, max_size=4), st.sampled_from([1, 2, 3]))
def test_a_context_counts_its_text_whenever_it_is_asked(prompt, emitted, every):
    context = Context([*prompt], len(prompt), V)
    for index, tokens in enumerate(emitted):
        context.emit(tokens)
        if index % every == 0:
            reply = context.history[len(prompt) :]
            assert context.counts.often(range(V)) == Counts(prompt, reply).often(range(V))


def test_the_prompt_is_repeated_but_neither_present_nor_frequent():
    values = [1.0] * V
    assert penalise(torch.tensor(values), Sampling(repetition_penalty=2.0), Counts([3]))[3] == 0.5
    both = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    penalised = penalise(torch.tensor(values), both, Counts([3], [4, 4]))
    assert penalised[3] == 1.0
    assert penalised[4] == 0.0


@given(logits)
def test_temperature_zero_is_the_most_likely_token(values):
    point = fast_law(values, Sampling(), [], [])
    assert point.all_ids().tolist() == [int(torch.tensor(values).argmax())]
    assert point.draw(Noise(1), Stream.TARGET, 0) == int(torch.tensor(values).argmax())


@given(logits, settings)
def test_a_draw_is_a_token_that_survived(values, s):
    found = fast_law(values, s, [], [])
    assert found.draw(Noise(2), Stream.TARGET, 5) in found.all_ids().tolist()


def test_a_wide_nucleus_is_found_beyond_the_head():
    size = 4 * sampling_module.HEAD
    flat = torch.linspace(0, 0.01, size)
    kept = law(flat, Sampling(temperature=1.0, top_p=0.75)).all_ids()
    assert kept.numel() == pytest.approx(0.75 * size, rel=0.01)
    assert set(kept.tolist()) == set(range(size - kept.numel(), size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_law_is_computed_in_full_precision(dtype):
    raw = torch.linspace(-3, 3, V).to(dtype)
    found = law(penalise(raw, Sampling(temperature=0.7), Counts()), Sampling(temperature=0.7))
    assert found.logprobs.dtype == torch.float64
    assert float(found.logprobs.exp().sum()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.parametrize("top_k", [0, 4])
def test_the_nucleus_is_the_smallest_set_whose_mass_is_top_p_or_more(kept, top_k):
    """At its exact edge: top-p is the mass of the first tokens to the last bit, and then the least number above it."""
    scores, total = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]]), torch.tensor([[2.5]])
    among = scores[:, :top_k] if top_k else scores
    mass_of_all = torch.logsumexp(among, dim=-1, keepdim=True) if top_k else total
    mass = float((scores.double() - mass_of_all).exp().cumsum(dim=-1)[0, kept - 1])

    def truncated(top_p, best):
        return truncate(best, Sampling(1.0, top_k=top_k, top_p=top_p), 5, lambda: total)

    assert int((scores >= truncated(mass, scores).least).sum()) == kept
    assert int((scores >= truncated(math.nextafter(mass, 1.0), scores).least).sum()) == kept + 1
    if not top_k:  # the likeliest alone suffice to know it, up to the edge
        assert bool(truncated(mass, scores[:, :kept]).known)
        assert not truncated(math.nextafter(mass, 1.0), scores[:, :kept]).known


def test_a_token_exactly_as_likely_as_min_p_asks_for_survives():
    least = math.log(0.3)
    row = torch.tensor([0.0, least, math.nextafter(least, -1.0), least - 1e-5])
    assert law(row, Sampling(1.0, min_p=0.3)).all_ids().tolist() == [0, 1, 2], "the third is the second in float32"


S = Sampling(temperature=0.9, top_k=5, top_p=0.95)
LAW = law(torch.tensor([0.3, 1.0, -0.5, 0.8, 0.1, -2.0, -2.5]), S)


def test_draws_are_distributed_as_the_law_says():
    n = 4000
    counts = Counter(LAW.draw(Noise(seed), Stream.TARGET, 3) for seed in range(n))
    p = LAW.dense(7).tolist()
    assert chi_square_p([counts[t] for t in range(7)], [n * q for q in p]) > 1e-4
    assert sum(counts[t] for t in range(7) if p[t] == 0) == 0


def test_the_best_are_draws_without_replacement_and_the_first_is_the_draw():
    """The law of ordered pairs is p(a) p(b) / (1 − p(a))."""
    n, p = 6000, LAW.dense(7).tolist()
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(n):
        a, b = LAW.best(2, Noise(seed), Stream.DRAFT, 1, (4,)).tolist()
        assert a == LAW.draw(Noise(seed), Stream.DRAFT, 1, (4,))
        pairs[a, b] += 1
    cells = [(a, b) for a in range(7) for b in range(7) if a != b and p[a] * p[b] > 0]
    expected = [n * p[a] * p[b] / (1 - p[a]) for a, b in cells]
    assert chi_square_p([pairs[cell] for cell in cells], expected) > 1e-4
    assert sum(pairs.values()) == sum(pairs[cell] for cell in cells)


def test_no_more_tokens_are_best_than_survived():
    assert LAW.best(99, Noise(1), Stream.DRAFT, 0).numel() == LAW.all_ids().numel()


def test_the_comparison_with_the_definition_can_fail():
    """Top-p that drops the most likely token, min-p before top-p, penalties after temperature: none would pass."""
    values, s = [2.0, 1.0, 0.5, *([-3.0] * (V - 3))], Sampling(1.0, top_p=0.3)
    expected, _ = slow_law(values, s, [], [])
    dropped = {token: p for token, p in expected.items() if token != 0}
    assert expected == {0: 1.0}
    assert dropped != expected
    s = Sampling(temperature=2.0, presence_penalty=1.0)
    late = [value / 2 for value in values]
    late[0] -= 1.0
    right = fast_law(values, s, [], [0]).dense(V)
    assert not torch.allclose(right, torch.softmax(torch.tensor(late, dtype=torch.float64), 0), atol=1e-3)
