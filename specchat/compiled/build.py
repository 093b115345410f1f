"""Compiles C sources for this machine, once, and loads the library; says why where that cannot be done."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specchat.compiled.machine import has_developer_tools, is_macos
from specchat.config.directories import cache_dir, private_dir
from specchat.config.kept_files import locked
from specchat.errors import ModelError, installs

_PATIENCE_S = 120
_UNFINISHED = "compiling-"
_DESCRIPTORS = Path("/proc/self/fd")
_log = logging.getLogger(__name__)


class NativeUnavailable(ModelError):
    """The compiled C is not available on this machine; torch or Python does the same instead."""


@dataclass(frozen=True)
class Sources:
    """C sources and how they are compiled.

    Args:
        folder: where they lie; all of them become one library.
        name: of the library.
        command: what compiles them, without files.
        about: what else the compiled library depends on.
        brief: whether its calls take a few microseconds: then Python's lock is kept meanwhile.
        headers: another folder whose headers they include.
    """

    folder: Path
    name: str
    command: tuple[str, ...]
    about: tuple[str, ...] = ()
    brief: bool = False
    headers: Path | None = None


@dataclass(frozen=True)
class Compiled:
    """A library as this process has it, and where it lies, in words."""

    library: ctypes.CDLL
    where: str


def load(sources: Sources) -> Compiled:
    """The library of these sources.

    Compiled now if it is not yet, or if what lies in the cache is not this user's alone. Where the cache itself is
    not, it is compiled for this process only, in a private folder that does not stay.

    Raises:
        NativeUnavailable: the compiler fails.
    """
    try:
        file = compile_if_missing(sources)
        return Compiled(_opened(file, cache_dir(), sources.brief), str(file))
    except (NotOwnFile, OSError) as error:
        where = f"compiled for this process only, since {error}"
        _log.warning("the native %s are %s", sources.name, where)
    try:
        with tempfile.TemporaryDirectory(prefix="specchat-") as folder:
            file = Path(folder) / f"{sources.name}.so"
            _compile(sources, file)
            return Compiled(_opened(file, Path(folder), sources.brief), where)
    except (NotOwnFile, OSError) as error:
        raise NativeUnavailable(f"they could not be compiled: {error}") from None


def compile_if_missing(sources: Sources) -> Path:
    """Where the library of these sources lies in the cache, compiled now if need be.

    One thread of one process compiles; others wait, and find what it made.

    Raises:
        NativeUnavailable: the compiler fails.
        NotOwnFile: the cache is not this user's alone.
        OSError: the cache cannot be written, or another process compiles for too long.
    """
    file = _file_for(sources)
    if _is_own(file, open_own):
        return file
    was_open_to_others = file.parent.exists() and not _is_own(file.parent, open_own_folder)
    private_dir(file.parent)
    os.close(open_own_folder(file.parent, cache_dir()))
    with locked(file.with_name("compiling.lock"), _PATIENCE_S):
        for left in file.parent.glob(f"{_UNFINISHED}*"):  # by a process that ended while it compiled
            shutil.rmtree(left, ignore_errors=True)
        if was_open_to_others or not _is_own(file, open_own):
            _compile(sources, file)
    return file


def is_compiled(sources: Sources) -> bool:
    """Whether the library lies in the cache, ready to be loaded."""
    return _is_own(_file_for(sources), open_own)


def find_compiler() -> tuple[str, ...]:
    """The command of a C compiler: $CC, the system's or the package ziglang's; NativeUnavailable: none, or Windows."""
    if os.name == "nt":
        raise NativeUnavailable("they are not compiled under Windows")
    named = shlex.split(os.environ.get("CC", ""))
    for words in (named, ["cc"], ["gcc"], ["clang"]):
        if words and (path := shutil.which(words[0])) and _works(path):
            return (path, *words[1:])
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise NativeUnavailable(f"no C compiler was found; one comes with {installs('native')}")


def _works(compiler: str) -> bool:
    return not is_macos() or Path(compiler).parent != Path("/usr/bin") or has_developer_tools()


def _is_own(path: Path, open_it: Callable[[Path, Path], int]) -> bool:
    try:
        os.close(open_it(path, cache_dir()))
    except (NotOwnFile, OSError):
        return False  # not there, or not to be trusted
    return True


def _opened(file: Path, root: Path, brief: bool) -> ctypes.CDLL:
    """The library in this file, by the descriptor that was looked at where the system names descriptors.

    The descriptor stays open: the system's loader knows a library by its name, and takes two of one name for one. On
    other systems it is opened by its own name: whoever could exchange it meanwhile is this user.
    """
    descriptor = open_own(file, root)
    opened = ctypes.PyDLL if brief else ctypes.CDLL
    if _DESCRIPTORS.is_dir():
        return opened(str(_DESCRIPTORS / str(descriptor)))
    os.close(descriptor)
    return opened(str(file))


def _file_for(sources: Sources) -> Path:
    """Where the library lies: under a name that changes with source, compiler and system."""
    parts = [*sorted(sources.folder.glob("*.[ch]")), *sorted(sources.headers.glob("*.h") if sources.headers else ())]
    about = [word.encode(errors="surrogateescape") for word in (*sources.command, platform.platform(), *sources.about)]
    texts = [part.read_bytes() for part in parts]
    key = hashlib.blake2b(b"\n".join([*texts, *about]), digest_size=8).hexdigest()
    return cache_dir() / "native" / f"{sources.name}-{key}.so"


def _compile(sources: Sources, file: Path) -> None:
    """Compile into this file, whose folder is private.

    Raises:
        NativeUnavailable: the compiler fails.
        OSError: the file cannot be written.
    """
    command = (*sources.command, *([f"-I{sources.headers}"] if sources.headers else []))
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=_UNFINISHED) as folder:
        made = Path(folder) / file.name
        arguments = [*command, *map(str, sorted(sources.folder.glob("*.c"))), "-o", str(made), "-lm"]
        try:
            done = subprocess.run(arguments, capture_output=True, errors="replace", timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"they could not be compiled: {error}") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[0]
            raise NativeUnavailable(f"{command[0]} could not compile them: {said}")
        made.chmod(0o700)
        os.replace(made, file)


_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opening a pipe must not block."""


