"""A trained diffusion model fills a window of masks behind the text: from left to right, or the surest places first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.context import Context
from specchat.core.drafting_networks import Denoiser, Guessed
from specchat.core.seams import Proposal
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.options import SpecDiffOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import coupled
from specchat.drafters.trained_network import NetworkDrafter


class SpecDiff(NetworkDrafter):
    """Proposes what the denoiser says in the places of its window, which is filled in T steps of a pass each.

    From left to right the window is cut into T blocks. What is said in a place depends on the blocks before its own
    alone, so it is the law q of a draw there, whatever stands behind it: every rule may rely on it, and each path of a
    tree has windows of its own. With T = 1 nothing in the window depends on anything else there.

    By confidence each step fills those places of the whole window where the likeliest token is surest. A place that is
    filled after one behind it depends on that one's token: accepting by such a q would favour tokens that lead to what
    stands behind them. So guesses are points then: the likeliest tokens, or those that win with the target's own noise,
    of each place as it was when it was filled.

    Reference: Christopher et al., Speculative Diffusion Decoding, arXiv:2408.05636. Differs: there places are filled in
    the order of the diffusion's sampler, and all are judged by q.
    """

    @classmethod
    def draw_kinds(cls, options: SpecDiffOptions, members: Sequence[Collection[DrawKind]]) -> Collection[DrawKind]:
        """All kinds where no place depends on one behind it, else points."""
        return cls.kinds if options.draws else frozenset({DrawKind.POINT})

    kinds = frozenset(DrawKind)

    def __init__(self, options: SpecDiffOptions, parts: Parts) -> None:
        denoiser = parts.denoiser(options.tokens, options.window, options.steps)
        self._surest = None if options.draws else SurestFirst(denoiser, options.steps)
        super().__init__(parts, self._surest or denoiser, self.draw_kinds(options, ()))

    def compiled(self, context: Context, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None if self._surest else super().compiled(context, tokens, rows)

    def _guesses(self, tree: TokenTree, nodes: Sequence[int], width: int, context: Context) -> Proposal:
        if self._surest is not None:
            self._surest.fill(context)
        return super()._guesses(tree, nodes, width, context)


class SurestFirst:
    """Fills one window behind the text, the surest places first. A `TrainedNetwork` whose guesses depend on the depth
    alone."""

    one_pass = True

    def __init__(self, denoiser: Denoiser, steps: int) -> None:
        self.layers, self.depth = denoiser.layers, denoiser.depth
        self.take, self.skip, self.count_passes = denoiser.take, denoiser.skip, denoiser.count_passes
        self._denoiser, self._steps = denoiser, steps
        self._said: dict[int, Guessed] = {}  # place → what was said there when it was filled

    @property
    def passes(self) -> int:
        return self._denoiser.passes

    def begin(self, history: Sequence[int], ahead: object = None) -> bool:
        self._said = {}
        return self._denoiser.begin(history)

    def fill(self, context: Context) -> None:
        """Fill the window behind the context's text, if that was not done since `begin`."""
        if self._said:
            return
        window: list[int | None] = [None] * self.depth
        for step in range(self._steps):
            masked = [place for place, token in enumerate(window) if token is None]
            said = self._denoiser.guesses(window).of(masked)
            tokens, logprobs = said.tokens, said.logprobs.astype(np.float64)
            if not context.sampling.greedy:
                tokens, _ = coupled(tokens, logprobs, [len(context.history) + place for place in masked], context)
            left = self.depth - self.depth * (step + 1) // self._steps
            for row in surest(said, len(masked) - left):
                window[masked[row]], self._said[masked[row]] = int(tokens[row, 0]), said.of([row])

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        return self._said[tree.depths[nodes[0]]].of([0] * len(nodes))

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None


def surest(said: Guessed, count: int) -> list[int]:
    """The `count` rows whose likeliest token is likeliest; of equals the first."""
    rows: list[int] = np.argsort(-said.logprobs[:, 0], kind="stable")[:count].tolist()
    return rows
