"""The target without some of its attention and MLP sub-layers drafts for the whole target."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch

from specchat.core.noise import Noise, Stream
from specchat.core.round import Round
from specchat.core.seams import Model
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.options import LayerSkipOptions
from specchat.drafters.parts import Parts
from specchat.drafters.target_view import ViewDrafter

ENOUGH = 0.95
"""A set that matches so often is good enough."""

FRUITLESS = 300
"""The search ends after this many trials in a row without a better set."""

MOST_TRIALS = 1000

_GUIDED_EVERY = 2
"""Every so many trials the set is not random but the one that the trials so far promise most of."""

_NOISE_VARIANCE = 0.01

_EFFECT_VARIANCE = 0.01

_OPTIMISM = 1.0


class LayerSkip(ViewDrafter):
    """Drafts with the target's own weights and rows of the text, less the sub-layers that a search found it can spare.

    The search tries sets of sub-layers on what was written last: one pass of the thinner model over the last `window`
    tokens of the reply tells how many of them it would have guessed. It runs while the engine is idle, and after
    rounds in which the controller asks for it (`search`). What was found is kept for the next session.

    Reference: Xia et al., SWIFT, arXiv:2410.06916; see `LayerSearch` for the search. Differs: the shape of the tree is
    the policy's (`comb` grows SWIFT's); the search also runs between replies; by default 0.3 of the sub-layers are left
    out, not 0.45.
    """

    def __init__(self, options: LayerSkipOptions, parts: Parts) -> None:
        self._target = parts.target
        self._ratio = options.ratio
        self._window = options.window
        self.search = LayerSearch(self._target.layers, options.ratio)
        self._others: dict[str, object] = {}  # what was found for other ratios
        super().__init__(parts, self._view(self.search.best), options.sure)
        self._text: Sequence[int] = ()  # that of the last round, which goes on growing
        self._written = 0  # how many of its last tokens are this drafter's reply

    def start(self, history: Sequence[int]) -> None:
        """Hold the text's rows; the search waits until something is written."""
        self._written = 0
        super().start(history)

    def observe(self, round: Round) -> None:
        """Drop the rows that were drafted; try a set of sub-layers where the controller asks for it."""
        super().observe(round)
        self._text = round.history
        if round.budget.search:
            self.try_one()
        self._written += len(round.emitted)

    def close(self) -> None:
        super().close()
        self._text, self._written = (), 0

    def idle(self, deadline: float) -> bool:
        """Try sets until the deadline, at least one; false where none is left or too little has been written."""
        while self.try_one():
            if time.monotonic() >= deadline:
                return True
        return False

    def try_one(self) -> bool:
        """Try one more set of sub-layers on the last tokens of the reply; whether there is more to try."""
        if self.search.done or self._written <= self._window:
            return False
        skipped = self.search.candidate()
        matches = self.matches(self._view(skipped))
        if matches is None:
            return False
        if self.search.learn(skipped, matches / self._window):
            self.use(self._view(skipped))
        return not self.search.done

    def matches(self, view: Model) -> int | None:
        """How many of the last tokens a view would have guessed, each after the text before it, in one pass.

        None where the target does not hold the text before them any more.
        """
        read, following = self._text[: -self._window - 1], self._text[-self._window - 1 :]
        view.copy_rows_from(read, range(len(read)))
        if view.cached(read) < len(read) or len(self._text) >= view.context_tokens:
            return None
        tree = TokenTree(following[0], self._target.vocab_size)
        for node, token in enumerate(following[1:-1]):
            tree.add(node, Guess(token))
        said = view.read(tree.freeze()).best_after(range(len(tree)), 1)
        return sum(best == token for (best,), token in zip(said, following[1:], strict=True))

    def save_state(self) -> bytes:
        """All trials, by the share of sub-layers left out."""
        own = {f"{self._ratio}": self.search.saved()} if self.search.trials else {}
        found = {**self._others, **own}
        return json.dumps(found, sort_keys=True).encode() if found else b""

    def restore_state(self, state: bytes) -> None:
        """Draft with the best set that was found."""
        found = json.loads(state) if state else {}
        if not isinstance(found, dict):
            raise ValueError("trials by the share of sub-layers left out were expected")
        self.search.restore(found.pop(f"{self._ratio}", []))
        self._others = found
        self.use(self._view(self.search.best))

    def _view(self, skipped: Skipped) -> Model:
        attention, mlp = ([place // 2 for place in skipped if place % 2 == kind] for kind in (0, 1))
        return self._target.view(skip_attention=attention, skip_mlp=mlp)


Skipped = tuple[int, ...]
"""Sub-layers that are left out, ascending: twice the layer for its attention, and one more for its MLP."""


class LayerSearch:
    """A search among sets of sub-layers of one size. The first and the last layer are always kept.

    The caller tries a set and gives its score. The best score so far never falls.

    Random sets alternate with sets chosen by what the trials so far say of each sub-layer: a linear model of the score
    (Bayesian ridge regression), at the optimistic end of what it holds possible.

    Reference: Xia et al., SWIFT, arXiv:2410.06916. Differs: there every 25th set is chosen by a Gaussian process; a
    linear model is enough to tell which sub-layers matter, and costs less than a millisecond.
    """

    def __init__(self, layers: int, ratio: float) -> None:
        """Nothing tried yet; sets leave out this share of all sub-layers."""
        self._places = list(range(2, 2 * layers - 2))
        self.size = min(len(self._places), round(ratio * 2 * layers))
        self._tried: list[tuple[Skipped, float]] = []
        self._fruitless = 0
        self.best = self._evenly()
        self.score = -1.0

    @property
    def trials(self) -> int:
        return len(self._tried)

    @property
    def done(self) -> bool:
        """Whether no set remains that is worth trying."""
        only_one = self.size in (0, len(self._places)) and self.trials > 0
        return only_one or self.score >= ENOUGH or self._fruitless >= FRUITLESS or self.trials >= MOST_TRIALS

    def candidate(self) -> Skipped:
        """The set to be tried next; the first is the one in use before anything was tried."""
        if not self._tried:
            return self.best
        if self.trials % _GUIDED_EVERY == 0:
            return self._promising()
        noise = Noise(0).gumbel(Stream.DRAFT, self.trials, torch.tensor(self._places))
        return self._least(noise)

    def learn(self, skipped: Skipped, score: float) -> bool:
        """Remember a trial; whether it was the best so far."""
        self._tried.append((skipped, score))
        better = score > self.score
        self._fruitless = 0 if better else self._fruitless + 1
        if better:
            self.best, self.score = skipped, score
        return better

    def saved(self) -> list[object]:
        return [[list(places), score] for places, score in self._tried]

    def restore(self, saved: object) -> None:
        """Begin again with saved trials, without sets of another size; ValueError if these are no saved trials."""
        if not isinstance(saved, list):
            raise ValueError(f"a list of trials was expected, not {type(saved).__name__}")
        trials = [_trial(each) for each in saved]
        self._tried, self._fruitless, self.score = [], 0, -1.0
        self.best = self._evenly()
        for places, score in trials[:MOST_TRIALS]:
            if len(places) == self.size and set(places) <= set(self._places):
                self.learn(places, score)

    def _evenly(self) -> Skipped:
        count = len(self._places)
        return tuple(self._places[(2 * at + 1) * count // (2 * self.size)] for at in range(self.size))

    def _promising(self) -> Skipped:
        """The set with the highest score that the linear model holds possible, sub-layer by sub-layer."""
        left_out = torch.zeros(self.trials, len(self._places), dtype=torch.float64)
        for row, (places, _) in enumerate(self._tried):
            left_out[row, [place - self._places[0] for place in places]] = 1.0
        scores = torch.tensor([score for _, score in self._tried], dtype=torch.float64)
        left_out -= self.size / len(self._places)
        precision = left_out.T @ left_out / _NOISE_VARIANCE + torch.eye(len(self._places)) / _EFFECT_VARIANCE
        covariance = torch.linalg.inv(precision)
        effect = covariance @ left_out.T @ (scores - scores.mean()) / _NOISE_VARIANCE
        return self._least(-(effect + _OPTIMISM * covariance.diagonal().sqrt()))

    def _least(self, values: torch.Tensor) -> Skipped:
        return tuple(sorted(self._places[at] for at in values.argsort()[: self.size].tolist()))


def _trial(value: object) -> tuple[Skipped, float]:
    match value:
        case [list(places), float(score) | int(score)] if all(type(place) is int for place in places):
            return tuple(sorted(places)), float(score)
    raise ValueError("a trial is a list of sub-layers and a score")
