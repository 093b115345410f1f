"""A draft model that reads the part of a long text which its end is about."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.drafters.draft_model import DraftModel
from specchat.drafters.inner_drafter import InnerDrafter
from specchat.drafters.options import DraftModelOptions, RetrievedContextOptions
from specchat.drafters.parts import Parts
from specchat.indexes.retrieved_text import RetrievedText


class RetrievedContext(InnerDrafter[DraftModel]):
    """As `draft_model`, but of a text longer than the budget the draft model reads only a retrieved part.

    So drafting costs the same however long the chat is, and a draft model with a short context can draft for a target
    with a long one. Positions of noise and penalties stay those of the whole text. Under `follow` nothing of this can
    change the text; with the rule `transfer` the target leans towards what the draft model holds likely.

    Reference: Chen et al., RAPID, arXiv:2502.20330, with the target unmoved (eta = 0). Differs: chunks are found by the
    words they share with the end of the text instead of by an embedding model; the draft model is the pair's.
    """

    def __init__(self, options: RetrievedContextOptions, parts: Parts) -> None:
        self._text = RetrievedText(options.budget, options.chunk, options.refresh)
        super().__init__(DraftModel(DraftModelOptions(), parts, self._text.shortened))

    def start(self, history: Sequence[int]) -> None:
        """Choose the part of the text, and read it."""
        self._text.forget()
        super().start(history)

    def close(self) -> None:
        """Forget the tree and the part."""
        self._text.forget()
        super().close()
