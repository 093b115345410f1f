"""The terminal app: starts an engine, listens to its events, shows them, sends what the user wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import TextArea

from specchat.engine.client import Link
from specchat.engine.replay import Player, Recording
from specchat.errors import SpecchatError
from specchat.tui import hearing
from specchat.tui.chat import Chat
from specchat.tui.commands import Command, CommandsProvider, find, help_sections, hint
from specchat.tui.fields import Field, fields_of
from specchat.tui.layout_tree import Mode
from specchat.tui.pairs import PairInfo
from specchat.tui.pump import Pump
from specchat.tui.screens.help import HelpScreen
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.screens.settings import SettingsScreen
from specchat.tui.talk import LinkFactory, Talk
from specchat.tui.theme import DARK, LIGHT
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.bars import Notice, ReplayBar, StatusBar
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.stats_panel import StatsPanel
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel, TreeStrip
from specchat.tui.widgets.welcome import Welcome


class SpecchatApp(App[None]):
    """Transcript left, tree and figures right, prompt below."""

    TITLE = "specchat"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {CommandsProvider}
    HORIZONTAL_BREAKPOINTS = [(0, "-w0"), (60, "-w60"), (80, "-w80"), (100, "-w100"), (140, "-w140")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-h0"), (8, "-h8"), (14, "-h14"), (20, "-h20"), (30, "-h30")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "copy, stop, quit", show=False, priority=True, id="interrupt"),
        Binding("escape", "stop", "stop", show=False, id="stop"),
        Binding("f1", "help", "help", show=False, id="help"),
        Binding("f2", "settings", "settings", show=False, id="settings"),
        Binding("f3", "toggle_stats", "figures", show=False, id="stats"),
        Binding("f4", "pairs", "pairs", show=False, id="pairs"),
        Binding("f8", "toggle_tokens", "token view", show=False, id="tokens"),
        Binding("ctrl+n", "new_chat", "new chat", show=False, id="new"),
        Binding("ctrl+t", "toggle_tree", "tree", show=False, id="tree"),
        Binding("ctrl+r", "restart", "restart the engine", show=False, id="restart"),
        Binding("space", "replay('hold')", "hold", show=False, id="replay.hold"),
        Binding("full_stop", "replay('step')", "step", show=False, id="replay.step"),
        Binding("less_than_sign", "replay('slower')", "slower", show=False, id="replay.slower"),
        Binding("greater_than_sign", "replay('faster')", "faster", show=False, id="replay.faster"),
        Binding("R,shift+r", "replay('rewind')", "again", show=False, id="replay.rewind"),
    ]

    def __init__(
        self,
        link_factory: LinkFactory,
        *,
        settings: dict[str, Any],
        pairs: Sequence[PairInfo] | Callable[[], list[PairInfo]] = (),
        demo: Path | None = None,
        tree_mode: Mode = "auto",
        ascii_marks: bool = False,
        theme: str = "specchat",
    ) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = theme if theme in self.available_themes else DARK.name
        self.chat = Chat(wanted=dict(settings))
        self.talk = Talk(self, link_factory, demo)
        self._pairs = pairs
        self._quit_asked = False
        self._stopping: int | str | None = None
        self._pump: Pump | None = None
        self.tree_panel = TreePanel(ascii_marks=ascii_marks, id="tree")
        self.tree_strip = TreeStrip(ascii_marks=ascii_marks, id="strip")
        self.tree_panel.mode = tree_mode
        self.transcript = Transcript(id="transcript")
        self.stats = StatsPanel(id="stats")
        self.prompt = Prompt(id="prompt")
        self.status = StatusBar(self.chat, id="status")
        self.notice = Notice(self.chat, id="notice")
        self.alert = Alert(id="alert")
        self.replay_bar = ReplayBar(id="replay")
        self._side_form = SettingsForm(id="settings")

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours that other themes do not define."""
        return {"quiet-color": "#8390a3", "line-color": "#5b687c"}

    def compose(self) -> ComposeResult:
        """The whole screen; nothing here waits for the engine."""
        with Horizontal(id="main"):
            yield self.transcript
            with Vertical(id="side"):
                yield self.tree_panel
                yield self.stats
                yield self._side_form
        yield self.tree_strip
        yield self.alert
        yield self.notice
        yield self.prompt
        yield self.replay_bar
        yield self.status

    async def on_mount(self) -> None:
        """Paint first, then start the engine."""
        self._pump = Pump(lambda: self.post_message(self.Tick()))
        await self.transcript.mount(Welcome(self.chat))
        self.prompt.focus()
        self.call_after_refresh(self.talk.connect)

    class Tick(Message):
        """It is time to look for events."""

    async def on_specchat_app_tick(self) -> None:
        """Take everything that arrived, show it once, and rest."""
        self.pump.begin()
        events = self.talk.link.drain() if self.talk.link else []
        with self.batch_update():
            await hearing.hear(self, events)
        self.call_after_refresh(self.pump.end)

    async def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Run a command, or say it to the model."""
        text = event.text.strip("\n")
        try:
            if found := find(text.strip()):
                self.prompt.taken(text)
                await self.run_command(*found)
            elif await self.talk.ask(text[1:] if text.startswith("//") else text):
                self.prompt.taken(text)
        except SpecchatError as error:
            self.say(str(error), "warn")

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Explain a command while it is typed; a remark has been read once typing goes on."""
        self._quit_asked = False
        self.status.hint(hint(event.text_area.text))
        if event.text_area.text:
            self.say("")

    def on_settings_form_chosen(self, event: SettingsForm.Chosen) -> None:
        """Change it between two rounds."""
        self.talk.change(event.name, event.value)

    async def on_settings_form_reload_asked(self, event: SettingsForm.ReloadAsked) -> None:
        """Load the models again with these."""
        await self.talk.load(event.changes)

    def on_settings_form_left(self) -> None:
        """Back to writing."""
        self.action_settings()

    async def on_alert_answered(self, event: Alert.Answered) -> None:
        """Do what the button says."""
        match event.choice:
            case "retry" | "restart":
                await self.talk.reconnect()
            case "pairs":
                self.action_pairs()
            case "demo":
                await self.talk.watch_demo()

    def on_transcript_copy_asked(self, event: Transcript.CopyAsked) -> None:
        """Copy it."""
        self._copy(event.text, "message")

    async def on_transcript_regenerate_asked(self) -> None:
        """Answer again."""
        await self.talk.ask_again()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the replay mean nothing without one."""
        return self.talk.player is not None if action == "replay" else True

    async def action_interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if selected:
            self._copy(selected, "selection")
            self.screen.clear_selection()
        elif self._busy_with() not in (None, self._stopping) and self.talk.stop():
            self._stopping = self._busy_with()
        elif self._quit_asked:
            self.exit()
        else:
            self._quit_asked = True
            self.say("press Ctrl+C again to quit")

    async def action_stop(self) -> None:
        """Leave a replay; stop what is running; else back to the prompt and to the end of the chat."""
        if self.talk.player is not None:
            await self.talk.leave_replay()
        elif not self.talk.stop():
            self.say("")
            self.transcript.follow()
            self.prompt.focus()

    async def action_restart(self) -> None:
        """Start the engine again, or load again."""
        await self.talk.reconnect()

    async def action_replay(self, what: str) -> None:
        """Steer a replay."""
        await self.talk.steer(what)

    def action_help(self) -> None:
        """All keys and commands."""
        self.push_screen(HelpScreen(help_sections()))

    def action_settings(self) -> None:
        """The settings beside the chat if there is room, else over it."""
        side = self.query_one("#side")
        if self.screen.has_class("-settings"):
            self._base.set_class(False, "-settings")
            self._look_at_side()
            self.prompt.focus()
        elif side.display or self._base.has_class("-no-side"):
            self._base.set_class(True, "-settings")
            self._look_at_side()
            self._side_form.show(self.fields())
            self._side_form.focus()
        else:
            self.push_screen(SettingsScreen(self.fields()), self._focus_prompt)

    def action_toggle_stats(self) -> None:
        """Hide or show the figures."""
        self._base.toggle_class("-no-stats")
        self._look_at_side()

    def action_toggle_tree(self) -> None:
        """Hide or show the tree."""
        self._base.toggle_class("-no-tree")
        self._look_at_side()

    def action_toggle_tokens(self) -> None:
        """Flip a reply between Markdown and tokens."""
        if view := self.transcript.reply_view():
            view.token_view = not view.token_view

    @work
    async def action_pairs(self) -> None:
        """Choose a pair and load it."""
        current = self.chat.ready.pair if self.chat.ready else ""
        name = await self.push_screen_wait(PairsScreen(self.pairs(), current))
        if name:
            await self.talk.load({"pair": name})

    async def action_new_chat(self) -> None:
        """Begin a new chat; a running reply is stopped."""
        self.talk.forget()
        await self.transcript.clear()
        await self.transcript.mount(Welcome(self.chat))
        self.say("")
        hearing.look(self)
        self.prompt.focus()

    def action_copy_reply(self) -> None:
        """Copy the last reply."""
        if view := self.transcript.reply_view():
            self._copy(self.transcript.text_of(view), "reply")

    @property
    def form(self) -> SettingsForm:
        """The settings form the user sees."""
        return self.screen.form if isinstance(self.screen, SettingsScreen) else self._side_form

    @property
    def pump(self) -> Pump:
        """Decides when to look for events."""
        assert self._pump is not None, "the app is mounted before it listens"
        return self._pump

    def fields(self) -> list[Field]:
        """The settings as they are in force."""
        return fields_of(self.chat.hello, self.chat.settings) if self.chat.hello else []

    def pairs(self) -> list[PairInfo]:
        """The pairs with their present state."""
        return self._pairs() if callable(self._pairs) else list(self._pairs)

    def say(self, text: str, role: str = "dim") -> None:
        """One remark in the line above the prompt."""
        self.notice.say(text, role)

    async def run_command(self, command: Command, argument: str) -> None:
        """Run a command; what is wrong with it is said in one line."""
        try:
            await command.run(self, argument)
        except SpecchatError as error:
            self.say(str(error), "warn")

    def show_replay(self, player: Player | None) -> None:
        """Controls of a replay in place of the prompt, or the prompt again."""
        self._base.set_class(player is not None, "-replay")
        self.replay_bar.show(player)
        (self.transcript if player else self.prompt).focus()

    def set_tree_mode(self, mode: str) -> None:
        """Draw trees this way from now on."""
        self.tree_panel.mode = mode  # type: ignore[assignment]
        self._base.set_class(False, "-no-tree")
        self._look_at_side()

    @property
    def _base(self) -> Any:
        return self.screen_stack[0]

    def _look_at_side(self) -> None:
        """The side is there as long as something stands in it."""
        base = self._base
        empty = base.has_class("-no-tree") and base.has_class("-no-stats") and not base.has_class("-settings")
        base.set_class(empty, "-no-side")

    def _busy_with(self) -> int | str | None:
        """What Ctrl+C stops, once: an engine that does not stop must not keep the user from leaving."""
        if self.talk.player is not None:
            return None
        if self.chat.phase == "loading":
            return "loading"
        return self.chat.running.id if self.chat.running else None

    def _focus_prompt(self, _: None) -> None:
        self.prompt.focus()

    def _copy(self, text: str, what: str) -> None:
        self.copy_to_clipboard(text)
        self.say(f"{what} copied")


def run_app(
    link_factory: LinkFactory | None,
    *,
    settings: dict[str, Any],
    pairs: Sequence[PairInfo] | Callable[[], list[PairInfo]] = (),
    replay: Recording | None = None,
    speed: float = 1.0,
    demo: Path | None = None,
    tree_mode: Mode = "auto",
    ascii_marks: bool = False,
    theme: str = "specchat",
) -> None:
    """Run the app until the user leaves, then let the engine go.

    `replay` plays a recording and needs no `link_factory`.
    """

    def play(wake: Callable[[], None]) -> Link:
        assert replay is not None, "a recording is played only if there is one"
        return Player(replay, wake, speed)

    factory = play if replay is not None else link_factory
    assert factory is not None, "the app needs an engine or a recording"
    app = SpecchatApp(
        factory, settings=settings, pairs=pairs, demo=demo, tree_mode=tree_mode, ascii_marks=ascii_marks, theme=theme
    )
    try:
        app.run()
    finally:
        if app.talk.link is not None:
            app.talk.link.close()
