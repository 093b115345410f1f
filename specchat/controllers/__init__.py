"""Controllers decide how hard to speculate next: their table, and which of them settings ask for.

This is all that listing them needs.
"""

from collections.abc import Collection

from specchat.controllers.options import CostModelOptions, GoodputOptions, SearchOptions
from specchat.errors import UsageError
from specchat.registry import Method, Table, not_called
from specchat.settings import Settings

CONTROLLERS = Table(
    "controller",
    Method(
        "off",
        "specchat.controllers.fixed:Off",
        "never speculate: plain decoding, by the same round with a budget of 0",
        "baseline",
    ),
    Method(
        "fixed",
        "specchat.controllers.fixed:Fixed",
        "the same width, depth and nodes in every round",
        "baseline",
    ),
    Method(
        "goodput",
        "specchat.controllers.goodput:Goodput",
        "as hard as pays: expected tokens per predicted second, learnt while it runs",
        "SmartSpec arXiv:2406.14066",
        options=GoodputOptions,
    ),
    Method(
        "search",
        "specchat.controllers.fixed:Search",
        "as fixed, and drafters may search or measure while a reply is written",
        "SWIFT arXiv:2410.06916",
        options=SearchOptions,
    ),
    Method(
        "cost_model",
        "specchat.controllers.cost_model:CostModel",
        "the size with the most tokens a second, by a line through recent times and how often each rank was accepted",
        "ProPD arXiv:2402.13485",
        options=CostModelOptions,
    ),
    Method(
        "memory",
        "specchat.controllers.memory:Memory",
        "no more nodes than memory has room for: a round's peak is predicted, and the limit of `memory` never exceeded",
        "SpecMemo arXiv:2506.01986",
    ),
)


def choose_controllers(settings: Settings) -> tuple[Method, ...]:
    """The settings' controllers, `memory` included where a limit is stated; UsageError as `controller_names`."""
    names = controller_names(settings.controller, CONTROLLERS)
    chosen = [CONTROLLERS[name] for name in names]
    if settings.memory and "memory" not in names and "off" not in names:
        chosen.append(CONTROLLERS["memory"])
    return tuple(chosen)


def controller_names(text: str, known: Collection[str]) -> list[str]:
    """The controllers of a text, joined by `+`; UsageError: unknown, named twice, or `off` beside others."""
    names = [name.strip() for name in text.split("+")]
    for name in names:
        if name not in known:
            raise not_called(name, "controller", known)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"controller = {text!r} names {twice!r} twice")
    if "off" in names and len(names) > 1:
        raise UsageError(f"controller = {text!r}: 'off' never speculates and cannot be joined with others")
    return names


def limits_memory(settings: Settings) -> bool:
    """Whether a controller of these settings counts what the pair's models take."""
    return any(method.name == "memory" for method in choose_controllers(settings))
