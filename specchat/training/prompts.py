"""Prompts of a training: written by the target, from chats or a file, none of them a known benchmark's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from specchat.config.file_reading import json_line, read_named
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import TrainingError, UsageError
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_read

HASHES = Path(__file__).with_name("bench_prompts.npy")
"""Ascending uint32 hashes of the questions of specchat's own bench, MT-Bench and HumanEval; tests/bench_hashes.py
writes it. The texts themselves are not here."""

WORDS = 8
"""This many words in a row are taken for a quotation. A shorter prompt counts as a whole."""


def overlaps_benchmark(text: str) -> bool:
    """Whether a prompt shares eight words in a row with a question of a known benchmark, or is one."""
    known = _known()
    hashes = np.fromiter(word_hashes(text), dtype=np.uint32)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return bool((known[places] == hashes).any())


def word_hashes(text: str) -> Iterable[int]:
    """A 32-bit hash of every eight words in a row; case, spaces and punctuation do not count."""
    words = re.findall(r"\w+", text.lower())
    for first in range(max(1, len(words) - WORDS + 1)):
        some = " ".join(words[first : first + WORDS])
        yield int.from_bytes(hashlib.blake2b(some.encode(), digest_size=4).digest(), "little")


@cache
def _known() -> np.ndarray:
    hashes: np.ndarray = np.load(HASHES, allow_pickle=False)
    return hashes


_FEWEST_WORDS = 3
"""A turn of fewer words is seldom a question."""

_LONGEST_LINE = 100_000
_MOST_CHATS = 1_000_000


def opening_of(vocabulary: Vocabulary) -> list[int]:
    """The chat format up to the user's turn, from which the target writes it; TrainingError if there is none."""
    one, other = (encoded_prompt(vocabulary, turn) for turn in ("A", "z"))
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    if same == 0:
        raise TrainingError(
            "this model's chat format has nothing before the user's turn, so it cannot write prompts itself; "
            "give it a file: --prompts FILE"
        )
    return one[:same]


def usable(text: str) -> bool:
    """Whether a text may serve as a prompt: long enough to ask something, and of no known benchmark."""
    return len(text.split()) >= _FEWEST_WORDS and not overlaps_benchmark(text)


def prompts_of(file: Path) -> list[str]:
    """The prompts of a file, a line each or JSON lines with `prompt` or `turns`, no doubles; UsageError without any."""
    lines = read_named(file, f"--prompts {file}").split("\n")
    found = [_prompt(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"--prompts {file} holds no prompts")
    return list(dict.fromkeys(found))


def prompts_of_chats() -> list[str]:
    """The user's messages in the chats kept here, oldest first, without doubles; UsageError if there are none."""
    said = sorted(_said_in_chats()) if default_path().exists() else []
    if not said:
        raise UsageError("--prompts chats: no chat of yours is kept here yet; use --prompts self")
    return list(dict.fromkeys(text for _, text in said))


def _said_in_chats() -> list[tuple[str, str]]:
    """When the user said something, and what, in every chat."""
    with open_to_read(default_path()) as connection:
        chats = Chats(connection)
        messages = [message for found in chats.summaries(limit=_MOST_CHATS) for message in chats.chat(found.id)[1]]
    return [(message.created, message.content.strip()) for message in messages if message.role == "user"]


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    """Tokens as text; special tokens are left out."""
    return b"".join(vocabulary.token_bytes(token) for token in tokens).decode("utf-8", errors="replace").strip()


def encoded_prompt(vocabulary: Vocabulary, text: str) -> list[int]:
    """A prompt as the chat puts it to the target."""
    return vocabulary.encode_chat([{"role": "user", "content": text}])


def _prompt(line: str, where: str) -> str:
    if len(line) > _LONGEST_LINE:
        raise UsageError(f"{where} is longer than {_LONGEST_LINE} characters")
    if not line.lstrip().startswith("{"):
        return line.strip()
    said = json_line(line, where)
    turns = said.get("turns")
    prompt = said.get("prompt") if turns is None else turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError(f"{where} has no text under `prompt` or `turns`")
    return prompt.strip()
