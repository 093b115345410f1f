"""How often the interval beside a reply's `× plain` holds the ratio that plain decoding before and after it shows.

For every prompt the same reply is written plainly, with guesses, and plainly again, with one seed, by one engine. The
ratio is the mean of the two plain times over the time with guesses. It has an interval of its own, from the differences
between the first and the second plain times of all replies. Needs a quiet machine.

    python tools/interval_coverage.py --pair smol --replies 48 --temperature 0 --out coverage.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from specchat.engine.client.client import Engine
from specchat.engine.client.start_engine import start_engine
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Generate, Load, Message, Quit
from specchat.errors import EngineError
from specchat.settings import GREEDY

Wanted = TypeVar("Wanted", bound=events.Event)
_Z = 1.959964


class Replies:
    """Replies of one engine, one after the other."""

    def __init__(self, engine: Engine, settings: dict[str, Any]) -> None:
        self._engine, self._ids = engine, itertools.count(1)
        engine.send(Load(settings))
        self._events: Iterator[events.Event] = engine.events()
        self._until(events.Ready)

    def write(self, prompt: str, seed: int, apart: dict[str, Any] | None) -> events.Finished:
        """The end of a reply to this prompt; `apart` are settings for it alone."""
        self._engine.send(Generate(next(self._ids), [Message("user", prompt)], seed, apart))
        return self._until(events.Finished)

    def _until(self, kind: type[Wanted]) -> Wanted:
        for event in self._events:
            if isinstance(event, kind):
                return event
            if isinstance(event, events.Failed | events.Died):
                raise EngineError(str(event))
        raise EngineError("the engine ended")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pair", default="smol")
    options.add_argument("--replies", type=int, default=48)
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--max-tokens", type=int, default=384)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    lines = (resources.files("specchat.bench") / "prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [json.loads(line)["turns"][0] for line in lines]
    settings = {**GREEDY, "pair": asked.pair, "temperature": asked.temperature, "max_tokens": asked.max_tokens}
    engine = start_engine("", settings)
    replies, rows = Replies(engine, settings), []
    plain = {"controller": "off"}
    replies.write(prompts[-1], 1, None)
    for number in range(asked.replies):
        prompt, seed = prompts[number % len(prompts)], 1000 + number
        before = replies.write(prompt, seed, plain)
        reply = replies.write(prompt, seed, None)
        after = replies.write(prompt, seed, plain)
        before_s, after_s = before.at_s - before.stats.prefill_s, after.at_s - after.stats.prefill_s
        stats = reply.stats
        rows.append(
            {
                "tokens": stats.tokens, "ratio": (before_s + after_s) / 2 / (reply.at_s - stats.prefill_s),
                "drift": math.log(after_s / before_s), "shown": stats.speedup, "low": stats.speedup_low,
                "high": stats.speedup_high, "plain_rounds": stats.plain_rounds,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    engine.send(Quit())
    if asked.out is not None:
        asked.out.write_text(json.dumps(rows))
    known = [row for row in rows if row["shown"] is not None]
    noise = _Z * 1.4826 * statistics.median(abs(row["drift"]) for row in rows) / 2  # 1.4826: median to deviation
    print(f"the measured ratio itself is known to {noise:.1%}")
    for text, share in ("hold the ratio", 0.0), ("and the ratio's own hold the difference", noise):
        inside = sum(_holds(row, share) for row in known)
        low, high = _wilson(inside, len(known))
        print(f"{inside} of {len(known)} intervals {text}: {inside / len(known):.0%} (95 %: {low:.0%} to {high:.0%})")
    shown = [row["shown"] / row["ratio"] for row in known]
    half = statistics.median((row["high"] - row["low"]) / 2 / row["shown"] for row in known)
    print(f"shown over measured: median {statistics.median(shown):.3f}, mean {statistics.fmean(shown):.3f}")
    print(f"half of an interval, median {half:.1%}; {len(rows) - len(known)} replies had no figure")


def _holds(row: dict[str, Any], noise: float) -> bool:
    """Whether the ratio is inside the interval, or outside by no more than the ratio's own noise explains."""
    difference = row["ratio"] - row["shown"]
    side = row["high"] - row["shown"] if difference > 0 else row["shown"] - row["low"]
    return abs(difference) <= math.hypot(side, noise * row["ratio"])


def _wilson(hits: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, width = hits / of, _Z**2 / of
    middle, half = share + width / 2, _Z * math.sqrt(share * (1 - share) / of + width / (4 * of))
    return (middle - half) / (1 + width), (middle + half) / (1 + width)


if __name__ == "__main__":
    main()
