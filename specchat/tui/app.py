"""The terminal app: starts an engine, listens to its events, shows them, sends what the user wants."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.message import Message
from textual.widgets import TextArea

from specchat.config import AppOptions
from specchat.store.prompt_history import History
from specchat.tui.control.app_bindings import APP_BINDINGS
from specchat.tui.control.app_ports import app_ports
from specchat.tui.control.app_setup import AppSetup
from specchat.tui.control.commands.palette import CommandsProvider
from specchat.tui.control.commands.registry import COMMANDS
from specchat.tui.control.controllers import Controllers
from specchat.tui.control.terminal_app import TerminalApp
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.help_and_log import HelpScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.state.chat import Chat
from specchat.tui.state.engine_state import EngineState
from specchat.tui.system.terminal import ExitGuard
from specchat.tui.tree import Mode
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.chat_views import chat_views
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.transcript_messages import CopyAsked, EditAsked, Pointed, RegenerateAsked, SwitchAsked
from specchat.tui.widgets.tree_panel import TreePanel
from specchat.tui.widgets.welcome import QUESTIONS, Welcome


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
        setup: AppSetup,
        *,
        settings: dict[str, Any],
        tree_mode: Mode = "auto",
        keys: Mapping[str, str] | None = None,
        history: History | None = None,
        options: AppOptions | None = None,
        chat: str | None = "",
        guard: ExitGuard | None = None,
    ) -> None:
        """The app, not yet running.

        Args:
            setup: where engines, pairs, chats and questions come from.
            settings: asked for now; the engine adds its own.
            keys: command or action → its key, where the user chose one.
            history: prompts of earlier sessions; None keeps them in memory alone.
            chat: the id of the chat to go on with; None asks which, "" begins a new one.
            guard: what ends the app when it is told to from outside; None leaves that to the caller.
        """
        options = options or AppOptions()
        super().__init__(options, guard, keys or {})
        self.chat = Chat(engine=EngineState(wanted=dict(settings)))
        self.views = chat_views(
            self.chat, history, self.key_of, lambda line: self.control.prompt_controller.complete(line), COMMANDS,
            ascii=options.ascii,
        )  # fmt: skip
        self.views.tree_panel.mode = tree_mode
        self._first_chat = chat
        self.ports = app_ports(
            self, self.views.notice.say, lambda: self.control, lambda: self.post_message(self.Tick())
        )
        self.control = Controllers(self.chat, self.views, self.ports, options, self.keys, setup)
        self.after_copy = self.control.terminal.copied

    def compose(self) -> ComposeResult:
        """The whole screen; nothing here waits for the engine."""
        views = self.views
        with Horizontal(id="main"):
            yield views.transcript
            with Vertical(id="side"):
                yield views.tree_panel
                yield views.stats
                yield views.settings_form
        yield views.subtitle
        yield views.tree_strip
        yield views.alert
        yield views.served_line
        yield views.notice
        yield views.queued_message
        yield views.command_list
        yield views.prompt
        yield views.replay_bar
        yield views.status

    async def on_mount(self) -> None:
        """Draw the first screen, then start the engine."""
        self.set_keymap(self.keys)
        self.listen_for_end()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # others drew on the terminal
        self.theme_changed_signal.subscribe(self, lambda theme: self.remember_theme(theme.name, self.ports.notify))
        self.control.pump.start()
        await self.views.start_pages.show_welcome()
        self.views.prompt.focus()
        self.control.archive.start()
        first_start = await self.control.tour.first_start()
        self.call_after_refresh(self.control.garbage.begin)
        self.call_after_refresh(self.control.session.connect)
        self.call_after_refresh(self.control.starting_page.show_tree)
        if first_start:
            self.call_after_refresh(lambda: self.ports.run_in_background(self.control.pairs.offer_found()))
        if self._first_chat is None:
            self.call_after_refresh(self.control.current_chat.choose)
        elif self._first_chat:
            self.call_after_refresh(self.control.current_chat.open, self._first_chat)
        else:
            self.call_after_refresh(self.control.current_chat.offer_draft)

    async def on_unmount(self) -> None:
        """Stop downloads and a training; the next start can resume them."""
        await self.control.end_processes()

    class Tick(Message):
        """Asks the app to take the events that arrived."""

    async def on_specchat_app_tick(self) -> None:
        """Apply all events that arrived, then draw once."""
        redraw = self.control.pump.begin()
        events = self.control.session.link.drain() if self.control.session.link else []
        with self.batch_update():
            served, own = self.control.served.dispatch(self.control.races.dispatch(events))
            await self.control.events.apply(self.control.round_animation.release(own), redraw or served)
            self.control.served.ask_next()
        self.call_after_refresh(self.control.pump.end)

    async def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Run a command, or send the text to the model."""
        await self.control.prompt_controller.submit(event.text)

    @on(Prompt.SubmittedEmpty)
    @on(TourView.Clicked)
    async def _turn_tour_page(self) -> None:
        """Enter in an empty prompt, or a click on the tour, turns the tour's page."""
        await self.control.tour.next()

    async def on_welcome_question_chosen(self, event: Welcome.QuestionChosen) -> None:
        """Ask a question of the empty page."""
        await self.ports.attempt(self.control.starting_page.ask(event.question))

    def on_prompt_taken_back(self) -> None:
        """Put the queued message back into the prompt."""
        self.control.prompt_controller.recall_queued()

    def on_prompt_moved_on(self) -> None:
        """Focus what follows the prompt."""
        self.control.prompt_controller.move_on()

    def on_key(self, event: Key) -> None:
        """Write what is typed in the chat into the prompt, unless it is a key there."""
        self.control.prompt_controller.typed_elsewhere(event)

    async def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Explain a command while it is typed; the next Ctrl+C does not quit yet."""
        self.control.stop_keys.reset_quit()
        await self.control.prompt_controller.changed(event.text_area.text)

    def on_settings_form_chosen(self, event: SettingsForm.Chosen) -> None:
        """Change a live setting; it applies from the next round."""
        self.control.session.change(event.name, event.value)

    async def on_settings_form_reload_asked(self, event: SettingsForm.ReloadAsked) -> None:
        """Load the pair again with these settings."""
        await self.control.session.load(event.changes)

    async def on_settings_form_save_asked(self, event: SettingsForm.SaveAsked) -> None:
        """Save the settings, as `/save` does."""
        await self.ports.attempt(COMMANDS["save"].run(self.control.actions, "pair" if event.into_pair else ""))

    def on_settings_form_left(self) -> None:
        """Hide the settings and focus the prompt."""
        self.control.side_panel.toggle_settings()

    def on_race_screen_leave_asked(self) -> None:
        """Stop the race and close it."""
        self.control.races.leave()

    def on_bench_screen_stop_asked(self) -> None:
        """Stop the benchmark, or close it where it has ended."""
        self.control.races.stop_or_leave()

    @on(RaceScreen.AgainAsked)
    @on(BenchScreen.AgainAsked)
    def _race_again(self) -> None:
        """Run the same race or benchmark again."""
        self.control.races.again()

    async def on_alert_answered(self, event: Alert.Answered) -> None:
        """Do what the pressed button of the alert says."""
        await self.control.events.answered(event.choice)

    @on(Pointed)
    @on(TreePanel.FollowAsked)
    def _look_at(self, event: Pointed | TreePanel.FollowAsked) -> None:
        """Show the rounds of the reply that the user points at, or those of the newest one again."""
        self.control.side_panel.look_at(event.turn if isinstance(event, Pointed) else None)

    def on_transcript_copy_asked(self, event: CopyAsked) -> None:
        """Copy the text to the clipboard."""
        self.control.actions.copy(event.text, event.what)

    def on_transcript_shortened(self) -> None:
        """Collect the memory of removed messages, once the app is idle."""
        self.control.garbage.schedule()

    async def on_transcript_regenerate_asked(self, event: RegenerateAsked) -> None:
        """Generate another answer to this message."""
        await self.ports.attempt(self.control.session.ask_again(event.turn))

    def on_transcript_edit_asked(self, event: EditAsked) -> None:
        """Put this message into the prompt, to be sent in another wording."""
        self.control.branches.edit(event.turn, reply=event.reply)

    async def on_transcript_switch_asked(self, event: SwitchAsked) -> None:
        """Show another branch of the chat."""
        await self.control.branches.switch(event.turn, event.step)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Actions that cannot be done now have no keys."""
        if action == "command" and parameters == ("help",):
            return not isinstance(self.screen, HelpScreen)  # its own key closes it
        if action == "suspend_process":
            return self.can_suspend
        if action == "ask_question":
            return self.control.starting_page.asks
        return self.control.speed.can(str(parameters[0])) if action == "pace" else True

    async def action_command(self, name: str) -> None:
        """Run a slash command without arguments."""
        await self.ports.attempt(COMMANDS[name].run(self.control.actions, ""))

    async def action_ask_question(self, number: int) -> None:
        """Ask a question of the empty page."""
        await self.ports.attempt(self.control.starting_page.ask(QUESTIONS[number]))

    async def action_interrupt(self) -> None:
        """Copy what is selected; else stop; else ask once more and quit."""
        await self.control.stop_keys.interrupt()

    async def action_stop(self) -> None:
        """Stop what runs or close what is open; else focus the prompt."""
        await self.control.stop_keys.stop()

    def action_search(self) -> None:
        """Search the messages that were sent before."""
        self.control.prompt_controller.search()

    def action_open_editor(self) -> None:
        """Edit the prompt in the user's editor."""
        self.control.prompt_controller.open_editor()

    async def action_pace(self, what: str) -> None:
        """Hold, step, change the speed, or play again."""
        await self.ports.attempt(self.control.speed.act(what))


def run_app(app: SpecchatApp, *, mouse: bool = True) -> None:
    """Run the app until the user leaves, then close the engine and the chat store and restore the terminal's title.

    An error in the app ends it the same way, and is its `crash` then.
    """
    with ExitStack() as at_the_end:  # each of these, whatever the others raise; the last one first
        at_the_end.callback(app.control.session.close)
        at_the_end.callback(app.control.terminal.restore_title)
        at_the_end.callback(app.control.close_chat)
        at_the_end.callback(app.control.server.stop)
        app.run(mouse=mouse)
