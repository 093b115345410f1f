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
            d.view.prompt.write("not sent\nyet")
        d.view.current_chat.close()
    unsent = "a first message\nwaits\n\nmore" if waits else "not sent\nyet"
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.view.prompt.text == unsent)
        await d.say("another")
        await d.reply("said")
        d.view.prompt.clear()
        d.view.current_chat.close()
        id = d.app.chat.id
    for chat in (id, ""):  # it is in the prompt once
        async with driving(store=store, chat=chat) as d:
            await d.app.context.archive.ask(lambda chats: None)
            await d.settle()
            assert d.view.prompt.text == ""


async def test_what_was_not_sent_stays_kept_while_an_older_chat_is_opened_or_another_text_is_typed(tmp_path):
    store = tmp_path / "chats.db"
    async with driving(store=store) as d:
        await d.say("hi")
        await d.reply("hello")
        id = d.app.chat.id
        await d.pilot.press("ctrl+n")
        d.view.prompt.write("one")
        d.view.current_chat.close()
    async with driving(store=store, chat=id) as d:
        await wait_for(d.pilot, lambda: d.app.chat.turns)
        await d.settle()
        assert d.view.prompt.text == ""
        d.view.current_chat.close()
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.view.prompt.text == "one")
        d.view.prompt.write("two")
        await d.view.current_chat.offer_draft()
        assert d.view.prompt.text == "two"
        d.view.current_chat.close()
    async with driving(store=store) as d:
        await wait_for(d.pilot, lambda: d.view.prompt.text == "two")
