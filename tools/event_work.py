"""Measures what the engine does with a round besides the round itself: median microseconds, by rows.

    python tools/event_work.py [--pair smol] [--controller fixed] [--nodes 2] [--seconds 5]

The event is what crosses the process boundary. To compare two versions, run it from each checkout in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

WARM_UP = 20
COLUMNS = ("text and counts", "event", "encoding", "unseen event")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--controller", default="fixed")
    asked.add_argument("--nodes", type=int, default=2)
    asked.add_argument("--seconds", type=float, default=5.0)
    measure(asked.parse_args())


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(2)
    from specchat.bench.workloads import own_workload
    from specchat.decoding.conversation import Conversation
    from specchat.decoding.reply_events import RoundWritten
    from specchat.decoding.speculate import Speculator
    from specchat.engine.protocol.codec import encode
    from specchat.engine.server.copy_sources import CopySources
    from specchat.engine.server.event_conversion import round_message

    sizes = {"nodes": asked.nodes, "depth": asked.nodes, "width": 2, "controller": asked.controller, "threads": 2}
    chosen = {"pair": asked.pair, "drafter": "suffix", "policy": "best_first", "temperature": 0.0, "max_tokens": 200}
    pair = load_pair(settings := settings_in_force({**chosen, **sizes}))
    draft = pair.draft.model if pair.draft else None
    resources, words = pair.resources, pair.vocabulary
    chat = Conversation(pair.target.model, draft, words, settings, resources=resources, plain_rounds=True)
    spent: list[float] = []
    whole_round = Speculator.round

    def timed(*given: Any) -> Any:
        began = time.perf_counter()
        round = whole_round(*given)
        spent.append(time.perf_counter() - began)
        return round

    Speculator.round = timed  # type: ignore[method-assign]
    rows: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    ends = time.perf_counter() + asked.seconds
    for question in own_workload().in_turn():
        prompt = words.encode_chat([{"role": "user", "content": question.turns[0]}])
        copies, events = CopySources(words, [], prompt), chat.reply(prompt, 1)
        while time.perf_counter() < ends:
            began = time.perf_counter()
            written = next(events, None)
            told = time.perf_counter()
            if written is None:
                break
            if not isinstance(written, RoundWritten):
                continue
            event = round_message(1, written, words, copies)
            made = time.perf_counter()
            encode(event)
            encoded = time.perf_counter()
            round_message(1, written, words, copies, logprobs=False)  # as for text that is printed, but warm
            if len(spent) > WARM_UP:
                parts = (told - began - spent[-1], made - told, encoded - made, time.perf_counter() - encoded)
                rows[len(written.round.tree)].append(parts)
    print("rows rounds " + " ".join(f"{name:>16}" for name in COLUMNS))
    for count, every in sorted(rows.items()):
        middle = " ".join(f"{1e6 * statistics.median(part):16.1f}" for part in zip(*every, strict=True))
        print(f"{count:4} {len(every):6} {middle}")


if __name__ == "__main__":
    main()
