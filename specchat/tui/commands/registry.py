"""The one table of commands, which slash commands, keys, palette and help page read; and commands about the view."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from specchat.engine.client.client import Engine
from specchat.errors import UsageError, cut, meant, nearest
from specchat.tui.commands import chat_commands as chats
from specchat.tui.commands import setting_commands as settings
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.screens.help_and_log import HelpScreen, LogScreen
from specchat.tui.screens.model_race import race_models, split_pair
from specchat.tui.screens.race import RaceScreen
from specchat.tui.services.key_bindings import key_sections
from specchat.tui.state.prompt_text import Completion
from specchat.tui.state.settings_fields import JOINED
from specchat.tui.text.key_names import label_of
from specchat.tui.tree import MODES


async def tree(screen: ChatScreen, mode: str) -> None:
    if not mode:
        screen.side_panel.toggle_tree()
    elif mode in MODES:
        screen.side_panel.set_tree_mode(mode)
    else:
        raise UsageError(f"no tree is drawn as {mode!r}{nearest(mode, MODES)}")


async def theme(screen: ChatScreen, name: str) -> None:
    app = screen.context.app
    if not name:
        app.search_themes()
    elif name in app.available_themes:
        app.theme = name
    else:
        raise UsageError(f"no theme is called {name!r}{nearest(name, list(app.available_themes))}")


async def step(screen: ChatScreen, rounds: str) -> None:
    if rounds and not (rounds.isdecimal() and len(rounds) < 5 and 0 < int(rounds) <= 1000):
        raise UsageError(f"/step takes a number of rounds, 1 to 1000, not {rounds!r}")
    screen.step(int(rounds or 1))


async def speed(screen: ChatScreen, speed: str) -> None:
    if speed:
        screen.context.speed.set_speed(speed)
    else:
        screen.context.app.say(screen.context.speed.describe())


async def race(screen: ChatScreen, words: str) -> None:
    context = screen.context
    pair, prompt = split_pair(context, words)
    context.app.push_screen(await race_models(context, pair, prompt) if pair else RaceScreen(context, prompt))


async def benchmark(screen: ChatScreen, amount: str) -> None:
    screen.context.app.push_screen(BenchScreen(screen.context, amount))


async def tour(screen: ChatScreen, _: str) -> None:
    await screen.start_pages.show_tour()
    screen.prompt.focus()


async def show_log(screen: ChatScreen, _: str) -> None:
    app, link, engine = screen.context.app, screen.context.session.link, screen.chat.engine
    if isinstance(link, Engine):
        app.push_screen(LogScreen(link.log, engine.problem if engine.phase == "dead" else ""))
    else:
        app.say("there is no engine here, and so no log")


@dataclass(frozen=True)
class SlashCommand:
    name: str
    help: str
    does: Callable[[ChatScreen, str], Awaitable[None] | None]
    usage: str = ""  # what follows the name; in brackets if it may be left out
    binding: str = ""  # the id of its key, where that is not its name
    values: Callable[[ChatScreen, list[str]], Sequence[str]] | None = None  # what may follow these arguments

    async def run(self, screen: ChatScreen, argument: str) -> None:
        """Do it; raises SpecchatError where that is not possible."""
        if (waits := self.does(screen, argument)) is not None:
            await waits

    def choices(self, screen: ChatScreen, given: list[str]) -> Sequence[str]:
        """What may follow these arguments; where no function says it, what the usage spells out, `[auto|river]`."""
        if self.values is not None:
            return self.values(screen, given)
        usage = self.usage.split()[len(given) :]
        choices = usage[0].strip("[]").split("|") if usage else []
        return [word for word in choices if word.islower()] if len(choices) > 1 else []

    @property
    def needs(self) -> int:
        return sum(not word.startswith("[") for word in self.usage.split())


_METHOD_HELP = {
    "drafter": "who guesses the next words",
    "policy": "which guesses are tried",
    "rule": "which guesses are kept",
    "controller": "how much each round guesses",
}


async def _help(screen: ChatScreen, _: str) -> None:
    screen.context.app.push_screen(HelpScreen(help_sections(screen.context.app.keys)))


COMMANDS: dict[str, SlashCommand] = {
    command.name: command
    for command in (
        SlashCommand("help", "all keys and commands", _help),
        SlashCommand("new", "begin a new chat", chats.new_chat),
        SlashCommand("pair", "choose the model to chat with", settings.pair, "[NAME]", values=settings.pair_names),
        SlashCommand("model", "the same as /pair", settings.pair, "[NAME]", values=settings.pair_names),
        SlashCommand("settings", "show or hide all settings", lambda on, _: on.side_panel.toggle_settings()),
        SlashCommand(
            "set", "change one setting", settings.set_setting, "NAME VALUE", values=settings.setting_and_value
        ),
        SlashCommand(
            "whatif",
            "what other settings would have meant for the last reply; changes nothing",
            settings.what_if,
            "[NAME=VALUE…]",
            values=settings.settings_to_try,
        ),
        SlashCommand("save", "keep the settings as default, or for this pair only", settings.save_settings, "[pair]"),
        *(
            SlashCommand(
                setting,
                f"choose {what} (the {setting}); acts at once",
                partial(settings.choose_method, setting=setting),
                "[NAME]",
                values=partial(settings.method_names, setting=setting),
            )
            for setting, what in _METHOD_HELP.items()
        ),
        SlashCommand("tree", "hide or show the tree, or choose how it is drawn", tree, f"[{'|'.join(MODES)}]"),
        SlashCommand(
            "show",
            "fill the window with slow, branching trees; again ends it",
            lambda on, prompt: on.show_mode.toggle(prompt),
            "[PROMPT]",
        ),
        SlashCommand("clip", "write the best rounds as a moving picture", chats.clip, "[svg|cast|gif] [FILE]"),
        SlashCommand("pause", "hold the reply, or let it go on", lambda on, _: on.hold(), binding="pace.hold"),
        SlashCommand("step", "do one round, or this many, and hold", step, "[ROUNDS]", binding="pace.step"),
        SlashCommand("speed", "rounds per second, or full", speed, "[full|NUMBER]"),
        SlashCommand("lens", "show at which layer of the model each token was decided", settings.lens, "[on|off]"),
        SlashCommand(
            "stats", "all figures, none, or the most important ones", lambda on, _: on.side_panel.turn_stats()
        ),
        SlashCommand("tokens", "flip a reply between Markdown and tokens", lambda on, _: on.transcript.toggle_tokens()),
        SlashCommand(
            "retry", "answer the last question again, beside the answer it has", lambda on, _: on.replies.ask_again()
        ),
        SlashCommand("continue", "go on with the last reply where it was cut", lambda on, _: on.replies.go_on()),
        SlashCommand(
            "edit",
            "say your last message, or the last reply, differently; the chat as it was stays beside it",
            chats.edit,
            "[message|reply]",
        ),
        SlashCommand("fork", "say this in place of your last message", chats.fork, "[TEXT]"),
        SlashCommand("copy", "copy the last reply, or its last code block", chats.copy, "[reply|code]"),
        SlashCommand(
            "race",
            "the same question with guesses and without, side by side, or two models",
            race,
            "[MODEL] [PROMPT]",
            values=settings.pair_names,
        ),
        SlashCommand(
            "bench",
            "measure these settings against plain decoding, on this many questions or for this long",
            benchmark,
            "[6|24|60s]",
        ),
        SlashCommand("clear", "begin a new chat", chats.new_chat),
        SlashCommand(
            "system",
            "set the system message, or use or save one by name (- removes it)",
            chats.system,
            "[TEXT|NAME|save NAME]",
            values=chats.system_names,
        ),
        SlashCommand(
            "schema",
            "hold replies to a JSON schema of a file, or to any JSON object",
            chats.schema,
            "[FILE|json|off]",
            values=chats.schema_names,
        ),
        SlashCommand(
            "find",
            "find words in this chat, from its end to its beginning",
            lambda on, words: on.find(words),
            "[WORDS]",
        ),
        SlashCommand(
            "chats",
            "open, search, rename, delete, export chats",
            lambda on, words: on.current_chat.choose(words),
            "[WORDS]",
        ),
        SlashCommand("export", "write this chat to a file", chats.export_chat, "[md|json|html] [FILE]"),
        SlashCommand("rename", "give this chat a name", chats.rename, "[TITLE]"),
        SlashCommand(
            "theme",
            "choose colours",
            theme,
            "[NAME]",
            values=lambda on, given: () if given else sorted(on.context.app.available_themes),
        ),
        SlashCommand("restart", "start an engine that has stopped", lambda on, _: on.context.session.reconnect()),
        SlashCommand("demo", "watch a recorded chat", lambda on, _: on.current_chat.watch_demo()),
        SlashCommand(
            "serve",
            "let other programs use this engine, over HTTP",
            lambda on, port: on.context.app.note(on.context.server.serve(port)),
            "[PORT|off]",
        ),
        SlashCommand(
            "learn",
            "let the drafter learn from your replies; what it has learnt",
            lambda on, argument: on.learning.run(argument),
            "[on|off|forget]",
        ),
        SlashCommand(
            "train",
            "train a drafter for this pair's model in the background; again shows how far it is",
            lambda on, argument: on.trainings.train(argument),
            "[stop|resume]",
        ),
        SlashCommand("tour", "see the tour of the first start again", tour),
        SlashCommand(
            "lesson",
            "five short lessons on your own question: tokens, passes, guesses, trees, and when it pays",
            lambda on, number: on.lessons.run(number),
            "[1-5]",
        ),
        SlashCommand("log", "the end of the engine's log, and the path of its file", show_log),
        SlashCommand("exit", "leave", lambda on, _: on.context.app.exit(), binding="quit"),
        SlashCommand("quit", "the same as /exit", lambda on, _: on.context.app.exit()),
    )
}


def is_command(text: str) -> bool:
    """Whether a line asks for a command, known or not; with two slashes it is text."""
    return text.lstrip().startswith("/") and not text.lstrip().startswith("//")


def find(text: str) -> tuple[SlashCommand, str] | None:
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


def complete_command(line: str, screen: ChatScreen) -> Completion | None:
    """The commands, or the arguments of one, that a line up to the cursor may go on with; None where there are none."""
    name, space, rest = line[1:].partition(" ")
    if not space:
        fitting = sorted((one for one in COMMANDS if name in one), key=lambda one: not one.startswith(name))
        words = [f"/{one}" + " " * bool(COMMANDS[one].usage) for one in fitting]
        return Completion(0, tuple(words)) if words else None
    if (command := COMMANDS.get(name)) is None:
        return None
    given = rest.split()
    typed = given.pop() if given and not rest[-1].isspace() else ""
    joined: list[str] = []
    if [name, *given][-1] in JOINED:
        *joined, typed = typed.split("+")
    end = " " if len(given) + 1 < command.needs else ""
    values = command.choices(screen, given)
    words = [value + end for value in values if value.startswith(typed) and value not in joined]
    return Completion(len(line) - len(typed), tuple(words)) if words else None


def hint(text: str) -> str:
    """What could be meant by what has been typed so far, as one line."""
    if not is_command(text) or "\n" in text:
        return ""
    name, space, _ = text[1:].partition(" ")
    if space and name in COMMANDS:
        return f"/{name} {COMMANDS[name].usage} – {COMMANDS[name].help}"
    fitting = [command for command in COMMANDS.values() if command.name.startswith(name)]
    if len(fitting) == 1:
        return f"/{fitting[0].name} {fitting[0].usage} – {fitting[0].help}".replace("  ", " ")
    return "  ".join(f"/{command.name}" for command in fitting)


def help_sections(changed: Mapping[str, str] | None = None) -> list[tuple[str, list[tuple[str, str]]]]:
    slashed = [(f"/{command.name} {command.usage}".strip(), command.help) for command in COMMANDS.values()]
    marks = [("● accepted  ★ bonus", "drafted and kept · the target's own token"),
             ("✕ rejected  ○ not reached", "the target wrote another · never got there"),
             ("⊘ pruned  ◐ cut off", "dropped in the middle of a pass · the reply ended"),
             ("◌ pending  ² agreed", "not judged yet · proposed by two drafters"),
             ("▧ forbidden", "does not fit the /schema that the reply is held to"),
             ("τ", "mean tokens per round, the bonus included"),
             ("2.7× ± 0.1", "sooner than without guesses, by rounds of the same reply that made none")]  # fmt: skip
    return [*key_sections(changed or {}), ("Commands", slashed), ("What the tree says", marks)]


class CommandsProvider(Provider):
    """Lists the commands in the palette; they act on the screen below all others."""

    async def discover(self) -> Hits:
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
                name = f"/{command.name}"
                begins = any(name.startswith((word, f"/{word}")) for word in words)
                share = sum(len(word) for word in words if word in name) / len(name)
                yield Hit((0.1 + 0.4 * min(1.0, share) + 0.5 * begins), shown, partial(self._run, command))

    def _line(self, command: SlashCommand) -> str:
        key = label_of(self.screen, command.binding or command.name)
        return f"/{command.name}  {command.help}" + (f" ({key})" if key else "")

    async def _run(self, command: SlashCommand) -> None:
        screen = cast(ChatScreen, self.app.screen_stack[0])
        app = screen.context.app
        if command.needs and screen.chat.background.replaying:
            app.say(app.recording_reason, "warn")
        elif command.needs:
            screen.prompt.write(f"/{command.name} ")
            screen.prompt.focus()
        else:
            await app.attempt(command.run(screen, ""))
