"""The target without some of its attention and MLP sub-layers drafts for the whole target."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from specchat.core.round import Round
from specchat.core.seams import Model
from specchat.core.tree import Guess, TokenTree
from specchat.drafters.inner_drafter import InnerDrafter
from specchat.drafters.layer_search import LayerSearch, Skipped
from specchat.drafters.options import LayerSkipOptions
from specchat.drafters.parts import Parts
from specchat.drafters.target_view import ViewDrafting


class LayerSkip(InnerDrafter[ViewDrafting]):
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
        super().__init__(ViewDrafting(parts, self._view(self.search.best), options.sure))
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
        """Forget the tree and the text."""
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
            self._drafting.use(self._view(skipped))
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
        self._drafting.use(self._view(self.search.best))

    def _view(self, skipped: Skipped) -> Model:
        return self._target.view(skip_attention=skipped.attention, skip_mlp=skipped.mlp)
