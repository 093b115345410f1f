"""Which tokens end a reply, as the files of a model say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.errors import DamagedModel
from specchat.models.weights.config_file import is_tokens
from specchat.models.weights.json_file import read_object
from specchat.models.weights.number_limits import shown

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
