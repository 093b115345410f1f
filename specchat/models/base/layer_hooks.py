"""Looking into a pass while it runs: taps of layers, and asking `on_layer` which nodes stay."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from specchat.core.seams import OnLayer, Reading
from specchat.core.transfer import sent
from specchat.core.tree import TokenTree
from specchat.models.base.cache_rows import Plan, surviving
from specchat.models.base.head_output import Said


class LayerWatch:
    """Follows the rows of one pass: missing prefix first, then the nodes still alive, then riders.

    Riders stay to the end: what they say below a dropped node is of no use to anyone, and costs little.
    """

    def __init__(self, tree: TokenTree, plan: Plan, taps: Collection[int], on_layer: OnLayer | None) -> None:
        self._tree = tree
        self._plan = plan
        self._taps = taps
        self._on_layer = on_layer
        self._alive: list[int] = list(plan.nodes)
        self._pruned: dict[int, int] = {}
        self._states: dict[int, Tensor] = {}
        self._rider_states: dict[int, Tensor] = {}

    @property
    def idle(self) -> bool:
        """Whether nobody looks into the pass."""
        return self._on_layer is None and not self._taps

    def wants(self, layer: int) -> bool:
        return self._on_layer is not None or layer in self._taps

    def rows(self) -> list[int]:
        """Rows of the whole pass that are still followed."""
        missing, nodes = self._plan.missing, self._plan.nodes
        alive = set(self._alive)
        kept = [missing + place for place, node in enumerate(nodes) if node in alive]
        return [*range(missing), *kept, *range(missing + len(nodes), len(self._plan.positions))]

    def after_layer(self, layer: int, hidden: Tensor) -> list[int] | None:
        """Look at the states of the rows followed; places among them that go on, or None where all do.

        Args:
            hidden: (rows followed, d).
        """
        missing, count = self._plan.missing, len(self._alive)
        nodes, riders = hidden[missing : missing + count], hidden[missing + count :]
        if layer in self._taps:
            self._states[layer] = self._spread(nodes)
            self._rider_states[layer] = riders.clone()
        stay = self._on_layer(layer, nodes, tuple(self._alive)) if self._on_layer is not None else None
        if stay is None:
            return None
        survivors = surviving(self._tree, self._alive, stay)
        if len(survivors) == count:
            return None
        places = [place for place, node in enumerate(self._alive) if node in survivors]
        self._pruned.update({node: layer for node in self._alive if node not in survivors})
        self._alive = [self._alive[place] for place in places]
        return [*range(missing), *(missing + place for place in places), *range(missing + count, len(hidden))]

    def reading(self, said: Said, riders: int) -> Reading:
        """The reading of a pass, from what the head said of its living nodes and its riders, in that order."""
        count = len(self._alive)
        if not riders and not self._pruned:
            alive = frozenset(self._alive)
            return Reading(
                self._plan.nodes, said.logits, alive, taps=self._states, likeliest=said.likeliest, totals=said.totals
            )
        return Reading(
            nodes=self._plan.nodes,
            logits=self._spread(said.logits[:count]),
            alive=frozenset(self._alive),
            pruned=self._pruned,
            taps=self._states,
            rider_logits=said.logits[count:] if riders else None,
            rider_states=self._rider_states if riders else {},
            likeliest=None if said.likeliest is None else self._spread(said.likeliest[:count]),
            totals=None if said.totals is None else self._spread(said.totals[:count]),
        )

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows of living nodes, put where all nodes of the plan have their rows; dropped ones are zero."""
        if not self._pruned:
            return rows
        alive = set(self._alive)
        places = [place for place, node in enumerate(self._plan.nodes) if node in alive]
        spread = rows.new_zeros(len(self._plan.nodes), *rows.shape[1:])
        spread[sent(torch.tensor(places, dtype=torch.int64), rows.device)] = rows
        return spread
