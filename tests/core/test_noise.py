"""Noise is a pure function of seed, stream, position and token, and looks like what it is used as."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specchat.core.noise import Noise, Stream

GOLDEN, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 1 << 64

seeds = st.integers(0, WORD - 1)
streams = st.sampled_from(Stream)
positions = st.integers(0, 10**6)
salts = st.lists(st.integers(0, 10**4), max_size=3).map(tuple)
tokens = st.integers(0, 300_000)


def mix(z: int) -> int:
    z = (z ^ z >> 30) * MIX_A % WORD
    z = (z ^ z >> 27) * MIX_B % WORD
    return z ^ z >> 31


def unmix(z: int) -> int:
    """The word that `mix` turns into z."""
    z ^= z >> 31 ^ z >> 62
    z = z * pow(MIX_B, -1, WORD) % WORD
    z ^= z >> 27 ^ z >> 54
    z = z * pow(MIX_A, -1, WORD) % WORD
    return z ^ z >> 30 ^ z >> 60


def key(seed: int, stream: Stream, position: int, salt: tuple[int, ...]) -> int:
    word = mix(seed % WORD)
    for part in (stream.value, position, *salt):
        word = mix((word + (part + 1) * GOLDEN) % WORD)
    return word


def by_hand(seed: int, stream: Stream, position: int, token: int, salt: tuple[int, ...]) -> float:
    """The same number in unbounded integers, so that no device's integer arithmetic is trusted."""
    return ((mix((key(seed, stream, position, salt) + token * GOLDEN) % WORD) >> 12) + 0.5) / (1 << 52)


@given(seeds, streams, positions, tokens, salts)
def test_the_numbers_are_those_of_exact_integer_arithmetic(seed, stream, position, token, salt):
    assert Noise(seed).uniform(stream, position, token, salt) == by_hand(seed, stream, position, token, salt)


@given(seeds, streams, positions, st.lists(tokens, min_size=1, max_size=20), salts)
def test_a_tokens_noise_does_not_depend_on_who_is_asked_with_it(seed, stream, position, ids, salt):
    noise = Noise(seed)
    together = noise.gumbel(stream, position, torch.tensor(ids), salt)
    assert together.dtype == torch.float64
    alone = [noise.gumbel(stream, position, torch.tensor([token]), salt)[0] for token in ids]
    # The uniforms are equal bit for bit; the logarithm of a vector may differ from that of a number in the last one.
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)
    square = noise.gumbel(stream, position, torch.tensor([ids, ids]), salt)
    torch.testing.assert_close(square[1], together, rtol=1e-12, atol=1e-12)


@given(seeds, positions)
def test_asking_twice_gives_the_same(seed, position):
    ids = torch.arange(50)
    first = Noise(seed).gumbel(Stream.TARGET, position, ids)
    Noise(seed).gumbel(Stream.DRAFT, position + 1, ids)
    assert torch.equal(first, Noise(seed).gumbel(Stream.TARGET, position, ids))


@pytest.mark.parametrize("bits", [0, WORD - 1], ids=["lowest", "highest"])
def test_the_uniforms_exclude_both_ends_even_at_the_extreme_words(bits):
    word = key(1, Stream.TARGET, 2, ())
    token = (unmix(bits) - word) * pow(GOLDEN, -1, WORD) % WORD
    token -= WORD if token >= WORD // 2 else 0
    assert 0.0 < Noise(1).uniform(Stream.TARGET, 2, token) < 1.0
    assert math.isfinite(float(Noise(1).gumbel(Stream.TARGET, 2, torch.tensor([token]))[0]))


def many(noise: Noise, stream: Stream = Stream.TARGET, first: int = 0, salt: tuple[int, ...] = ()) -> torch.Tensor:
    """(200, 500) Gumbel noise: positions by tokens."""
    ids = torch.arange(500)
    return torch.stack([noise.gumbel(stream, position, ids, salt) for position in range(first, first + 200)])


def test_gumbel_noise_has_the_moments_and_the_law_of_a_gumbel():
    noise = many(Noise(3)).flatten()
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.015)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    for x in (-1.0, 0.0, 1.0, 3.0):
        assert (noise < x).double().mean().item() == pytest.approx(math.exp(-math.exp(-x)), abs=0.006)


def test_the_noise_of_a_few_tokens_is_the_noise_of_all():
    tokens = [0, 3, 49151, 151935]
    expected = Noise(-5).gumbel(Stream.TARGET, 77, torch.tensor(tokens)).tolist()
    assert Noise(-5).gumbel_of_few(Stream.TARGET, 77, tokens) == pytest.approx(expected, abs=1e-12)


def test_uniform_numbers_are_uniform():
    values = torch.tensor([Noise(5).uniform(Stream.ACCEPT, p, t, (p,)) for p in range(60) for t in range(60)])
    assert values.mean().item() == pytest.approx(0.5, abs=0.02)
    assert values.var().item() == pytest.approx(1 / 12, abs=0.005)
    counts = torch.histc(values, bins=10, min=0, max=1)
    assert counts.min() > 280
    assert counts.max() < 440


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@pytest.mark.parametrize(
    "other",
    [
        many(Noise(8)),
        many(Noise(7 + WORD // 2)),
        many(Noise(7), Stream.DRAFT),
        many(Noise(7), Stream.ACCEPT),
        many(Noise(7), first=200),
        many(Noise(7), first=1),
        many(Noise(7), salt=(0,)),
        many(Noise(7), salt=(0, 1)),
        many(Noise(7).child("nested")),
    ],
    ids=["seed", "high bits of the seed", "draft", "accept", "later", "next", "salt", "salts", "child"],
)
def test_noise_for_different_purposes_is_independent(other):
    assert abs(correlation(many(Noise(7)), other)) < 0.015


def test_neighbouring_tokens_and_positions_are_independent():
    noise = many(Noise(11))
    assert abs(correlation(noise[:, 1:], noise[:, :-1])) < 0.015
    assert abs(correlation(noise[1:], noise[:-1])) < 0.015
    assert abs(correlation(noise[1:, :-1], noise[:-1, 1:])) < 0.015


def test_a_childs_noise_is_its_own_and_always_the_same():
    parent = Noise(7)
    assert parent.child("a") == Noise(7).child("a")
    labels = {
        parent.seed,
        *(parent.child(label).seed for label in ("a", "b", "ab", "")),
        parent.child("a").child("a").seed,
    }
    assert len(labels) == 6


def test_negative_and_huge_seeds_are_seeds_too():
    for seed in (-1, 2**70 + 3):
        assert 0 < Noise(seed).uniform(Stream.TARGET, 0, 0) < 1
