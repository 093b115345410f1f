"""Methods as tables hold them, each the smallest that needs one capability of the seams. Only tests list them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from contracts.learning_plugin import Constant, ConstantOptions, Learning, LearningOptions
from contracts.smallest_drafters import (
    First,
    FirstOptions,
    Nested,
    PartOfCache,
    Riding,
    RidingOptions,
    SelfDrafting,
    Silent,
    Stateful,
    Stateful2,
    StatefulOptions,
    Trained,
    TrainedOptions,
)
from torch import Tensor

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.acceptance.follow import Follow
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import LayerHook
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.registry import TRAINED_WEIGHTS, Method, NoOptions, Table
from specchat.trees import TREE_POLICIES
from specchat.trees.given_shapes import Expansion
from specchat.trees.options import ExpansionOptions


class LooksTwice(AcceptanceRule):
    """Follows, and on the way looks at the target's states and at the draft's law behind points."""

    lossless = True
    wants_q = True
    taps: ClassVar[Collection[int]] = (1,)

    def __init__(self, options: NoOptions) -> None:
        self._follow = Follow(options)
        self.laws: list[tuple[int, Tensor]] = []
        self.states: list[Tensor] = []

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        self.states.append(reading.taps[1])
        self.laws += [(draw.guess.token, q) for draw in tree.draws(ROOT) if (q := draw.guess.q) is not None]
        return self._follow.judge(tree, reading, context)


class DropsSome(Expansion):
    """Gives guesses places side by side, and drops every fourth node after the first layer."""

    taps: Sequence[int] = (0,)

    def __init__(self, options: ExpansionOptions) -> None:
        super().__init__(options)
        self.looked: list[int] = []

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        def look(layer: int, hidden: Tensor, nodes: Sequence[int]) -> Collection[int]:
            self.looked.append(layer)
            return [node for node in nodes if node % 4 or node == ROOT]

        return [LayerHook(frozenset({0}), look)] if tree.drafted else []


def _method(name: str, made: type, options: type = NoOptions, **more: Any) -> Method:
    return Method(name, f"{made.__module__}:{made.__name__}", "only for tests", "none", options=options, **more)


PLUGINS: dict[str, tuple[Table, Method]] = {
    method.name: (table, method)
    for table, methods in (
        (
            DRAFTERS,
            (
                _method("stateful", Stateful, StatefulOptions),
                _method("stateful2", Stateful2, StatefulOptions),
                _method("trained", Trained, TrainedOptions, requires=(TRAINED_WEIGHTS,)),
                _method("learning", Learning, LearningOptions),
                _method("constant", Constant, ConstantOptions, requires=(TRAINED_WEIGHTS,)),
                _method("riding", Riding, RidingOptions),
                _method("self_drafting", SelfDrafting),
                _method("part_of_cache", PartOfCache),
                _method("nested", Nested),
                _method("first", First, FirstOptions),
                _method("silent", Silent, FirstOptions),
            ),
        ),
        (TREE_POLICIES, (_method("drops_some", DropsSome, ExpansionOptions),)),
        (ACCEPTANCE_RULES, (_method("looks_twice", LooksTwice),)),
    )
    for method in methods
}


@contextmanager
def listed() -> Iterator[None]:
    """Within it, the plug-ins stand in their families' tables."""
    for table, method in PLUGINS.values():
        table._methods[method.name] = method
    try:
        yield
    finally:
        for table, method in PLUGINS.values():
            del table._methods[method.name]
