"""Nothing from outside steers the terminal that a command prints to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specchat.engine.protocol.text import safe_in_json, safe_on_terminal
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_write
from specchat.store.records import ChatRecord, StoredMessage
from tests.fuzz.message_mutations import HOSTILE
from tests.printed import printed

pytestmark = pytest.mark.usefixtures("preloaded")

OWN = re.compile(r"\x1b\[[0-9;]*[mAGK]|\x1b\[\?25[lh]|\r")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\ufeff]")


def keep_a_hostile_chat() -> None:
    connection, _ = open_to_write(default_path())
    chats = Chats(connection)
    with chats.transaction():
        chats.save(ChatRecord("c" * 12, HOSTILE_WORD, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"))
        chats.add("c" * 12, StoredMessage("m" * 12, None, "user", HOSTILE_WORD, "2026-01-01T00:00:00+00:00"))
    connection.close()


HOSTILE_WORD = HOSTILE.replace("\x00", "")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "hi", "--pair", HOSTILE_WORD),
        ("run", "hi", "--drafter", HOSTILE_WORD, "--pair", "scripted"),
        ("run", HOSTILE_WORD, "--pair", "scripted", "--max-tokens", "8"),
        ("replay", HOSTILE_WORD),
        ("run", "hi", "--" + HOSTILE_WORD),
        (HOSTILE_WORD,),
        ("chats", "show", HOSTILE_WORD),
        ("chats", "import", HOSTILE_WORD),
        ("config", "get", HOSTILE_WORD),
        ("models", "pull", HOSTILE_WORD),
    ],
)  # fmt: skip
def test_what_is_quoted_in_an_error_does_not_steer_the_terminal(words: tuple[str, ...]) -> None:
    said = printed(*words)
    assert said.strip()
    assert not STEERING.search(OWN.sub("", said)), repr(said)


def test_a_recording_with_codes_in_its_lines_is_refused_in_one_harmless_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"type":"\\u001b]52;c;aGk=\\u0007\\n"}\n')
    said = printed("replay", str(file))
    assert not STEERING.search(OWN.sub("", said)), repr(said)
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("search", "abc"), ("export", "c"), ("show", "c")])
def test_the_title_of_a_chat_does_not_steer_the_terminal(words: tuple[str, ...]) -> None:
    keep_a_hostile_chat()
    said = printed("chats", *words)
    assert "abc" in said
    assert not STEERING.search(OWN.sub("", said)), repr(said)


def test_colours_and_progress_pass_and_nothing_else() -> None:
    assert safe_on_terminal("\x1b[1;31mred\x1b[0m\r\x1b[K\x1b[2A") == "\x1b[1;31mred\x1b[0m\r\x1b[K\x1b[2A"
    assert safe_on_terminal("\x1b]52;c;x\x07\x1b[2J\x9b") == "␛]52;c;x␇␛[2J⟨9b⟩"


def test_json_keeps_its_values_without_codes() -> None:
    import json

    assert json.loads(safe_in_json(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE
