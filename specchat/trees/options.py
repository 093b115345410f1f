"""Options of the tree policies, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.errors import UsageError, short
from specchat.registry import option
from specchat.settings import OPTIONS

_MOST_NODES = int(OPTIONS["nodes"].maximum or 0)
_LONGEST_NUMBER = 9
"""Digits of a number that is read at all."""


@dataclass(frozen=True)
class ExpansionOptions:
    widths: str = option("", "children at depth 1, 2, …, such as 3,2,1,1; empty: `width` at depth 1, then 1")

    def __post_init__(self) -> None:
        self.per_depth()

    def per_depth(self) -> tuple[int, ...]:
        """The widths as numbers; empty where none were given."""
        return _counts("expansion.widths", self.widths)


@dataclass(frozen=True)
class BestFirstOptions:
    batch: int = option(
        0,
        "nodes the drafter is asked about in one call; 0: whole levels where a call costs a pass, else a few",
        unit="nodes",
        minimum=0,
        maximum=512,
    )
    floor: float = option(
        0.0, "guesses less likely than this to be reached and accepted get no place", minimum=0.0, maximum=1.0
    )


RankPath = tuple[int, ...]
"""A node of a static tree: the rank of the guess at every level on the way down to it."""


@dataclass(frozen=True)
class SpecExecOptions:
    beams: int = option(32, "nodes expanded in one pass of the drafter", unit="nodes", minimum=1, maximum=512)
    children: int = option(16, "children a node may get, if `width` allows as many", minimum=1, maximum=64)
    decay: float = option(0.95, "factor on a guess's probability for every level", minimum=0.01, maximum=1.0)
    floor: float = option(-10.0, "guesses whose path has a lower log-probability get no place", maximum=0.0)


@dataclass(frozen=True)
class Eagle2Options:
    expand: int = option(10, "nodes of a level that get children, the surest ones", unit="nodes", minimum=1, maximum=64)


@dataclass(frozen=True)
class RsdCOptions:
    branching: str = option("", "children of a node at depth 0, 1, …, such as 4,2,1; empty: `width` at every depth")

    def __post_init__(self) -> None:
        self.per_depth()

    def per_depth(self) -> tuple[int, ...]:
        """The branching as numbers; empty where none was given."""
        return _counts("rsd_c.branching", self.branching)


@dataclass(frozen=True)
class RsdSOptions:
    beams: int = option(0, "sequences kept at every level; 0: `nodes` / `depth`", minimum=0, maximum=512)


@dataclass(frozen=True)
class ConfidenceOptions:
    fallback: float = option(
        0.4, "a node whose likeliest next token is less likely than this gets no children", minimum=0.0, maximum=1.0
    )
    alpha: float = option(
        0.1,
        "guesses whose path is less likely than this get no place; the starting value, if it adapts",
        minimum=0.0,
        maximum=1.0,
    )
    adapt: bool = option(True, "lower alpha when whole paths are accepted, raise it when they are not")


@dataclass(frozen=True)
class GraphOptions:
    repeat: int = option(1, "ancestors that must agree too before a token counts as repeated", minimum=0, maximum=16)


@dataclass(frozen=True)
class SequoiaOptions:
    rates: str = option(
        "0.5,0.15,0.08,0.05,0.04,0.03,0.02,0.015", "how often the best, second best, … guess is right, to begin with"
    )
    relearn: int = option(32, "rounds after which the tree is computed again", unit="rounds", minimum=1, maximum=4096)

    def __post_init__(self) -> None:
        self.by_rank()

    def by_rank(self) -> tuple[float, ...]:
        """The rates as numbers, best rank first; they need not fall."""
        if rates := _rates(self.rates):
            return rates
        raise UsageError(f"sequoia.rates = {self.rates!r} must be numbers between 0 and 1, such as 0.5,0.2")


@dataclass(frozen=True)
class TemplateOptions:
    """Options of `template`. With width 8, depth 6 and 80 nodes the defaults are the published tree of 80 nodes."""

    paths: str = option("", "every node as its ranks on the way down, such as 0,1,0-0,0-1,0-0-0; empty: by counts")
    counts: str = option(
        "8,21,25,15,8,3", "nodes at depth 1, 2, …, the likeliest ones; empty: the best tree for the nodes allowed"
    )
    rates: str = option(
        "0.5,0.15,0.08,0.05,0.04,0.03,0.02,0.015", "how often the best, second best, … guess is right, falling"
    )

    def __post_init__(self) -> None:
        self.rank_paths()
        self.per_depth()
        self.by_rank()

    def rank_paths(self) -> tuple[RankPath, ...]:
        """The explicit paths; refuses a node whose parent or whose better-ranked sibling is missing."""
        words = [w for w in self.paths.replace(" ", "").split(",") if w]
        if not all(part.isdecimal() and len(part) <= _LONGEST_NUMBER for word in words for part in word.split("-")):
            raise UsageError(f"template.paths = {short(self.paths)} must be ranks from 0, such as 0,1,0-0")
        paths = {tuple(int(part) for part in word.split("-")) for word in words}
        for path in sorted(paths):
            parent, before = path[:-1], (*path[:-1], path[-1] - 1)
            if (parent and parent not in paths) or (path[-1] and before not in paths):
                missing = "-".join(map(str, parent if parent and parent not in paths else before))
                raise UsageError(f"template.paths has {'-'.join(map(str, path))} but not {missing}")
        return tuple(sorted(paths))

    def per_depth(self) -> tuple[int, ...]:
        """The counts as numbers; empty where none were given."""
        return _counts("template.counts", self.counts)

    def by_rank(self) -> tuple[float, ...]:
        """The rates as numbers, best rank first."""
        rates = _rates(self.rates)
        if not rates or list(rates) != sorted(rates, reverse=True):
            raise UsageError(
                f"template.rates = {self.rates!r} must be falling numbers between 0 and 1, such as 0.5,0.2"
            )
        return rates


def _counts(name: str, text: str) -> tuple[int, ...]:
    """Counts of nodes, one for each depth, none larger than a tree may be."""
    words = text.replace(" ", "").split(",") if text.strip() else []
    if not all(w.isdecimal() and len(w) <= _LONGEST_NUMBER and 1 <= int(w) <= _MOST_NODES for w in words):
        raise UsageError(f"{name} = {short(text)} must be whole numbers from 1 to {_MOST_NODES}, such as 3,2,1")
    return tuple(map(int, words))


def _rates(text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1; empty if any text is not such a number."""
    try:
        rates = tuple(float(word) for word in text.split(","))
    except ValueError:
        return ()
    return rates if all(0 < rate < 1 for rate in rates) else ()
