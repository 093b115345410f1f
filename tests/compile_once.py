"""A C compiler for the tests that compiles the same sources once: many tests start processes with an empty cache.

`share_compiled` names this file in $CC for a whole run of pytest; each process that compiles then runs it. What it made
is kept for later runs in pytest's cache: all the sources take a minute.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_COMPILER, _FOLDER = "SPECCHAT_TESTS_COMPILER", "SPECCHAT_TESTS_COMPILED"

KEPT_S = 14 * 24 * 3600.0
"""How long is kept what no run uses."""


def share_compiled(compiler: tuple[str, ...], cache: Path | None, machine: str) -> Path | None:
    """Let this process and all that it starts compile through this file.

    Args:
        compiler: the command of the compiler.
        cache: where earlier runs kept what they compiled; None for a folder in the system's place for such.
        machine: what compiled code depends on beside the sources, the options and the compiler.

    Returns:
        The folder of what is compiled; None where a process above this one has shared one.
    """
    if _FOLDER in os.environ:
        return None
    if cache is None:
        folder = Path(tempfile.mkdtemp(prefix="specchat-tests-compiled-"))
    else:
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
        about = [version, machine.encode(), *map(os.fsencode, compiler)]
        folder = cache / hashlib.blake2b(b"\n".join(about), digest_size=12).hexdigest()
        folder.mkdir(exist_ok=True)
        for file in cache.glob("*/*"):
            with suppress(FileNotFoundError):  # a run beside this one moved or removed it
                if time.time() - file.stat().st_mtime > KEPT_S:
                    file.unlink()
    os.environ[_FOLDER], os.environ[_COMPILER] = str(folder), json.dumps(compiler)
    os.environ["CC"] = f"'{sys.executable}' -I -S '{__file__}'"
    return folder


def main(arguments: list[str]) -> int:
    """Copy the output if these arguments with these files have been compiled before; else compile, and keep it."""
    compiler = json.loads(os.environ[_COMPILER])
    if "-o" not in arguments:
        return subprocess.run([*compiler, *arguments], check=False).returncode
    place = arguments.index("-o") + 1
    before, output, after = arguments[:place], arguments[place], arguments[place + 1 :]
    kept = Path(os.environ[_FOLDER]) / _key([*before, *after])
    with kept.with_name(f"{kept.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # others that want the same wait
        if not kept.exists():
            made = kept.with_name(f"{kept.name}-{os.getpid()}")
            command = shlex.join([*compiler, *before, str(made), *after])
            # The shell has the lock too: it goes on where nobody waits for it any longer, and the next one finds this.
            script = f"{command} && mv {shlex.quote(str(made))} {shlex.quote(str(kept))}"
            if status := subprocess.run(["sh", "-c", script], pass_fds=[lock.fileno()], check=False).returncode:
                return status
    os.utime(kept)
    shutil.copy(kept, output)
    return 0


def _key(arguments: list[str]) -> str:
    """A name for arguments in which each source, and each folder of headers, stands for what is in it and beside it,
    wherever that lies."""
    key = hashlib.blake2b(digest_size=12)
    for argument in arguments:
        source, headers = argument.endswith(".c"), argument.startswith("-I/")
        key.update(b"\n" + (Path(argument).name if source or headers else argument).encode())
        folder = Path(argument).parent if source else Path(argument[2:]) if headers else None
        for file in sorted(folder.glob("*.[ch]")) if folder else ():
            key.update(file.name.encode() + file.read_bytes())
    return key.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
