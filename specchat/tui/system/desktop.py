"""What the app asks of the user's desktop: the clipboard, an editor, and new files, never over one that is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from specchat.config.kept_files import creating
from specchat.errors import SpecchatError, UsageError, meant

OSC_52_MOST = 74_994
"""Bytes that every terminal accepts; many ignore longer texts."""

_PATIENCE_S = 2.0


def clipboard_command(
    environment: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    platform: str = sys.platform,
) -> list[str] | None:
    """The command that fills this desktop's clipboard from its standard input; None where there is none."""
    commands: list[list[str]] = []
    if environment.get("WAYLAND_DISPLAY"):
        commands.append(["wl-copy"])
    if environment.get("DISPLAY"):
        commands += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if platform == "darwin":
        commands.append(["pbcopy"])
    if platform == "win32" or environment.get("WSL_DISTRO_NAME"):
        commands.append(["clip.exe"])
    return next((command for command in commands if which(command[0])), None)


def copy_with(text: str, command: list[str]) -> str:
    """Copy the text with the tool; returns why it failed, or an empty text."""
    data = text.encode("utf-16-le" if command[0] == "clip.exe" else "utf-8", "replace")
    try:
        # Some keep running to serve the clipboard, and would hold a pipe open.
        quiet = subprocess.DEVNULL
        subprocess.run(command, input=data, stdout=quiet, stderr=quiet, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]} failed: {error}"
    return ""


def clipboard_advice(text: str) -> str:
    """The remark where only the terminal can copy."""
    if len(text.encode("utf-8", "replace")) * 4 / 3 > OSC_52_MOST:
        return "too long for most terminals (OSC 52); wl-copy or xclip would do it"
    return "copied by the terminal (OSC 52); if not, install wl-copy or xclip"


_COMMON = ("nano", "vim", "vi", "notepad")


def editor_command(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The editor $VISUAL or $EDITOR names, else one that is commonly there; raises UsageError without any."""
    for name in ("VISUAL", "EDITOR"):
        if said := environment.get(name, "").strip():
            try:
                return shlex.split(said)
            except ValueError as error:
                raise UsageError(f"{name} = {said!r} is not a valid command: {error}") from None
    found = next((path for name in _COMMON if (path := shutil.which(name))), None)
    if found is None:
        raise UsageError("no editor was found; VISUAL or EDITOR names one")
    return [found]


def edit_text(text: str, command: list[str]) -> str:
    """The text after the user has left the editor; raises UsageError where it failed, and then nothing is changed."""
    handle, name = tempfile.mkstemp(prefix="specchat-", suffix=".md")  # readable by its owner alone
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        code = subprocess.run([*command, name], check=False).returncode
        if code:
            raise UsageError(f"{command[0]} ended with code {code}; the prompt is as it was")
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{command[0]} could not be used: {getattr(error, 'strerror', None) or error}") from None
    finally:
        with suppress(OSError):
            os.unlink(name)


_LONGEST_NAME = 50


def format_and_file(text: str, formats: Collection[str]) -> tuple[str, Path | None]:
    """What follows a command that writes a file: `json`, `notes.md`, `md notes` or nothing, which is the first format.

    Raises:
        UsageError: the file's ending is not a format, or the text is one word that is neither a format nor a file.
    """
    first, *rest = text.split(maxsplit=1) or [""]
    if not first or first.lower() in formats:
        return format_of(first.lower(), None, formats), named_path(rest[0]) if rest else None
    file = named_path(text)
    if text == file.name and not rest and not file.suffix:
        raise _no_format(text, formats, f"; as a file: {text}.{next(iter(formats))}")
    return format_of("", file, formats), file


def format_of(word: str, file: Path | None, formats: Collection[str]) -> str:
    """The format asked for by name, or by the file's ending; the first where neither says."""
    word = word or (file.suffix.lstrip(".").lower() if file else "") or next(iter(formats))
    if word not in formats:
        raise _no_format(word, formats)
    return word


def named_path(text: str) -> Path:
    """The path that was typed, with `~` as the home it stands for; of a user who does not exist it stays `~`."""
    return Path(os.path.expanduser(text))  # Path's own raises an error there


def free_name(stem: str, format: str, folder: Path) -> Path:
    """A file of this name that is not there yet."""
    names = (f"{stem}{f'-{n}' if n > 1 else ''}.{format}" for n in range(1, 10_000))
    return next(folder / name for name in names if not (folder / name).exists())


def stem_of(title: str, id: str) -> str:
    return re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:_LONGEST_NAME].strip("-") or f"chat-{id}"


def write_new_file(content: str | bytes, file: Path) -> None:
    """A new file with this text, or these bytes: all of it or no file.

    Raises:
        UsageError: such a file is there already.
        SpecchatError: it cannot be written.
    """
    try:
        with creating(file) as draft:
            draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    except FileExistsError:
        raise UsageError(f"that file is there already; choose another name: {file}") from None
    except OSError as error:
        raise SpecchatError(f"{file}: {error.strerror or error}") from None


def _no_format(word: str, formats: Collection[str], otherwise: str = "") -> UsageError:
    return UsageError(f"there is no format {word!r}, only {', '.join(formats)}{meant(word, formats) or otherwise}")
