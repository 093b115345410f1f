"""Trained drafters: what a folder's drafter.toml says of its weights, and names that no other drafter has."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from itertools import count
from pathlib import Path
from typing import Any

from specchat.config.catalog import accept_checksum, load_catalog
from specchat.config.directories import shipped_drafters_dir
from specchat.config.toml_file import NAME, TableLocation, parse, tables
from specchat.config.values import DRAFTER_FILES
from specchat.errors import CombinationError, ConfigError, nearest, short

DESCRIPTION, WEIGHTS = DRAFTER_FILES
FORMAT = 1

DRAFT_MODEL = "draft_model"
"""The method of trained drafters that are draft models of the target's pairs, besides those that a pair names."""

JUDGE = "judge"
"""The rule for which weights are trained."""

_MOST_BYTES = 64 << 10
_MOST_WEIGHT_BYTES = 8 << 30
_MOST_OPTIONS = 64
_LONGEST_LIST = 1024
_MOST_REASONS = 3
_LARGEST = 2**53
_KINDS: dict[str, type] = {
    "format": int, "method": str, "target": str, "target_sha256": str, "size": int, "sha256": str, "licence": str,
    "made": date, "options": dict, "data": dict, "figures": dict,
}  # fmt: skip
_REQUIRED = ("format", "method", "target", "target_sha256", "size", "sha256", "licence", "made")


@dataclass(frozen=True)
class TrainedDrafter:
    """Weights of a drafter that were trained for one target.

    Args:
        name: that of its folder, or of its entry in models.toml.
        target: its name; `target_sha256` decides whether it is the same.
        size, sha256: of weights.safetensors.
        options: sizes that the method needs to build its network.
        data, figures: what it was trained on and how it did, for people to read.
    """

    name: str
    folder: Path
    method: str
    target: str
    target_sha256: str
    size: int
    sha256: str
    licence: str
    made: datetime
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS


@dataclass(frozen=True)
class RefusedDrafter:
    """Why a trained drafter cannot be used, and its method where that can be read."""

    method: str
    reason: str


@dataclass(frozen=True)
class TrainedDrafters:
    """The trained drafters of this machine as one target sees them.

    Args:
        fitting: verified and trained for this target, the newest first; behind them those of `lent`.
        refused: by name, those that cannot be used with this target.
        fetchable: method → names of drafters for this target that are not here and can be fetched.
        lent: names of draft models that were trained for another target with the same tokens, whose weights are here.
    """

    target: str = "this target"
    fitting: tuple[TrainedDrafter, ...] = ()
    refused: Mapping[str, RefusedDrafter] = field(default_factory=dict)
    fetchable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lent: frozenset[str] = frozenset()

    @property
    def draft_models(self) -> dict[str, TrainedDrafter]:
        """Those that are language models, by name, the newest first."""
        return {drafter.name: drafter for drafter in self.fitting if drafter.method == DRAFT_MODEL}

    def offered(self, drafts: Sequence[str]) -> tuple[str, ...]:
        """The names of all draft models of a pair: those that it names, then trained ones, its own target's first."""
        return (*drafts, *(name for name in self.draft_models if name not in drafts))

    def choose(self, method: str, wanted: str = "") -> TrainedDrafter:
        """The weights a method uses: those called `wanted`, or the newest.

        Raises:
            CombinationError: there are none; says why and how to get some.
        """
        able = {drafter.name: drafter for drafter in self.fitting if drafter.method == method}
        if wanted in able or (able and not wanted):
            return able[wanted] if wanted else next(iter(able.values()))
        raise CombinationError(self._why_not(method, wanted, able))

    def to_fetch(self, method: str, wanted: str = "") -> tuple[str, ...]:
        """The trained drafter to fetch for a method, if what it would use is not here and can be fetched."""
        able = {drafter.name for drafter in self.fitting if drafter.method == method}
        names = self.fetchable.get(method, ())
        if wanted in able or (able and not wanted):
            return ()
        return (wanted,) if wanted in names else () if wanted else names[:1]

    def _why_not(self, method: str, wanted: str, able: Collection[str]) -> str:
        fetched = {name for names in self.fetchable.values() for name in names}
        if wanted in self.refused:
            why = f"{method}.weights = {short(wanted)} cannot be used: {self.refused[wanted].reason}"
        elif other := next((one for one in self.fitting if one.name == wanted), None):
            why = f"{method}.weights = {short(wanted)} are weights of {other.method!r}"
        elif wanted and wanted not in fetched:
            known = [*able, *self.fetchable.get(method, ())]
            why = f"{method}.weights = {short(wanted)} names no trained drafter for {self.target}"
            why += nearest(wanted, known) if known else ""
        else:
            family = "rule" if method == JUDGE else "drafter"
            why = f"{family} {method!r} needs weights trained for {self.target}, and none are here"
            reasons = [f"{name}: {one.reason}" for name, one in self.refused.items() if one.method in (method, "")]
            why += f" ({'; '.join(reasons[:_MOST_REASONS])})" if reasons else ""
        return f"{why}; {self._way_out(method, wanted, able)}"

    def _way_out(self, method: str, wanted: str, able: Collection[str]) -> str:
        pullable = self.fetchable.get(method, ())
        if able:
            return f"nearest that works: {method}.weights = {next(iter(able))!r}"
        if pullable:
            name = wanted if wanted in pullable else pullable[0]
            return f"`specchat models pull {name}` fetches some; nearest that works: drafter 'suffix'"
        if method == JUDGE:
            return f"`specchat train PAIR --drafter {JUDGE}` trains one; nearest that works: rule 'follow'"
        return "`specchat models list` shows all trained drafters; nearest that works: drafter 'suffix'"


