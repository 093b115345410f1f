"""Writes reference.json: what transformers' own `generate` says to a few prompts, greedily, in float32.

Run once, by hand, with the weights in place: python tests/real/make_reference.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

FILE = Path(__file__).with_name("reference.json")
MODEL = "smollm2-135m-instruct"
TOKENS = 64

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "Count from one to twenty.",
    "Write a Python function that reverses a list.",
    "Translate 'good morning' into French, German and Spanish.",
    "Say hello.",
    "List three fruits, one per line.",
    "Repeat after me: the quick brown fox jumps over the lazy dog. The quick brown fox",
    "Was ist ein Baum? 🌳",
)


def main() -> None:
    """Generate and write."""
    from transformers import AutoTokenizer

    from specchat.config import load_catalog
    from specchat.decoding.vocabulary import TransformersVocabulary
    from specchat.models.backends.transformers_network import load_network
    from specchat.models.hub import fetching
    from specchat.models.model_loading import open_config
    from specchat.models.weights.tokenizer_files import end_tokens

    path = fetching.fetch(load_catalog().model(MODEL))
    folder, config = open_config(path)
    network = load_network(path, config, torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ends = end_tokens(folder, config, tokenizer)
    vocabulary = TransformersVocabulary(tokenizer, ends)
    entries = []
    for prompt in PROMPTS:
        ids = vocabulary.encode_chat([{"role": "user", "content": prompt}])
        written = network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=TOKENS,
            eos_token_id=sorted(ends),
            pad_token_id=min(ends),
            repetition_penalty=1.0,
        )[0, len(ids) :].tolist()
        entries.append({"prompt": prompt, "prompt_tokens": ids, "reply_tokens": written})
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    FILE.write_text(f'{{"model": "{MODEL}", "ends": {sorted(ends)}, "replies": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
