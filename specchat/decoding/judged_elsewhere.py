"""A rule that judges where the target is, so that a round's answer is a verdict and not the logits of all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import HeadNeeds, Judging
from specchat.core.round import Verdict
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import DrawKind, TokenTree


class JudgedElsewhere(AcceptanceRule):
    """Has the target judge by the same rule, over the same logits with the same noise: the text is the same.

    A reply that is held to a constraint is judged here, by logits that come here.
    """

    def __init__(self, rule: AcceptanceRule, name: str, options: Mapping[str, Any]) -> None:
        """The rule, which is built from its options alone.

        Args:
            name, options: by which it can be built there.
        """
        self._rule, self._name, self._options = rule, name, options
        self.lossless, self.wanted, self.wants_q = rule.lossless, rule.wanted, rule.wants_q
        self.wants_sources, self.judges_branches = rule.wants_sources, rule.judges_branches
        self._looks_at_draws = self.wanted is not DrawKind.POINT or self.wants_q or self.wants_sources

    @property
    def taps(self) -> Collection[int]:
        return self._rule.taps

    def needs(self, sampling: Sampling) -> HeadNeeds:
        return self._rule.needs(sampling)

    def judging(self, context: Context) -> Judging | None:
        if context.constraint is not None:
            return None
        text, prompt, drawn = len(context.history), context.prompt_tokens, (context.sampling, context.noise)
        return Judging(self._name, self._options, text, prompt, context.round, *drawn, self._looks_at_draws)

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        there = reading.elsewhere
        if there is None or there.path is None:
            return self._rule.judge(tree, reading, context)
        return Verdict(there.path, there.bonus, tree, reading.pruned, there.sources)