NO_TRAINED = TrainedDrafters()


def read_drafter(folder: Path, methods: Collection[str], name: str = "") -> TrainedDrafter:
    """The description in a folder's drafter.toml, every key known, of its kind and bounded. No weights are read.

    Args:
        methods: names of the methods that have weights.
        name: what it is called, if not as its folder.

    Raises:
        ConfigError: it cannot be read, or a value is invalid; names the file, the key and the value.
    """
    file = folder / DESCRIPTION
    place, data = parse(file)
    if len(place.text) > _MOST_BYTES:
        raise ConfigError(f"{file} is larger than {_MOST_BYTES >> 10} KiB")
    return _checked(place, data, folder, methods, name or folder.name)


def write_drafter(
    folder: Path,
    *,
    method: str,
    target: str,
    target_sha256: str,
    licence: str,
    options: Mapping[str, Any],
    data: Mapping[str, Any],
    figures: Mapping[str, Any],
) -> TrainedDrafter:
    """Describe the weights that lie in a folder: write its drafter.toml, with their size and checksum and the time.

    Raises:
        ConfigError: what is to be written could not be read again.
        OSError: there are no weights, or the disk does not take it.
    """
    import tomlkit  # an engine reads drafters and runs without it

    from specchat.config.toml_editing import replace_text

    with (folder / WEIGHTS).open("rb") as weights:
        sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
    said = {"format": FORMAT, "method": method, "target": target, "target_sha256": target_sha256}
    said |= {"size": (folder / WEIGHTS).stat().st_size, "sha256": sha256, "licence": licence}
    said |= {"made": datetime.now(UTC).replace(microsecond=0)}
    said |= {"options": dict(options), "data": dict(data), "figures": dict(figures)}
    text = tomlkit.dumps(said)
    file = folder / DESCRIPTION
    drafter = _checked(TableLocation(file, text), tables(file, text), folder, (method,), folder.name)
    replace_text(file, text)
    return drafter


def _checked(
    place: TableLocation, data: dict[str, Any], folder: Path, methods: Collection[str], name: str
) -> TrainedDrafter:
    if type(version := data.get("format", FORMAT)) is int and version != FORMAT:
        raise place.error("format", f"= {short(version)} is not read by this specchat, which reads {FORMAT}")
    said = place.read(data, _KINDS, required=_REQUIRED)
    del said["format"]
    place.named(name)
    if said["method"] not in methods:
        hint = nearest(said["method"], methods)
        raise place.error("method", f"= {short(said['method'])} is not a drafter with weights{hint}")
    if not re.fullmatch(r"[0-9a-f]{64}", said["target_sha256"]):
        problem = "is not 64 hexadecimal digits in lower case"
        raise place.error("target_sha256", f"= {short(said['target_sha256'])} {problem}")
    accept_checksum(place, "", said)
    if said["size"] > _MOST_WEIGHT_BYTES:
        raise place.error("size", f"= {short(said['size'])} is more than {_MOST_WEIGHT_BYTES >> 30} GiB")
    _accept_options(place.inside("options"), said.get("options", {}))
    said["made"] = _in_utc(said["made"])
    return TrainedDrafter(name=name, folder=folder, **said)


def _accept_options(place: TableLocation, options: Mapping[str, Any]) -> None:
    """Sizes are plain numbers, words, or lists of numbers, and none of them is beyond reason."""
    if len(options) > _MOST_OPTIONS:
        raise place.error("", f"has {len(options)} keys, more than {_MOST_OPTIONS}")
    for key, value in options.items():
        if not NAME.fullmatch(key):
            raise place.error(key, "is not a valid name: letters, digits, '.', '_' and '-'")
        plain = isinstance(value, str) and len(value) <= _LONGEST_LIST
        numbers = isinstance(value, list) and len(value) <= _LONGEST_LIST and all(map(_is_number, value))
        if not (plain or numbers or _is_number(value)):
            raise place.error(key, f"= {short(value)} is not a number, a short text or a list of up to 1024 numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= _LARGEST


def _in_utc(made: date) -> datetime:
    moment = made if isinstance(made, datetime) else datetime.combine(made, time())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def free_name(name: str, taken: Callable[[str], bool] = lambda name: False) -> str:
    """This name, with a number from 2 on where another drafter has this name, or it is `taken`."""
    named = load_catalog().drafters
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(one for one in names if not (_is_shipped(one) or one in named or taken(one)))


def whose_name(name: str) -> str:
    """In words, where the drafter of this name comes from, if not from a training; else empty."""
    if _is_shipped(name):
        return "comes with specchat"
    return "is named in models.toml" if name in load_catalog().drafters else ""


def _is_shipped(name: str) -> bool:
    return (shipped_drafters_dir() / name).exists()
