"""A model's tokenizer, and its token table without building one, which can take a second and 100 MB."""

from __future__ import annotations

from filecmp import cmp
from pathlib import Path
from typing import Any

from specchat.errors import DamagedWeights
from specchat.models.weights.foreign_code_limits import bounded
from specchat.models.weights.foreign_errors import one_line
from specchat.models.weights.json_file import read_object
from specchat.models.weights.number_limits import shown
from specchat.models.weights.tokenizer_growth import refuse_growth

_WHOLE = "tokenizer.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def open_tokenizer(folder: Path, made_by: str = "") -> Any:
    """The tokenizer in a folder, as transformers makes it, within bounds of memory and time.

    Args:
        made_by: the class that transformers chose for these files before. Choosing takes it a second or more.

    Raises:
        WeightsError: its tokenizer.json cannot be read, or makes text far longer.
        ModelError: transformers makes no tokenizer of it.
    """
    with one_line(f"the tokenizer in {folder} cannot be used"), bounded():
        if (file := folder / _WHOLE).exists():
            refuse_growth(file)
        return _maker(made_by).from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _maker(name: str) -> Any:
    """The class of transformers with this name, if it is one of tokenizers; else what chooses among all."""
    import transformers

    found = getattr(transformers, name, None) if name else None
    fits = isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerBase)
    return found if fits else transformers.AutoTokenizer


def same_tokenizer(folder: Path, other: Path) -> bool:
    """Whether the files say the same, byte for byte. Files of other kinds than these are never the same."""
    if not ((folder / _WHOLE).is_file() and (other / _WHOLE).is_file()):
        return False
    return all(_same(folder / name, other / name) for name in (_WHOLE, *_BESIDE))


def _same(file: Path, other: Path) -> bool:
    """Whether both are missing or hold the same bytes."""
    if file.is_file() and other.is_file():
        return cmp(file, other, shallow=False)
    return file.is_file() == other.is_file()


def tokens_of(file: Path) -> dict[str, int]:
    """Every token of a tokenizer.json with its number.

    Raises:
        WeightsError: it cannot be read, or an entry is not a token.
    """
    said = read_object(file)
    model = said.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        entries = list(vocabulary.items())
    else:  # Unigram lists its tokens with their scores
        entries = [(_first(entry), number) for number, entry in enumerate(_listed(vocabulary))]
    added = _listed(said.get("added_tokens"))
    entries += [
        (entry.get("content"), entry.get("id")) if isinstance(entry, dict) else (entry, None) for entry in added
    ]
    for text, number in entries:
        if not isinstance(text, str) or type(number) is not int or number < 0:
            raise DamagedWeights(f"{file}: token {shown(text)} has the number {shown(number)}")
    return dict(entries)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(entry: Any) -> Any:
    return entry[0] if isinstance(entry, list) and entry else entry
