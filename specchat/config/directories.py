"""Where specchat keeps things: directories made on demand and private, and the files that come with it."""

from __future__ import annotations

import os
from pathlib import Path

from specchat.errors import ConfigError, short

_LONGEST_PATH, _LONGEST_NAME = 4096, 255


def config_dir() -> Path:
    """Where the user's own models.toml and config.toml are looked for."""
    return _home("config")


def cache_dir() -> Path:
    """Where weights go: everything in it can be fetched again."""
    return _home("cache")


def state_dir() -> Path:
    """Where chats and logs go: nothing in it can be fetched again."""
    return _home("state")


def data_dir() -> Path:
    """Where what was made here goes, such as trained drafters: it can be made again, but not fetched."""
    return _home("data")


def own_drafters_dir() -> Path:
    return data_dir() / "drafters"


def shipped_drafters_dir() -> Path:
    return Path(__file__).parents[1] / "shipped_drafters"


def _home(kind: str) -> Path:
    if home := os.environ.get("SPECCHAT_HOME"):
        return expanded(home).absolute() / kind
    import platformdirs

    place: Path = getattr(platformdirs, f"user_{kind}_path")("specchat", appauthor=False)
    return place


def expanded(path: str, option: str = "") -> Path:
    """The path a user wrote, with `~` as the home it stands for.

    Args:
        option: of the command line, for the error: `--save`.

    Raises:
        ConfigError: it is not a valid path on this machine.
    """
    said = f"{option} {short(path)}".lstrip()
    parts = os.fsencode(path).split(b"/")
    if not path or "\0" in path or len(os.fsencode(path)) > _LONGEST_PATH or max(map(len, parts)) > _LONGEST_NAME:
        raise ConfigError(f"{said} is not a valid path")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{said} begins with the home of a user who is not known here") from None


def private_dir(path: Path) -> Path:
    """The same directory, made on demand, readable by its owner alone; parents that had to be made as well."""
    missing = [step for step in (path, *path.parents) if not step.exists()]
    for step in reversed(missing):
        step.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def shipped_file(name: str) -> Path:
    """A data file that comes with specchat: inside the wheel, or at the top of a source tree."""
    package = Path(__file__).parents[1]
    for place in (package / "_data" / name, package.parent / name):
        if place.is_file():
            return place
    raise ConfigError(f"this installation of specchat lacks its file {name!r}; install it again")
