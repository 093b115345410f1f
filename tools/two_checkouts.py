"""Compares the host's work in two checkouts, which write replies turn about: medians of rounds in microseconds.

    python tools/two_checkouts.py BEFORE AFTER [--seconds 20] [temperature=0.5 top_p=0.9 …]

BEFORE and AFTER are folders that hold `specchat`. Each is a process of its own that waits while the other writes 60
rounds of our own questions, so both meet the machine in the same state; "difference" is the median over neighbouring
turns, with its quartiles. Two processes differ by some 10 µs where nothing was changed: start it more than once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TURN, WARM_UP = 60, 40
PARTS = ("round", "host", "drafting", "around the pass", "judging etc.", "between rounds", "the pass in C")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("before", type=Path)
    asked.add_argument("after", type=Path)
    asked.add_argument("--seconds", type=float, default=20.0)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked.add_argument("settings", nargs="*", help="SETTING=NUMBER or SETTING=NAME; greedy without penalties otherwise")
    chosen = asked.parse_intermixed_args()
    if chosen.child:
        write(chosen)
    else:
        compare(chosen)


def compare(asked: argparse.Namespace) -> None:
    command = [sys.executable, __file__, "--child", "--pair", asked.pair]
    roots = (asked.before, asked.after)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, str(root), str(root), *asked.settings], **pipes) for root in roots]
    for writer in writers:
        writer.stdout.readline()  # it is ready
    turns: list[list[list[list[float]]]] = [[], []]
    ends = time.monotonic() + asked.seconds
    while time.monotonic() < ends:
        order = (0, 1) if len(turns[0]) % 2 else (1, 0)
        for which in order:
            print(file=writers[which].stdin, flush=True)
            turns[which].append(json.loads(writers[which].stdout.readline()))
    for writer in writers:
        writer.stdin.close()
        writer.wait()
    report(turns)


def report(turns: list[list[list[list[float]]]]) -> None:
    for name, drafted in (("rounds with guesses", True), ("rounds without", False)):
        kept = [[[row for row in turn if (row[0] > 1) is drafted] for turn in side] for side in turns]
        if min(sum(map(len, side)) for side in kept) < TURN:
            continue
        pairs = [pair for pair in zip(*kept, strict=True) if all(pair)]
        if len(pairs) < 2:
            continue  # no quartiles
        print(f"{name}: {', '.join(str(sum(map(len, side))) for side in kept)}")
        for part, title in enumerate(PARTS, 1):
            before, after = (statistics.median(row[part] for turn in side for row in turn) for side in kept)
            moved = [statistics.median(r[part] for r in b) - statistics.median(r[part] for r in a) for a, b in pairs]
            low, middle, high = (1e6 * each for each in statistics.quantiles(moved, n=4))
            difference = f"difference {middle:7.1f} ({low:.1f} … {high:.1f})"
            print(f"  {title:16} {1e6 * before:8.1f} → {1e6 * after:8.1f}   {difference}")


def write(asked: argparse.Namespace) -> None:
    """A turn of rounds for every line that comes in."""
    sys.path.insert(0, str(asked.before.resolve()))
    rounds = rounds_of(asked)
    for _ in range(WARM_UP):
        next(rounds)
    print("ready", flush=True)
    for _ in sys.stdin:
        next(rounds)  # its clock ran while this process waited
        print(json.dumps([next(rounds) for _ in range(TURN)]), flush=True)


def rounds_of(asked: argparse.Namespace) -> Iterator[tuple[float, ...]]:
    """Of each round the rows of its pass, then seconds as in `PARTS`."""
    from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

    prepare_environment(2)
    from specchat.bench.workloads import own_workload
    from specchat.decoding.conversation import Conversation
    from specchat.decoding.reply_events import RoundWritten
    from specchat.models.cpu_kernels.kernels import Kernels

    chosen: dict[str, Any] = {"pair": asked.pair, "threads": 2, "max_tokens": 96}
    chosen |= {"temperature": 0.0, "repetition_penalty": 1.0, "top_p": 1.0}
    settings = settings_in_force(chosen | dict(map(setting, asked.settings)))
    pair = load_pair(settings)
    draft = pair.draft.model if pair.draft else None
    chat = Conversation(pair.target.model, draft, pair.vocabulary, settings, resources=pair.resources)
    read, passes_s = Kernels.read, [0.0]

    def timed(self: Any, *given: Any) -> None:
        began = time.perf_counter()
        read(self, *given)
        passes_s[0] = time.perf_counter() - began

    Kernels.read = timed  # type: ignore[method-assign]
    while True:
        for question in own_workload().in_turn():
            prompt = pair.vocabulary.encode_chat([{"role": "user", "content": question.turns[0]}])
            before: float | None = None
            for event in chat.reply(prompt, seed=7):
                now = time.perf_counter()
                if isinstance(event, RoundWritten) and before is not None:
                    timings, pass_s, took_s = event.round.timings, passes_s[0], now - before
                    parts = timings.draft_s, timings.verify_s - pass_s, timings.other_s
                    host_s = took_s - pass_s
                    yield len(event.round.tree), took_s, host_s, *parts, host_s - sum(parts), pass_s
                before = time.perf_counter()


def setting(text: str) -> tuple[str, Any]:
    """A setting and its value, a number where it reads like one."""
    name, _, value = text.partition("=")
    try:
        return name, int(value) if value.isdigit() else float(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    main()
