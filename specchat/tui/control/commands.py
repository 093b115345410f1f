"""The one registry of commands: slash commands, the palette and the help page all read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from specchat.engine.near.client import Engine
from specchat.errors import SpecchatError, UsageError, nearest
from specchat.tui.control.key_bindings import key_sections
from specchat.tui.draw import export
from specchat.tui.draw.token_tree import MODES
from specchat.tui.screens.log import LogScreen
from specchat.tui.state.completion import values_of_usage
from specchat.tui.state.settings_fields import FAMILIES, fields_of, methods_of

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp

Run = Callable[["SpecchatApp", str], Awaitable[None]]


@dataclass(frozen=True)
class Command:
    """Something the user can ask for by name."""

    name: str
    help: str
    run: Run
    usage: str = ""  # what follows the name; in brackets if it may be left out
    binding: str = ""  # the id of its key, where that is not its name
    values: Callable[[SpecchatApp, list[str]], Sequence[str]] | None = None  # what may follow these arguments

    def choices(self, app: SpecchatApp, given: list[str]) -> Sequence[str]:
        """What may stand behind the arguments given so far."""
        return self.values(app, given) if self.values else values_of_usage(self.usage, len(given))

    @property
    def needs_argument(self) -> bool:
        return bool(self.usage) and not self.usage.startswith("[")


async def _help(app: SpecchatApp, _: str) -> None:
    app.action_help()


async def _new(app: SpecchatApp, _: str) -> None:
    await app.action_new_chat()


async def _pair(app: SpecchatApp, name: str) -> None:
    if not name:
        app.action_pairs()
        return
    await app.choosing.choose(name)


async def _set(app: SpecchatApp, text: str) -> None:
    name, _, value = text.partition(" ")
    if not name or not value.strip():
        raise UsageError("/set wants a name and a value: /set temperature 0.8")
    await change_setting(app, name, value.strip())


async def _save(app: SpecchatApp, what: str) -> None:
    if what not in ("", "pair"):
        raise UsageError(f"/save {what} says nothing; /save keeps the settings as default, /save pair for this pair")
    if app.talk.player is not None:
        raise UsageError("settings can be saved once a pair is ready")
    saved = app.keeper.save(into_pair=what == "pair")
    app.form.show(app.fields(), app.chat.pair)
    for one in saved:
        await app.transcript.note(f"saved {one.line()}".replace(str(Path.home()), "~"))
    count = sum(len(one.written) + len(one.removed) for one in saved)
    words = f"saved {count} setting{'s' if count > 1 else ''}" if count else "nothing to save: it starts like this"
    app.say(words)
    app.form.say(words)


async def _family(app: SpecchatApp, name: str, *, setting: str) -> None:
    if name:
        await change_setting(app, setting, name)
        return
    known = methods_of(app.chat.hello.methods, setting) if app.chat.hello else []
    names = ", ".join(method.name for method in known)
    app.say(f"{setting} = {app.chat.settings.get(setting, '?')}; known: {names}")


async def change_setting(app: SpecchatApp, name: str, text: str) -> None:
    """Change a setting by its name, live or by loading again, whichever it takes."""
    if app.chat.hello is None:
        raise UsageError("the engine has not said yet what can be set")
    fields = {field.name: field for field in fields_of(app.chat.hello, app.chat.settings)}
    if name not in fields:
        raise UsageError(f"there is no setting {name!r}{nearest(name, fields)}")
    field = fields[name]
    value = field.parse(text)
    if field.info.live:
        app.talk.change(name, value)
    else:
        await app.talk.load({name: value})


def _settings_and_values(app: SpecchatApp, given: list[str]) -> Sequence[str]:
    """What `/set` takes: a setting, then one of its values where they have names."""
    fields = {field.name: field for field in app.fields()}
    if not given:
        return list(fields)
    if len(given) > 1 or given[0] not in fields:
        return ()
    info = fields[given[0]].info
    if info.name == "pair":
        return _pairs(app, [])
    return ("true", "false") if info.kind == "bool" else info.choices


def _pairs(app: SpecchatApp, given: list[str]) -> Sequence[str]:
    try:
        return () if given else [pair.name for pair in app.choosing.known()]
    except SpecchatError:  # a file that broke meanwhile: F4 says so
        return ()


def _methods(app: SpecchatApp, given: list[str], *, setting: str) -> Sequence[str]:
    return (
        () if given or not app.chat.hello else [method.name for method in methods_of(app.chat.hello.methods, setting)]
    )


def _themes(app: SpecchatApp, given: list[str]) -> Sequence[str]:
    return () if given else sorted(app.available_themes)


async def _tree(app: SpecchatApp, mode: str) -> None:
    if not mode:
        app.action_toggle_tree()
    elif mode in MODES:
        app.set_tree_mode(mode)
    else:
        raise UsageError(f"no tree is drawn as {mode!r}{nearest(mode, MODES)}")


async def _pause(app: SpecchatApp, _: str) -> None:
    app.pace.hold()


async def _step(app: SpecchatApp, rounds: str) -> None:
    if rounds and not (rounds.isdigit() and 0 < int(rounds) <= 1000):
        raise UsageError(f"/step {rounds!r}: wanted is how many rounds, 1 to 1000")
    app.pace.step(int(rounds or 1))


async def _speed(app: SpecchatApp, speed: str) -> None:
    if speed:
        app.pace.speed(speed)
    else:
        app.say(app.pace.describe())


async def _tokens(app: SpecchatApp, _: str) -> None:
    app.action_toggle_tokens()


async def _stats(app: SpecchatApp, _: str) -> None:
    app.action_toggle_stats()


async def _settings(app: SpecchatApp, _: str) -> None:
    app.action_settings()


async def _retry(app: SpecchatApp, _: str) -> None:
    await app.talk.ask_again()


async def _edit(app: SpecchatApp, _: str) -> None:
    app.talk.edit(app.transcript.chosen_turn())


async def _fork(app: SpecchatApp, text: str) -> None:
    question = app.chat.question()
    if not text or question is None:
        app.talk.edit(question)
    else:
        await app.talk.ask_instead(question, text)


async def _copy(app: SpecchatApp, what: str) -> None:
    if what not in ("", "reply", "code"):
        raise UsageError(f"{what!r} cannot be copied{nearest(what, ('reply', 'code'))}")
    if what == "code":
        app.transcript.action_copy_code()
    else:
        app.action_copy_reply()


async def _race(app: SpecchatApp, prompt: str) -> None:
    app.racing.race(prompt)


async def _bench(app: SpecchatApp, amount: str) -> None:
    app.racing.bench(amount)


async def _system(app: SpecchatApp, text: str) -> None:
    app.chat.system = "" if text == "-" else (text or app.chat.system)
    app.archive.keep()
    said = " ".join(app.chat.system.split())
    app.say(f"system: {said}" if said else "no system message; /system TEXT sets one, /system - removes it")


async def _rename(app: SpecchatApp, title: str) -> None:
    if title:
        app.archive.rename(title)
    app.say(f"this chat is called {app.chat.title!r}" if app.chat.title else "the first words will be its name")


async def _chats(app: SpecchatApp, words: str) -> None:
    app.action_chats(words)


async def _export(app: SpecchatApp, text: str) -> None:
    first, _, rest = text.partition(" ")
    word, name = (first, rest.strip()) if first in export.FORMATS else ("", text)
    if not app.chat.turns:
        raise UsageError("nothing has been said yet that could be exported")
    chat, messages = app.archive.current()
    file = Path(name).expanduser() if name else None
    kind = export.format_of(word, file)
    file = file or export.file_name(chat, kind, Path.cwd())
    export.write(export.FORMATS[kind](chat, messages), file)
    app.say(f"written to {file.absolute()}", "good")


async def _theme(app: SpecchatApp, name: str) -> None:
    if not name:
        app.search_themes()
    elif name in app.available_themes:
        app.theme = name
    else:
        raise UsageError(f"no theme is called {name!r}{nearest(name, app.available_themes)}")


async def _restart(app: SpecchatApp, _: str) -> None:
    await app.talk.reconnect()


async def _demo(app: SpecchatApp, _: str) -> None:
    await app.talk.watch_demo()


async def _tour(app: SpecchatApp, _: str) -> None:
    await app.touring.start()


async def _log(app: SpecchatApp, _: str) -> None:
    if isinstance(app.talk.link, Engine):
        app.push_screen(LogScreen(app.talk.link.log))
    else:
        app.say("there is no engine here, and so no log")


async def _exit(app: SpecchatApp, _: str) -> None:
    app.exit()


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("help", "all keys and commands", _help),
        Command("new", "begin a new chat", _new),
        Command("pair", "choose what to talk to", _pair, "[NAME]", values=_pairs),
        Command("settings", "show or hide all settings", _settings),
        Command("set", "change one setting", _set, "NAME VALUE", values=_settings_and_values),
        Command("save", "keep the settings as default, or for this pair alone", _save, "[pair]"),
        *(
            Command(
                setting,
                f"choose the {setting}, live",
                partial(_family, setting=setting),
                "[NAME]",
                values=partial(_methods, setting=setting),
            )
            for setting in FAMILIES
        ),
        Command("tree", "hide or show the tree, or draw it so", _tree, f"[{'|'.join(MODES)}]"),
        Command("pause", "hold the reply, or let it go on", _pause, binding="pace.hold"),
        Command("step", "do one round, or so many, and hold", _step, "[ROUNDS]", binding="pace.step"),
        Command("speed", "rounds per second, or full", _speed, "[full|NUMBER]"),
        Command("stats", "hide or show the figures", _stats),
        Command("tokens", "flip a reply between Markdown and tokens", _tokens),
        Command("retry", "answer the last question again, beside the answer it has", _retry),
        Command("edit", "say your last message differently; the chat as it was stays beside it", _edit),
        Command("fork", "say this in place of your last message", _fork, "[TEXT]"),
        Command("copy", "copy the last reply, or its last code block", _copy, "[reply|code]"),
        Command("race", "plain decoding and speculation side by side", _race, "[PROMPT]"),
        Command(
            "bench",
            "measure these settings against plain decoding, on so many questions or so long",
            _bench,
            "[6|24|60s]",
        ),
        Command("clear", "begin a new chat", _new),
        Command("system", "set the system message (- removes it)", _system, "[TEXT]"),
        Command("chats", "open, search, rename, delete, export chats", _chats, "[WORDS]"),
        Command("export", "write this chat to a file", _export, "[md|json|html] [FILE]"),
        Command("rename", "give this chat a name", _rename, "[TITLE]"),
        Command("theme", "choose colours", _theme, "[NAME]", values=_themes),
        Command("restart", "start the engine again", _restart),
        Command("demo", "watch a recorded chat", _demo),
        Command("tour", "see the tour of the first start again", _tour),
        Command("log", "the end of the engine's log, and where it stands", _log),
        Command("exit", "leave", _exit, binding="quit"),
    )
}


def is_command(text: str) -> bool:
    """Whether a line asks for a command, known or not; with two slashes it is text."""
    return text.lstrip().startswith("/") and not text.lstrip().startswith("//")


def find(text: str) -> tuple[Command, str] | None:
    """The command a line asks for and what follows its name; None if the line is none.

    Raises UsageError where a line begins with a slash but names no command.
    """
    if not is_command(text):
        return None
    name, _, argument = text[1:].strip().partition(" ")
    if name in COMMANDS:
        return COMMANDS[name], argument.strip()
    raise UsageError(f"there is no command /{name}{nearest(name, COMMANDS)} (// sends it as text)")


def hint(text: str) -> str:
    """What could be meant by what has been typed so far, as one line."""
    if not is_command(text) or "\n" in text:
        return ""
    name, space, _ = text[1:].partition(" ")
    if space and name in COMMANDS:
        command = COMMANDS[name]
        return f"/{name} {command.usage} – {command.help}"
    fitting = [command for command in COMMANDS.values() if command.name.startswith(name)]
    if len(fitting) == 1:
        return f"/{fitting[0].name} {fitting[0].usage} – {fitting[0].help}".replace("  ", " ")
    return "  ".join(f"/{command.name}" for command in fitting)


def help_sections(changed: Mapping[str, str] | None = None) -> list[tuple[str, list[tuple[str, str]]]]:
    """The help page, with the user's own keys in it."""
    slashed = [(f"/{command.name} {command.usage}".strip(), command.help) for command in COMMANDS.values()]
    marks = [("● accepted  ★ bonus", "drafted and kept · the target's own token"),
             ("✕ rejected  ○ unseen", "the target wrote another · never got there"),
             ("⊘ pruned  ◐ cut off", "dropped in the middle of a pass · the reply ended"),
             ("◌ pending  ² agreed", "not told yet · proposed by two drafters"),
             ("τ", "mean tokens per round, the bonus included"),
             ("2.7× ± 0.1", "against plain decoding, by plain rounds of the same reply")]  # fmt: skip
    return [*key_sections(changed or {}), ("Commands", slashed), ("What the tree says", marks)]


class CommandsProvider(Provider):
    """Feeds the palette."""

    async def discover(self) -> Hits:
        """All commands, before anything is typed."""
        for command in COMMANDS.values():
            yield DiscoveryHit(f"/{command.name}", partial(self._run, command), help=self._about(command))

    async def search(self, query: str) -> Hits:
        """Commands whose name or help fits."""
        matcher = self.matcher(query)
        for command in COMMANDS.values():
            text = f"/{command.name}  {command.help}"
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, command), help=self._about(command))

    def _about(self, command: Command) -> str:
        app: SpecchatApp = self.app  # type: ignore[assignment]
        key = app.key_of(command.binding or command.name)
        return command.help + (f" ({key})" if key else "")

    async def _run(self, command: Command) -> None:
        app: SpecchatApp = self.app  # type: ignore[assignment]
        if command.needs_argument:
            app.prompt.write(f"/{command.name} ")
            app.prompt.focus()
        else:
            await app.run_command(command, "")


__all__ = ["COMMANDS", "Command", "CommandsProvider", "change_setting", "find", "help_sections", "hint", "is_command"]
