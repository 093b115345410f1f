"""The terminal app: starts an engine, listens to its events, shows them, sends what the user wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

from textual import on
from textual.binding import BindingType
from textual.events import Event, Key
from textual.message import Message
from textual.widgets import TextArea

from specchat.config import AppOptions
from specchat.store.prompt_history import History
from specchat.tui.commands.prompt_input import PromptInput
from specchat.tui.commands.registry import COMMANDS, CommandsProvider
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.screens.help_and_log import HelpScreen
from specchat.tui.screens.race import RunScreen
from specchat.tui.services.context import AppServices, AppSetup
from specchat.tui.services.key_bindings import APP_BINDINGS
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.state.chat import Chat
from specchat.tui.state.engine_state import EngineState
from specchat.tui.system.terminal import ExitGuard
from specchat.tui.tree import Mode
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.messages import NoteView
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.tour import TourView
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.welcome import QUESTIONS, Welcome


class SpecchatApp(TerminalApp):
    """The chat's screen below all others; what takes a while happens here, one thing after another."""

    TITLE = "specchat"
    CSS_PATH = "app.tcss"
    COMMANDS: ClassVar[set[Any]] = {CommandsProvider}
    HORIZONTAL_BREAKPOINTS = [(0, "-w0"), (60, "-w60"), (80, "-w80"), (100, "-w100"), (140, "-w140"), (180, "-w180")]  # noqa: RUF012
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
        system: str = "",
        question: str = "",
        guard: ExitGuard | None = None,
    ) -> None:
        """The app, not yet running.

        Args:
            setup: where engines, pairs, chats and questions come from.
            settings: asked for now; the engine adds its own.
            keys: command or action → its key, where the user chose one.
            history: prompts of earlier sessions; None keeps them in memory alone.
            chat: the id of the chat to go on with; None asks which, "" begins a new one.
            system: the system message that new chats begin with.
            question: what is asked at once, or as soon as a pair is ready.
            guard: what ends the app when it is told to from outside; None leaves that to the caller.
        """
        state = Chat(engine=EngineState(wanted=dict(settings)), system=system, first_system=system)
        super().__init__(state, options or AppOptions(), guard, keys or {})
        self.context = AppServices(self, setup, lambda: self.post_message(self.Tick()))
        commands = {name: (command.usage, command.help) for name, command in COMMANDS.items()}
        self.chat_screen = ChatScreen(self.context, history, commands)
        self.chat_screen.tree_panel.mode = tree_mode
        self.prompt_input = PromptInput(self.chat_screen)
        self.chat_screen.prompt.completer = self.prompt_input.complete
        self._first_chat, self._first_question = chat, question
        self._quit_asked = False
        self._stopping: int | str | None = None  # what the first Ctrl+C stops

    def get_default_screen(self) -> ChatScreen:
        return self.chat_screen

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key) and self.screen is self.chat_screen and self.chat_screen.write_typed(event):
            return
        await super().on_event(event)

    def on_mount(self) -> None:
        self.set_keymap(self.keys)
        self.listen_for_end()
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))  # others drew on the terminal
        self.theme_changed_signal.subscribe(self, lambda theme: self.remember_theme(theme.name))
        self.context.pump.start()

    async def on_chat_view_opened(self) -> None:
        screen, context = self.chat_screen, self.context
        await screen.start_pages.show_welcome()
        screen.prompt.focus()
        context.archive.start()
        first_start = await screen.start_pages.show_first_tour()
        self.call_after_refresh(context.garbage.begin)
        self.call_after_refresh(context.session.connect)
        self.call_after_refresh(screen.start_pages.show_recorded_tree)
        if first_start:
            screen.prompt.focus()
            self.call_after_refresh(lambda: self.run_in_background(context.pairs.offer_found()))
        if self._first_chat is None:
            self.call_after_refresh(screen.current_chat.choose)
        elif self._first_chat:
            self.call_after_refresh(screen.current_chat.open, self._first_chat)
        else:
            self.call_after_refresh(screen.current_chat.offer_draft)
        if self._first_question:
            self.call_after_refresh(lambda: self.attempt(screen.ask_question(self._first_question)))

    async def on_unmount(self) -> None:
        """Stop what runs beside the engine, downloads and a training; the next start can resume them."""
        await asyncio.gather(self.context.pairs.close(), self.chat_screen.trainings.runner.close())

    def say(self, text: str, role: str = "dim") -> None:
        self.chat_screen.notice.say(text, role)

    async def note(self, text: str, role: str = "dim") -> None:
        await self.chat_screen.transcript.mount(NoteView(text, role))

    def redraw(self) -> None:
        self.chat_screen.draw()

    def link_changed(self) -> None:
        self.chat_screen.show_player()

    class Tick(Message):
        """Asks the app to take the events that arrived."""

    async def on_specchat_app_tick(self) -> None:
        if not self.screen_stack:  # the app is ending, and nothing shows events any more
            return
        await self.chat_screen.events.take()
        if self._what_runs() != self._stopping:
            self._stopping = None

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        await self.prompt_input.submit(event.text)

    async def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Explain a command while it is typed; the next Ctrl+C does not quit yet."""
        self._quit_asked = False
        await self.prompt_input.changed(event.text_area.text)

    @on(Prompt.SentEmpty)
    @on(TourView.Clicked)
    async def _turn_tour_page(self) -> None:
        """Enter in an empty prompt, or a click on the tour, turns the tour's page, or takes what the page offers."""
        offer = self.chat.background.offer
        if self.chat_screen.start_pages.offer_shown and offer is not None and offer.name:
            self.chat.background.offer = None
            await self.attempt(self.context.pairs.choose(offer.name))
            self.redraw()
        else:
            await self.chat_screen.start_pages.turn_tour_page()

    async def on_welcome_question_chosen(self, event: Welcome.QuestionChosen) -> None:
        await self.attempt(self.chat_screen.ask_question(event.question))

    def on_settings_form_chosen(self, event: SettingsForm.Chosen) -> None:
        self.context.session.change(event.name, event.value)
        self.chat_screen.form.editor.taken(event.name, event.value)
        self.chat_screen.side_panel.show_fields()

    async def on_settings_form_reload_asked(self, event: SettingsForm.ReloadAsked) -> None:
        await self.context.session.load(event.changes)

    async def on_settings_form_save_asked(self, event: SettingsForm.SaveAsked) -> None:
        await self.attempt(COMMANDS["save"].run(self.chat_screen, "pair" if event.into_pair else ""))

    async def on_transcript_regenerate_asked(self, event: Transcript.RegenerateAsked) -> None:
        await self.attempt(self.chat_screen.replies.ask_again(event.turn))

    async def on_transcript_switch_asked(self, event: Transcript.SwitchAsked) -> None:
        await self.attempt(self.chat_screen.replies.switch_branch(event.turn, event.step))

    async def on_alert_answered(self, event: Alert.Answered) -> None:
        match event.choice:
            case "retry" | "restart":
                await self.context.session.reconnect()
            case "pairs":
                self.chat_screen.choose_pair()
            case "demo":
                await self.chat_screen.current_chat.watch_demo()
            case choice:
                await self.chat_screen.context_limit.answered(choice)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "command" and parameters == ("help",):
            return not isinstance(self.screen, HelpScreen)  # its own key closes it
        if action == "suspend_process":
            return self.can_suspend
        return self.chat_screen.start_pages.asks if action == "ask_question" else True

    async def action_command(self, name: str) -> None:
        await self.attempt(COMMANDS[name].run(self.chat_screen, ""))

    async def action_ask_question(self, number: int) -> None:
        await self.attempt(self.chat_screen.ask_question(QUESTIONS[number]))

    def action_interrupt(self) -> None:
        """Copy what is selected; else leave a race; else stop; else ask once more and quit.

        After loading was stopped nothing is asked: there is nothing to lose.
        """
        screen, prompt = self.screen, self.chat_screen.prompt
        if selected := screen.get_selected_text() or prompt.selected_text:
            self.copy_to_clipboard(selected, "selection")
            screen.clear_selection()
            prompt.clear_selection()  # also in the prompt: the next Ctrl+C stops or quits
        elif run := next((shown for shown in self.screen_stack if isinstance(shown, RunScreen)), None):
            run.leave()
            self._quit_asked = False
        elif (runs := self._what_runs()) not in (None, self._stopping) and self.context.session.stop():
            self._stopping, self._quit_asked = runs, runs == "loading"
            if self._quit_asked:
                leaves = self.key_hint("interrupt", "leaves", " · ")
                self.say(f"stopped loading {self.chat.engine.loading_pair}{leaves}")
        elif self._quit_asked:
            self.exit()
        else:
            self._quit_asked = True
            self.say(f"press {self.key_of('interrupt')} again to quit")

    def _what_runs(self) -> int | str | None:
        """What Ctrl+C stops. It tries once: a later Ctrl+C quits even if the engine does not stop."""
        if self.context.session.player is not None:
            return None
        if self.chat.engine.phase == "loading":
            return "loading"
        return self.chat.running.id if self.chat.running else None


def run_app(app: SpecchatApp, *, mouse: bool = True) -> None:
    """Run the app until the user leaves, then close the engine and the chat store and restore the terminal's title.

    An error in the app ends it the same way, and is its `crash` then.
    """
    with ExitStack() as at_the_end:  # each of these, whatever the others raise; the last one first
        at_the_end.callback(app.context.session.close)
        at_the_end.callback(app.restore_window_title)
        at_the_end.callback(app.chat_screen.current_chat.close)
        at_the_end.callback(app.context.server.stop)
        app.run(mouse=mouse)
