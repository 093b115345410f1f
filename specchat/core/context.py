"""The context of a round: the text so far, how the target samples, the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.constraint import Constraint
from specchat.core.noise import Noise
from specchat.core.reading import Reading, RowInMemory
from specchat.core.request import FIRST, HeadNeeds
from specchat.core.sampling import Counts, Law, Sampling, law, penalise
from specchat.core.target_draw import draw_token
from specchat.core.tree import DrawKind, TokenTree


@dataclass
class Context:
    """The context of a round: the text so far, how the target samples, the noise.

    Args:
        history: prompt and reply so far; the last token is the root. Grows by `emit`.
        prompt_tokens: how many of them are the prompt.
        vocab_size: V.
        noise: the reply's randomness, which decides every draw.
        wanted: the kind of draws the acceptance rule can use best; a drafter that cannot draw so proposes points.
        wants_q: whether the rule needs the draft's distribution at points too.
        shown: parts of the head's output that listeners to rounds need.
        lens: whether the states after all layers of the target are wanted.
    """

    history: list[int]
    prompt_tokens: int
    vocab_size: int
    sampling: Sampling = field(default_factory=Sampling)
    noise: Noise = field(default_factory=lambda: Noise(0))
    wanted: DrawKind = DrawKind.POINT
    wants_q: bool = False
    shown: HeadNeeds = FIRST
    round: int = 0
    budget: Budget = field(default=Budget(0))
    constraint: Constraint | None = None
    lens: bool = False
    _counts: Counts = field(init=False, default_factory=Counts)

    @property
    def counts(self) -> Counts:
        """Token counts of the text so far, for penalties. Counted where asked for: most chats have none."""
        counts, history = self._counts, self.history
        if counts.tokens < self.prompt_tokens:
            counts.add_prompt(history[counts.tokens : self.prompt_tokens])
        if counts.tokens < len(history):
            counts.add(history[counts.tokens :])
        return counts

    @property
    def root(self) -> int:
        """The last token of the text, which has been emitted and not read."""
        return self.history[-1]

    @property
    def passes(self) -> bool:
        """Whether drafters may run passes of draft models in this round."""
        return self.budget.passes

    def position(self, tree: TokenTree, node: int) -> int:
        """Index in the text of the token that follows `node`; all decisions about it use this position's noise."""
        return len(self.history) + tree.depths[node]

    def emit(self, tokens: Sequence[int]) -> None:
        if self.constraint is not None:
            self.constraint.advance(tokens)
        self.history.extend(tokens)
        self.round += 1

    def constrained(self, tree: TokenTree, reading: Reading) -> Reading:
        """The reading as rules judge by it: without the tokens that the constraint forbids."""
        return reading if self.constraint is None else self.constraint.reading(tree, reading)

    def law_after(self, tree: TokenTree, node: int, logits: Tensor) -> Law:
        """The processed law of the token that follows `node`, from its (V,) raw logits."""
        return law(self.penalised(tree, node, logits), self.sampling)

    def penalised(self, tree: TokenTree, node: int, logits: Tensor) -> Tensor:
        """(V,) float32 logits of the token that follows `node`, after bias and penalties, from the raw ones."""
        path = tree.path_tokens(node) if self.sampling.penalised else ()
        return penalise(logits, self.sampling, self.counts, path)

    def draw_after(self, tree: TokenTree, node: int, logits: Tensor | RowInMemory) -> int:
        """The target's own token after `node`, drawn from the law of its (V,) raw logits with its position's noise.

        The logits may not be a tensor yet: see `HeadOutput.row_in_memory`.
        """
        path = tree.path_tokens(node) if self.sampling.penalised else ()
        return draw_token(logits, self.sampling, self.noise, self.position(tree, node), self.counts, path)
