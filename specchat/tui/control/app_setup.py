"""What the app is given when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specchat.tui.control.engine_session import LinkFactory
from specchat.tui.control.trainings import TrainingHere
from specchat.tui.ports import StartServer
from specchat.tui.services.pair_library import Judge, Pairs, Sizes
from specchat.tui.state.races import BenchQuestion


@dataclass(frozen=True)
class AppSetup:
    """Where engines, pairs, chats and questions come from.

    Args:
        link_factory: starts an engine, or whatever answers like one.
        pairs, judge, sizes: the pairs there are, and what tells more about one; see `PairLibrary`.
        finds_models: whether models that other programs keep on this machine are looked for.
        demo: a recording to offer where weights cannot be had.
        engine_here: whether the engine reads this machine's files.
        store: where chats are kept; None keeps none.
        toured: the file that says the tour was taken; None takes no tour.
        questions: what a benchmark asks.
        server: lets other programs use the engine; None lets none.
        serve_on: the port on which they may from the start; None: not before they are let in.
        training: what it takes to train drafters on this machine; None where none can be.
    """

    link_factory: LinkFactory
    pairs: Pairs = ()
    judge: Judge | None = None
    sizes: Sizes | None = None
    finds_models: bool = False
    demo: Path | None = None
    engine_here: bool = True
    store: Path | None = None
    toured: Path | None = None
    questions: Callable[[], Sequence[BenchQuestion]] = tuple
    server: StartServer | None = None
    serve_on: int | None = None
    training: TrainingHere | None = None
