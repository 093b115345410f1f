"""Taps and hooks during a pass: states of tapped layers, and hooks that decide which nodes stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from specchat.core.device_copy import picked, to_device
from specchat.core.reading import HeadOutput, HeadTensors, Reading
from specchat.core.request import LayerHook, PassRequest, entry_layers
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.models.decoder.cache_rows import PassPlan

_NO_LAYERS = frozenset[int]()
_NO_TAPS: Mapping[int, Tensor] = MappingProxyType({})
_NONE_PRUNED: Mapping[int, int] = MappingProxyType({})


class LayerWatch:
    """Follows the rows of one pass: tokens of the text first, then the nodes still alive, then extra rows.

    Extra rows stay to the end: below a dropped node their results are useless, but they cost little. Those that enter
    later do so below living nodes alone.

    Attributes:
        hooked: the layers after which a hook must answer before the pass goes on.
        entries: the layers at which extra rows enter.
    """

    def __init__(self, plan: PassPlan, request: PassRequest, tree: TokenTree | None = None) -> None:
        """Nothing seen yet; `tree` is what the plan's nodes belong to, None where it reads text alone."""
        self._plan = plan
        self._request = request
        self.hooked = frozenset[int]().union(*[hook.layers for hook in request.hooks]) if request.hooks else _NO_LAYERS
        self._tree = tree
        self._alive: list[int] = list(plan.nodes)
        self._pruned: dict[int, int] = {}
        self._text: dict[int, Tensor] = {}
        self._states: Mapping[int, Tensor] = {}
        self._extra_row_states: dict[int, Tensor] = {}
        self._extra_row_last: Tensor | None = None
        self._entered = [number for number, row in enumerate(request.extra_rows) if row.entry is None]
        self.entries = entry_layers(request.extra_rows)

    def wants(self, layer: int) -> bool:
        return layer in self._request.taps or layer in self.hooked

    def tapped(self, layers: range) -> tuple[int, ...]:
        """Which of these layers' states are kept, ascending."""
        return _tapped(self._request.taps, layers)

    def rows(self) -> list[int]:
        """Rows of the whole pass that are still followed."""
        missing, nodes = self._plan.missing, self._plan.nodes
        alive, first = set(self._alive), missing + len(nodes)
        kept = [missing + place for place, node in enumerate(nodes) if node in alive]
        return [*range(missing), *kept, *(first + number for number in self._entered)]

    def enter(self, layer: int, hidden: Tensor) -> Tensor:
        """States before a layer of the rows followed from there on, those that enter there included.

        Args:
            hidden: (rows followed so far, d).
        """
        missing, extra_rows = self._plan.missing, self._request.extra_rows
        place_of = {node: missing + place for place, node in enumerate(self._alive)}
        states, numbers = [hidden], [-1] * (missing + len(self._alive)) + self._entered
        entries = {row.entry: None for row in extra_rows if row.entry is not None and row.entry.layer == layer}
        for entry in entries:
            own = [n for n, row in enumerate(extra_rows) if row.entry is entry and row.parent in place_of]
            if own:
                parents = picked(hidden, [place_of[extra_rows[number].parent] for number in own])
                embeddings = torch.stack([extra_rows[number].embedding for number in own]).to(hidden)
                states.append(entry.states(parents, embeddings))
                numbers += own
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self._entered = [number for number in sorted(numbers) if number >= 0]
        return picked(torch.cat(states), order)

    def saying(self, states: Tensor) -> Tensor:
        """Those of the (rows followed, d) last states whose logits are wanted; the others are kept as they are."""
        missing, extra_rows = self._plan.missing, self._request.extra_rows
        behind = missing + len(self._alive)
        if not extra_rows or any(row.says for row in extra_rows):
            return states[missing:]
        self._extra_row_last = self._spread_extra(states[behind:].clone())
        return states[missing:behind]

    def after_layer(self, layer: int, hidden: Tensor) -> list[int] | None:
        """Look at the states of the rows followed; places among them that go on, or None where all do.

        Args:
            hidden: (rows followed, d); may be written over afterwards.
        """
        if layer in self._request.taps:
            self.keep({layer: hidden.clone()})
        return self.ask_hooks(layer, hidden)

    def keep(self, tapped: Mapping[int, Tensor]) -> None:
        """Take the (rows followed, d) states after some layers; nothing overwrites them."""
        missing = self._plan.missing
        if not (missing or self._request.extra_rows or self._pruned or self._states):
            self._states = tapped  # as nearly always
            return
        behind = missing + len(self._alive)
        self._states = dict(self._states)
        for layer, hidden in tapped.items():
            self._text[layer] = hidden[:missing]
            self._states[layer] = self._spread(hidden[missing:behind])
            self._extra_row_states[layer] = self._spread_extra(hidden[behind:])

    def ask_hooks(self, layer: int, hidden: Tensor) -> list[int] | None:
        """Show the (rows followed, d) states to the hooks of a layer; the answer is as in `after_layer`."""
        going: list[int] | None = None
        for hook in self._request.hooks:
            if layer in hook.layers and (stay := self._ask(hook, layer, hidden)) is not None:
                hidden = hidden[stay]
                going = stay if going is None else [going[place] for place in stay]
        return going

    def text_states(self) -> TextStates | None:
        """The tapped states of the tokens of the text that were read; None where there are none."""
        missing = self._plan.missing
        if not missing or not self._text:
            return None
        return TextStates(self._plan.positions[0], tuple(self._plan.tokens[:missing]), self._text)

    def reading(self, said: HeadOutput) -> Reading:
        """The reading of a pass, from the head's output for its living nodes and its extra rows, in that order."""
        extra_rows = bool(self._request.extra_rows)
        if not extra_rows and not self._pruned:
            return reading_of_all(self._plan, said, self._states, self.text_states() if self._text else None)
        count, says = len(self._alive), extra_rows and self._extra_row_last is None
        likeliest = said.likeliest
        return Reading(
            nodes=self._plan.nodes,
            said=self._of_nodes(said, count) if says or self._pruned else said,
            alive=frozenset(self._alive),
            pruned=self._pruned,
            taps=self._states,
            extra_row_logits=self._spread_extra(said.logits[count:]) if says else None,
            extra_row_states=self._extra_row_states if extra_rows else {},
            extra_row_likeliest=self._spread_extra(likeliest[count:]) if says and likeliest is not None else None,
            extra_row_last=self._extra_row_last,
            text_states=self.text_states(),
        )

    def _of_nodes(self, said: HeadOutput, count: int) -> HeadTensors:
        """The head's output for the nodes, of which so many are alive and come first."""
        likeliest, highest, logsumexp = (
            None if each is None else self._spread(each[:count])
            for each in (said.likeliest, said.highest, said.logsumexp)
        )
        reads = None if self._pruned else said.log_probabilities
        return HeadTensors(
            self._spread(said.logits[:count]), likeliest, logsumexp, highest, said.tokens, log_probabilities=reads
        )

    def _ask(self, hook: LayerHook, layer: int, hidden: Tensor) -> list[int] | None:
        """Places among the rows followed that go on after a hook was asked."""
        missing, count = self._plan.missing, len(self._alive)
        stay = hook.look(layer, hidden[missing : missing + count], tuple(self._alive))
        if stay is None or self._tree is None:
            return None
        survivors = surviving(self._tree, self._alive, stay)
        places = [place for place, node in enumerate(self._alive) if node in survivors]
        self._pruned.update({node: layer for node in self._alive if node not in survivors})
        self._alive = [self._alive[place] for place in places]
        return [*range(missing), *(missing + place for place in places), *range(missing + count, len(hidden))]

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows of living nodes, put where all nodes of the plan have their rows; dropped ones are zero."""
        if not self._pruned:
            return rows
        alive = set(self._alive)
        places = [place for place, node in enumerate(self._plan.nodes) if node in alive]
        return _put(rows, places, len(self._plan.nodes))

    def _spread_extra(self, rows: Tensor) -> Tensor:
        """The same for extra rows: those that have not entered are zero."""
        count = len(self._request.extra_rows)
        return rows if len(self._entered) == count else _put(rows, self._entered, count)


def _put(rows: Tensor, places: Sequence[int], count: int) -> Tensor:
    """(count, …) zeros with (n, …) rows at these places."""
    spread = rows.new_zeros(count, *rows.shape[1:])
    spread[to_device(torch.tensor(places, dtype=torch.int64), rows.device)] = rows
    return spread


@lru_cache(maxsize=64)
def _tapped(taps: frozenset[int], layers: range) -> tuple[int, ...]:
    return tuple(sorted(layer for layer in taps if layer in layers))


def reading_of_all(
    plan: PassPlan, said: HeadOutput, taps: Mapping[int, Tensor] = _NO_TAPS, text_states: TextStates | None = None
) -> Reading:
    """The reading of a pass without extra rows in which every node stayed; `taps` are layer → (R, d) states."""
    alive = frozenset(plan.nodes)
    return Reading(plan.nodes, said, alive, _NONE_PRUNED, taps, None, _NO_TAPS, None, text_states)


def surviving(tree: TokenTree, alive: Sequence[int], stay: Collection[int]) -> set[int]:
    """The nodes that stay: those chosen whose parents stay too. The root always does.

    A parent that is not among `alive` was read in an earlier pass and stays.
    """
    considered = set(alive)
    gone: set[int] = set()
    for node in sorted(considered):
        if node != ROOT and (node not in stay or tree.parents[node] in gone):
            gone.add(node)
    return considered - gone
