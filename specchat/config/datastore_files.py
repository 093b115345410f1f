"""Datastores on disk: texts as tokens with their suffix array in one file each. Headers are read and checked here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from specchat.config.directories import data_dir
from specchat.config.file_reading import UNREADABLE, open_regular
from specchat.config.toml_file import NAME
from specchat.errors import CombinationError, StoreError, UsageError, cut, nearest, os_errors_as, short

HEADER_BYTES = 4096
"""The header takes so much of every file, padded with spaces."""

MOST_TOKENS = 1 << 28
"""No datastore holds more."""

MOST_NAMES_BYTES = 1 << 24
"""The names of the files that a datastore's texts are from take no more."""

SUFFIX_BYTES = 4
"""What an entry of the suffix array takes."""

ENDING = ".datastore"

_MAGIC = b"specchat datastore 1\n"

_Text = Annotated[str, msgspec.Meta(max_length=200)]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class DatastoreHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A datastore in numbers. Behind every text stands an end mark, the largest number, which is not a token.

    Args:
        target: the model whose tokens these are; `vocabulary` decides whether another one has the same.
        vocabulary: checksum of the token table.
        token_bytes: what a token takes, 2 or 4.
        tokens: all of them, those behind the texts included.
        byteorder: of the suffix array.
        state_width, state_layer: how many numbers the target's state of each token has, and after which layer; 0 where
            states are not kept.
        names_bytes: what the names of the files take that the texts are from; 0 where they are not known.
    """

    target: _Text
    vocabulary: _Sha256
    vocab_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 22)]
    token_bytes: Annotated[int, msgspec.Meta(ge=2, le=4)]
    tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    texts: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
    made: Annotated[str, msgspec.Meta(max_length=40)]
    byteorder: Annotated[str, msgspec.Meta(pattern="^(little|big)$")] = sys.byteorder
    names_bytes: Annotated[int, msgspec.Meta(ge=0, le=MOST_NAMES_BYTES)] = 0
    state_width: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)] = 0
    state_layer: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0

    @property
    def separator(self) -> int:
        """The end mark behind every text."""
        return int((1 << 8 * self.token_bytes) - 1)

    @property
    def file_bytes(self) -> int:
        of_token = SUFFIX_BYTES + self.token_bytes + 2 * self.state_width
        return HEADER_BYTES + self.tokens * of_token + self.names_bytes

    def packed(self) -> bytes:
        packed = _MAGIC + msgspec.json.encode(self)
        assert len(packed) < HEADER_BYTES, "every field is short"
        return packed.ljust(HEADER_BYTES - 1) + b"\n"


@dataclass(frozen=True)
class DatastoreFile:
    """A datastore on this machine: its header, or why it cannot be used."""

    name: str
    file: Path
    header: DatastoreHeader | None
    problem: str = ""


def datastores_dir() -> Path:
    return data_dir() / "datastores"


def datastore_path(name: str) -> Path:
    """The file of the datastore with this name; UsageError if the name is not valid."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{short(name)} is not a valid name: letters, digits, '.', '_' and '-'")
    return datastores_dir() / f"{name}{ENDING}"


def datastore_files(folder: Path | None = None) -> list[DatastoreFile]:
    """Every datastore of a folder, or of this machine, the newest first."""
    found = sorted((folder or datastores_dir()).glob(f"*{ENDING}"))
    return sorted(map(_listed, found), key=lambda one: one.header.made if one.header else "", reverse=True)


def read_header(file: Path) -> DatastoreHeader:
    """The header of a file, which agrees with its size; StoreError if it is invalid or cannot be read."""
    with os_errors_as(StoreError, f"{file} cannot be read"), open_regular(file) as opened:
        packed, size = opened.read(HEADER_BYTES), os.fstat(opened.fileno()).st_size
    if not packed.startswith(_MAGIC):
        raise StoreError(f"{file} is not a datastore of this version of specchat; build it again")
    try:
        header = msgspec.json.decode(packed[len(_MAGIC) :], type=DatastoreHeader)
    except UNREADABLE as error:
        raise StoreError(f"{file} has an invalid header: {cut(str(error))}") from None
    if header.token_bytes == 3 or header.separator < header.vocab_size:
        raise StoreError(f"{file}: token_bytes = {header.token_bytes} do not hold {header.vocab_size} tokens")
    if header.byteorder != sys.byteorder:
        raise StoreError(f"{file} was built on a machine with another byte order; build it again")
    if size != header.file_bytes:
        raise StoreError(f"{file} has {size} bytes, and its header says {header.file_bytes}")
    return header


@dataclass(frozen=True)
class Datastores:
    """The datastores of this machine as one target sees them. Looked up anew each time: one may have been built since.

    Args:
        vocabulary: the checksum of its token table, asked for only where there are datastores.
        folder: where they lie, if not where `specchat datastore build` puts them.
    """

    target: str
    vocabulary: Callable[[], str]
    folder: Path | None = None

    def choose(self, wanted: str = "") -> DatastoreFile:
        """The datastore called `wanted`, or the newest with the target's tokens.

        Raises:
            CombinationError: there is none; says why and how to build one.
        """
        found = datastore_files(self.folder)
        fitting = [one for one in found if one.header is not None and one.header.vocabulary == self.vocabulary()]
        for one in fitting:
            if wanted in ("", one.name):
                return one
        raise CombinationError(f"{self._why_not(wanted, found)}; {self._way_out(fitting)}")

    def _why_not(self, wanted: str, found: list[DatastoreFile]) -> str:
        named = next((one for one in found if one.name == wanted), None)
        store = f"datastore.store = {short(wanted)}"
        if named is not None and named.header is None:
            return f"{store} cannot be used: {named.problem}"
        if named is not None and named.header is not None:
            return f"{store} holds tokens of {named.header.target}, which are not those of {self.target}"
        if wanted:
            known = [one.name for one in found]
            return f"{store} names no datastore" + (nearest(wanted, known) if known else "")
        return f"drafter 'datastore' needs a datastore with the tokens of {self.target}, and none is here"

    def _way_out(self, fitting: list[DatastoreFile]) -> str:
        if fitting:
            return f"nearest that works: datastore.store = {fitting[0].name!r}"
        return "`specchat datastore build` makes one from your files or chats; nearest that works: drafter 'suffix'"


def _listed(file: Path) -> DatastoreFile:
    name = file.name.removesuffix(ENDING)
    try:
        return DatastoreFile(name, file, read_header(file))
    except StoreError as error:
        return DatastoreFile(name, file, None, str(error))
