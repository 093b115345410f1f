"""A datastore of a few hundred tokens, for any vocabulary: texts that follow no law, and one that repeats itself."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from specchat.config.datastore_files import ENDING, DatastoreHeader, Datastores
from specchat.indexes.datastore import joined, token_width, write_datastore

_FOLDERS = tempfile.TemporaryDirectory(prefix="specchat-tiny-datastores-")

CHECKSUM = "ab" * 32


@cache
def tiny_datastores(vocab_size: int) -> Datastores:
    """The datastores as a target with so many tokens sees them: there is one."""
    generator = random.Random(3)
    texts = [[generator.randrange(vocab_size) for _ in range(100)] for _ in range(4)]
    folder = Path(_FOLDERS.name) / str(vocab_size)
    folder.mkdir()
    write_tiny_datastore(folder / f"tiny{ENDING}", [*texts, [3 % vocab_size, 1, 2] * 20], vocab_size)
    return Datastores("tiny", lambda: CHECKSUM, folder)


def write_tiny_datastore(
    file: Path,
    texts: Sequence[Sequence[int]],
    vocab_size: int,
    vocabulary: str = CHECKSUM,
    made: str = "2026-01-01",
    names: Sequence[tuple[int, str]] = (),
    states: Any = None,
    layer: int = 0,
) -> Path:
    """A datastore of these texts."""
    tokens = joined(texts, vocab_size)
    width = token_width(vocab_size)
    header = DatastoreHeader("tiny", vocabulary, vocab_size, width, len(tokens), len(texts), made)
    with file.open("wb") as opened:
        write_datastore(opened, header, tokens, names, states, layer)
    return file
