"""A draft model that reads the part of a long text which its end is about."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from specchat.core.context import Context
from specchat.core.request import Rider
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.states import StateTap
from specchat.core.tree import DrawKind, TokenTree
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import DraftModelOptions, RetrievedContextOptions
from specchat.drafters.parts import Parts
from specchat.structures.retrieved_text import RetrievedText


class RetrievedContext:
    """As `draft_model`, but of a text longer than the budget the draft model reads a retrieved part alone.

    So drafting costs the same however long the chat is, and a draft model with a short context can draft for a target
    with a long one. Positions of noise and penalties stay those of the whole text. Under `follow` nothing of this can
    change the text; with the rule `transfer` the target leans towards what the draft model holds likely.

    Reference: Chen et al., RAPID, arXiv:2502.20330, with the target unmoved (eta = 0). Differs: chunks are found by the
    words they share with the end of the text instead of by an embedding model; the draft model is the pair's.
    """

    taps: Sequence[int] = ()
    text_tap: StateTap | None = None

    @staticmethod
    def draw_kinds(options: RetrievedContextOptions, members: Sequence[Collection[DrawKind]]) -> frozenset[DrawKind]:
        """All kinds, as `draft_model` itself."""
        return frozenset(DrawKind)

    def __init__(self, options: RetrievedContextOptions, parts: Parts) -> None:
        self._text = RetrievedText(options.budget, options.chunk, options.refresh)
        self._drafting = DraftModel(DraftModelOptions(), parts, self._text.shortened)

    @property
    def passes(self) -> int:
        """Forward passes of the draft model since it was loaded."""
        return self._drafting.passes

    def start(self, history: Sequence[int]) -> None:
        """Choose the part of the text, and read it."""
        self._text.forget()
        self._drafting.start(history)

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """What the draft model holds likely after that part."""
        return self._drafting.propose(tree, frontier, width, context)

    def riders(self, tree: TokenTree) -> Sequence[Rider]:
        """None: it needs nothing of the target's pass but the reading."""
        return ()

    def observe(self, round: Round) -> None:
        """Keep the accepted path."""
        self._drafting.observe(round)

    def close(self) -> None:
        """Forget the tree and the part."""
        self._text.forget()
        self._drafting.close()
