"""Loading a target on another machine: the model there, and its tokenizer here, from files that come from there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from specchat.config import cache_dir
from specchat.config.directories import private_dir
from specchat.config.kept_files import write_whole
from specchat.errors import ModelError
from specchat.models.model_loading import Loaded, load_tokenizer
from specchat.models.remote import messages as m
from specchat.models.remote.link import TargetLink, connect
from specchat.models.remote.model import RemoteModel
from specchat.settings import Settings

TOKENIZER_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "merges.txt",
)  # fmt: skip
"""Files that a tokenizer and its chat template are made of: these alone are sent and taken."""


def load_remote(name: str, settings: Settings, say: Callable[[str], None], cancelled: Callable[[], bool]) -> Loaded:
    """The model of this name at `settings.target_at`.

    Raises:
        TargetLost: it cannot be reached.
        ModelError: it cannot be loaded there, or its tokenizer not here.
    """
    s = settings
    opening = m.Open(m.PROTOCOL, name, s.dtype, s.kernels, s.backend)
    return loaded_at(connect(s.target_at, opening, say, cancelled), name)


def loaded_at(link: TargetLink, name: str) -> Loaded:
    """What the link has loaded, as a model."""
    facts, tokenizer, folder, ends = link.facts, None, None, frozenset(link.facts.ends)
    if facts.files:
        folder = _kept(facts.files, link.at)
        tokenizer, _ = load_tokenizer(name, folder)
    there = f"{name} runs at {link.at}: {facts.weight_bytes / 1e6:.1f} MB of weights in {facts.precision}"
    notes = (there, *facts.notes)
    model = RemoteModel(link)
    return Loaded(name, model, tokenizer, ends, 0, facts.precision, facts.kernels, notes, folder)


def _kept(files: dict[str, bytes], at: str) -> Path:
    """A folder in the cache that holds these files, named after what they say."""
    if unknown := files.keys() - set(TOKENIZER_FILES):
        raise ModelError(f"the target at {at} sent a file that belongs to no tokenizer: {sorted(unknown)[0][:40]!r}")
    told = hashlib.sha256()
    for file, data in sorted(files.items()):
        told.update(f"{file} {len(data)} ".encode() + data)
    folder = cache_dir() / "targets" / told.hexdigest()[:32]
    private_dir(folder)
    for file, data in files.items():
        if not (folder / file).is_file() or (folder / file).read_bytes() != data:
            write_whole(folder / file, data)
    return folder
