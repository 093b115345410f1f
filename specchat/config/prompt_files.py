"""Blocks of the prompt cache as files: found by key, checked before they are used, bounded, erased with their chat.

A block belongs to the chats that name it: `texts/ID` lists the keys of the blocks that a chat was read into. Blocks
that none names are erased with the next chat that is.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from specchat.config.directories import private_dir
from specchat.config.file_reading import open_regular
from specchat.config.kept_files import read_small, replacing

FOLDER = "prompts"
"""Beside the chats."""

_MAGIC = b"specchat prompt cache 1\n"
_HEADER = struct.Struct("<32sQI")  # key, bytes of the content, CRC-32 of the content
_HEADER_BYTES = len(_MAGIC) + _HEADER.size
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_KEY = re.compile(rb"[0-9a-f]{64}")
_MOST_LIST_BYTES = 8 << 20
_STALE_S = 3600.0
"""An unfinished file this old was left by a program that was killed."""

_log = logging.getLogger(__name__)


class PromptFiles:
    """The blocks in one folder, which several engines may use at once."""

    def __init__(self, folder: Path, most_bytes: int = 0) -> None:
        """Nothing is made yet. `most_bytes` is what all blocks together may take."""
        self._blocks, self._texts = folder / "blocks", folder / "texts"
        self.most_bytes = most_bytes
        self._folder = folder

    def has(self, key: bytes) -> bool:
        return self._block(key).is_file()

    def read(self, key: bytes, into: bytearray) -> bool:
        """Read a block's content, which is exactly as long as `into`; False where there is none that can be used.

        One that is damaged, or of another size, is removed, with a line in the log.
        """
        file = self._block(key)
        try:
            _read(file, key, into)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            _log.warning("prompt cache: %s is removed: %s", file.name, getattr(error, "strerror", None) or error)
            self.drop((key,))
            return False
        return True

    def used(self, keys: Iterable[bytes]) -> None:
        """These blocks of one text were used, in the order of the text: what comes first goes last."""
        now = time.time()
        for place, key in enumerate(keys):
            with suppress(OSError):
                os.utime(self._block(key), (now, now - place * 1e-3))

    def write(self, key: bytes, content: bytes | memoryview) -> bool:
        """Keep a block, unless it is there; whether it was written. OSError if the disk does not take it."""
        if self.has(key) or _HEADER_BYTES + len(content) > self.most_bytes:
            return False
        with replacing(self._block(key), durable=False) as draft, draft.open("wb") as opened:
            opened.write(_MAGIC + _HEADER.pack(key, len(content), zlib.crc32(content)))
            opened.write(content)
        return True

    def name(self, owner: str, keys: Collection[bytes]) -> None:
        """Say which blocks a chat was read into, before they are written; OSError if the disk does not take it."""
        assert _OWNER.fullmatch(owner), "owners have plain names"
        file = self._texts / owner
        before, wanted = self._named_in(file), [key.hex() for key in keys]
        if not set(wanted) <= set(before):
            there = [key for key in before if (self._blocks / key).is_file()]
            with replacing(file, durable=False) as draft:
                draft.write_text("".join(f"{key}\n" for key in dict.fromkeys([*there, *wanted])), encoding="ascii")

    def shrink(self) -> None:
        """Remove the blocks that were not used for longest until the others are within the bound, and what names none.

        What a program that was killed left unfinished goes too.
        """
        blocks = sorted(_files_in(self._blocks))
        left = sum(size for _, size, _ in blocks)
        most, stale = self._bound(left), time.time() - _STALE_S
        for used, size, file in blocks:
            unfinished = file.name.startswith(".")
            if used < stale if unfinished else left > most:
                _remove(file)
                left -= size
        for written, _, file in _files_in(self._texts):
            if written < stale and not any((self._blocks / key).is_file() for key in self._named_in(file)):
                _remove(file)

    def drop(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            _remove(self._block(key))

    def erase(self, owners: Iterable[str]) -> str:
        """Forget what these chats were read into, and all that no other one names; why that failed, or nothing."""
        lists = [self._texts / owner for owner in owners if _OWNER.fullmatch(owner)]
        trouble = [why for file in lists if (why := _erased(file))]
        named = {key for _, _, file in _files_in(self._texts) for key in self._named_in(file)}
        blocks = (file for _, _, file in _files_in(self._blocks) if file.name not in named)
        trouble += [why for file in blocks if (why := _erased(file))]
        return trouble[0] if trouble else ""

    def prepare(self) -> None:
        """Make the folders, private ones; OSError if the disk does not take them."""
        for folder in (self._folder, self._blocks, self._texts):
            private_dir(folder)

    def _bound(self, held: int) -> int:
        """Bytes that all blocks, which take `held` now, may take: no more than half of what the disk has for them."""
        with suppress(OSError):
            return min(self.most_bytes, (shutil.disk_usage(self._blocks).free + held) // 2)
        return self.most_bytes

    def _named_in(self, file: Path) -> list[str]:
        lines = read_small(file, _MOST_LIST_BYTES).splitlines()
        return [line.decode() for line in lines if _KEY.fullmatch(line)]

    def _block(self, key: bytes) -> Path:
        return self._blocks / key.hex()


def _files_in(folder: Path) -> list[tuple[float, int, Path]]:
    """When each file was written or used last, its size, and the file."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                found.append((seen.st_mtime, seen.st_size, Path(entry.path)))
    return found


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _erased(file: Path) -> str:
    """Remove a file; why that failed, or nothing."""
    try:
        file.unlink(missing_ok=True)
    except NotADirectoryError:  # nor is there such a file, then
        return ""
    except OSError as error:
        return f"{file} may hold what was read of removed chats: {error.strerror or error}"
    return ""


def _read(file: Path, key: bytes, into: bytearray) -> None:
    """Read the content of a block's file; ValueError if it is damaged, or is another block's."""
    with open_regular(file) as opened:
        there, wanted = os.fstat(opened.fileno()).st_size, _HEADER_BYTES + len(into)
        if there != wanted:
            raise ValueError(f"it has {there} bytes instead of {wanted}")
        header = opened.read(_HEADER_BYTES)
        if not header.startswith(_MAGIC):
            raise ValueError("it is of another format")
        if len(header) != _HEADER_BYTES or opened.readinto(into) != len(into):
            raise ValueError("it was cut off while it was read")
    named, length, checksum = _HEADER.unpack(header[len(_MAGIC) :])
    if (named, length) != (key, len(into)):
        raise ValueError("it is another block")
    if zlib.crc32(into) != checksum:
        raise ValueError("its checksum is wrong")
