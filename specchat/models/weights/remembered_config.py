"""What transformers read in a model's configuration, kept in the cache: asking it again takes a second and 100 MB."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specchat.config import cache_dir
from specchat.config.file_replacing import replacing
from specchat.errors import WeightsError
from specchat.models.weights.config_file import CONFIG, read_config
from specchat.models.weights.json_file import read_whole
from specchat.models.weights.number_limits import is_name

_FORM = 2
"""Changes when other things are kept, or kept otherwise."""

_READ = (CONFIG, "tokenizer_config.json")
"""What transformers decides by, and by which files there are."""

_TOKENIZER, _HASH = "specchat_tokenizer", "specchat_hash"

_MOST = 64
"""So many configurations are kept, the newest."""


class RememberedConfig:
    """A configuration's values by the names that transformers has for them, of a model that our own decoder runs."""

    def __init__(self, values: dict[str, Any], tokenizer: str) -> None:
        """`tokenizer` names the class of transformers that its tokenizer is made by."""
        self._values = values
        self.tokenizer_made_by = tokenizer

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"the configuration does not have {name}") from None

    def get_text_config(self) -> RememberedConfig:
        """Itself: there are no other parts."""
        return self

    def standardize_rope_params(self) -> None:
        """Nothing: transformers did that before it was kept. Its formulas of rotations ask for it."""


def remembered_config(folder: Path) -> RememberedConfig | None:
    """What was kept of the files in a folder; None where nothing was, or nothing that can be used."""
    try:
        values = read_config(_kept_in(folder))
    except (WeightsError, OSError):
        return None
    if values.pop(_HASH, None) != _hash_of(values):  # what was not written so might lack what is asked for later
        return None
    tokenizer = values.pop(_TOKENIZER, None)
    return RememberedConfig(values, tokenizer) if is_name(tokenizer) and is_name(values.get("model_type")) else None


def remember_config(folder: Path, config: Any, tokenizer: Any) -> None:
    """Keep what transformers made of the files in a folder, if the disk takes it."""
    if isinstance(config, RememberedConfig):
        return
    values = json.loads(config.to_json_string(use_diff=False)) | {_TOKENIZER: type(tokenizer).__name__}
    data = json.dumps(values | {_HASH: _hash_of(values)}).encode()
    # Where the disk does not take it, transformers is asked again.
    with suppress(OSError, WeightsError):
        with replacing(file := _kept_in(folder), durable=False) as draft:
            draft.write_bytes(data)
        _remove_oldest(file)


def _hash_of(values: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def _remove_oldest(written: Path) -> None:
    """Keep this file and the newest beside it alone. What a killed program left unfinished grows old like all others.

    Other programs do the same meanwhile: what one finds may be gone, and what cannot be removed stays.
    """
    others = []
    for file in written.parent.iterdir():
        with suppress(OSError):
            others += [(file.lstat().st_mtime_ns, file)] if file != written else []
    for _, file in sorted(others, reverse=True)[_MOST - 1 :]:
        with suppress(OSError):
            file.unlink()


def _kept_in(folder: Path) -> Path:
    """The file for what these files say, read by this version of transformers.

    Raises:
        WeightsError, OSError: one of them cannot be read.
    """
    names = sorted(file.name for file in folder.iterdir())
    about = hashlib.blake2b(repr((_FORM, version("transformers"), names)).encode(), digest_size=16)
    for name in _READ:
        file = folder / name
        data = read_whole(file) if file.is_file() else b""
        about.update(f" {len(data)} ".encode() + data)
    return cache_dir() / "configurations" / f"{about.hexdigest()}.json"
