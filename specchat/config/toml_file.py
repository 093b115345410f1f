"""A TOML file of the user as text and as tables; any bytes give either tables or a one-line error."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from specchat.config.regular_file import open_regular
from specchat.config.toml_checks import TableLocation
from specchat.errors import ConfigError, cut

_LARGEST_BYTES = 4 << 20
"""Far more than is written by hand; some parsers take time quadratic in the length."""

_DEEPEST = 16
"""Nothing that is read here is nested deeper than five levels; what walks tables may call itself for each."""


_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_PART}\.[ \t]*){{64}}", re.MULTILINE)
"""A key of very many parts: too deep in any case, and the parser takes time quadratic in their number."""


def parse(file: Path) -> tuple[TableLocation, dict[str, Any]]:
    """The file's text, as a place to point at, and its tables.

    Raises:
        ConfigError: it cannot be read or is not TOML.
    """
    text = read_text(file)
    return TableLocation(file, text), tables(file, text)


def parse_if_there(file: Path) -> tuple[TableLocation, dict[str, Any]] | None:
    """The same; None where there is no such file."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a folder above it is closed to us, or a link leads to itself
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    return parse(file)


def read_text(file: Path) -> str:
    """The text of the file, without the mark that some editors put before it.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with open_regular(file) as handle:
            data = handle.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise ConfigError(f"{file} is larger than {_LARGEST_BYTES >> 20} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line} is not UTF-8: it holds the byte 0x{data[error.start]:02x}") from None


def tables(file: Path, text: str) -> dict[str, Any]:
    """The tables that the text of the file describes.

    Raises:
        ConfigError: it is not TOML, or nested deeper than anything that is known.
    """
    if _LONG_KEY.search(text):
        raise _too_deep(file)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {cut(str(error))}") from None
    except ValueError:  # Python reads no number of so many digits
        line = text.count("\n", 0, found.start()) + 1 if (found := re.search(r"[0-9_]{4000}", text)) else 0
        raise ConfigError(f"{file}{f', line {line}' if line else ''}: a number is too long") from None
    except RecursionError:
        raise _too_deep(file) from None
    level: list[Any] = [data]
    for _ in range(_DEEPEST):
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise _too_deep(file)
    return data


def _too_deep(file: Path) -> ConfigError:
    return ConfigError(f"{file} is nested deeper than {_DEEPEST} levels")
