"""The one registry of commands: slash commands, the palette and the help page all read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from specchat.errors import UsageError, nearest
from specchat.tui.fields import FAMILIES, fields_of, methods_of
from specchat.tui.layout_tree import MODES

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
    key: str = ""

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
    names = [pair.name for pair in app.pairs()]
    if names and name not in names:
        raise UsageError(f"no pair is called {name!r}{nearest(name, names)}")
    await app.talk.load({"pair": name})


async def _set(app: SpecchatApp, text: str) -> None:
    name, _, value = text.partition(" ")
    if not name or not value.strip():
        raise UsageError("/set wants a name and a value: /set temperature 0.8")
    await change_setting(app, name, value.strip())


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


async def _tree(app: SpecchatApp, mode: str) -> None:
    if not mode:
        app.action_toggle_tree()
    elif mode in MODES:
        app.set_tree_mode(mode)
    else:
        raise UsageError(f"no tree is drawn as {mode!r}{nearest(mode, MODES)}")


async def _tokens(app: SpecchatApp, _: str) -> None:
    app.action_toggle_tokens()


async def _stats(app: SpecchatApp, _: str) -> None:
    app.action_toggle_stats()


async def _settings(app: SpecchatApp, _: str) -> None:
    app.action_settings()


async def _retry(app: SpecchatApp, _: str) -> None:
    await app.talk.ask_again()


async def _copy(app: SpecchatApp, _: str) -> None:
    app.action_copy_reply()


async def _system(app: SpecchatApp, text: str) -> None:
    app.chat.system = "" if text == "-" else (text or app.chat.system)
    said = " ".join(app.chat.system.split())
    app.say(f"system: {said}" if said else "no system message; /system TEXT sets one, /system - removes it")


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


async def _exit(app: SpecchatApp, _: str) -> None:
    app.exit()


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("help", "all keys and commands", _help, key="F1"),
        Command("new", "begin a new chat", _new, key="Ctrl+N"),
        Command("pair", "choose what to talk to", _pair, "[NAME]", key="F4"),
        Command("settings", "show or hide all settings", _settings, key="F2"),
        Command("set", "change one setting", _set, "NAME VALUE"),
        *(
            Command(setting, f"choose the {setting}, live", partial(_family, setting=setting), "[NAME]")
            for setting in FAMILIES
        ),
        Command("tree", "hide or show the tree, or draw it so", _tree, f"[{'|'.join(MODES)}]", key="Ctrl+T"),
        Command("stats", "hide or show the figures", _stats, key="F3"),
        Command("tokens", "flip a reply between Markdown and tokens", _tokens, key="F8"),
        Command("retry", "answer the last question again", _retry),
        Command("copy", "copy the last reply", _copy),
        Command("clear", "begin a new chat", _new),
        Command("system", "set the system message (- removes it)", _system, "[TEXT]"),
        Command("theme", "choose colours", _theme, "[NAME]"),
        Command("restart", "start the engine again", _restart, key="Ctrl+R"),
        Command("demo", "watch a recorded chat", _demo),
        Command("exit", "leave", _exit, key="Ctrl+C twice"),
    )
}

KEYS: list[tuple[str, str]] = [
    ("Enter", "send"), ("Ctrl+J, Shift/Alt+Enter", "new line"), ("Up, Down", "messages sent before"),
    ("Esc", "stop at the next round, keep the text"),
    ("Ctrl+C", "copy the selection, else stop, else quit"), ("Ctrl+P", "all commands"),
    ("Tab", "move between prompt, chat and settings"), ("j k g G", "in the chat: next, previous, first, last"),
    ("c r", "in the chat: copy, answer again"),
]  # fmt: skip


def find(text: str) -> tuple[Command, str] | None:
    """The command a line asks for and what follows its name; None if the line is none.

    Raises UsageError where a line begins with a slash but names no command.
    """
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].strip().partition(" ")
    if name in COMMANDS:
        return COMMANDS[name], argument.strip()
    raise UsageError(f"there is no command /{name}{nearest(name, COMMANDS)} (// sends it as text)")


def hint(text: str) -> str:
    """What could be meant by what has been typed so far, as one line."""
    if not text.startswith("/") or text.startswith("//") or "\n" in text:
        return ""
    name, space, _ = text[1:].partition(" ")
    if space and name in COMMANDS:
        command = COMMANDS[name]
        return f"/{name} {command.usage} – {command.help}"
    fitting = [command for command in COMMANDS.values() if command.name.startswith(name)]
    if len(fitting) == 1:
        return f"/{fitting[0].name} {fitting[0].usage} – {fitting[0].help}".replace("  ", " ")
    return "  ".join(f"/{command.name}" for command in fitting)


def help_sections() -> list[tuple[str, list[tuple[str, str]]]]:
    """The help page."""
    keyed = [(command.key, command.help) for command in COMMANDS.values() if command.key]
    slashed = [(f"/{command.name} {command.usage}".strip(), command.help) for command in COMMANDS.values()]
    marks = [("● accepted  ★ bonus", "drafted and kept · the target's own token"),
             ("✕ rejected  ○ unseen", "the target wrote another · never got there"),
             ("τ", "mean tokens per round, the bonus included"),
             ("2.7× plain", "against plain decoding here, unless it says est.")]  # fmt: skip
    return [("Keys", [*KEYS, *keyed]), ("Commands", slashed), ("What the tree says", marks)]


class CommandsProvider(Provider):
    """Feeds the palette."""

    async def discover(self) -> Hits:
        """All commands, before anything is typed."""
        for command in COMMANDS.values():
            yield DiscoveryHit(f"/{command.name}", partial(self._run, command), help=_palette_help(command))

    async def search(self, query: str) -> Hits:
        """Commands whose name or help fits."""
        matcher = self.matcher(query)
        for command in COMMANDS.values():
            text = f"/{command.name}  {command.help}"
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, command), help=_palette_help(command))

    async def _run(self, command: Command) -> None:
        app: SpecchatApp = self.app  # type: ignore[assignment]
        if command.needs_argument:
            app.prompt.write(f"/{command.name} ")
            app.prompt.focus()
        else:
            await app.run_command(command, "")


def _palette_help(command: Command) -> str:
    return command.help + (f" ({command.key})" if command.key else "")


__all__ = ["COMMANDS", "Command", "CommandsProvider", "change_setting", "find", "help_sections", "hint"]
