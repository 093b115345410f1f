"""Runs the fuzzers for a while, each in a process of its own: `python -m tests.fuzz --minutes 30 [--only NAME]`."""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.registry import Fuzzer, fuzzers, make_attempt

FIRST = 1000
"""The first seed of a long run; pytest runs the ones before."""

MOST_FINDINGS = 20
"""After so many a fuzzer stops: they have one cause, or few."""

BLOCKED_S = 300
"""Time on the clock after which an attempt that neither ends nor computes is ended with its process."""


def main() -> int:
    asked = _arguments()
    chosen = {name: fuzzer for name, fuzzer in fuzzers().items() if asked.only in (None, name)}
    if not chosen:
        print(f"no fuzzer is called {asked.only!r}; known: {', '.join(fuzzers())}", file=sys.stderr)
        return 2
    if asked.seed is not None:
        for fuzzer in chosen.values():
            make_attempt(fuzzer, asked.seed)
        return 0
    seconds = asked.minutes * 60 / len(chosen)
    if asked.here:
        return _run_here(chosen[asked.only], asked.first, seconds)
    return max(_run_apart(name, asked.first, seconds) for name in chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all fuzzers together")
    parser.add_argument("--only", metavar="NAME", help="this fuzzer alone")
    parser.add_argument("--first", type=int, default=FIRST, metavar="SEED", help="where the seeds begin")
    parser.add_argument("--seed", type=int, help="one attempt with this seed, with its traceback")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_apart(name: str, first: int, seconds: float) -> int:
    """Run a fuzzer in a process of its own, again from the next seed where one ends the process."""
    until = time.monotonic() + seconds
    died = False
    while (left := until - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory(prefix="fuzz-home-") as home:
            current = Path(home) / "current"
            argv = ["--here", "--only", name, "--first", str(first), "--minutes", str(left / 60)]
            environment = os.environ | {"SPECCHAT_HOME": home, "SPECCHAT_FUZZ_CURRENT": str(current)}
            code = subprocess.run([sys.executable, "-m", "tests.fuzz", *argv], env=environment).returncode
            if code in (0, 1):
                return 1 if died else code
            if not current.exists():
                return code
            seed = int(current.read_text())
        print(f"{name}: seed {seed} ended the process (code {code})", flush=True)
        first, died = seed + 1, True
    return 1


def _run_here(fuzzer: Fuzzer, first: int, seconds: float) -> int:
    """Attempts from `first` on until the time is up; 1 if any found something."""
    faulthandler.enable()
    current = Path(os.environ["SPECCHAT_FUZZ_CURRENT"])
    until = time.monotonic() + seconds
    seed, findings = first, 0
    while time.monotonic() < until and findings < MOST_FINDINGS:
        current.write_text(str(seed))
        faulthandler.dump_traceback_later(BLOCKED_S, exit=True)
        try:
            make_attempt(fuzzer, seed)
        except KeyboardInterrupt:
            break
        except BaseException:
            findings += 1
            print(f"{fuzzer.name}: seed {seed}\n{traceback.format_exc()}", flush=True)
        seed += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{fuzzer.name}: {seed - first} attempts from seed {first}, {findings} findings", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
