"""Where prompts come from: the target writes the user's turn itself, or chats or a file have them."""

from __future__ import annotations

from pathlib import Path

from specchat.config.user_named_file import json_line, read_named
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import TrainingError, UsageError
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_read
from specchat.training.benchmark_overlap import overlaps_benchmark

_FEWEST_WORDS = 3
"""A turn of fewer words is seldom a question."""

_LONGEST_LINE = 100_000
_MOST_CHATS = 1_000_000


def opening_of(vocabulary: Vocabulary) -> list[int]:
    """The chat format up to where the user's turn begins: what the target goes on from when it writes the turn.

    Raises:
        TrainingError: the model has no chat format to begin from.
    """
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
    """The prompts of a file: one a line, or JSON lines with `prompt` or `turns`. Doubles are left out.

    Raises:
        UsageError: it cannot be read, or holds no prompt.
    """
    lines = read_named(file, f"--prompts {file}").split("\n")
    found = [_prompt(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"--prompts {file} holds no prompts")
    return list(dict.fromkeys(found))


def prompts_of_chats() -> list[str]:
    """What the user said in the chats that are kept on this machine, oldest first. Doubles are left out.

    Raises:
        UsageError: nothing was said yet.
    """
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
