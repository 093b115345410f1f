"""Configuration and tokenizer of a GGUF file in transformers' own form, converted once."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from specchat.config import cache_dir, private_dir
from specchat.errors import WeightsError
from specchat.models.weights.converted_folders import is_whole, make_folder
from specchat.models.weights.foreign_errors import first_line, one_line
from specchat.models.weights.gguf_header import read_header


def converted_folder(path: Path) -> Path:
    """A folder with the configuration and the tokenizer of a GGUF file, in transformers' own form.

    Reading a GGUF header takes transformers seconds each time, so it is done once and kept in the cache, under a
    name that changes when the file does. A folder that was damaged is made anew.

    Raises:
        WeightsError: the file cannot be read as GGUF, or the cache cannot be written.
        ModelError: transformers cannot tell what network or tokenizer it holds.
    """
    folder = _folder_of(path)
    if not is_whole(folder):
        read_header(path, lists=True)  # transformers' own reader believes every count, and every text to be UTF-8
        _convert(path, folder)
    return folder


def is_converted(path: Path) -> bool:
    """Whether that was done before."""
    return is_whole(_folder_of(path))


def _folder_of(path: Path) -> Path:
    about = path.stat()
    key = hashlib.blake2b(f"{path}|{about.st_size}|{about.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    return cache_dir() / "converted" / f"{path.stem}-{key}"


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with one_line(f"{path} cannot be used"):
        made = [kind.from_pretrained(path.parent, **where) for kind in (AutoConfig, AutoTokenizer)]

    def write(unfinished: Path) -> None:
        for one in made:
            one.save_pretrained(unfinished)

    try:
        private_dir(folder.parent)
        make_folder(folder, path, write)
    except Exception as error:  # tokenizers says in a text of its own what the system refused
        place = f"{folder.parent}, where the tokenizer of {path.name} has to be written"
        if _says_full(error):
            raise WeightsError(f"not enough space in {place}: the disk is full") from None
        raise WeightsError(f"cannot write to {place}: {first_line(error)}") from None


def _says_full(error: Exception) -> bool:
    full = [number for name in ("ENOSPC", "EDQUOT") if (number := getattr(errno, name, None))]
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"(os error {number})" in str(error) for number in full)
