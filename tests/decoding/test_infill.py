"""Filled texts are distributed as if they were filled one token after the other, in no more passes than tokens."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from specchat.core.noise import Noise
from specchat.core.reading import Counters
from specchat.core.round import Verdict
from specchat.core.sampling import Sampling, law
from specchat.decoding import infill
from specchat.decoding.infill import Blanks, Infilling
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.errors import UsageError
from specchat.models.any_order import AnyOrderModel
from specchat.training.infill import new_network

WARM = Sampling(0.8)
BY = pytest.mark.parametrize("by_pairs", [False, True], ids=["self", "ngram"])


class Table:
    """A network whose laws are arbitrary: one for each place and each set of tokens that it sees."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.counters = vocab_size, Counters()

    def logits(self, tokens: Sequence[int], ranks: Sequence[int], asked: Sequence[int], below: int) -> Tensor:
        self.counters.passes += 1
        return torch.stack([self.row(place, tokens, ranks, min(ranks[place], below)) for place in asked])

    def row(self, place: int, tokens: Sequence[int], ranks: Sequence[int], below: int) -> Tensor:
        seen = tuple((at, token) for at, (token, rank) in enumerate(zip(tokens, ranks, strict=True)) if rank < below)
        generator = torch.Generator().manual_seed(hash((place, seen)) % 2**31)
        return 2.0 * torch.randn(self.vocab_size, generator=generator)


def fill(network: Any, text: Sequence[int | None], sampling: Sampling, noise: Any, **how: Any) -> Infilling:
    filling = Infilling(network, text, sampling, noise, **how)
    while filling.filled < len(filling.places):
        filling.round()
    return filling


def tiny_xlnet(seed: int = 0, vocab_size: int = 20) -> AnyOrderModel:
    """A small random XLNet whose laws are far from flat."""
    network = new_network(vocab_size, seed, width=32, layers=2)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(8.0) if weight.dim() > 1 else None
    return AnyOrderModel(network)


# ---------------------------------------------------------------------------------------------------- the exact law


