"""Damaged, foreign and exchanged files of the prompt cache: a block is what was written, or it is not there."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

from specchat.config.prompt_files import PromptFiles
from tests.fuzz.mutate import mutated

ATTEMPTS = 80


def attempt(seed: int, folder: Path) -> None:
    """Some blocks of two chats; every tenth time all are undamaged."""
    random = Random(seed)
    files = PromptFiles(folder / "prompts", 1 << 20)
    blocks = {sha256(bytes([number])).digest(): random.randbytes(random.choice((1, 64, 4000))) for number in range(6)}
    keys = list(blocks)
    files.prepare()
    for owner, own in (("one", keys[:4]), ("two", keys[2:])):
        files.name(owner, own)
        for key in own:
            files.write(key, blocks[key])
    if seed % 10:
        there = [*(folder / "prompts/blocks").iterdir(), *(folder / "prompts/texts").iterdir()]
        for file in random.sample(there, 3):
            _damage(file, random.choice(there), random)
    for key, content in blocks.items():
        into = bytearray(random.choice((len(content), len(content), 0, 5000)))
        read, fits = files.read(key, into), len(into) == len(content)
        assert not read or into == content, "a block is what was written"
        assert read or seed % 10 or not fits, "an undamaged block can be read"
    with suppress(IsADirectoryError):
        files.name("one", keys)
    files.shrink()
    assert not files.erase(["one", "two"]) or any(file.is_dir() for file in (folder / "prompts").glob("*/*"))
    assert not any(files.has(key) for key in keys), "what two chats named is gone with them"


def _damage(file: Path, other: Path, random: Random) -> None:
    """Change a file's bytes, or put another one, a folder, a link or nothing in its place."""
    if not (file.is_file() and other.is_file()):
        return
    kind, data = random.randrange(8), file.read_bytes()
    if kind < 4:
        file.write_bytes(mutated(data, random))
    elif kind == 4:
        file.write_bytes(other.read_bytes())
    else:
        file.unlink()
        if kind == 5:
            file.mkdir()
        elif kind == 6:
            file.symlink_to(other)
