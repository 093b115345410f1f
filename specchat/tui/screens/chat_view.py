"""The widgets of the chat's screen, and how they are drawn from the state."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message

from specchat.store.prompt_history import History
from specchat.tui.services.context import AppServices
from specchat.tui.state.stats_lines import StatsFacts, plan_of
from specchat.tui.system.processes import CoreShares, CpuMeter
from specchat.tui.textual_patches.compositing import MainScreen
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.command_menu import CommandMenu
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.round_animation import RoundAnimation
from specchat.tui.widgets.settings_form import SettingsForm, SettingsScreen
from specchat.tui.widgets.small_panels import StatsPanel, Subtitle, TreeStrip
from specchat.tui.widgets.start_pages import StartPages
from specchat.tui.widgets.status_bars import (
    QueuedMessage,
    RemarkLine,
    ReplayBar,
    ServedLine,
    StatusBar,
    SystemLine,
)
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel

NOTHING_YET, NO_ROUNDS = "each round's token tree", "no rounds were kept of this reply"
"""The text in place of a tree."""

TREE_S, FIGURES_S = 1 / 8, 1 / 3
"""The shortest time between two drawings of the tree, and of the figures, while a reply is written."""


class ChatView(MainScreen):
    """Transcript left, tree and figures right, prompt below."""

    AUTO_FOCUS = "#prompt"

    def __init__(self, context: AppServices, history: History | None, commands: Mapping[str, tuple[str, str]]) -> None:
        """`history`: prompts of earlier sessions; `commands`: what the list above the prompt says of each."""
        super().__init__(id="_default")
        self.context, self.chat = context, context.chat
        chat = context.chat
        self.transcript = Transcript(id="transcript")
        self.tree_panel = TreePanel(context.marks, id="tree")
        self.start_pages = StartPages(context, self.transcript, self.tree_panel)
        self.tree_strip = TreeStrip(context.marks, id="strip")
        self.subtitle = Subtitle(chat, id="subtitle")  # below a tree that fills the window
        self.stats = StatsPanel(id="stats")
        self.settings_form = SettingsForm(id="settings")  # beside the chat
        self.prompt = Prompt(history, id="prompt")
        self.command_list = CommandMenu(self.prompt, commands, id="commands")
        self.system_line = SystemLine(chat, id="system")
        self.status = StatusBar(chat, id="status")
        self.notice = RemarkLine(chat, id="notice")
        self.queued_message = QueuedMessage(chat, id="waiting")
        self.served_line = ServedLine(chat, id="served")
        self.alert = Alert(id="alert")
        self.replay_bar = ReplayBar(id="replay")
        self.animation = RoundAnimation(context, self.tree_panel, self.tree_strip, self.subtitle, self.transcript)
        self.tree_title = ""  # what the tree's title begins with
        self.choice = ""  # why the user has to choose what to leave out of the context; empty: nothing is asked
        self._cpu_meter = CpuMeter()
        for watched in (self.transcript, self.tree_panel):
            watched.add_class("-paces")

    def compose(self) -> ComposeResult:
        side = Vertical(self.tree_panel, self.stats, self.settings_form, id="side")
        yield from (self.system_line, Horizontal(self.transcript, side, id="main"), self.subtitle, self.tree_strip)
        yield from (self.alert, self.served_line, self.notice, self.queued_message, self.command_list)
        yield from (self.prompt, self.replay_bar, self.status)

    class Opened(Message):
        """All widgets are mounted."""

    def on_mount(self) -> None:
        self.post_message(self.Opened())

    @property
    def form(self) -> SettingsForm:
        screen = self.context.app.screen
        return screen.form if isinstance(screen, SettingsScreen) else self.settings_form

    def leave_chat(self) -> None:
        """Stop the running reply, and empty the chat, which stays where chats are kept."""
        self.context.session.leave_chat()
        self.chat.clear()
        self.context.archive.save()

    async def begin_chat(self, said: str = "") -> None:
        self.leave_chat()
        await self.transcript.clear()
        await self.start_pages.show_welcome()
        self.chat_shown(said)

    def chat_shown(self, said: str) -> None:
        """Another chat is on the screen: say this, and let the user write."""
        self.context.app.say(said)
        self.context.app.redraw()
        self.prompt.focus()

    def focus_chat(self) -> None:
        (self.prompt if self.prompt.can_focus else self.transcript).focus()

    def draw(self) -> None:
        """Update every widget whose content may have changed; tree and figures at limited rates while a reply grows."""
        chat, pump = self.chat, self.context.pump
        if not chat.writing or pump.is_due("tree", TREE_S):
            self._draw_tree()
        self.animation.redraw()
        if not chat.writing or pump.is_due("figures", FIGURES_S):
            self.stats.show(self._facts())
            self.form.show_effect(chat.engine.effect)
            self.status.repaint()
        self.context.app.update_window_title()
        self.queued_message.update()
        self.system_line.update()
        self.served_line.update()
        self.prompt.waiting = chat.queued or ""
        self.notice.update(welcomed=self.start_pages.welcome_shown)
        self.start_pages.repaint_welcome()
        if self.context.session.player is not None:
            self.replay_bar.repaint()
        self._draw_alert()

    def _draw_tree(self) -> None:
        chat, speed, looks_back = self.chat, self.context.speed, self.chat.shown_rounds.looks_back
        visible = chat.visible
        rounds, figures = visible.rounds, visible.figures
        over = not chat.writing and chat.newest_reply is not None
        served = "served · " if visible.served else ""
        self.tree_panel.show(
            rounds,
            figures,
            frozen=speed.halted or looks_back,
            animating=not self.animation.finished and not looks_back,
            pace="earlier reply · " if looks_back else served + self.tree_title + speed.caption,
            looks_back=looks_back,
            rests=looks_back or over or (not chat.writing and bool(rounds)),
            ratio=not self.has_class("-show"),
            temperature=visible.reply.temperature if visible.reply else None,
            empty=NO_ROUNDS if over or looks_back else NOTHING_YET,
        )
        self.subtitle.repaint()
        self.tree_strip.show(rounds[-1] if rounds else None, figures, speed.caption)

    def _facts(self) -> StatsFacts:
        chat, visible = self.chat, self.chat.visible
        return StatsFacts(
            figures=visible.figures,
            loss=visible.loss,
            context_tokens=chat.context_tokens,
            context_limit=chat.engine.ready.context_tokens if chat.engine.ready else 0,
            memory_bytes=chat.engine.ready.memory_bytes if chat.engine.ready else 0,
            writing=chat.writing,
            effect=chat.engine.effect,
            shares=self._core_shares(),
            plan=plan_of(visible.rounds[-1] if visible.rounds else None),
            streaming=chat.engine.ready.streaming if chat.engine.ready else "",
        )

    def _core_shares(self) -> CoreShares | None:
        """As of now while a reply is written, else as they were then; None without an engine."""
        if self.chat.engine.phase == "dead":
            return self._cpu_meter.read(0)
        return self._cpu_meter.read(self.context.session.engine_pid) if self.chat.writing else self._cpu_meter.shares

    def _draw_alert(self) -> None:
        chat, alert = self.chat, self.alert
        demo = {"demo"} if self.context.setup.has_demo else set()
        match chat.engine.phase:
            case "dead":
                alert.show(chat.engine.problem, {"restart", "pairs", *demo})
            case "failed":
                alert.show(chat.engine.problem, {"retry", "pairs", *demo})
            case _ if self.choice:
                alert.show(self.choice, {"leave_out", "summary", "back"})
            case _:
                if alert.display:
                    alert.show("", set())