class Paths:
    """Noise that takes every way once: a draw becomes each token, a coin falls on both sides, with their chances."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def begin(self) -> Paths:
        self.weight, self._at, self._chances = 1.0, 0, []
        return self

    def choose(self, chances: Sequence[float]) -> int:
        if self._at == len(self.taken):
            self.taken.append(next(i for i, chance in enumerate(chances) if chance > 0.0))
        choice = self.taken[self._at]
        self._chances.append(chances)
        self._at += 1
        self.weight *= chances[choice]
        return choice

    def advance(self) -> bool:
        """Turn to the next way; whether there is one."""
        while self.taken:
            chances, last = self._chances.pop(), self.taken.pop()
            for choice in range(last + 1, len(chances)):
                if chances[choice] > 0.0:
                    self.taken.append(choice)
                    return True
        return False

    def gumbel(self, *_: object) -> Any:
        paths = self

        class Chosen:
            def __radd__(self, logprobs: Tensor) -> Tensor:
                scores = torch.full_like(logprobs, -1.0)
                scores[paths.choose(logprobs.exp().tolist())] = 1.0
                return scores

        return Chosen()

    def uniform(self, *_: object) -> Any:
        paths = self

        class Coin:
            def __lt__(self, chance: float) -> bool:
                return paths.choose([chance, 1.0 - chance]) == 0

        return Coin()


def law_of_fills(text: Sequence[int | None], **how: Any) -> dict[tuple[int, ...], float]:
    """The probability of every filling, over all draws and coins."""
    found: dict[tuple[int, ...], float] = defaultdict(float)
    paths = Paths()
    while True:
        done = fill(Table(3), text, WARM, paths.begin(), **how)
        found[tuple(done.tokens[place] for place in done.places)] += paths.weight
        if not paths.advance():
            return found


def law_in_order(text: Sequence[int | None]) -> dict[tuple[int, ...], float]:
    """The same for a text that is filled one token after the other, without noise."""
    places = [place for place, token in enumerate(text) if token is None]
    ranks = [places.index(place) + 1 if place in places else 0 for place in range(len(text))]
    found = {}
    for fills in itertools.product(range(3), repeat=len(places)):
        tokens = [token or 0 for token in text]
        chance = 1.0
        for place, token in zip(places, fills, strict=True):
            chance *= float(law(Table(3).row(place, tokens, ranks, ranks[place]), WARM).dense(3)[token])
            tokens[place] = token
        found[fills] = chance
    return found


TEXTS = pytest.mark.parametrize(
    "text", [[None, 1, None, 1, 2, None], [2, 2, 1, None, None, None, 2, 1], [0, None, 2, None, None]]
)


def distance(found: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> float:
    return max(abs(found.get(fills, 0.0) - chance) for fills, chance in wanted.items())


@BY
@TEXTS
def test_three_places_of_three_tokens_have_exactly_the_joint_law_of_filling_them_in_order(text, by_pairs):
    wanted = law_in_order(text)
    assert sum(wanted.values()) == pytest.approx(1.0, abs=1e-12)
    found = law_of_fills(text, by_pairs=by_pairs)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    assert distance(found, wanted) < 1e-12


@BY
@TEXTS
def test_with_a_wrong_q_the_law_is_another(text, by_pairs, monkeypatch):
    drawn_below = infill.drawn_below

    def flat(*arguments: Any) -> Any:
        return [guess._replace(q=torch.full_like(guess.q, 1 / 3)) for guess in drawn_below(*arguments)]

    monkeypatch.setattr(infill, "drawn_below", flat)
    assert distance(law_of_fills(text, by_pairs=by_pairs), law_in_order(text)) > 1e-3


# --------------------------------------------------------------------------------------- passes, draws, temperature 0


def random_text(seed: int) -> list[int | None]:
    chooser = random.Random(seed)
    text = [None if chooser.random() < 0.6 else chooser.randrange(5) for _ in range(chooser.randint(2, 30))]
    return [*text, 1] if all(token is None for token in text) else [*text, None]


@BY
def test_there_are_never_more_passes_than_tokens(by_pairs):
    all_passes = all_tokens = 0
    for seed in range(150):
        network = Table(5)
        done = fill(network, random_text(seed), WARM, Noise(seed), draft=seed % 12, by_pairs=by_pairs)
        tokens = len(done.places)
        assert network.counters.passes <= tokens, seed
        if seed % 12 == 0:
            assert (network.counters.passes, done.drafted) == (tokens, 0)
        all_passes, all_tokens = all_passes + network.counters.passes, all_tokens + tokens
    assert all_passes < all_tokens


def first_draws_accepted(by_pairs: bool) -> set[bool]:
    found = set()
    for seed in range(60):
        filling = Infilling(Table(5), random_text(seed), WARM, Noise(seed), by_pairs=by_pairs)
        while filling.filled < len(filling.places):
            verdict: Verdict = filling.round()
            if verdict.tree.drafted:
                found.add(bool(verdict.path))
    return found


def test_the_first_draw_of_the_networks_own_is_always_accepted_and_one_by_pairs_is_not():
    assert first_draws_accepted(by_pairs=False) == {True}
    assert first_draws_accepted(by_pairs=True) == {True, False}


@BY
def test_at_temperature_0_the_text_is_that_of_filling_in_order_in_fewer_passes(by_pairs):
    saved = 0
    for seed in range(6):
        network, text = tiny_xlnet(seed), [None if token is None else token + 7 for token in random_text(seed)]
        in_order = fill(network, text, Sampling(), Noise(0), draft=0)
        passes = network.counters.passes
        assert passes == len(in_order.places)
        guessed = fill(network, text, Sampling(), Noise(1), by_pairs=by_pairs)
        assert guessed.tokens == in_order.tokens
        assert [token for token, known in zip(guessed.tokens, text, strict=True) if known is not None] == [
            token for token in text if token is not None
        ]
        saved += 2 * passes - network.counters.passes
    assert saved > 0


@BY
def test_a_seed_gives_one_text(by_pairs):
    texts = {
        seed: {
            tuple(fill(tiny_xlnet(), [3, *[None] * 12, 4], WARM, Noise(seed), by_pairs=by_pairs).tokens)
            for _ in range(2)
        }
        for seed in range(3)
    }
    assert [len(found) for found in texts.values()] == [1, 1, 1]
    assert len(set.union(*texts.values())) == 3


def test_pairs_are_counted_in_the_known_text_and_in_what_was_filled(monkeypatch):
    """After 4 came 1, 1 and 2; after 2 nothing that is known, so all known tokens count."""
    seen = []
    monkeypatch.setattr(infill, "drawn_below", lambda tree, node, width, context, logits, *_: seen.append(logits) or [])
    filling = Infilling(Table(6), [4, 1, 4, 1, 4, 2, None, 4, None, None], WARM, Noise(0), by_pairs=True)
    filling._guess_by_pairs(filling_tree(filling), [8])
    filling._guess_by_pairs(filling_tree(filling), [6])
    shares = [logits.exp().tolist() for logits in seen]
    assert shares[0] == pytest.approx([0, 2, 1, 0, 0, 0])
    assert shares[1] == pytest.approx([0, 2, 1, 0, 4, 0])


def filling_tree(filling: Infilling) -> Any:
    return infill.TokenTree(filling.context.history[-1], 6)


# ------------------------------------------------------------------------------------------------ the two streams


RANKS = [0, 3, 0, 1, 2, 0, 4]
TEXT = [5, 6, 7, 8, 9, 10, 11]


def with_token(place: int) -> list[int]:
    return [*TEXT[:place], 1, *TEXT[place + 1 :]]


def test_a_query_sees_neither_its_own_token_nor_later_ones_and_all_earlier_ones():
    network = tiny_xlnet()
    asked = [1, 3, 4, 6]
    said = network.logits(TEXT, RANKS, asked, below=9)
    for changed in range(len(TEXT)):
        other = network.logits(with_token(changed), RANKS, asked, below=9)
        for row, place in enumerate(asked):
            same = torch.equal(said[row], other[row])
            assert same == (RANKS[changed] >= RANKS[place]), (changed, place)


def test_in_a_guessing_pass_no_query_sees_what_is_not_filled_yet():
    network = tiny_xlnet()
    said = network.logits(TEXT, RANKS, [4, 1, 6], below=2)
    for changed in range(len(TEXT)):
        other = network.logits(with_token(changed), RANKS, [4, 1, 6], below=2)
        assert torch.equal(said, other) == (RANKS[changed] >= 2), changed


def test_a_place_has_the_same_law_in_the_guessing_and_in_the_judging_pass():
    """Also where tokens that are filled in later stand in the text already."""
    network = tiny_xlnet()
    for place, rank in ((3, 1), (4, 2), (1, 3), (6, 4)):
        guessing = network.logits(TEXT, RANKS, [place], below=rank)
        judging = network.logits(TEXT, RANKS, [3, 4, 1, 6], below=9)[[3, 4, 1, 6].index(place)]
        torch.testing.assert_close(guessing[0], judging, atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------- notation


def word_pieces() -> TransformersVocabulary:
    """A small SentencePiece vocabulary."""
    pieces = ["<unk>", "<mask>", "▁", "▁the", "▁cat", "s", "▁s", ".", "▁."]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = {"unk_token": "<unk>", "mask_token": "<mask>"}
    return TransformersVocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, **special), frozenset())


def test_underscores_are_a_blank_of_as_many_tokens_and_a_number_between_pairs_of_two_says_how_many():
    found = Blanks.of("a ___ b __12__ c_d __init__ ____\n")
    assert found == Blanks(("a ", " b ", " c_d __init__ ", "\n"), (3, 12, 4))


def test_a_text_goes_on_behind_a_blank_without_a_space_where_it_was_written_without():
    vocabulary = word_pieces()
    table = vocabulary.tokenizer.get_vocab()
    glued = Blanks.of("the __1__s __1__.").tokens(vocabulary)
    assert glued == [table["▁the"], None, table["s"], None, table["."]]
    apart = Blanks.of("the __1__ s __1__ .").tokens(vocabulary)
    assert apart == [table["▁the"], None, table["▁s"], None, table["▁."]]


def test_what_is_filled_in_brings_its_space_and_a_text_begins_without_one():
    vocabulary = word_pieces()
    table = vocabulary.tokenizer.get_vocab()
    parts = Blanks.of("__1__ the __1__s.").filled([table["▁cat"], table["▁cat"]], vocabulary)
    assert parts == [("cat", True), (" the", False), (" cat", True), ("s.", False)]


def test_special_tokens_are_never_filled_in():
    vocabulary = word_pieces()
    sampling = infill.sampling_of_text(1.0, vocabulary, vocab_size=11)
    assert sampling.banned == {0, 1, 9, 10}
    text = [3, *[None] * 40]
    assert not {0, 1, 9, 10} & {*fill(tiny_xlnet(vocab_size=11), text, sampling, Noise(0)).tokens}
    assert {0, 1, 9, 10} & {*fill(tiny_xlnet(vocab_size=11), text, Sampling(1.0), Noise(0)).tokens}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no blank __ here", "^the text has no blank: three or more underscores"),
        ("the __0__ s", "^the blank __0__ is not of 1 to 1024 tokens"),
        ("the __99999999999999999999__ s", "^the blank __99999999999999999999__ is not of 1 to 1024"),
        ("the " + "_" * 1025, "is not of 1 to 1024"),
        ("the " + "__1000__ s " * 2, "^the text has 2004 tokens with its blanks; at most 1024"),
        (" ____ \n__3__", "^the text is nothing but blanks"),
    ],
)
def test_a_text_that_cannot_be_filled_in_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        Blanks.of(text).tokens(word_pieces())
