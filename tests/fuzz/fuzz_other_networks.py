"""Damaged configurations of a network that runs through transformers, beside weights that are as they should be."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from transformers import AutoModelForCausalLM, OlmoConfig
from transformers.utils.logging import disable_progress_bar

from tests.fuzz.loading import look_at, must_work, speak
from tests.fuzz.mutate import mutated_json
from tests.tiny_models import TOKENS, write_tokenizer

ATTEMPTS = 40

_SIZES = {"vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 128}
_COUNTS = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_TOKENS = {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}


def attempt(seed: int, folder: Path) -> None:
    disable_progress_bar()
    random, path = Random(seed), folder / "model"
    path.mkdir()
    for name, data in _undamaged().items():
        (path / name).write_bytes(data)
    if seed % 10 == 0:
        must_work(path)
        return
    file = path / "config.json"
    file.write_text(json.dumps(mutated_json(json.loads(file.read_text()), random)))
    look_at(path)
    speak(path, random)


@cache
def _undamaged() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(OlmoConfig(**_SIZES, **_COUNTS, **_TOKENS)).save_pretrained(folder)
        write_tokenizer(Path(folder))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}
