"""Results of transformers, kept in the cache: a GGUF file's configuration and tokenizer, converted once, and read
configurations, since asking it again takes a second and 100 MB.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specchat.config.directories import cache_dir, private_dir
from specchat.config.kept_files import UNFINISHED, put_on_disk, remove_unfinished, replacing, unfinished
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.weights.config_file import CONFIG, GGUF_NAMES, is_name, read_config, read_object, read_whole
from specchat.models.weights.families import GGUF_FAMILIES
from specchat.models.weights.foreign_code import first_line, one_line
from specchat.models.weights.gguf_header import GgufHeader, read_header, rotation_scaling

HEADER_ALONE = "specchat_header_alone"
"""In a configuration: transformers reads no such GGUF files, and it was made of the header's numbers."""


def converted_folder(path: Path) -> Path:
    """A folder with the configuration and the tokenizer of a GGUF file, in transformers' own form.

    Reading a GGUF header takes transformers seconds each time, so it is done once and kept in the cache, under a
    name that changes when the file does. A folder that was damaged is made anew.

    Raises:
        WeightsError: the file cannot be read as GGUF, lacks the lists of a tokenizer, or the cache cannot be written.
        ModelError: transformers cannot tell what network or tokenizer it holds.
    """
    folder = _folder_of(path)
    if not is_whole(folder):
        # transformers' own believes every count, and every text to be UTF-8
        _convert(path, folder, read_header(path, lists=True))
    return folder


def is_converted(path: Path) -> bool:
    return is_whole(_folder_of(path))


_CONVERSION = 2
"""Of how a file is converted: a folder of an earlier way is not used, such as one whose texts are split otherwise."""


def _folder_of(path: Path) -> Path:
    about = path.stat()
    key = hashlib.blake2b(
        f"{_CONVERSION}|{path}|{about.st_size}|{about.st_mtime_ns}".encode(), digest_size=8
    ).hexdigest()
    return cache_dir() / "converted" / f"{path.stem}-{key}"


def _convert(path: Path, folder: Path, header: GgufHeader) -> None:
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

    if wrong := refused_lists(header):
        raise DamagedWeights(f"{path}: {wrong}")
    yarn = rotation_scaling(header).yarn
    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    with one_line(f"{path} cannot be used"):
        try:
            config, said = AutoConfig.from_pretrained(path.parent, **where), None
        except ValueError as error:
            if "is not supported" not in str(error):
                raise
            said = config_of(header)
        maker = AutoTokenizer if said is None else PreTrainedTokenizerFast  # the first asks for the configuration
        tokenizer = maker.from_pretrained(path.parent, **where)
        split_as_named(tokenizer, header)
    if said is not None and yarn:
        said["rope_parameters"] = {"rope_theta": said.get("rope_theta", 10000.0), **yarn}
    elif yarn:  # transformers reads no rotation but the plain one in such files
        config.rope_parameters = {**config.rope_parameters, **yarn}

    def write(made: Path) -> None:
        tokenizer.save_pretrained(made)
        if said is None:
            config.save_pretrained(made)
        else:
            (made / CONFIG).write_text(json.dumps(said), encoding="utf-8")

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


_CONTENTS = "specchat_contents.json"
"""Says of which file a folder was made, and of every file in it the hash."""


def is_whole(folder: Path) -> bool:
    """Whether the folder holds, byte for byte, what was written to it."""
    try:
        said = read_object(folder / _CONTENTS).get("files")
        return isinstance(said, dict) and said == _hashes(folder)
    except (WeightsError, OSError):
        return False


def make_folder(folder: Path, source: Path, write: Callable[[Path], None]) -> None:
    """Make the folder of what `write` writes, in one step and on stable storage; what was there before goes.

    Leftovers of programs that were killed go too, and folders of files that are gone.

    Raises:
        OSError: the disk does not take it, or whatever `write` raises.
    """
    _remove_unneeded(folder, source)
    with unfinished(folder) as made:
        write(made)
        about = {"source": os.path.abspath(source), "files": _hashes(made)}
        (made / _CONTENTS).write_bytes(json.dumps(about).encode())
        for file in made.rglob("*"):
            file.chmod(0o700 if file.is_dir() else 0o600)
            if not file.is_dir():
                put_on_disk(file)
        if is_whole(folder):  # another program was quicker
            return
        with suppress(FileNotFoundError):
            os.replace(folder, made.with_name("before"))  # which goes with all that is unfinished
        os.replace(made, folder)


def _hashes(folder: Path) -> dict[str, str]:
    """Of every file below the folder, by its path from there, the hash of what it holds."""
    files = (file for file in folder.rglob("*") if not file.is_dir() and file != folder / _CONTENTS)
    return {file.relative_to(folder).as_posix(): _hash(file, *_stamp(file)) for file in files}


def _stamp(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_size, about.st_mtime_ns


@lru_cache(maxsize=64)
def _hash(file: Path, size: int, mtime_ns: int) -> str:
    """Of a file as it is now; size and time make a changed file another one. The largest take 15 ms."""
    return hashlib.blake2b(read_whole(file), digest_size=16).hexdigest()


def _remove_unneeded(folder: Path, source: Path) -> None:
    """Remove what nobody needs beside the folder that is to be made of this file."""
    remove_unfinished(folder.parent)
    for entry in folder.parent.iterdir():
        if entry != folder and not entry.name.startswith(UNFINISHED) and not _is_of_another(entry, source):
            shutil.rmtree(entry, ignore_errors=True)


def _is_of_another(folder: Path, source: Path) -> bool:
    """Whether the folder was made of another file that is there; of the same one it was made before it changed."""
    try:
        its = read_object(folder / _CONTENTS).get("source")
    except WeightsError:
        return False
    return isinstance(its, str) and "\0" not in its and its != os.path.abspath(source) and os.path.exists(its)


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


def remembered_config(folder: Path) -> RememberedConfig | None:
    """The configuration that was kept for a folder's files; None where there is none that can be used."""
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
    Raises WeightsError, OSError: one of them cannot be read."""
    names = sorted(file.name for file in folder.iterdir())
    about = hashlib.blake2b(repr((_FORM, version("transformers"), names)).encode(), digest_size=16)
    for name in _READ:
        file = folder / name
        data = read_whole(file) if file.is_file() else b""
        about.update(f" {len(data)} ".encode() + data)
    return cache_dir() / "configurations" / f"{about.hexdigest()}.json"


_TOKENS, _SCORES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "merges"))


def refused_lists(header: GgufHeader) -> str:
    """What is wrong with the lists of which transformers makes a tokenizer; empty where nothing is.

    Args:
        header: read with its lists of texts.
    """
    count = header.texts.get(_TOKENS, (0, 0))[1]
    if not count:
        return f"{_TOKENS} = {header.said(_TOKENS)}, and a list of texts is needed"
    model = header.metadata.get("tokenizer.ggml.model")
    if model != "t5" and (_MERGES in header.metadata or model == "gpt2"):
        return "" if _MERGES in header.texts else f"{_MERGES} = {header.said(_MERGES)}, and a list of texts is needed"
    if model in ("llama", "t5") and header.numbers.get(_SCORES) != count:
        return f"{_SCORES} = {header.said(_SCORES)}, and a list of {count} numbers is needed"
    return ""


def config_of(header: GgufHeader) -> dict[str, Any]:
    """A configuration of the header's numbers; what it leaves out is as the architecture has it, where it is known."""
    architecture, tokens = header.architecture, header.metadata.get(_TOKENS)
    family = GGUF_FAMILIES.get(architecture)
    numbers = {name: header.about(key) for key, name in GGUF_NAMES.items()}
    return {
        "vocab_size": len(tokens) if isinstance(tokens, list) else None,
        **{name: number for name, number in numbers.items() if number is not None},
        "model_type": architecture if family is None else family.name,
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in header.tensors),
        HEADER_ALONE: True,
    }


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGIT, _THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (_DIGIT, _GPT2)
    ),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2"), (_CASED.format(digits=""),)),
    **dict.fromkeys(("chatglm-bpe", "glm4"), (_CASED.format(digits="{1,3}"),)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), (_THREE_DIGITS, "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT),
}
"""Patterns that cut a text into words before byte pairs are merged, by the name in a header's `tokenizer.ggml.pre`.

Each cuts the pieces that those before it left. Transformers takes GPT-2's for these names, and other tokens are merged
then than the model learnt from. The models' own tokenizer.json files have the same patterns."""


def split_as_named(tokenizer: Any, header: GgufHeader) -> None:
    """Cut texts as the header says, where transformers does not know how. In place."""
    from tokenizers import Regex, pre_tokenizers

    patterns = SPLITS.get(str(header.metadata.get("tokenizer.ggml.pre", "")))
    if patterns is None or header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
