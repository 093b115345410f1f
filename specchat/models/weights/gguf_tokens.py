"""What transformers does not make of a GGUF header: a configuration of other architectures, and how text is split.

A header names by `tokenizer.ggml.pre` the patterns that cut a text into words before byte pairs are merged. Of these
names transformers knows some and takes GPT-2's pattern for all others. Then other tokens are merged than the model
learnt from.
"""

from __future__ import annotations

from typing import Any

from specchat.models.weights.config_file import GGUF_NAMES
from specchat.models.weights.families import GGUF_FAMILIES
from specchat.models.weights.gguf_header import GgufHeader

HEADER_ALONE = "specchat_header_alone"
"""In a configuration: transformers reads no such GGUF files, and it was made of the header's numbers."""

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
"""Patterns by what a header names: each cuts the pieces that those before it left. The models' own tokenizer.json files
have the same."""


def split_as_named(tokenizer: Any, header: GgufHeader) -> None:
    """Cut texts as the header says, where transformers does not know how. In place."""
    from tokenizers import Regex, pre_tokenizers

    patterns = SPLITS.get(str(header.metadata.get("tokenizer.ggml.pre", "")))
    if patterns is None or header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])


def config_of(header: GgufHeader) -> dict[str, Any]:
    """A configuration of the header's numbers; what it leaves out is as the architecture has it, where it is known."""
    architecture, tokens = header.architecture, header.metadata.get("tokenizer.ggml.tokens")
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
