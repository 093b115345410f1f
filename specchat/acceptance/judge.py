"""Judge Decoding: a guess also stands where a linear judge finds it right by the target's own state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specchat.acceptance.options import JudgeOptions
from specchat.acceptance.walk import own_token, walk
from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.context import Context
from specchat.core.device_copy import rows_of, to_device
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import TokenTree
from specchat.errors import WeightsError


@dataclass(frozen=True)
class JudgeHead:
    """How right a token is in its context, by the target's state at the token itself.

    Args:
        layer: after which the state is taken.
        weight: (d,) float32.
        bias: of the logit.
    """

    layer: int
    weight: Tensor
    bias: float

    @classmethod
    def read(cls, trained: TrainedDrafter, hidden: int, layers: int) -> JudgeHead:
        """The head in a folder, for a target of `layers` layers and states of `hidden` numbers.

        Raises:
            WeightsError: it is no such head.
        """
        file, layer = trained.weights, trained.options.get("layer")
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {error}") from None
        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        fits = shapes == {"weight": ((hidden,), torch.float32), "bias": ((1,), torch.float32)}
        finite = all(bool(tensor.isfinite().all()) for tensor in tensors.values())
        if not (fits and finite and type(layer) is int and 0 <= layer < layers):
            raise WeightsError(f"{file} holds no judge for states of {hidden} numbers after one of {layers} layers")
        return cls(layer, tensors["weight"], float(tensors["bias"]))

    def scores(self, states: Tensor) -> list[float]:
        """(n,) probabilities that tokens are right, from their (n, d) states."""
        logits = states.float() @ to_device(self.weight, states.device) + self.bias
        found: list[float] = logits.sigmoid().tolist()
        return found


class Judge(AcceptanceRule):
    """Walks as `follow` does, and where the target's own token is no child, to the child that is right enough.

    A child is right enough if the judge's probability is above the threshold; of several the surest is taken. So a
    guess stands that the target would have put in other words. With threshold 1 that is `follow`, exactly.

    Reference: Bachmann et al., Judge Decoding, arXiv:2501.19309. Differs: its labels were written by people; here they
    follow from whether the answer survives the token (after AutoJudge), see `training.judge`.
    """

    def __init__(self, options: JudgeOptions, head: JudgeHead | None = None) -> None:
        """Without a head nothing is right but the target's own tokens."""
        self._threshold, self._head = options.threshold, head

    @property
    def taps(self) -> Collection[int]:
        return () if self._head is None else (self._head.layer,)

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        scores = self._scores(reading)

        def token_after(node: int) -> int:
            own = own_token(tree, node, reading, context)
            if tree.child(node, own) is not None:
                return own
            children: Sequence[int] = [child for child in tree.children(node) if child in scores]
            best = max(children, key=scores.__getitem__, default=None)
            return own if best is None or scores[best] <= self._threshold else tree.tokens[best]

        return walk(tree, reading, token_after)

    def _scores(self, reading: Reading) -> dict[int, float]:
        """Living node → how right its token is."""
        head = self._head
        if head is None or self._threshold >= 1.0 or len(reading.nodes) == 1:
            return {}
        nodes = sorted(reading.alive)
        states = rows_of(reading.taps[head.layer], [reading.row(node) for node in nodes])
        return dict(zip(nodes, head.scores(states), strict=True))
