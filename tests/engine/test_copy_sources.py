"""A copied token is said to stand in the message that it stands in, whatever the chat template does with messages."""

from __future__ import annotations

import pytest

from specchat.core.tree import STORED
from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.round_parts import Source
from specchat.engine.server.copy_sources import CopySources
from specchat.models.backends.scripted import PASSAGES


class Characters:
    """Every character is a token. The chat template has words of its own, a default message, and trims contents."""

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode("utf-8", "replace")

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        lines = [f"{message['role']}: {message['content'].strip()}\n" for message in messages]
        return [ord(c) for c in "".join(["assistant: be kind\n", *lines, "assistant: "])]


CHAT = [
    Message("system", "x user"), Message("user", " user "), Message("assistant", "yes yes"),
    Message("user", "what\nwas  that"), Message("assistant", ""), Message("user", "xyz"),
]  # fmt: skip
EXPECTED = [("system", 1, "x user"), ("user", 1, "user"), ("assistant", 1, "yes yes"),
            ("user", 2, "what\nwas  that"), ("user", 3, "xyz")]  # fmt: skip


def test_a_token_of_a_datastore_is_found_in_its_file_and_one_of_another_in_none():
    """The file's name, its place there, and the words before it."""
    words = tuple(map(ord, "so  many"))
    stored = {STORED + 3: ("notes.txt", 11, words)}
    copies = CopySources(Characters(), CHAT, [1, 2], lambda source, most: stored.get(source))  # type: ignore[arg-type]
    assert copies.describe([], STORED + 3) == Source(11, "datastore", before="so many", file="notes.txt")
    assert copies.describe([], STORED + 4) is None


def test_every_token_of_a_chat_is_found_in_its_message_and_those_of_the_template_in_none():
    prompt = Characters().encode_chat([{"role": m.role, "content": m.content} for m in CHAT])
    copies = CopySources(Characters(), CHAT, prompt)  # type: ignore[arg-type]
    found: dict[tuple[str, int], str] = {}
    for place, token in enumerate(prompt):
        source = copies.describe(prompt, place)
        assert source.token == place
        key = (source.part, source.number)
        found[key] = found.get(key, "") + chr(token)
    template = found.pop(("prompt", 1))
    assert [(*key, text) for key, text in found.items()] == EXPECTED
    assert "".join(template.split()) == "assistant:bekindsystem:user:assistant:user:assistant:user:assistant:"


def test_the_words_before_a_copy_are_few_in_one_line_and_of_the_same_message():
    prompt = Characters().encode_chat([{"role": "user", "content": "what\nwas  that"}])
    copies = CopySources(Characters(), [Message("user", "what\nwas  that")], prompt)  # type: ignore[arg-type]
    at = "".join(map(chr, prompt)).index("what")
    assert copies.describe(prompt, at) == Source(at, "user", 1, "")
    assert copies.describe(prompt, at + 3).before == "wha"
    assert copies.describe(prompt, at + 12).before == "was th"
    written = [*prompt, *map(ord, "well \ud800, then")]
    assert copies.describe(written, len(prompt) + 2) == Source(len(prompt) + 2, "reply", 1, "we")
    assert copies.describe(written, len(prompt)).before == ""


def test_the_words_before_a_copy_stay_few_where_one_token_is_a_long_text():
    class Long(Characters):
        def token_bytes(self, token: int) -> bytes:
            return b"ab" * 5000

    copies = CopySources(Long(), [], [1, 2, 3])  # type: ignore[arg-type]
    source = copies.describe([1, 2, 3], 2)
    assert (source.part, len(source.before)) == ("prompt", 32)


@pytest.mark.parametrize("rule", ["nest", "follow"])
def test_an_engine_tells_where_copied_tokens_stand_in_the_text_and_under_other_rules_nothing(driver, rule):
    chat = [Message("user", PASSAGES[0]), Message("assistant", PASSAGES[1]), Message("user", "".join(PASSAGES[2:]))]
    driver.load(drafter="prompt_lookup", controller="fixed", rule=rule, max_tokens=60)
    driver.reply(1, messages=chat)
    started = next(event for event in driver.passed if hasattr(event, "prompt_tokens"))
    written = [piece for event in driver.rounds() for piece in event.pieces]
    copied = [piece for piece in written if piece.source is not None]
    assert (len(copied) > 10) == (rule == "nest")
    for piece in copied:
        place = piece.source.token - started.prompt_tokens
        if piece.source.part == "reply":
            assert written[place].token == piece.token
        else:
            assert place < 0
            role, number = piece.source.part, piece.source.number
            text = [message.content for message in chat if message.role == role][number - 1]
            assert without_space(piece.source.before + piece.text) in without_space(text)


def without_space(text: str) -> str:
    return "".join(text.split())
