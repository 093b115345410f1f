"""Configuration and tokenizer of a GGUF file in transformers' own form, converted once."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from specchat.config import cache_dir, private_dir
from specchat.models.files.foreign_errors import one_line
from specchat.models.files.gguf_header import read_header


def converted_folder(path: Path) -> Path:
    """A folder with the configuration and the tokenizer of a GGUF file, in transformers' own form.

    Reading a GGUF header takes transformers seconds each time, so it is done once and kept in the cache, under a
    name that changes when the file does.

    Raises:
        WeightsError: the file cannot be read as GGUF.
        ModelError: transformers cannot tell what network or tokenizer it holds.
    """
    folder = _folder_of(path)
    if not folder.is_dir():
        read_header(path, lists=True)  # transformers' own reader believes every count, and every text to be UTF-8
        with one_line(f"{path} cannot be used"):
            _convert(path, folder)
    return folder


def is_converted(path: Path) -> bool:
    """Whether that was done before."""
    return _folder_of(path).is_dir()


def _folder_of(path: Path) -> Path:
    about = path.stat()
    key = hashlib.blake2b(f"{path}|{about.st_size}|{about.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    return cache_dir() / "converted" / f"{path.stem}-{key}"


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    private_dir(unfinished)
    try:
        AutoConfig.from_pretrained(path.parent, **where).save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(path.parent, **where).save_pretrained(unfinished)
        if not folder.is_dir():
            os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
