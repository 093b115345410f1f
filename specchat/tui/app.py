"""The terminal app: starts an engine, listens to its events, shows them, sends what the user wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import TextArea

from specchat.config import AppOptions
from specchat.errors import SpecchatError
from specchat.tui.control.actions import Actions
from specchat.tui.control.app_bindings import APP_BINDINGS
from specchat.tui.control.commands.palette import CommandsProvider
from specchat.tui.control.commands.registry import COMMANDS
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.current_chat import CurrentChat
from specchat.tui.control.engine_session import EngineSession, LinkFactory
from specchat.tui.control.event_dispatch import EventDispatch
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.key_bindings import key_table, keymap
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.control.prompt_controller import PromptController
from specchat.tui.control.races import Races
from specchat.tui.control.round_animation import RoundAnimation
from specchat.tui.control.screen_update import ScreenUpdate
from specchat.tui.control.side_panel import SidePanel
from specchat.tui.control.stop_keys import StopKeys
from specchat.tui.control.terminal_app import TerminalApp
from specchat.tui.control.tour import Tour
from specchat.tui.draw.token_tree import Mode
from specchat.tui.ports import AppPorts
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.services.pair_library import Judge, PairLibrary, Pairs
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.services.terminal_window import TerminalWindow
from specchat.tui.state.prompt_history import History
from specchat.tui.state.race_series import Asked
from specchat.tui.state.session import Chat
from specchat.tui.system.exit_guard import ExitGuard
from specchat.tui.text.key_names import hint, names_of
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.chat_views import chat_views
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.welcome import Welcome


class SpecchatApp(TerminalApp):
    """Transcript left, tree and figures right, prompt below."""

    TITLE = "specchat"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {CommandsProvider}
    HORIZONTAL_BREAKPOINTS = [(0, "-w0"), (60, "-w60"), (80, "-w80"), (100, "-w100"), (140, "-w140")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-h0"), (8, "-h8"), (14, "-h14"), (20, "-h20"), (30, "-h30")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = APP_BINDINGS

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
        options = options or AppOptions()
        super().__init__(options, guard)
        self.keys = keymap(keys or {})
        self.key_table = key_table(self.keys)
        self.chat = Chat(wanted=dict(settings))
        self.views = chat_views(
            self.chat, history, self.key_of, lambda line: self.prompt_controller.complete(line), ascii=options.ascii
        )
        self.views.tree_panel.mode = tree_mode
        self._first_chat = chat
        ports = self._ports()
        self.pump = EventPump(lambda: self.post_message(self.Tick()))
        self.garbage = GarbageCollection(lambda: self.pump.idle)
        self.settings_files = SettingsFiles(self.chat, here=engine_here)
        self.side_panel = SidePanel(self.chat, self.views, self.settings_files, ports)
        self.tour = Tour(self.chat, self.views.transcript, self.views.prompt, self.key_of, toured)
        self.terminal = TerminalWindow(
            self.chat,
            options,
            notify=self.say,
            run=self.run_in_background,
            write=self.write_to_terminal,
            bell=self.bell,
            focused=lambda: self.app_focus,
        )
        self.archive = ChatArchive(
            self.chat,
            store,
            notify=self.say,
            redraw=self.views.status.repaint,
            call_later=self.call_later,
            listening=lambda: self.session.player is None,
        )
        self.session = EngineSession(
            self.chat,
            self.views,
            self.pump,
            self.archive,
            self.tour,
            self.garbage,
            ports,
            factory=link_factory,
            demo=demo,
            before_reply=lambda id: self.speed.begin(id),
        )
        self.pairs = PairLibrary(
            self.chat,
            pairs,
            judge,
            here=engine_here,
            notify=self.say,
            redraw=self.views.status.repaint,
            load=self.session.load,
            run=self.run_in_background,
            key_of=self.key_of,
        )
        self.speed = PlaybackSpeed(self.chat, self.session, self.views.tree_panel, ports, self.pump.wake)
        self.races = Races(self.chat, self.session, ports, questions)
        self.context_limit = ContextLimit(self.chat, self.session, self.views, ports)
        self.current_chat = CurrentChat(self.chat, self.views, self.session, self.context_limit, self.archive, ports)
        self.actions = Actions(
            chat=self.chat,
            views=self.views,
            ports=ports,
            session=self.session,
            current_chat=self.current_chat,
            archive=self.archive,
            pairs=self.pairs,
            settings_files=self.settings_files,
            speed=self.speed,
            races=self.races,
            tour=self.tour,
            side_panel=self.side_panel,
            keys=self.keys,
        )
        self.prompt_controller = PromptController(self.actions, self.context_limit)
        self.stop_keys = StopKeys(self.actions, self.context_limit, self.prompt_controller)
        self.round_animation = RoundAnimation(self.chat, self.views, self.speed, self.pump, ports)
        self.events = EventDispatch(self.actions, self.context_limit, self.terminal, self.garbage)
        self.screen_update = ScreenUpdate(
            self.chat,
            self.views,
            self.session,
            context_limit=self.context_limit,
            speed=self.speed,
            animation=self.round_animation,
            pump=self.pump,
            terminal=self.terminal,
            form=lambda: self.side_panel.form,
        )

    def _ports(self) -> AppPorts:
        """The functions of this app that controllers use."""
        return AppPorts(
            notify=self.say,
            redraw=lambda: self.screen_update(),
            key_of=self.key_of,
            key_hint=lambda id, does, before="": hint(self, id, does, before),
            attempt=self.attempt,
            new_chat=lambda: self.current_chat.new(),
            after_refresh=self.call_after_refresh,
            set_timer=self.set_timer,
            set_interval=self.set_interval,
            push_screen=lambda screen, callback=None: self.push_screen(screen, callback),
            screen=lambda: self.screen,
            chat_screen=lambda: self.screen_stack[0],
            focused=lambda: self.focused,
            animated=lambda: self.animation_level != "none",
            copy=self.copy_to_clipboard,
            suspend=self.suspend,
            repaint_all=lambda: self.refresh(layout=True),
            exit=self.exit,
            theme_names=lambda: list(self.available_themes),
            set_theme=lambda name: setattr(self, "theme", name),
            search_themes=self.search_themes,
        )

    def compose(self) -> ComposeResult:
        """The whole screen; nothing here waits for the engine."""
        views = self.views
        with Horizontal(id="main"):
            yield views.transcript
            with Vertical(id="side"):
                yield views.tree_panel
                yield views.stats
                yield views.settings_form
        yield views.tree_strip
        yield views.alert
        yield views.notice
        yield views.queued_message
        yield views.prompt
        yield views.replay_bar
        yield views.status

    async def on_mount(self) -> None:
        """Paint first, then start the engine."""
        self.set_keymap(self.keys)
        self.listen_for_end()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # others drew on the terminal
        self.theme_changed_signal.subscribe(self, lambda theme: self._remember_theme(theme.name))
        self.pump.start()
        await self.views.transcript.mount(Welcome(self.chat))
        self.views.prompt.focus()
        self.archive.start()
        await self.tour.first_start()
        self.call_after_refresh(self.garbage.begin)
        self.call_after_refresh(self.session.connect)
        if self._first_chat is None:
            self.call_after_refresh(self.current_chat.choose)
        elif self._first_chat:
            self.call_after_refresh(self.current_chat.open, self._first_chat)

    async def on_unmount(self) -> None:
        """What is being fetched stops; the next time goes on from there."""
        await self.pairs.close()

    class Tick(Message):
        """It is time to look for events."""

    async def on_specchat_app_tick(self) -> None:
        """Take everything that arrived, show it once, and rest."""
        owed = self.pump.begin()
        events = self.session.link.drain() if self.session.link else []
        with self.batch_update():
            await self.events.apply(self.round_animation.due(self.races.take(events)), owed)
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
        self.stop_keys.typed()
        self.prompt_controller.changed()
        if event.text_area.text:
            await self.tour.leave()
        if event.text_area.text not in ("", self.views.prompt.written):
            self.say("")

    def on_settings_form_chosen(self, event: SettingsForm.Chosen) -> None:
        """Change it between two rounds."""
        self.session.change(event.name, event.value)

    async def on_settings_form_reload_asked(self, event: SettingsForm.ReloadAsked) -> None:
        """Load the models again with these."""
        await self.session.load(event.changes)

    async def on_settings_form_save_asked(self, event: SettingsForm.SaveAsked) -> None:
        """Write them down."""
        await self.attempt(COMMANDS["save"].run(self.actions, "pair" if event.into_pair else ""))

    def on_settings_form_left(self) -> None:
        """Back to writing."""
        self.side_panel.toggle_settings()

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
                self.actions.choose_pair()
            case "demo":
                await self.session.watch_demo()
            case choice:
                await self.context_limit.answered(choice)

    def on_transcript_copy_asked(self, event: Transcript.CopyAsked) -> None:
        """Copy it."""
        self.actions.copy(event.text, event.what)

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
        """Actions that cannot be done now have no keys."""
        if action == "suspend_process":
            return self.can_suspend
        return self.speed.can(str(parameters[0])) if action == "pace" else True

    async def action_command(self, name: str) -> None:
        """Run a slash command without arguments."""
        await self.attempt(COMMANDS[name].run(self.actions, ""))

    async def action_interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        await self.stop_keys.interrupt()

    async def action_stop(self) -> None:
        """Stop or leave what is nearest; else go back to the prompt."""
        await self.stop_keys.stop()

    def action_search(self) -> None:
        """Look for something that was sent before."""
        self.prompt_controller.search()

    def action_edit_elsewhere(self) -> None:
        """Write the prompt in an editor."""
        self.prompt_controller.edit_elsewhere()

    async def action_pace(self, what: str) -> None:
        """Hold, step, change the speed, or play again."""
        await self.attempt(self.speed.act(what))

    def copy_to_clipboard(self, text: str, what: str = "text") -> None:
        """Copy to the terminal's clipboard, and the desktop's."""
        super().copy_to_clipboard(text)
        self.terminal.copied(text, what)

    def key_of(self, id: str) -> str:
        """The keys of a binding as people write them; empty where it has none."""
        return names_of(self.key_table.get(id, ()))

    def say(self, text: str, role: str = "dim") -> None:
        """One remark in the line above the prompt."""
        self.views.notice.say(text, role)

    async def attempt(self, what: Awaitable[None]) -> None:
        """Await it; a SpecchatError is shown as a remark."""
        try:
            await what
        except SpecchatError as error:
            self.say(str(error), "warn")

    def _remember_theme(self, name: str) -> None:
        """Start with this theme from now on."""
        try:
            self.remember_theme(name)
        except SpecchatError as error:
            self.say(f"the theme is not remembered: {error}", "warn")


def run_app(app: SpecchatApp, *, mouse: bool = True) -> None:
    """Run the app until the user leaves, then let go of the engine, the chats' file and the terminal's title."""
    try:
        app.run(mouse=mouse)
    finally:
        app.archive.close()
        app.terminal.leave()
        if app.session.link is not None:
            app.session.link.close()