class NotOwnFile(Exception):
    """A file, or a folder on the way to it, that another user owns or can write to."""


def open_own(file: Path, root: Path) -> int:
    """A descriptor of a file that belongs to this user, as do `root` and the folders between, with no write for others.

    Every step is opened below the one before and looked at once it is open, so that nothing can be exchanged between
    the look and the use. A folder may be a symbolic link: one below a folder that only this user writes to was made by
    this user, and what it leads to is looked at all the same. The file may not be one.

    Raises:
        NotOwnFile: it, or a folder, is not this user's alone.
        OSError: it cannot be opened.
    """
    folder = open_own_folder(file.parent, root)
    try:
        at = os.open(file.name, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        _look_at(at, file)
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise NotOwnFile(f"{file} is not a regular file")
    except BaseException:
        os.close(at)
        raise
    return at


def open_own_folder(folder: Path, root: Path) -> int:
    """A descriptor of a folder that belongs to this user, as do `root` and the folders between.

    Raises:
        NotOwnFile: one of them is not this user's alone.
        OSError: it cannot be opened.
    """
    at, path = os.open(root, _FLAGS | os.O_DIRECTORY), root
    try:
        _look_at(at, path)
        for part in folder.relative_to(root).parts:
            path = path / part
            inner = os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
            _look_at(at, path)
    except BaseException:
        os.close(at)
        raise
    return at


def _look_at(descriptor: int, path: Path) -> None:
    seen = os.fstat(descriptor)
    if seen.st_uid != os.geteuid():
        raise NotOwnFile(f"{path} belongs to another user")
    if seen.st_mode & _OTHERS_MAY_WRITE:
        raise NotOwnFile(f"{path} can be written by others")
