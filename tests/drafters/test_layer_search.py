"""The search for sub-layers to leave out: what it tries, what it remembers, and that it learns which ones matter."""

from __future__ import annotations

import itertools

import pytest
import torch

from specchat.drafters.layer_skip import ENOUGH, FRUITLESS, MOST_TRIALS, LayerSearch, Skipped

LAYERS, RATIO = 20, 0.3
HARM = torch.randn(2 * LAYERS, generator=torch.Generator().manual_seed(4)).abs().tolist()


def score_of(skipped: Skipped) -> float:
    """A share that falls with the harm of everything left out; some sub-layers matter far more than others."""
    return 1.0 / (1.0 + 0.2 * sum(HARM[place] ** 2 for place in skipped))


def searched(trials: int) -> tuple[LayerSearch, list[float]]:
    search, best = LayerSearch(LAYERS, RATIO), []
    for _ in range(trials):
        skipped = search.candidate()
        search.learn(skipped, score_of(skipped))
        best.append(search.score)
    return search, best


def test_every_set_has_the_same_size_and_keeps_the_first_and_the_last_layer():
    search, seen = LayerSearch(LAYERS, RATIO), set()
    for _ in range(30):
        skipped = search.candidate()
        assert len(skipped) == search.size == 12
        assert not {0, LAYERS - 1} & {place // 2 for place in skipped}
        assert [*skipped] == sorted({*skipped})
        search.learn(skipped, 0.5)
        seen.add(skipped)
    assert len(seen) > 20


def test_the_best_score_never_falls_and_belongs_to_the_best_set():
    search, best = searched(60)
    assert all(later >= earlier for earlier, later in itertools.pairwise(best))
    assert best[-1] > best[0]
    assert score_of(search.best) == search.score


def test_it_learns_which_sub_layers_matter():
    _, best = searched(60)
    generator = torch.Generator().manual_seed(0)
    places = [2 + torch.randperm(2 * LAYERS - 4, generator=generator)[:12] for _ in range(600)]
    blind = max(score_of(tuple(chosen.tolist())) for chosen in places)
    least = sorted(range(2, 2 * LAYERS - 2), key=HARM.__getitem__)[:12]
    assert best[-1] > blind, "sixty trials beat six hundred blind ones"
    assert best[-1] > 0.7 * score_of(tuple(least))


def test_it_ends_when_a_set_is_good_enough_or_nothing_better_is_found():
    search = LayerSearch(LAYERS, RATIO)
    search.learn(search.candidate(), ENOUGH)
    assert search.done
    search = LayerSearch(LAYERS, RATIO)
    for _ in range(FRUITLESS + 1):
        assert not search.done
        search.learn((2,), 0.4)
    assert search.done
    assert FRUITLESS < MOST_TRIALS


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_where_there_is_one_set_alone_it_is_tried_once(ratio):
    search = LayerSearch(3, ratio)
    assert not search.done
    search.learn(search.candidate(), 0.1)
    assert search.done


def test_it_goes_on_from_what_was_saved():
    search, _ = searched(25)
    again = LayerSearch(LAYERS, RATIO)
    again.restore(search.saved())
    assert (again.best, again.score, again.trials) == (search.best, search.score, 25)
    assert again.candidate() == search.candidate()
    other = LayerSearch(LAYERS, 0.2)
    other.restore(search.saved())
    assert other.trials == 0, "sets of another size say nothing"


@pytest.mark.parametrize("wrong", [3, {"a": 1}, [[1, 2]], [[["x"], 0.5]], [[[1], "high"]]])
def test_what_was_not_saved_by_it_is_refused(wrong):
    with pytest.raises(ValueError, match=r"expected|trial"):
        LayerSearch(LAYERS, RATIO).restore(wrong)
