"""A model's tokenizer files: the tokenizer, its token table without building one, and the tokens that end a reply.

Building one can take a second and 100 MB. A tokenizer.json that makes text much longer before it looks for tokens, as
no published one does, is refused: the library believes the file, and parts that each write a thousand characters for
one make a billion of three. Names of added tokens go through the same parts while the file is loaded.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from filecmp import cmp
from pathlib import Path
from typing import Any, TypedDict

try:
    import msgspec

    from specchat.config.file_reading import UNREADABLE
except ImportError:  # the checks on a GPU run without it
    msgspec = None  # type: ignore[assignment]

from specchat.errors import DamagedModel, DamagedWeights
from specchat.models.weights.config_file import is_tokens, parse_object, read_object, read_whole, shown
from specchat.models.weights.foreign_code import bounded, one_line

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
    """Every token of a tokenizer.json with its number; WeightsError if it cannot be read or an entry is no token."""
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


MOST_GROWTH = 1000
"""Times that text may grow. Published tokenizers reach 18, with what Unicode spells out for one character."""

MOST_PARTS = 64
"""Parts of each kind; published tokenizers have some ten."""

_INNER = ("normalizers", "pretokenizers", "processors")


class _Parts(TypedDict, total=False):
    """The parts of the file that are looked at. The vocabulary is nearly all of it."""

    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any


def refuse_growth(file: Path) -> None:
    """Refuse a tokenizer.json whose parts together may make text more than MOST_GROWTH times as long.

    Raises:
        WeightsError: names the file and the part, or says that the file cannot be read.
    """
    said, together = _parts_of(file), 1
    for name in _Parts.__annotations__:
        parts = list(_single_parts(said.get(name)))
        if len(parts) > MOST_PARTS:
            raise DamagedWeights(f"{file}: {name} has {len(parts):,} parts; at most {MOST_PARTS} are used")
        growths = [_growth(part) for part in parts]
        if (growth := math.prod(growths)) > MOST_GROWTH:
            worst = parts[growths.index(max(growths))]
            raise DamagedWeights(
                f"{file}: {name} makes text up to {growth:,} times as long, by {shown(worst.get('type'))} above all; "
                f"at most {MOST_GROWTH:,} times is used"
            )
        together *= growth
    if together > MOST_GROWTH:
        raise DamagedWeights(
            f"{file}: its parts together make text up to {together:,} times as long; "
            f"at most {MOST_GROWTH:,} times is used"
        )


def _parts_of(file: Path) -> Mapping[str, Any]:
    """The parts that the file names. msgspec passes the vocabulary over, which takes a seventh of the time."""
    data = read_whole(file)
    if msgspec is None:
        return parse_object(data, str(file))
    try:
        return msgspec.json.decode(data, type=_Parts)
    except RecursionError:
        raise DamagedWeights(f"{file} cannot be read: it is nested too deep") from None
    except UNREADABLE as error:
        raise DamagedWeights(f"{file} cannot be read: {error}") from None


def _single_parts(part: Any) -> Iterator[dict[str, Any]]:
    """The parts that this one is made of, or itself; the library refuses anything else."""
    if isinstance(part, dict):
        inner = [one for key in _INNER if isinstance(part.get(key), list) for one in part[key]]
        yield from [part] if not inner else (single for one in inner for single in _single_parts(one))


def _growth(part: dict[str, Any]) -> int:
    """How many characters this part may make of one, at least 1."""
    match part:
        case {"type": "Prepend", "prepend": str(text)}:
            return 1 + len(text)
        case {"type": "Replace", "pattern": {"String": str(found)}, "content": str(text)} if found:
            return max(1, len(text))
        case {"type": "Replace", "content": str(text)}:  # a pattern can fit where nothing stands
            return 1 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            return _longest_replacement(packed)
        case {"type": "ByteLevel"}:
            return 2
        case {"type": "TemplateProcessing", "single": list(pieces)}:
            return max(1, sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces))
        case _:
            return 1


def _longest_replacement(packed: str) -> int:
    """The longest text of SentencePiece's table: four bytes say how long its trie is, then texts end in a zero."""
    try:
        table = base64.b64decode(packed)
    except binascii.Error:
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


_END_NAMES = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "</s>")
"""Special tokens that end a turn in the chat formats of the families in models.toml. A GGUF file names only one."""


def end_tokens(folder: Path, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a reply: what configuration, generation settings and tokenizer name, and turn ends."""
    found: set[int] = set()
    for said in (config.get_text_config().eos_token_id, _generation_end(folder), tokenizer.eos_token_id):
        if said is not None and not is_tokens(said):
            raise DamagedModel(f"{folder}: eos_token_id = {shown(said)} is not a token or a list of tokens")
        found.update(said if isinstance(said, list) else () if said is None else [said])
    special = {str(added): token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    found.update(special[name] for name in _END_NAMES if name in special)
    return frozenset(found)


def _generation_end(folder: Path) -> Any:
    file = folder / "generation_config.json"
    return read_object(file).get("eos_token_id") if file.is_file() else None
