"""Runs pytest in copies of one process that has imported what takes long: each edit needs a fresh package only.

As a program: reads a line of JSON (pytest's arguments, the folder of the package, where the output goes), runs pytest
in a copy of itself, and answers with its exit status in a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@lru_cache
def _server() -> subprocess.Popen[str]:
    """The process, started when it is first needed; it ends with its standard input."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("SPECCHAT_SLOW", None)
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_pytest(arguments: list[str], package: Path, output: Path) -> int:
    """pytest's exit status for these arguments, where `specchat` is the package in that folder."""
    server = _server()
    assert server.stdin is not None, "a pipe was asked for"
    assert server.stdout is not None, "a pipe was asked for"
    try:
        print(json.dumps([arguments, str(package), str(output)]), file=server.stdin, flush=True)
        return int(server.stdout.readline())
    except BaseException:  # such as a timeout: an answer that still comes would be taken for the next one's
        server.kill()
        _server.cache_clear()
        raise


def main() -> None:
    import hypothesis  # noqa: F401
    import pytest
    import torch  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    assert not any(name.split(".")[0] == "specchat" for name in sys.modules), "each copy imports its own"
    for line in sys.stdin:
        arguments, package, output = json.loads(line)
        child = os.fork()
        if child == 0:
            written = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(written, 1)
            os.dup2(written, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.path[:0] = [package, str(ROOT)]
            os.environ["PYTHONPATH"] = os.pathsep.join([package, str(ROOT), os.environ.get("PYTHONPATH", "")])
            os._exit(pytest.main(arguments))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
