"""The one table of commands: slash commands, keys, the palette and the help page all read it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from specchat.errors import UsageError, cut, meant
from specchat.tui.commands import chat_commands, setting_commands, view_commands
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.screens.help_and_log import HelpScreen
from specchat.tui.services.key_bindings import key_sections
from specchat.tui.state.prompt_text import values_of_usage
from specchat.tui.state.settings_fields import FAMILIES
from specchat.tui.tree import MODES


@dataclass(frozen=True)
class Command:
    """A command that the user can run by name."""

    name: str
    help: str
    run: Callable[[ChatScreen, str], Awaitable[None]]
    usage: str = ""  # what follows the name; in brackets if it may be left out
    binding: str = ""  # the id of its key, where that is not its name
    values: Callable[[ChatScreen, list[str]], Sequence[str]] | None = None  # what may follow these arguments

    def choices(self, screen: ChatScreen, given: list[str]) -> Sequence[str]:
        """The values that may follow the arguments given so far."""
        return self.values(screen, given) if self.values else values_of_usage(self.usage, len(given))

    @property
    def needs(self) -> int:
        """How many arguments must be given."""
        return sum(not word.startswith("[") for word in self.usage.split())


_METHOD_HELP = {
    "drafter": "who guesses the next words",
    "policy": "which guesses are tried",
    "rule": "which guesses are kept",
    "controller": "how much each round guesses",
}


async def _help(screen: ChatScreen, _: str) -> None:
    app = screen.context.app
    app.push_screen(HelpScreen(help_sections(app.keys)))


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("help", "all keys and commands", _help),
        Command("new", "begin a new chat", chat_commands.new_chat),
        Command(
            "pair", "choose the model to chat with", setting_commands.pair, "[NAME]", values=setting_commands.pair_names
        ),
        Command("model", "the same as /pair", setting_commands.pair, "[NAME]", values=setting_commands.pair_names),
        Command("settings", "show or hide all settings", setting_commands.settings),
        Command(
            "set",
            "change one setting",
            setting_commands.set_setting,
            "NAME VALUE",
            values=setting_commands.setting_and_value,
        ),
        Command(
            "save", "keep the settings as default, or for this pair only", setting_commands.save_settings, "[pair]"
        ),
        *(
            Command(
                setting,
                f"choose {_METHOD_HELP[setting]} (the {setting}); acts at once",
                partial(setting_commands.choose_method, setting=setting),
                "[NAME]",
                values=partial(setting_commands.method_names, setting=setting),
            )
            for setting in FAMILIES
        ),
        Command("tree", "hide or show the tree, or choose how it is drawn", view_commands.tree, f"[{'|'.join(MODES)}]"),
        Command("show", "fill the window with slow, branching trees; again ends it", view_commands.show, "[PROMPT]"),
        Command("clip", "write the last rounds as a moving picture", chat_commands.clip, "[svg|cast|gif] [FILE]"),
        Command("pause", "hold the reply, or let it go on", view_commands.pause, binding="pace.hold"),
        Command("step", "do one round, or this many, and hold", view_commands.step, "[ROUNDS]", binding="pace.step"),
        Command("speed", "rounds per second, or full", view_commands.speed, "[full|NUMBER]"),
        Command("stats", "all figures, none, or the most important ones", view_commands.stats),
        Command("tokens", "flip a reply between Markdown and tokens", view_commands.tokens),
        Command("retry", "answer the last question again, beside the answer it has", chat_commands.retry),
        Command("continue", "go on with the last reply where it was cut", chat_commands.go_on),
        Command(
            "edit",
            "say your last message, or the last reply, differently; the chat as it was stays beside it",
            chat_commands.edit,
            "[message|reply]",
        ),
        Command("fork", "say this in place of your last message", chat_commands.fork, "[TEXT]"),
        Command("copy", "copy the last reply, or its last code block", chat_commands.copy, "[reply|code]"),
        Command("race", "plain decoding and speculation side by side", view_commands.race, "[PROMPT]"),
        Command(
            "bench",
            "measure these settings against plain decoding, on this many questions or for this long",
            view_commands.benchmark,
            "[6|24|60s]",
        ),
        Command("clear", "begin a new chat", chat_commands.new_chat),
        Command(
            "system",
            "set the system message, or use or save one by name (- removes it)",
            chat_commands.system,
            "[TEXT|NAME|save NAME]",
            values=chat_commands.system_names,
        ),
        Command("find", "find words in this chat, from its end to its beginning", chat_commands.find, "[WORDS]"),
        Command("chats", "open, search, rename, delete, export chats", chat_commands.chats, "[WORDS]"),
        Command("export", "write this chat to a file", chat_commands.export_chat, "[md|json|html] [FILE]"),
        Command("rename", "give this chat a name", chat_commands.rename, "[TITLE]"),
        Command("theme", "choose colours", view_commands.theme, "[NAME]", values=view_commands.theme_names),
        Command("restart", "start an engine that has stopped", view_commands.restart),
        Command("demo", "watch a recorded chat", view_commands.demo),
        Command("serve", "let other programs use this engine, over HTTP", view_commands.serve, "[PORT|off]"),
        Command(
            "learn",
            "let the drafter learn from your replies; what it has learnt",
            view_commands.learn,
            "[on|off|forget]",
        ),
        Command(
            "train",
            "train a drafter for this pair's model in the background; again shows how far it is",
            view_commands.train,
            "[stop|resume]",
        ),
        Command("tour", "see the tour of the first start again", view_commands.tour),
        Command("log", "the end of the engine's log, and the path of its file", view_commands.show_log),
        Command("exit", "leave", view_commands.exit_app, binding="quit"),
        Command("quit", "the same as /exit", view_commands.exit_app),
    )
}


def is_command(text: str) -> bool:
    """Whether a line asks for a command, known or not; with two slashes it is text."""
    return text.lstrip().startswith("/") and not text.lstrip().startswith("//")


def find(text: str) -> tuple[Command, str] | None:
    """The command a line asks for and what follows its name; None if the line is not a command.

    Raises UsageError where a line begins with a slash but names no command, or has more than the command takes.
    """
    if not is_command(text):
        return None
    name, *rest = text[1:].split(maxsplit=1) or [""]
    argument = rest[0].strip() if rest else ""
    if name in COMMANDS:
        if argument and not COMMANDS[name].usage:
            raise UsageError(f"/{name} takes no argument, but got {cut(argument, 40)!r}")
        return COMMANDS[name], argument
    near = meant(f"/{name}", [f"/{known}" for known in COMMANDS]) or "; /help shows all of them"
    raise UsageError(f"there is no command /{cut(name, 40)}{near} (// sends it as text)")


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
             ("✕ rejected  ○ not reached", "the target wrote another · never got there"),
             ("⊘ pruned  ◐ cut off", "dropped in the middle of a pass · the reply ended"),
             ("◌ pending  ² agreed", "not judged yet · proposed by two drafters"),
             ("τ", "mean tokens per round, the bonus included"),
             ("2.7× ± 0.1", "against plain decoding, by plain rounds of the same reply")]  # fmt: skip
    return [*key_sections(changed or {}), ("Commands", slashed), ("What the tree says", marks)]


class CommandsProvider(Provider):
    """Lists the commands in the palette; they act on the screen below all others."""

    @property
    def _chat_screen(self) -> ChatScreen:
        return cast(ChatScreen, self.app.screen_stack[0])

    async def discover(self) -> Hits:
        """All commands, before anything is typed."""
        for command in COMMANDS.values():
            yield DiscoveryHit(self._line(command), partial(self._run, command))

    async def search(self, query: str) -> Hits:
        """Commands whose line has all the words typed, those first whose name has them."""
        words = query.lower().split()
        for command in COMMANDS.values():
            line = self._line(command)
            if all(word in line.lower() for word in words):
                shown = Content(line)
                for word in words:
                    shown = shown.highlight_regex(re.compile(re.escape(word), re.IGNORECASE), style="underline")
                yield Hit(_score(f"/{command.name}", words), shown, partial(self._run, command))

    def _line(self, command: Command) -> str:
        key = self._chat_screen.context.app.key_of(command.binding or command.name)
        return f"/{command.name}  {command.help}" + (f" ({key})" if key else "")

    async def _run(self, command: Command) -> None:
        screen = self._chat_screen
        app = screen.context.app
        if command.needs and screen.chat.background.replaying:
            app.say(app.recording_reason, "warn")
        elif command.needs:
            screen.prompt.write(f"/{command.name} ")
            screen.prompt.focus()
        else:
            await app.attempt(command.run(screen, ""))


def _score(name: str, words: Sequence[str]) -> float:
    """From 0 to 1: how much of the name the words are; a name that begins with one comes before all others."""
    begins = any(name.startswith((word, f"/{word}")) for word in words)
    share = sum(len(word) for word in words if word in name) / len(name)
    return 0.1 + 0.4 * min(1.0, share) + 0.5 * begins
