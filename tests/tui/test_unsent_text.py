"""What was not sent in a new chat is in the prompt of the next one that the app starts with."""

from __future__ import annotations

import pytest
from driving import driving, wait_for


@pytest.mark.parametrize("waits", [False, True])
async def test_what_was_not_sent_in_a_new_chat_is_in_the_prompt_of_the_next_one(tmp_path, waits):
    store = tmp_path / "chats.db"
    async with driving(store=store, loaded=False) as d:
        if waits:
            await d.say("a first message\nwaits")
            await d.pilot.press(*"more")
        else:
            d.app.views.prompt.write("not sent\nyet")
        d.app.control.close_chat()
    unsent = "a first message\nwaits\n\nmore" if waits else "not sent\nyet"
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.app.views.prompt.text == unsent)
        await d.say("another")
        await d.reply("said")
        d.app.views.prompt.clear()
        d.app.control.close_chat()
        id = d.app.chat.id
    for chat in (id, ""):  # it is in the prompt once
        async with driving(store=store, chat=chat) as d:
            await d.app.control.archive.ask(lambda chats: None)
            await d.settle()
            assert d.app.views.prompt.text == ""


async def test_what_was_not_sent_stays_kept_while_an_older_chat_is_opened_or_another_text_is_typed(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply("hello")
        id = d.app.chat.id
        await d.pilot.press("ctrl+n")
        d.app.views.prompt.write("one")
        d.app.control.close_chat()
    async with driving(store=store, chat=id) as d:
        await wait_for(d.pilot, lambda: d.app.chat.turns)
        await d.settle()
        assert d.app.views.prompt.text == ""
        d.app.control.close_chat()
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.app.views.prompt.text == "one")
        d.app.views.prompt.write("two")
        await d.app.control.current_chat.offer_draft()
        assert d.app.views.prompt.text == "two"
        d.app.control.close_chat()
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.app.views.prompt.text == "two")
