"""The terminal app: starts an engine, listens to its events, shows them, sends what the user wants."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.driver import Driver
from textual.events import Resize
from textual.filter import LineFilter, Monochrome, NoColor
from textual.geometry import Size
from textual.message import Message
from textual.widgets import TextArea

from specchat.config import AppOptions
from specchat.config.saving import set_app
from specchat.engine.near.replay import Player
from specchat.errors import SpecchatError
from specchat.tui.control import event_dispatch
from specchat.tui.control.commands import COMMANDS, Command, CommandsProvider, help_sections
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.engine_session import EngineSession, LinkFactory
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.key_bindings import key_table, keymap
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.control.prompt_controller import PromptController
from specchat.tui.control.races import Races
from specchat.tui.control.round_animation import RoundAnimation
from specchat.tui.control.tour import Tour
from specchat.tui.draw.theme import DARK, MONO, OWN
from specchat.tui.draw.token_tree import Mode
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.chats import ChatsScreen
from specchat.tui.screens.help import HelpScreen
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.screens.settings import SettingsScreen
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.services.pair_library import Judge, PairLibrary, Pairs
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.services.terminal_window import TerminalWindow
from specchat.tui.state.prompt_history import History
from specchat.tui.state.race_series import Asked
from specchat.tui.state.session import Chat
from specchat.tui.state.settings_fields import Field, fields_of
from specchat.tui.system.cpu_meter import CpuMeter
from specchat.tui.system.exit_guard import ExitGuard
from specchat.tui.system.window_size import bounded
from specchat.tui.text.ascii import Ascii
from specchat.tui.text.harmless import Harmless
from specchat.tui.text.key_names import names_of
from specchat.tui.textual_fixes.compositing import MainScreen
from specchat.tui.textual_fixes.whole_pastes import take_pastes_whole
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.messages import text_of
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.queued_message import QueuedMessage
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.stats_panel import StatsPanel
from specchat.tui.widgets.status_bars import Notice, ReplayBar, StatusBar
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel
from specchat.tui.widgets.tree_strip import TreeStrip
from specchat.tui.widgets.welcome import Welcome


class SpecchatApp(App[None]):
    """Transcript left, tree and figures right, prompt below."""

    TITLE = "specchat"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {CommandsProvider}
    HORIZONTAL_BREAKPOINTS = [(0, "-w0"), (60, "-w60"), (80, "-w80"), (100, "-w100"), (140, "-w140")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-h0"), (8, "-h8"), (14, "-h14"), (20, "-h20"), (30, "-h30")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "all keys and commands", show=False, id="help"),
        Binding("ctrl+p", "command_palette", "find a command", show=False, priority=True, id="palette"),
        Binding("escape", "stop", "stop at the next round, keep the text", show=False, id="stop"),
        Binding(
            "ctrl+c",
            "interrupt",
            "copy the selection, else stop; twice: leave",
            show=False,
            priority=True,
            id="interrupt",
        ),
        Binding("ctrl+q", "quit", "leave at once", show=False, priority=True, id="quit"),
        Binding("ctrl+r", "search", "search what you sent before", show=False, id="search"),
        Binding("ctrl+g", "edit_elsewhere", "edit the prompt in $VISUAL or $EDITOR", show=False, id="editor"),
        Binding("ctrl+n", "new_chat", "begin a new chat", show=False, id="new"),
        Binding("ctrl+o", "chats", "open, search, rename, delete, export chats", show=False, id="chats"),
        Binding("f4", "pairs", "choose what to talk to", show=False, id="pair"),
        Binding("f2", "settings", "show or hide all settings", show=False, id="settings"),
        Binding("ctrl+t", "toggle_tree", "hide or show the tree", show=False, id="tree"),
        Binding("f3", "toggle_stats", "hide or show the figures", show=False, id="stats"),
        Binding("f8", "toggle_tokens", "flip a reply between Markdown and tokens", show=False, id="tokens"),
        Binding(
            "ctrl+z", "suspend_process", "go to the background; fg returns", show=False, priority=True, id="suspend"
        ),
        Binding("f5", "restart", "start the engine again", show=False, id="restart"),
        Binding("space", "pace('hold')", "hold the rounds, or let them go on", show=False, id="pace.hold"),
        Binding("full_stop", "pace('step')", "do one round", show=False, id="pace.step"),
        Binding("less_than_sign", "pace('slower')", "slower", show=False, id="pace.slower"),
        Binding("greater_than_sign", "pace('faster')", "faster", show=False, id="pace.faster"),
        Binding("R,shift+r", "pace('rewind')", "play a recording again", show=False, id="pace.rewind"),
    ]

    def __init__(
        self,
        link_factory: LinkFactory,
        *,
        settings: dict[str, Any],
        pairs: Pairs = (),
        judge: Judge | None = None,
        demo: Path | None = None,
        tree_mode: Mode = "auto",
        keys: Mapping[str, str] | None = None,
        history: History | None = None,
        engine_here: bool = True,
        options: AppOptions | None = None,
        store: Path | None = None,
        chat: str | None = "",
        toured: Path | None = None,
        questions: Callable[[], Sequence[Asked]] = tuple,
        guard: ExitGuard | None = None,
    ) -> None:
        """The app, not yet running.

        Args:
            link_factory: starts an engine, or whatever answers like one.
            pairs, judge: the pairs there are, and what tells more about one.
            demo: a recording to offer where weights cannot be had.
            engine_here: whether the engine reads this machine's files.
            store: the file the chats are in; None keeps nothing.
            chat: the id of the chat to go on with; None asks which, "" begins a new one.
            toured: the file that says the tour was taken; None takes no tour.
            questions: what a benchmark asks.
            guard: what ends the app when it is told to from outside; None leaves that to whoever runs it.
        """
        super().__init__()
        options = options or AppOptions()
        self.keys = keymap(keys or {})
        self.key_table = key_table(self.keys)
        self._set_themes(options.theme)
        if not options.animations:
            self.animation_level = "none"
        self.guard = guard or ExitGuard()
        self.chat = Chat(wanted=dict(settings))
        self.session = EngineSession(self, link_factory, demo)
        self.terminal = TerminalWindow(
            self.chat,
            options,
            notify=self.say,
            run=self.run_in_background,
            write=self._write_to_terminal,
            bell=self.bell,
            focused=lambda: self.app_focus,
        )
        self.context_limit = ContextLimit(self)
        self.tour = Tour(self, toured)
        self.settings_files = SettingsFiles(self.chat, here=engine_here)
        self.pairs = PairLibrary(
            self.chat,
            pairs,
            judge,
            here=engine_here,
            notify=self.say,
            redraw=self._repaint_status,
            load=self.session.load,
            run=self.run_in_background,
            key_of=self.key_of,
        )
        self.races = Races(self, questions)
        self.speed = PlaybackSpeed(self)
        self.round_animation = RoundAnimation(self)
        self.archive = ChatArchive(
            self.chat,
            store,
            notify=self.say,
            redraw=self._repaint_status,
            call_later=self.call_later,
            listening=lambda: self.session.player is None,
        )
        self._first_chat = chat
        self._quit_asked = False
        self._stopping: int | str | None = None
        self._pump: EventPump | None = None
        self._harmless = Harmless()
        self._plain = Ascii(sys.__stderr__.encoding if sys.__stderr__ else "ascii") if options.ascii else None
        self.cpu_meter = CpuMeter()
        self.garbage = GarbageCollection(lambda: self.pump.idle)
        self.tree_panel = TreePanel(ascii_marks=options.ascii, id="tree")
        self.tree_strip = TreeStrip(ascii_marks=options.ascii, id="strip")
        self.tree_panel.mode = tree_mode
        self.transcript = Transcript(id="transcript")
        for watched in (self.transcript, self.tree_panel):
            watched.add_class("-paces")
        self.stats = StatsPanel(id="stats")
        self.prompt_controller = PromptController(self)
        self.prompt = Prompt(history, self.prompt_controller.complete, id="prompt")
        self.status = StatusBar(self.chat, self.key_of, id="status")
        self.notice = Notice(self.chat, id="notice")
        self.queued_message = QueuedMessage(self.chat, self.key_of, id="waiting")
        self.alert = Alert(self.key_of, id="alert")
        self.replay_bar = ReplayBar(self.key_of, id="replay")
        self._side_form = SettingsForm(id="settings")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """What every line goes through before it is shown."""
        filters = [*super().get_line_filters(), self._harmless]
        return filters if self._plain is None else [*filters, self._plain]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of ours that other themes do not define."""
        return {"quiet-color": "#8390a3", "line-color": "#5b687c"}

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice; behind a browser, one that leaves with its server."""
        driver = super().get_driver_class()
        take_pastes_whole(driver)
        if driver.__name__ == "WebDriver":
            from specchat.tui.system.browser import BrowserDriver

            return BrowserDriver
        return driver

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
        yield self.queued_message
        yield self.prompt
        yield self.replay_bar
        yield self.status

    def get_default_screen(self) -> MainScreen:
        """The screen of the chat."""
        return MainScreen(id="_default")

    async def on_mount(self) -> None:
        """Paint first, then start the engine."""
        self.set_keymap(self.keys)
        self.listen_for_end()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # others drew on the terminal
        self.theme_changed_signal.subscribe(self, lambda theme: self._remember_theme(theme.name))
        self._pump = EventPump(lambda: self.post_message(self.Tick()))
        await self.transcript.mount(Welcome(self.chat))
        self.prompt.focus()
        self.archive.start()
        await self.tour.first_start()
        self.call_after_refresh(self.garbage.begin)
        self.call_after_refresh(self.session.connect)
        if self._first_chat is None:
            self.call_after_refresh(self.action_chats)
        elif self._first_chat:
            self.call_after_refresh(self.open_chat, self._first_chat)

    async def on_unmount(self) -> None:
        """What is being fetched stops; the next time goes on from there."""
        await self.pairs.close()

    def listen_for_end(self) -> None:
        """From now on the app can leave in order when it is told to from outside."""
        loop = asyncio.get_running_loop()

        def leave(code: int) -> None:
            with suppress(RuntimeError):  # the loop is closed: it has left already
                loop.call_soon_threadsafe(self.exit, None, code)

        self.guard.listen(leave)

    @property
    def size(self) -> Size:
        """The window's size, within what can be drawn."""
        return bounded(super().size)

    async def _on_resize(self, event: Resize) -> None:
        """A window says how large it is; a browser or a variable can say anything."""
        size = bounded(event.size)
        await super()._on_resize(event if size == event.size else Resize(size, size))

    def _end_batch(self) -> None:
        """Draw what changed within a batch when it ends: Textual 8.2.8 leaves it until something else happens."""
        super()._end_batch()
        if not self._batch_count:
            for screen in self.screen_stack:
                screen.check_idle()

    class Tick(Message):
        """It is time to look for events."""

    async def on_specchat_app_tick(self) -> None:
        """Take everything that arrived, show it once, and rest."""
        owed = self.pump.begin()
        events = self.session.link.drain() if self.session.link else []
        with self.batch_update():
            await event_dispatch.hear(self, self.round_animation.due(self.races.take(events)), owed)
        self.call_after_refresh(self.pump.end)

    async def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Run a command, or say it to the model."""
        await self.prompt_controller.submit(event.text)

    async def on_prompt_nothing(self) -> None:
        """Enter without a word turns the tour's page."""
        await self.tour.next()

    async def on_tour_view_clicked(self) -> None:
        """So does a click."""
        await self.tour.next()

    def on_prompt_taken_back(self) -> None:
        """What waits is being edited again."""
        self.prompt_controller.take_back()

    async def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Explain a command while it is typed; a remark has been read once typing goes on."""
        self._quit_asked = False
        self.prompt_controller.changed()
        if event.text_area.text:
            await self.tour.leave()
        if event.text_area.text not in ("", self.prompt.written):
            self.say("")

    def on_settings_form_chosen(self, event: SettingsForm.Chosen) -> None:
        """Change it between two rounds."""
        self.session.change(event.name, event.value)

    async def on_settings_form_reload_asked(self, event: SettingsForm.ReloadAsked) -> None:
        """Load the models again with these."""
        await self.session.load(event.changes)

    async def on_settings_form_save_asked(self, event: SettingsForm.SaveAsked) -> None:
        """Write them down."""
        await self.run_command(COMMANDS["save"], "pair" if event.into_pair else "")

    def on_settings_form_left(self) -> None:
        """Back to writing."""
        self.action_settings()

    def on_race_screen_leave_asked(self) -> None:
        """Stop the race and close it."""
        self.races.leave()

    def on_bench_screen_stop_asked(self) -> None:
        """Stop the benchmark, or close it where it has ended."""
        self.races.stop_or_leave()

    @on(RaceScreen.AgainAsked)
    @on(BenchScreen.AgainAsked)
    def _race_again(self) -> None:
        """Hold the same race or benchmark once more."""
        self.races.again()

    async def on_alert_answered(self, event: Alert.Answered) -> None:
        """Do what the button says."""
        match event.choice:
            case "retry" | "restart":
                await self.session.reconnect()
            case "pairs":
                self.action_pairs()
            case "demo":
                await self.session.watch_demo()
            case choice:
                await self.context_limit.answered(choice)

    def on_transcript_copy_asked(self, event: Transcript.CopyAsked) -> None:
        """Copy it."""
        if event.text:
            self.copy_to_clipboard(event.text, event.what)
        else:
            self.say(f"there is no {event.what} to copy")

    def on_transcript_shortened(self) -> None:
        """What has gone is not needed any more."""
        self.garbage.soon()

    async def on_transcript_regenerate_asked(self, event: Transcript.RegenerateAsked) -> None:
        """Answer again."""
        await self.attempt(self.session.ask_again(event.turn))

    def on_transcript_edit_asked(self, event: Transcript.EditAsked) -> None:
        """Say it differently."""
        self.session.edit(event.turn)

    async def on_transcript_switch_asked(self, event: Transcript.SwitchAsked) -> None:
        """Read another branch."""
        await self.session.switch(event.turn, event.step)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be paced now has no keys."""
        if action == "suspend_process":
            return self._driver is not None and self._driver.can_suspend
        return self.speed.can(str(parameters[0])) if action == "pace" else True

    async def action_interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        selected = self.screen.get_selected_text() or self.prompt.selected_text
        if selected:
            self.copy_to_clipboard(selected, "selection")
            self.screen.clear_selection()
            self.prompt.move_cursor(self.prompt.cursor_location)  # … and there: the next one stops, or leaves
        elif self.races.leave():
            self._quit_asked = False
        elif self._busy_with() not in (None, self._stopping) and self.session.stop():
            self._stopping = self._busy_with()
        elif self._quit_asked:
            self.exit()
        else:
            self._quit_asked = True
            self.say(f"press {self.key_of('interrupt')} again to quit")

    async def action_stop(self) -> None:
        """Leave a replay; take back what waits; stop what runs; else back to the prompt and the end of the chat."""
        if self.session.player is not None:
            await self.session.leave_replay()
        elif self.chat.editing is not None:
            self.session.leave_edit()
        elif self.context_limit.problem or self.context_limit.waiting:
            await self.context_limit.answered("back")
        elif not self.prompt_controller.take_back() and not await self.tour.leave() and not self.session.stop():
            self.say("")
            self._base.set_class(False, "-tree-alone")
            self.transcript.follow()
            self.prompt.focus()

    async def action_restart(self) -> None:
        """Start the engine again, or load again."""
        await self.session.reconnect()

    def action_search(self) -> None:
        """Look for something that was sent before."""
        self.prompt_controller.search()

    def action_edit_elsewhere(self) -> None:
        """Write the prompt in an editor."""
        self.prompt_controller.edit_elsewhere()

    async def action_pace(self, what: str) -> None:
        """Hold, step, change the speed, or play again."""
        await self.attempt(self.speed.act(what))

    def action_help(self) -> None:
        """All keys and commands."""
        self.push_screen(HelpScreen(help_sections(self.keys)))

    def action_settings(self) -> None:
        """The settings beside the chat if there is room, else over it."""
        if self.screen.has_class("-settings"):
            self._base.set_class(False, "-settings")
            self._look_at_side()
            self.prompt.focus()
        elif self._roomy:
            self._base.set_class(True, "-settings")
            self._look_at_side()
            self._side_form.show_effect(self.chat.effect)
            self._side_form.show(self.fields(), self.chat.pair)
            self._side_form.focus()
        else:
            self.push_screen(SettingsScreen(self.fields(), self.chat.pair, self.chat.effect), self._focus_prompt)

    def action_toggle_stats(self) -> None:
        """Hide or show the figures."""
        self._base.toggle_class("-no-stats")
        self._look_at_side()

    def action_toggle_tree(self) -> None:
        """Hide or show the tree; where there is no room beside the chat it stands in its place before that."""
        alone = not (self._roomy or self._base.has_class("-tree-alone") or self._base.has_class("-no-tree"))
        self._base.set_class(alone, "-tree-alone")
        if alone:
            self.call_after_refresh(self.tree_panel.focus)
        else:
            self._base.toggle_class("-no-tree")
            self._look_at_side()
            self.prompt.focus()

    def action_toggle_tokens(self) -> None:
        """Flip a reply between Markdown and tokens."""
        if view := self.transcript.reply_view():
            view.token_view = not view.token_view

    @work
    async def action_pairs(self) -> None:
        """Choose a pair and load it."""
        self.chat.fetched = ""
        held = self.chat.ready.memory_bytes if self.chat.ready else 0
        name = await self.push_screen_wait(PairsScreen(self.pairs, self.chat.pair, held))
        if name:
            await self.pairs.choose(name)

    @work
    async def action_chats(self, words: str = "") -> None:
        """Choose a chat that was kept, and go on with it."""
        if self.session.player is not None or not self.archive.keeps:
            self.say("a recording is being played" if self.session.player else "chats are not kept here", "warn")
            return
        id = await self.push_screen_wait(ChatsScreen(self.archive, self.key_of, words, self.chat.id))
        if id and id != self.chat.id:
            await self.open_chat(id)

    async def action_new_chat(self) -> None:
        """Begin a new chat; a running reply is stopped."""
        self.session.forget()
        self.context_limit.forget()
        await self.transcript.clear()
        await self.transcript.mount(Welcome(self.chat))
        self.say("")
        event_dispatch.look(self)
        self.prompt.focus()

    def action_copy_reply(self) -> None:
        """Copy the last reply."""
        if view := self.transcript.reply_view():
            self.copy_to_clipboard(text_of(view), "reply")

    def copy_to_clipboard(self, text: str, what: str = "text") -> None:
        """Into the terminal's clipboard, and the desktop's."""
        super().copy_to_clipboard(text)
        self.terminal.copied(text, what)

    @property
    def form(self) -> SettingsForm:
        """The settings form the user sees."""
        return self.screen.form if isinstance(self.screen, SettingsScreen) else self._side_form

    @property
    def pump(self) -> EventPump:
        """Decides when to look for events."""
        assert self._pump is not None, "the app is mounted before it listens"
        return self._pump

    def key_of(self, id: str) -> str:
        """The keys of a binding as people write them; empty where it has none."""
        return names_of(self.key_table.get(id, ()))

    def fields(self) -> list[Field]:
        """The settings as they are in force."""
        if self.chat.hello is None:
            return []
        return fields_of(self.chat.hello, self.chat.settings, self.settings_files.shipped, self.settings_files.saved)

    def say(self, text: str, role: str = "dim") -> None:
        """One remark in the line above the prompt."""
        self.notice.say(text, role)

    def _repaint_status(self) -> None:
        self.status.repaint()

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside the app's own work."""
        self.run_worker(work, exclusive=False, exit_on_error=False)

    def _write_to_terminal(self, sequence: str) -> None:
        """Send a sequence that draws nothing."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)
            self._driver.flush()

    async def attempt(self, what: Awaitable[None]) -> None:
        """Do it; why it cannot be done is said in one line."""
        try:
            await what
        except SpecchatError as error:
            self.say(str(error), "warn")

    async def run_command(self, command: Command, argument: str) -> None:
        """Run a command, or say what is wrong with it."""
        await self.attempt(command.run(self, argument))

    async def open_chat(self, id: str) -> None:
        """Go on with a chat that was kept."""
        await self.attempt(self._open_chat(id))

    async def _open_chat(self, id: str) -> None:
        def leave() -> None:
            self.session.forget()
            self.context_limit.forget()

        await self.archive.open(id, leave)
        await self.transcript.restore(self.chat.turns)
        if left := self.chat.left_out:
            await self.transcript.note(f"the {left} oldest messages are not sent on: there was no room for them")
        self.say("")
        event_dispatch.look(self)
        self.prompt.focus()

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

    def _set_themes(self, wanted: str) -> None:
        """Register our themes and set the wanted one; else greys where NO_COLOR asks for them, else the dark one."""
        for theme in OWN:
            self.register_theme(theme)
        default = MONO if self.no_color else DARK
        self.theme = wanted if wanted in self.available_themes else default.name
        if self.no_color:  # shades of grey are colours too
            self._filters = [NoColor() if isinstance(one, Monochrome) else one for one in self._filters]

    def _remember_theme(self, name: str) -> None:
        """Start with this theme from now on."""
        try:
            set_app("theme", name)
        except SpecchatError as error:
            self.say(f"the theme is not remembered: {error}", "warn")

    @property
    def _base(self) -> Any:
        return self.screen_stack[0]

    @property
    def _roomy(self) -> bool:
        """Whether there is room beside the chat."""
        return not any(self._base.has_class(small) for small in ("-w0", "-h0", "-h8"))

    def _look_at_side(self) -> None:
        """The side is there as long as something stands in it."""
        base = self._base
        empty = base.has_class("-no-tree") and base.has_class("-no-stats") and not base.has_class("-settings")
        base.set_class(empty, "-no-side")

    def _busy_with(self) -> int | str | None:
        """What Ctrl+C stops, once: an engine that does not stop must not keep the user from leaving."""
        if self.session.player is not None:
            return None
        if self.chat.phase == "loading":
            return "loading"
        return self.chat.running.id if self.chat.running else None

    def _focus_prompt(self, _: None) -> None:
        self.prompt.focus()


def run_app(app: SpecchatApp, *, mouse: bool = True) -> None:
    """Run the app until the user leaves, then let go of the engine, the chats' file and the terminal's title."""
    try:
        app.run(mouse=mouse)
    finally:
        app.archive.close()
        app.terminal.leave()
        if app.session.link is not None:
            app.session.link.close()
