"""Timing passes by their number of rows: what the controller plans with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from specchat.core.costs import Costs
from specchat.core.seams import Model
from specchat.core.tree import ROOT, Guess, TokenTree

VERIFY_ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 14, 16, 24, 32, 48, 64)
"""The most are rows of a wide tree with extra rows. Kernels take 8 or 14 rows at once: the next row costs more."""

DRAFT_ROWS = (1, 4)

CONTEXT_TOKENS = 512
"""Tokens of context at which passes are timed by default."""

_WARM, _TIMED = 2, 9
_MANY_ROWS, _SELDOM = 16, 3
"""Passes of more rows are timed only every third turn: their four sizes would take more time than all others."""

_WARM_UP = 10
"""Passes before the first that counts: right after loading they take twice as long."""

_DEAR_S, _SETTLED = 0.2, 2
"""Seconds of a pass of one row, after so many others, from which on fewer sizes are timed, and each less often."""

_NODE_S = 0.0001
"""Rather more than growing and judging a node takes on the host; beside such passes that is next to nothing."""

DEAR_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Those sizes. Where weights are read from the disk in every pass, hundreds of rows may cost next to nothing."""

_DEAR_TURNS, _DEAREST = 3, 4.0
"""Passes that take so many times as long as one row, and all larger ones, are not timed again."""


def measure_costs(
    target: Model,
    draft: Model | None,
    interrupted: Callable[[], bool] = lambda: False,
    verify_rows: Sequence[int] = VERIFY_ROWS,
    context_tokens: int = CONTEXT_TOKENS,
    fits: Callable[[int], bool] = lambda rows: True,
) -> Costs | None:
    """Time passes of the target and of the draft model; None if interrupted. Leaves caches empty.

    Args:
        fits: whether there is memory for a pass of so many rows; asked where wider passes are timed than usual.
    """
    verify = _curve(target, verify_rows, context_tokens, interrupted, fits if verify_rows is VERIFY_ROWS else None)
    drafting = _curve(draft, DRAFT_ROWS, context_tokens, interrupted) if draft is not None else ()
    if verify is None or drafting is None:
        return None
    return Costs(verify, drafting, _NODE_S if verify[0][1] > _DEAR_S else None)


def _curve(
    model: Model,
    row_counts: Sequence[int],
    context_tokens: int,
    interrupted: Callable[[], bool],
    fits: Callable[[int], bool] | None = None,
) -> tuple[tuple[int, float], ...] | None:
    """Every number of rows in turn, up and down, so that a disturbance affects all of them alike.

    A pass right after a much larger one is slow, so the order is reversed each time instead of starting again.
    """
    context_tokens = min(context_tokens, model.context_tokens // 2)
    up = [(rows, tree_of(rows, model.vocab_size)) for rows in row_counts]
    turns = [up[:1] * _WARM_UP, *(up[::-1] if turn % 2 else up for turn in range(_WARM + _TIMED))]
    seconds: dict[int, list[float]] = {rows: [] for rows in row_counts}
    try:
        for turn, passes in enumerate(turns):
            for at, (rows, tree) in enumerate(passes):
                if rows > _MANY_ROWS and turn % _SELDOM:
                    continue
                if interrupted():
                    return None
                took = _timed_read(model, tree, context_tokens)
                if fits is not None and turn == 0 and at == _SETTLED and took > _DEAR_S:
                    return _dear_curve(model, context_tokens, interrupted, fits)
                if turn > _WARM:
                    seconds[rows].append(took)
    finally:
        model.prefill(())
    return tuple((rows, statistics.median(seconds[rows])) for rows in row_counts)


def _dear_curve(
    model: Model, context_tokens: int, interrupted: Callable[[], bool], fits: Callable[[int], bool]
) -> tuple[tuple[int, float], ...] | None:
    """Sizes in powers of two, up and down, as far as a pass does not take several times as long as one row."""
    seconds: dict[int, list[float]] = {}
    sizes: Sequence[int] = [rows for rows in DEAR_ROWS if rows <= 2 or fits(rows)]
    for turn in range(_DEAR_TURNS):
        for rows in list(sizes):
            if interrupted():
                return None
            took = _timed_read(model, tree_of(rows, model.vocab_size), context_tokens)
            seconds.setdefault(rows, []).append(took)
            if turn == 0 and rows > 2 and took > _DEAREST * seconds[1][0]:
                break
        sizes = sorted(seconds, reverse=turn % 2 == 0)
    return tuple((rows, statistics.median(seconds[rows])) for rows in sorted(seconds))


def _timed_read(model: Model, tree: TokenTree, context_tokens: int) -> float:
    model.fill_for_benchmark(context_tokens)
    began = time.perf_counter()
    reading = model.read(tree)
    reading.best_after([ROOT], 1)  # waits for the device
    return time.perf_counter() - began


def tree_of(rows: int, vocab_size: int) -> TokenTree:
    """A tree of so many rows: two branches, as deep as it takes. Which shape it has does not change its cost."""
    tree = TokenTree(0, vocab_size)
    tips = [ROOT, ROOT]
    for node in range(rows - 1):
        tips[node % 2] = tree.add(tips[node % 2], Guess(node % 2))
    return tree.freeze()
