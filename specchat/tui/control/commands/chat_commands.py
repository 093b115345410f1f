"""Commands about the chat: new, stored, answered again, said another way, copied, exported."""

from __future__ import annotations

import asyncio
from pathlib import Path

from specchat.errors import UsageError, nearest
from specchat.tui.control.actions import Actions
from specchat.tui.state import stored_chat
from specchat.tui.system.desktop import format_and_file, free_name, stem_of, write_new_file


async def new_chat(actions: Actions, _: str) -> None:
    if actions.chat.background.replaying:
        raise UsageError(actions.ports.recording_reason)
    await actions.current_chat.new()


async def chats(actions: Actions, words: str) -> None:
    actions.current_chat.choose(words)


async def rename(actions: Actions, title: str) -> None:
    if title:
        actions.archive.rename(" ".join(title.split()))
    actions.ports.notify(
        f"this chat is called {actions.chat.title!r}" if actions.chat.title else "the first words will be its name"
    )


async def system(actions: Actions, text: str) -> None:
    actions.chat.system = "" if text == "-" else (text or actions.chat.system)
    actions.archive.save()
    said = " ".join(actions.chat.system.split())
    actions.ports.notify(
        f"system: {said}" if said else "no system message; /system TEXT sets one, /system - removes it"
    )


async def retry(actions: Actions, _: str) -> None:
    await actions.session.ask_again()


async def go_on(actions: Actions, _: str) -> None:
    await actions.session.go_on()


async def edit(actions: Actions, what: str) -> None:
    if what not in ("", "message", "reply"):
        raise UsageError(f"{what!r} cannot be edited{nearest(what, ('message', 'reply'))}")
    actions.branches.edit(actions.views.transcript.chosen_turn(), reply=what == "reply")


async def fork(actions: Actions, text: str) -> None:
    question = actions.chat.question()
    if not text or question is None:
        actions.branches.edit(question)
    else:
        await actions.session.ask_in_place_of(question, text)


async def copy(actions: Actions, what: str) -> None:
    if what not in ("", "reply", "code"):
        raise UsageError(f"{what!r} cannot be copied{nearest(what, ('reply', 'code'))}")
    if what == "code":
        actions.views.transcript.action_copy_code()
    else:
        actions.copy_reply()


async def export_chat(actions: Actions, text: str) -> None:
    kind, file = format_and_file(text, stored_chat.FORMATS)
    if not actions.chat.turns:
        raise UsageError("there is no message yet to export")
    chat, messages = actions.archive.current()
    file = file or free_name(stem_of(chat.title, chat.id), kind, Path.cwd())
    await asyncio.to_thread(write_new_file, stored_chat.FORMATS[kind](chat, messages), file)
    actions.ports.notify(f"written to {file.absolute()}", "good")
