"""Measures what growing a tree costs the host beside the models' own passes: processor time, medians over rounds.

    python tools/growth_work.py [--pair smol] [--drafters suffix,merge] [--policies chain] [--nodes 64] [--chat]

Some drafters need a pair with a draft model. What counts is processor time of the drafting thread, less that of passes
within models, so another busy process changes little. `--chat` samples as the pair's chats do, with their penalties;
else rounds are greedy.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment
from specchat.config import load_catalog, settings_of
from specchat.errors import CombinationError
from specchat.settings import GREEDY
from specchat.trees import TREE_POLICIES

WARM_UP = 12
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps in the warm sun by the river. "


class Clock:
    """Processor time of this thread, with that spent within models apart."""

    def __init__(self) -> None:
        self.models_s = 0.0
        self._inside = 0

    def apart(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted as a model's."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.thread_time()
            self._inside += 1
            try:
                return function(*arguments, **named)
            finally:
                self._inside -= 1
                if not self._inside:
                    self.models_s += time.thread_time() - began

        return timed


def apart_from_c(clock: Clock, address: int) -> Any:
    """A `ReadRows` that counts the time of the one at this address as a model's."""
    from specchat.indexes.called_network import READ_ROWS

    return READ_ROWS(clock.apart(READ_ROWS(address)))


def calls_python(turn: object) -> bool:
    """Whether a network's passes are called back in Python, where they are patched."""
    from specchat.indexes.called_network import CalledNetwork
    from specchat.indexes.token_translation import TranslatedNetwork

    return isinstance(turn, CalledNetwork | TranslatedNetwork)


@contextmanager
def models_apart(clock: Clock) -> Iterator[None]:
    """Count what passes of models and steps of trained networks take as theirs, those that compiled code makes too."""
    from specchat.indexes import guess_search
    from specchat.models.decoder.decoder import Decoder
    from specchat.models.draft_heads.hydra import HydraDrafting

    as_c, timed = guess_search._as_c, []

    def apart_in_c(asked: Any) -> Any:
        made = as_c(asked)
        if getattr(asked, "read", 0) and not calls_python(asked.turn):
            read = apart_from_c(clock, asked.read)
            timed.append(read)
            made.read = ctypes.cast(read, ctypes.c_void_p).value
        return made

    with ExitStack() as patches:
        patches.enter_context(patch.object(guess_search, "_as_c", apart_in_c))
        for owner, name in (
            (Decoder, "read"),
            (Decoder, "prefill"),
            (Decoder, "copy_rows_from"),
            (HydraDrafting, "read"),
        ):
            patches.enter_context(patch.object(owner, name, clock.apart(getattr(owner, name))))
        yield


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--drafters", default="suffix,token_recycling,merge,hydra")
    asked.add_argument("--policies", default=",".join(TREE_POLICIES))
    asked.add_argument("--nodes", type=int, default=64)
    asked.add_argument("--rounds", type=int, default=20)
    asked.add_argument("--chat", action="store_true")
    measure(asked.parse_args())


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(2)
    from specchat.core.context import Context
    from specchat.core.noise import Noise
    from specchat.decoding.assemble import assemble, sampling

    shape = {"nodes": asked.nodes, "depth": 16, "width": 8, "controller": "fixed", "threads": 2, "pair": asked.pair}
    base = settings_of(load_catalog().pair(asked.pair), {} if asked.chat else GREEDY, shape)
    drafters = asked.drafters.split(",")
    pair = load_pair(base.but({"drafter": "none"}), others=[base.but({"drafter": name}) for name in drafters])
    model, clock = pair.target.model, Clock()
    prompt = pair.vocabulary.encode_chat([{"role": "user", "content": TEXT * 12 + "Repeat."}])
    print(f"{asked.nodes} nodes, {'as the chat samples' if asked.chat else 'greedy'}: ms on the host, and nodes")
    for drafter in drafters:
        for policy in asked.policies.split(","):
            settings = base.but({"drafter": drafter, "policy": policy})
            context = Context(prompt.copy(), len(prompt), model.vocab_size, sampling(settings), Noise(7))
            draft = pair.draft.model if pair.draft else None
            try:
                speculator = assemble(settings, model, draft, resources=pair.resources)
            except CombinationError as refused:
                print(f"{drafter:16} {policy:12} {refused}")
                continue
            speculator.start(context.history)
            gc.freeze()  # as the engine does
            grow, taken, with_models, nodes = speculator.policy.grow, [], [], []

            def timed(
                *given: Any,
                grow: Any = grow,
                taken: list[float] = taken,
                with_models: list[float] = with_models,
                nodes: list[int] = nodes,
            ) -> Any:
                models_s, began = clock.models_s, time.thread_time()
                tree = grow(*given)
                with_models.append(time.thread_time() - began)
                taken.append(with_models[-1] - (clock.models_s - models_s))
                nodes.append(len(tree) - 1)
                return tree

            with models_apart(clock), patch.object(speculator.policy, "grow", timed):
                for _ in range(WARM_UP + asked.rounds):
                    speculator.round(context)
            median, most = (1e3 * figure(taken[WARM_UP:]) for figure in (statistics.median, max))
            drafted = 1e3 * statistics.median(with_models[WARM_UP:])
            grown = f"{median:6.2f} ms  {statistics.median(nodes[WARM_UP:]):4.0f} nodes  at most {most:6.2f} ms"
            grown += f", with models {drafted:6.2f} ms"
            print(f"{drafter:16} {policy:12} {grown}", flush=True)


if __name__ == "__main__":
    main()
