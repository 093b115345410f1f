"""What is written in C built with AddressSanitizer and UBSan, in a process that does what it is told.

As a program: reads a case a line (a seed of the native kernels', "gguf", "draw", "guesses" or "recurrence" and a seed,
or "control"), does it, and answers in a line. A sanitizer that finds something ends the process.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from specchat.compiled.build import NativeUnavailable, find_compiler
from specchat.errors import SpecchatError

ROOT = Path(__file__).parents[2]
FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
RUNTIMES = ("libasan.so", "libclang_rt.asan-x86_64.so")
PATIENCE_S = 240


class Found(Exception):
    """What a sanitizer said."""


@lru_cache
def runtime() -> Path:
    """The sanitizer's library, to be loaded before all others.

    Raises:
        NativeUnavailable: no kernels here, or a compiler without sanitizers.
    """
    compiler = find_compiler()
    for name in RUNTIMES:
        said = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        if (path := Path(said.stdout.strip())).is_absolute() and path.exists():
            return path
    raise NativeUnavailable(f"{compiler[0]} has no AddressSanitizer that can be loaded")


class Sanitized:
    """A process with such kernels, started when it is first asked for something."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115, open as long as the process writes to it

    def do(self, case: str) -> str:
        """Do one case; what became of it, in a line.

        Raises:
            Found: a sanitizer found something, or the process died.
        """
        process = self._started()
        assert process.stdin is not None, "a pipe was asked for"
        assert process.stdout is not None, "a pipe was asked for"
        print(case, file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
        answer = process.stdout.readline().strip() if ready else ""
        if not answer:
            process.kill()
            process.wait()
            self._process = None
            self._said.seek(0)
            raise Found(f"case {case}:\n{self._said.read()[-6000:]}")
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._said.seek(0)
            self._said.truncate()
            # Leaks are Python's own; sanitizers take terabytes of addresses, whatever the limit here.
            options = "detect_leaks=0:allocator_may_return_null=1:handle_segv=1:abort_on_error=0"
            preload = f"LD_PRELOAD={runtime()} libstdc++.so.6"  # which the sanitizer looks for when it starts
            environment = os.environ | {
                "ASAN_OPTIONS": options,
                "UBSAN_OPTIONS": "print_stacktrace=1",
                "OMP_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    'ulimit -S -v unlimited; exec env "$@"',
                    "-",
                    preload,
                    sys.executable,
                    "-m",
                    "tests.fuzz.sanitized",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                cwd=ROOT,
                env=environment,
            )
            atexit.register(self.close)
        return self._process


def do_case(case: str, unguarded: Callable[[], None]) -> str:
    """Do one case under sanitizers, or here where the compiler has none; what became of it, in a line."""
    try:
        runtime()
    except NativeUnavailable:
        unguarded()
        return "done"
    return _shared().do(case)


@lru_cache
def _shared() -> Sanitized:
    return Sanitized()


def main() -> None:
    import torch

    # Else transformers imports all of torch.distributed, a tenth of this process's time.
    torch.distributed.is_available = lambda: False  # type: ignore[assignment]

    from specchat.core import target_draw as native_draw
    from specchat.indexes import native_suffix_tree
    from specchat.models.cpu_kernels import build
    from tests.fuzz import fuzz_gguf
    from tests.fuzz.draw_case import run_draw
    from tests.fuzz.guess_case import run_guesses
    from tests.fuzz.native_case import control, run_case
    from tests.fuzz.recurrence_case import run_recurrence

    dynamic = ("-shared-libasan",) if "clang" in str(runtime()) else ()
    for module in (build, native_draw, native_suffix_tree):
        module._FLAGS = (*module._FLAGS, *FLAGS, *dynamic)  # type: ignore[attr-defined]
    for line in sys.stdin:
        case = line.strip()
        try:
            if case == "control":
                control()
            elif case.startswith("gguf "):
                with tempfile.TemporaryDirectory() as folder:
                    fuzz_gguf.attempt(int(case.removeprefix("gguf ")), Path(folder))
            elif case.startswith("draw "):
                run_draw(int(case.removeprefix("draw ")))
            elif case.startswith("guesses "):
                run_guesses(int(case.removeprefix("guesses ")))
            elif case.startswith("recurrence "):
                run_recurrence(int(case.removeprefix("recurrence ")))
            else:
                run_case(int(case))
            print("done", flush=True)
        except SpecchatError as error:
            print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    main()
