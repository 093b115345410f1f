"""A chat as a document."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from driving import driving
from fake import rounds_of
from msgspec import structs

from specchat.engine.protocol.packed_rounds import pack_rounds
from specchat.errors import UsageError
from specchat.store.chat_json import read_json
from specchat.store.records import ChatRecord, Facts, StoredMessage
from specchat.tui.state import stored_chat
from specchat.tui.system.desktop import format_and_file, format_of, stem_of

WHEN = "2026-01-31T12:00:00.000Z"
CHAT = ChatRecord("id", "Is <b>this</b> SAID ABOUT right?", WHEN, WHEN, system="be <brief>", leaf="c")
MESSAGES = [
    StoredMessage("a", None, "user", "Is <b>this</b> right?\n<script>alert(1)</script>", WHEN),
    StoredMessage("b", "a", "assistant", "another branch", WHEN, "done", [14], Facts("smol", 7, "end")),
    StoredMessage(
        "c", "a", "assistant", "**Yes** <img src=x onerror=alert(1)>\x1b[31m ![x](http://e/x.png)", WHEN, "interrupted",
        [3, -5, 56], Facts("smol", 9),
    ),
]  # fmt: skip


class Page(HTMLParser):
    """Every tag with its attributes, and the text of each class."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and data.strip():
            self.said.append((self.tags[-1][1].get("class") or "", data))


def test_a_page_shows_who_wrote_every_token():
    said = Page(stored_chat.as_html(CHAT, MESSAGES)).said
    assert ("drafted", "**Y") in said
    assert ("target", "es** ") in said
    assert not any("another branch" in text for _, text in said)


def test_a_page_needs_nothing_else_and_runs_nothing():
    page = Page(stored_chat.as_html(CHAT, MESSAGES))
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object", "b"}
    assert not any(key.startswith("on") or key == "src" for _, given in page.tags for key in given)
    assert not re.search(r"@import|url\(", stored_chat.as_html(CHAT, MESSAGES))
    assert any(given.get("content", "").startswith("default-src 'none'") for tag, given in page.tags if tag == "meta")
    assert any("<script>alert(1)</script>" in text for _, text in page.said)


def test_a_page_of_a_reply_with_rounds_plays_them():
    rounds = pack_rounds(rounds_of("another branch"), 1 << 20)
    with_rounds = [MESSAGES[0], structs.replace(MESSAGES[1], rounds=rounds)]
    page = Page(stored_chat.as_html(structs.replace(CHAT, leaf="b"), with_rounds))
    assert [tag for tag, _ in page.tags].count("script") == 2


def test_a_branch_says_which_of_its_text_another_branch_had():
    branch = StoredMessage(
        "d", "a", "assistant", "Yes, it is", WHEN, "done", [-3, -1, 3, -3], Facts("smol", 9, begun=[(20, 3), (21, 1)])
    )
    text = stored_chat.as_html(structs.replace(CHAT, leaf="d"), [MESSAGES[0], branch])
    assert '<span class="given">Yes,</span><span class="drafted"> it</span><span class="target"> is</span>' in text


def test_a_page_keeps_control_characters_visible_and_its_title_whole():
    page = stored_chat.as_html(CHAT, MESSAGES)
    assert "\x1b" not in page
    assert "␛[31m" in page
    assert page.count("<main>") == 1
    assert "<title>Is &lt;b&gt;this&lt;/b&gt; SAID ABOUT right?</title>" in page


def test_markdown_holds_the_text_as_it_was_said():
    text = stored_chat.as_markdown(CHAT, MESSAGES)
    assert text.startswith("# Is <b>this</b> SAID ABOUT right?\n")
    assert "> be <brief>" in text
    assert "## smol\n\n**Yes** <img" in text
    assert "*interrupted*" in text
    assert "another branch" not in text


@pytest.mark.parametrize("write", [stored_chat.as_markdown, stored_chat.as_html])
def test_a_written_chat_says_how_to_go_on_with_it(write):
    assert f"specchat --resume {CHAT.id}" in write(CHAT, MESSAGES)


@pytest.mark.parametrize(
    ("title", "stem"), [("How does it work?", "how-does-it-work"), ("…", "chat-id"), ("你好!", "你好")]
)
def test_a_file_is_named_after_the_chat(title, stem):
    assert stem_of(title, "id") == stem


async def test_export_writes_the_chat_on_the_screen_with_all_its_branches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with driving() as d:
        await d.say("/export")
        assert "there is no message yet" in d.drawn(d.view.notice)
        await d.say("How does it work?")
        await d.reply("so")
        await d.say("/retry")
        await d.reply("otherwise")
        await d.say("/export")
        assert "## smol\n\notherwise" in (tmp_path / "how-does-it-work.md").read_text()
        await d.say("/export json")
        exported = read_json((tmp_path / "how-does-it-work.json").read_bytes(), "f")
        assert [message.content for message in exported.messages] == ["How does it work?", "so", "otherwise"]
        await d.say("/export my page.html")
        assert "<!doctype html>" in (tmp_path / "my page.html").read_text()
        await d.say("/export md my page.html")
        assert "is there already" in d.drawn(d.view.notice)
        await d.say("/export page.htm")
        assert "did you mean 'html'?" in d.drawn(d.view.notice)
        await d.say("/export")
        assert (tmp_path / "how-does-it-work-2.md").exists()


@pytest.mark.parametrize("command", ["/export", "/clip"])
async def test_a_full_disk_leaves_no_file_and_the_name_can_be_used_again(tmp_path, monkeypatch, command):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / ("chat.md" if command == "/export" else "chat.svg")
    async with driving() as d:
        await d.say("How does it work?")
        await d.reply()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            await d.say(f"{command} {file}")
            assert "No space left on device" in d.drawn(d.view.notice)
        assert not list(tmp_path.iterdir())
        await d.say(f"{command} {file}")
        assert "written to" in d.drawn(d.view.notice)
        assert list(tmp_path.iterdir()) == [file]


def test_a_form_that_is_not_known_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'json'"):
        format_of("jsno", None, stored_chat.FORMATS)


@pytest.mark.parametrize(
    ("said", "format", "file"),
    [
        ("", "md", None),
        ("json", "json", None),
        ("JSON", "json", None),
        ("my page.HTML", "html", "my page.HTML"),
        ("md notes", "md", "notes"),
        ("md\tnotes.txt", "md", "notes.txt"),
        ("./notes", "md", "notes"),
        ("what we said", "md", "what we said"),
        ("~nobody-here/x.md", "md", "~nobody-here/x.md"),
    ],
)
def test_the_format_and_the_file_are_read_from_what_follows_the_command(said, format, file):
    assert format_and_file(said, stored_chat.FORMATS) == (format, Path(file) if file else None)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("pdf", "there is no format 'pdf', only md, json, html; as a file: pdf.md"),
        ("jsn", "there is no format 'jsn', only md, json, html; did you mean 'json'?"),
        ("x.pdf", "there is no format 'pdf', only md, json, html"),
        ("folder/x.htm", "there is no format 'htm', only md, json, html; did you mean 'html'?"),
    ],
)
async def test_a_format_that_is_not_known_becomes_no_file(tmp_path, monkeypatch, said, why):
    monkeypatch.chdir(tmp_path)
    async with driving() as d:
        await d.say("How does it work?")
        await d.reply("so")
        await d.say(f"/export {said}")
        assert why in d.drawn(d.view.notice)
        assert not list(tmp_path.iterdir())
