"""Compiles the kernels for this processor, once; says why where that cannot be done."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from specchat.config import cache_dir, private_dir
from specchat.errors import ModelError
from specchat.models.inspect.memory import cpu_flags

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
_NEEDED = ("avx2", "f16c", "fma")
_PATIENCE_S = 120


class NativeUnavailable(ModelError):
    """The native kernels cannot be had on this machine; torch's are used instead."""


def compiled(processor: str = "native") -> Path:
    """The compiled kernels, compiled now if they are not yet; for this processor, or an older one by name.

    Raises:
        NativeUnavailable: another processor, no compiler, or one that fails.
    """
    missing = [flag for flag in _NEEDED if flag not in cpu_flags()]
    if missing:
        here = f"this is {platform.system()} on {platform.machine()}"
        raise NativeUnavailable(f"they are written for x86 processors with AVX2 under Linux, and {here}")
    command = (*find_compiler(), f"-march={processor}", *_FLAGS)
    file = _file_for(command)
    if not file.exists():
        _compile(command, file)
    return file


def find_compiler() -> tuple[str, ...]:
    """The command of a C compiler: $CC, the system's, or the one that the package ziglang carries.

    Raises:
        NativeUnavailable: there is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for words in (named, ["cc"], ["gcc"], ["clang"]):
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise NativeUnavailable("no C compiler is here; pip install 'specchat[native]' brings one")


def _file_for(command: tuple[str, ...]) -> Path:
    """Where the compiled kernels lie: under a name that changes with source, compiler and processor."""
    sources = [part.read_text() for part in sorted(_FOLDER.glob("*.[ch]"))]
    about = [*sources, *command, platform.platform(), *sorted(cpu_flags())]
    key = hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()
    return cache_dir() / "native" / f"kernels-{key}.so"


def _compile(command: tuple[str, ...], file: Path) -> None:
    try:
        private_dir(file.parent)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            arguments = [*command, *map(str, sorted(_FOLDER.glob("*.c"))), "-o", str(made), "-lm"]
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["nothing"])[0]
                raise NativeUnavailable(f"{command[0]} could not compile them: {said}")
            os.replace(made, file)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"they could not be compiled: {error}") from None
