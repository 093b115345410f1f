"""Hydra: a sequential MLP on the last state, the cheapest network that still sees the tokens it guessed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.device_copy import rows_of
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.cpu_kernels.hydra import NamedHead, NativeHydra, Row
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.linear import NativeLinear
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import rms_normalize, with_mlp
from specchat.models.draft_heads.sizes import MlpSizes


class Hydra(DraftHead[MlpSizes]):
    """Guesses token after token from the target's last state, its own last state and the token between.

    The state of step 1 is made from the target's states at the last token it read and the embedding of the token that
    follows (the root); every later one from the state before it and the embedding of the token guessed there. Each
    state's normed product with the target's head gives the next token's logits. There is no attention: a step reads
    nothing but its two inputs.

    Reference: Ankner et al., Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding, arXiv:2402.05109. Differs:
    states of several layers go in, one MLP serves all depths (its own state comes back, as in EAGLE), and the head is
    the target's.
    """

    recipe = Recipe(reads_back=False)
    sizes_type = MlpSizes

    def __init__(self, sizes: MlpSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        d = sizes.hidden
        self.back = nn.Linear(d, d, bias=False)
        self.token = nn.Linear(d, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, d, bias=False)

    @property
    def added(self) -> tuple[Tensor, ...]:
        return (self.down.weight,)

    def fed_back(self, states: Tensor) -> Tensor:
        """(…, d) input of the next step, from (…, d) states of this one."""
        back: Tensor = self.back(rms_normalize(states, self.sizes.epsilon))
        return back

    def step(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states, from the outputs of `fused` or `fed_back` and of `of_tokens`."""
        return with_mlp(inputs + tokens, self.mlp_norm, self.gate_up, self.down, self.sizes.epsilon)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        anchors = tokens.shape[1] - steps
        inputs, taken, found = fused[:, :anchors], self.of_tokens(self.shared.embed(tokens)), list[Tensor]()
        for step in range(1, steps + 1):
            found.append(self.step(inputs, taken[:, step : anchors + step]))
            if step < steps:
                inputs = self.fed_back(found[-1])
        return found

    def drafting(self, given: DraftingInputs) -> HydraDrafting:
        return HydraDrafting(self, given)


class HydraDrafting(Drafting):
    """One step per depth, whatever the width; where it runs in C, all steps of a tree at once."""

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        super().__init__(network.sizes.taps, given)
        self.skip = given.skip
        self._steps: TorchSteps | NativeSteps = TorchSteps(network, given)
        if isinstance(network.fuse, NativeLinear):  # on the target's threads, which have nothing else to do meanwhile
            self._steps = NativeSteps(NativeHydra(kernels_for(), given.threads, network), given)
        self._last = 0  # position of the token before the root
        self._ahead: Ahead | None = None
        self._row_of: dict[int, int] = {}  # node → row
        self._rows: dict[Row, int] = {}  # by what they follow and their token

    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._last, self._ahead = len(history) - 2, ahead
        return self.given.complete(history)

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return self._steps.compiled(self._last, tokens, rows)

    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        """The guesses after nodes of one depth, which are read now unless they were read ahead."""
        self._counted += 1
        if nodes[0] == ROOT:
            read = self._steps.first(self._last, tree.tokens[ROOT], self._ahead)
            self._rows, self._row_of = {row: place for place, row in enumerate(read)}, {ROOT: 0}
            return self._steps.said([0])
        wanted = [(self._row_of[tree.parents[node]], tree.tokens[node]) for node in nodes]
        if unread := [row for row in wanted if row not in self._rows]:
            self._rows.update(zip(unread, range(len(self._rows), len(self._rows) + len(unread)), strict=True))
            self._steps.after([parent for parent, _ in unread], [token for _, token in unread])
        rows = [self._rows[row] for row in wanted]
        self._row_of.update(zip(nodes, rows, strict=True))
        return self._steps.said(rows)


class TorchSteps:
    """Rows of a tree, a token behind another row each, counted in the order they are read; and what follows each."""

    def __init__(self, network: Hydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given
        self._states = torch.empty(0)

    @torch.inference_mode()
    def first(self, position: int, root: int, ahead: Ahead | None) -> list[Row]:
        """Forget the last tree and read the root, behind this position of the text; the rows that were read."""
        self._states = self._step(self._given.text.rows(position, position + 1), [root])
        return [(-1, root)]

    @torch.inference_mode()
    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        states = self._step(self._network.fed_back(rows_of(self._states, parents)), tokens)
        self._states = torch.cat([self._states, states])

    @torch.inference_mode()
    def said(self, rows: Sequence[int]) -> Guessed:
        return self._given.guessed(rows_of(self._states, rows))

    def compiled(self, position: int, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None

    def _step(self, inputs: Tensor, tokens: Sequence[int]) -> Tensor:
        return self._network.step(inputs, self._given.tokens.of(tokens))


class NativeSteps:
    """The same in C, perhaps with rows below the root at once.

    The text's states are fused where a tree begins, not wherever they come from.
    """

    def __init__(self, network: NativeHydra, given: DraftingInputs) -> None:
        self._network, self._given = network, given
        self._named: NamedHead | None = None

    def first(self, position: int, root: int, ahead: Ahead | None) -> list[Row]:
        inputs = self._given.tokens.within([root])
        return self._network.first(self._head, self._given.text.for_c(position), inputs, root, ahead)

    def after(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        self._network.after(self._head, self._given.tokens.within(tokens), parents, tokens)

    def said(self, rows: Sequence[int]) -> Guessed:
        return self._network.said(self._head, rows)

    def compiled(self, position: int, tokens: Sequence[int], rows: int) -> CompiledNetwork:
        inputs = self._given.tokens.within(tokens)
        return self._network.compiled(self._head, self._given.text.for_c(position), inputs, rows)

    @property
    def _head(self) -> NamedHead:
        self._named = self._given.head_for_c(self._named)
        return self._named
