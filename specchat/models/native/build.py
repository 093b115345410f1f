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
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
_NEEDED = {"x86_64": ("avx2", "f16c", "fma"), "aarch64": ("asimddp",)}
_WRITTEN_FOR = "x86 processors with AVX2 and 64-bit ARM processors with dot products, under Linux"
_PATIENCE_S = 120


class NativeUnavailable(ModelError):
    """The native kernels cannot be had on this machine; torch's are used instead."""


def compiled(processor: str = "native") -> Path:
    """The compiled kernels, compiled now if they are not yet; for this processor, or an older one by name.

    Raises:
        NativeUnavailable: another processor, no compiler, or one that fails.
    """
    command = (*compiler_for(processor), *_FLAGS)
    file = _file_for(command)
    if not file.exists():
        _compile(command, file)
    return file


def compiler_for(processor: str) -> tuple[str, ...]:
    """A compiler, told which processor to compile for.

    Raises:
        NativeUnavailable: the kernels are not written for this machine's, or there is no compiler.
    """
    needed = _NEEDED.get(platform.machine())
    if needed is None or not cpu_flags().issuperset(needed):
        lacks = "".join(f" without {flag}" for flag in needed or () if flag not in cpu_flags())
        here = f"this is {platform.system()} on {platform.machine()}{lacks}"
        raise NativeUnavailable(f"they are written for {_WRITTEN_FOR}, and {here}")
    # Compilers for ARM know their own processor by this name only.
    option = "-mcpu" if platform.machine() == "aarch64" else "-march"
    return (*find_compiler(), f"{option}={processor}")


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
