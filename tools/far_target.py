"""Measure a target on another machine: `ssh` is a program here that delays every byte, each way by half a round trip.

python tools/far_target.py [--round-trip-ms 20] [--pair smol] [specchat run options]: plain and drafted texts from a
target at `ssh:here`, and the drafted text from a target in the engine itself, which must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PROMPT = "Write a short story about a fisherman and a storm."


def relay(delay_s: float, command: list[str]) -> int:
    """Run a command; what it reads and writes arrives so much later."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    ways = ((0, process.stdin.fileno()), (process.stdout.fileno(), 1))
    threads = [threading.Thread(target=_later, args=(*way, delay_s), daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    threads[1].join()
    return process.wait()


def _later(source: int, sink: int, delay_s: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def write() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                os.close(sink)
                return
            while data:
                data = data[os.write(sink, data) :]

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    while True:
        data = os.read(source, 1 << 16)
        waiting.put((time.monotonic() + delay_s, data))
        if not data:
            writer.join()
            return


def spoken(environment: dict[str, str], *options: str) -> dict[str, Any]:
    """What `specchat run --output json` says."""
    command = [sys.executable, "-m", "specchat", "run", PROMPT, "--output", "json", "--seed", "1", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--round-trip-ms", type=float, default=20.0)
    parser.add_argument("--pair", default="smol")
    asked, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, line in (
            ("ssh", f"exec '{sys.executable}' '{__file__}' --relay {asked.round_trip_ms / 2000} \"$@\""),
            ("specchat", f"exec '{sys.executable}' -m specchat \"$@\""),
        ):
            (Path(folder) / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
            (Path(folder) / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        pair, far = ("--pair", asked.pair, *options), ("--target-at", "ssh:here")
        texts = {
            "plain, target far": spoken(environment, *pair, *far, "--controller", "off"),
            "drafted, target far": spoken(environment, *pair, *far),
            "drafted, target here": spoken(environment, *pair),
        }
    for name, said in texts.items():
        stats = said["stats"]
        there = "" if stats["there_s"] is None else f", {1000 * stats['there_s'] / stats['rounds']:.1f} ms of it there"
        round_ms = 1000 * stats["verify_s"] / stats["rounds"]
        print(
            f"{name}: {stats['tokens_per_s']:.1f} tok/s, {stats['tokens']} tokens in {stats['rounds']} rounds, "
            f"{round_ms:.1f} ms to verify{there}"
        )
    plain, drafted, here = (said["stats"]["tokens_per_s"] for said in texts.values())
    print(f"drafted against plain: {drafted / plain:.2f}; of the speed here: {drafted / here:.2f}")
    print("same text:", len({said["text"] for said in texts.values()}) == 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--relay"]:
        words = sys.argv[3:]
        raise SystemExit(relay(float(sys.argv[2]), words[words.index("specchat") :]))
    main()
