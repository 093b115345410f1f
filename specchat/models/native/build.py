"""Compiles the kernels for this processor, once, and loads them; says why where that cannot be done."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specchat.config import cache_dir, private_dir
from specchat.errors import ModelError
from specchat.models.inspect.memory import cpu_flags
from specchat.models.native.own_file import NotOwnFile, open_own

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
_NEEDED = {"x86_64": ("avx2", "f16c", "fma"), "aarch64": ("asimddp",)}
_WRITTEN_FOR = "x86 processors with AVX2 and 64-bit ARM processors with dot products, under Linux"
_PATIENCE_S = 120
_log = logging.getLogger(__name__)


class NativeUnavailable(ModelError):
    """The native kernels are not available on this machine; torch's are used instead."""


@dataclass(frozen=True)
class Compiled:
    """The kernels as this process has them, and where they lie, in words."""

    library: ctypes.CDLL
    where: str


def load(processor: str = "native") -> Compiled:
    """The compiled kernels for this processor, or an older one by name.

    Compiled now if they are not yet, or if what lies in the cache is not this user's alone. Where the cache itself is
    not, they are compiled for this process only, in a private folder that does not stay.

    Raises:
        NativeUnavailable: another processor, no compiler, or one that fails.
    """
    command = compile_command(processor)
    file = _file_for(command)
    try:
        return Compiled(_opened(file, cache_dir()), str(file))
    except (NotOwnFile, OSError):
        pass  # not there, or not to be trusted
    try:
        _compile(command, file)
        return Compiled(_opened(file, cache_dir()), str(file))
    except (NotOwnFile, OSError) as error:
        where = f"compiled for this process only, since {error}"
        _log.warning("the native kernels are %s", where)
    try:
        with tempfile.TemporaryDirectory(prefix="specchat-") as folder:
            _compile(command, Path(folder) / file.name)
            return Compiled(_opened(Path(folder) / file.name, Path(folder)), where)
    except (NotOwnFile, OSError) as error:
        raise NativeUnavailable(f"they could not be compiled: {error}") from None


def compile_command(processor: str = "native") -> tuple[str, ...]:
    """What compiles the kernels, without files.

    Raises:
        NativeUnavailable: another processor, or no compiler.
    """
    needed = _NEEDED.get(platform.machine())
    if needed is None or not cpu_flags().issuperset(needed):
        lacks = "".join(f" without {flag}" for flag in needed or () if flag not in cpu_flags())
        here = f"this is {platform.system()} on {platform.machine()}{lacks}"
        raise NativeUnavailable(f"they are written for {_WRITTEN_FOR}, and {here}")
    # Compilers for ARM know their own processor by this name only.
    option = "-mcpu" if platform.machine() == "aarch64" else "-march"
    return (*find_compiler(), f"{option}={processor}", *_FLAGS)


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


def _opened(file: Path, root: Path) -> ctypes.CDLL:
    """The library in this file, by the descriptor that was looked at.

    The descriptor stays open: the system's loader knows a library by its name, and takes two of one name for one.
    """
    descriptor = open_own(file, root)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _file_for(command: tuple[str, ...]) -> Path:
    """Where the compiled kernels lie: under a name that changes with source, compiler and processor."""
    sources = [part.read_text() for part in sorted(_FOLDER.glob("*.[ch]"))]
    about = [*sources, *command, platform.platform(), *sorted(cpu_flags())]
    key = hashlib.blake2b("\n".join(about).encode(), digest_size=8).hexdigest()
    return cache_dir() / "native" / f"kernels-{key}.so"


def _compile(command: tuple[str, ...], file: Path) -> None:
    """Compile into this file, whose folder becomes private.

    Raises:
        NativeUnavailable: the compiler fails.
        OSError: there is no writing.
    """
    private_dir(file.parent)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        arguments = [*command, *map(str, sorted(_FOLDER.glob("*.c"))), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"they could not be compiled: {error}") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[0]
            raise NativeUnavailable(f"{command[0]} could not compile them: {said}")
        made.chmod(0o700)
        os.replace(made, file)
