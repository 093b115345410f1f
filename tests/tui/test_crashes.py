"""An error in the app ends it as a user does: nothing on the screen is lost, and no traceback is printed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from driving import app_with, connected
from fake import FakeLink, hello, ready
from test_chat_archive import kept

from specchat.store.chats import Chats
from specchat.store.database import open_to_read
from specchat.tui.app import SpecchatApp, run_app
from specchat.tui.screens.chat_screen import ChatScreen


def fails(*_: object) -> None:
    raise RuntimeError("planted")


def crashed(monkeypatch: pytest.MonkeyPatch, store: Path, *, asks: bool) -> SpecchatApp:
    """The app after an error in the handler of a key, with a text in the prompt and perhaps a reply half written."""
    links: list[FakeLink] = []

    def connect(wake: object) -> FakeLink:
        links.append(FakeLink(wake))
        return links[-1]

    async def drive(pilot: object) -> None:
        d = await connected(pilot, links)
        await d.hear(hello(), ready())
        if asks:
            await d.say("hi")
            await d.reply(upto=5, finish=False)
        d.view.prompt.write("not sent")
        d.app.simulate_key("ctrl+r")

    monkeypatch.setattr(ChatScreen, "action_search", fails)
    app = app_with(connect, settings={"pair": "smol"}, store=store, engine_here=False)
    monkeypatch.setattr(app, "run", partial(app.run, headless=True, auto_pilot=drive))
    run_app(app)
    assert links[-1].closed
    return app


def test_an_error_in_the_app_keeps_the_reply_so_far_and_prints_nothing(store, monkeypatch, capfd):
    app = crashed(monkeypatch, store, asks=True)
    assert (str(app.crash), app.return_code) == ("planted", 1)
    assert "".join(capfd.readouterr()) == ""
    ((chat, (question, reply)),) = kept(store)
    assert (question.content, reply.status) == ("hi", "interrupted")
    assert reply.content == app.chat.last_reply().text != ""
    assert reply.rounds
    with open_to_read(store) as connection:
        assert Chats(connection).draft(chat.id) == "not sent"


def test_with_an_untested_version_of_textual_an_error_keeps_as_much_and_textual_prints_it_too(
    newer_textual, store, monkeypatch, capfd
):
    app = crashed(monkeypatch, store, asks=True)
    assert "planted" in capfd.readouterr().err
    assert (str(app.crash), app.return_code) == ("planted", 1), "so the line that names the log is printed as well"
    ((chat, (_, reply)),) = kept(store)
    assert (reply.status, reply.content) == ("interrupted", app.chat.last_reply().text)
    with open_to_read(store) as connection:
        assert Chats(connection).draft(chat.id) == "not sent"
    del app._exception  # a version that keeps it elsewhere
    assert app.crash is None


def test_an_error_in_the_app_keeps_what_was_not_sent_in_a_new_chat(store, monkeypatch):
    crashed(monkeypatch, store, asks=False)
    with open_to_read(store) as connection:
        assert (Chats(connection).summaries(), Chats(connection).draft(None)) == ([], "not sent")


def test_the_reply_so_far_is_kept_even_where_the_unsent_text_cannot_be(store, monkeypatch):
    monkeypatch.setattr("specchat.tui.screens.current_chat.CurrentChat._keep_draft", fails)
    with pytest.raises(RuntimeError, match="planted"):
        crashed(monkeypatch, store, asks=True)
    ((_, (_, reply)),) = kept(store)
    assert reply.status == "interrupted"
    assert reply.content
