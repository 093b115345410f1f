"""Commands about the chat: new, stored, answered again, said another way, copied, written to a file or a clip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from specchat.config.file_reading import MOST_CONSTRAINT_BYTES, json_line, read_named
from specchat.config.user_config import save_system_message, saved_system_messages, system_message
from specchat.engine.client.race import settings_line
from specchat.engine.protocol.commands import ReplyConstraint
from specchat.engine.protocol.environment import machine
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError, cut, nearest
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.services.context import AppServices
from specchat.tui.state import attachments
from specchat.tui.state import stored_chat as export
from specchat.tui.state.turn import changes_text
from specchat.tui.system.desktop import format_and_file, free_name, stem_of, write_new_file
from specchat.tui.tree.clip_files import FORMATS as CLIP_FORMATS
from specchat.tui.tree.clip_files import frames_of
from specchat.tui.widgets.messages import text_of

_MOST_NAMES = 50


async def new_chat(screen: ChatScreen, _: str) -> None:
    if screen.chat.background.replaying:
        raise UsageError(screen.context.app.recording_reason)
    await screen.current_chat.begin()


async def rename(screen: ChatScreen, title: str) -> None:
    if title:
        screen.context.archive.rename(" ".join(title.split()))
    name = screen.chat.title
    screen.context.app.say(f"this chat is called {name!r}" if name else "the first words will be its name")


async def system(screen: ChatScreen, text: str) -> None:
    chat, app = screen.chat, screen.context.app
    first, _, rest = text.partition(" ")
    if first == "save":
        name = rest.strip()
        if not chat.system:
            raise UsageError("this chat has no system message to save; /system TEXT sets one")
        if not name:
            raise UsageError("/system save wants a name: /system save pirate")
        file = save_system_message(name, chat.system)
        app.say(f"saved as {file} · /system {name} uses it", "good")
        return
    chat.system = "" if text == "-" else (system_message(text) or chat.system)
    screen.context.archive.save()
    app.redraw()
    said = " ".join(chat.system.split())
    app.say(f"system: {said}" if said else "no system message; /system TEXT sets one, /system - removes it")


async def schema(screen: ChatScreen, what: str) -> None:
    """Hold the replies from now on to a JSON schema of a file, or to any JSON object; `off` ends that."""
    chat, app = screen.chat, screen.context.app
    if what == "off":
        chat.constraint, chat.constraint_name = None, ""
    elif what == "json":
        chat.constraint, chat.constraint_name = ReplyConstraint("json_object"), "JSON"
    elif what:
        file = Path(what).expanduser()
        text = await asyncio.to_thread(read_named, file, cut(what), MOST_CONSTRAINT_BYTES)
        if not isinstance(json_line(text, cut(what)), dict):
            raise UsageError(f"{cut(what)} is not a JSON object, and so no schema")
        chat.constraint, chat.constraint_name = ReplyConstraint("json_schema", text), visible(file.name)
    app.redraw()
    free = "replies may be any text; /schema FILE holds them to a JSON schema, /schema json to any JSON object"
    app.say(f"replies are held to {chat.constraint_name}; /schema off ends that" if chat.constraint else free)


def schema_names(screen: ChatScreen, given: list[str]) -> Sequence[str]:
    if given:
        return ()
    return ["off", "json", *sorted(file.name for file in islice(Path.cwd().glob("*.json"), _MOST_NAMES))]


def system_names(screen: ChatScreen, given: list[str]) -> Sequence[str]:
    names = saved_system_messages()
    return ["save", *names] if not given else names if given == ["save"] else ()


async def edit(screen: ChatScreen, what: str) -> None:
    if what not in ("", "message", "reply"):
        raise UsageError(f"{what!r} cannot be edited{nearest(what, ('message', 'reply'))}")
    screen.replies.edit(screen.transcript.chosen_turn(), reply=what == "reply")


async def fork(screen: ChatScreen, text: str) -> None:
    question = screen.chat.question()
    if not text or question is None:
        screen.replies.edit(question)
    else:
        await screen.replies.ask_in_place_of(question, text)


async def copy(screen: ChatScreen, what: str) -> None:
    if what not in ("", "reply", "code"):
        raise UsageError(f"{what!r} cannot be copied{nearest(what, ('reply', 'code'))}")
    if what == "code":
        screen.transcript.action_copy_code()
    elif (view := screen.transcript.reply_view()) is not None:
        screen.context.app.copy_to_clipboard(text_of(view), "reply")


async def export_chat(screen: ChatScreen, text: str) -> None:
    kind, file = format_and_file(text, export.FORMATS)
    if not screen.chat.turns:
        raise UsageError("there is no message yet to export")
    chat, messages = screen.context.archive.current()
    file = file or free_name(stem_of(chat.title, chat.id), kind, Path.cwd())
    await asyncio.to_thread(lambda: write_new_file(export.FORMATS[kind](chat, messages), file))
    screen.context.app.say(f"written to {file.absolute()}", "good")


async def clip(screen: ChatScreen, text: str) -> None:
    file = await write_clip(screen.context, *format_and_file(text, CLIP_FORMATS))
    screen.context.app.say(f"written to {file.absolute()}", "good")


async def write_clip(context: AppServices, format: str, file: Path | None) -> Path:
    """Write the best rounds of the last reply to a file, as a moving picture that says how it was made; its file.

    Raises:
        UsageError: there is nothing to show, or the file is there already.
    """
    chat = context.chat
    if not chat.rounds:
        raise UsageError("there is no round yet for a clip to show")
    file = file or free_name(f"clip-{stem_of(chat.title, chat.id)}", format, Path.cwd())
    asked, reply = chat.question(), chat.last_reply()
    question = attachments.split(asked.content)[0] if asked is not None else ""
    frames = frames_of(list(chat.rounds), _about_clip(context), question, reply.figures.line() if reply else "")
    await asyncio.to_thread(write_new_file, await asyncio.to_thread(CLIP_FORMATS[format], frames), file)
    return file


def _about_clip(context: AppServices) -> list[str]:
    """Model, hardware, settings and figures of the reply; of a pair that is not loaded only its name is known."""
    engine, reply = context.chat.engine, context.chat.last_reply()
    if reply is None:
        return []
    ready = engine.ready if engine.ready is not None and reply.facts.pair in ("", engine.ready.pair) else None
    drafted = ready is not None and ready.draft and _uses_draft_model(context)
    models = f"{ready.target}{f', draft model {ready.draft}' if drafted else ''}" if ready else ""
    settings = reply.facts.settings or engine.settings
    with_settings = settings_line(settings, reply.facts.seed or 0, ready.dtype if ready else "")
    about = [
        f"{models} · {ready.device} · {_machine(context)}" if ready else f"pair {reply.facts.pair}",
        with_settings + changes_text(reply.facts),
        f"{reply.figures.line()} · shown slowed down",
    ]
    return list(map(visible, about))


def _uses_draft_model(context: AppServices) -> bool:
    """Whether a guess of the last reply came from a drafter that has one."""
    hello = context.chat.engine.hello
    having = {method.name for method in hello.methods if method.needs_draft_model} if hello else set()
    rounds = context.chat.rounds
    return any(having.intersection(draw.proposer.split("+")) for round in rounds for draw in round.tree.draws)


def _machine(context: AppServices) -> str:
    if context.session.player is not None:
        return context.session.player.recording.header.machine
    return machine() if context.session.engine_pid else "another machine"
