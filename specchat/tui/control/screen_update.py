"""Updates the widgets of the chat's screen from the state, each once per tick: tree, figures, remarks, alerts."""

from __future__ import annotations

from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.demo import Demo
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.control.round_animation import RoundAnimation
from specchat.tui.control.show_mode import ShowMode
from specchat.tui.control.side_panel import SidePanel
from specchat.tui.control.trainings import Trainings
from specchat.tui.services.terminal_window import TerminalWindow
from specchat.tui.state.chat import Chat
from specchat.tui.state.stats_lines import StatsFacts, plan_of
from specchat.tui.system.processes import CoreShares, CpuMeter
from specchat.tui.view_ports import ViewPorts

NOTHING_YET, NO_ROUNDS = "each round's token tree", "no rounds were kept of this reply"
"""The text in place of a tree."""

TREE_S, FIGURES_S = 1 / 8, 1 / 3
"""The shortest time between two drawings of the tree, and of the figures, while a reply is written."""


class ScreenUpdate:
    """Calling it updates every widget whose content may have changed."""

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        session: EngineSession,
        *,
        context_limit: ContextLimit,
        speed: PlaybackSpeed,
        demo: Demo,
        animation: RoundAnimation,
        pump: EventPump,
        terminal: TerminalWindow,
        show: ShowMode,
        trainings: Trainings,
        side: SidePanel,
    ) -> None:
        self._chat, self._views, self._session = chat, views, session
        self._context_limit, self._speed, self._animation = context_limit, speed, animation
        self._pump, self._terminal, self._show, self._side = pump, terminal, show, side
        self._trainings, self._demo = trainings, demo
        self._cpu_meter = CpuMeter()

    def __call__(self) -> None:
        """Update all widgets; tree and figures at limited rates while a reply is written."""
        chat, views = self._chat, self._views
        writing = chat.writing
        self._trainings.update()
        if not writing or self._pump.is_due("tree", TREE_S):
            self._draw_tree()
        self._animation.redraw()
        self._side.update_fields()
        if not writing or self._pump.is_due("figures", FIGURES_S):
            views.stats.show(self._facts())
            self._side.form.show_effect(chat.engine.effect)
            views.status.repaint()
        self._terminal.update_title()
        views.queued_message.update()
        views.served_line.update()
        views.prompt.waiting = chat.queued or ""
        views.notice.update(welcomed=views.start_pages.welcome_shown)
        views.start_pages.repaint_welcome()
        if self._session.player is not None:
            views.replay_bar.repaint()
        self._draw_alert()

    def _draw_tree(self) -> None:
        chat, speed, looks_back = self._chat, self._speed, self._chat.shown_rounds.looks_back
        visible = chat.visible
        rounds, figures = visible.rounds, visible.figures
        over = not chat.writing and chat.newest_reply is not None
        served = "served · " if visible.served else ""
        self._views.tree_panel.show(
            rounds,
            figures,
            frozen=speed.halted or looks_back,
            animating=not self._animation.finished and not looks_back,
            pace="earlier reply · " if looks_back else served + self._show.title + speed.caption,
            looks_back=looks_back,
            empty=NO_ROUNDS if over or looks_back else NOTHING_YET,
        )
        self._views.subtitle.repaint()
        self._views.tree_strip.show(rounds[-1] if rounds else None, figures, speed.caption)

    def _facts(self) -> StatsFacts:
        chat, visible = self._chat, self._chat.visible
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
        )

    def _core_shares(self) -> CoreShares | None:
        """As of now while a reply is written, else as they were then; None without an engine."""
        if self._chat.engine.phase == "dead":
            return self._cpu_meter.read(0)
        return self._cpu_meter.read(self._session.engine_pid) if self._chat.writing else self._cpu_meter.shares

    def _draw_alert(self) -> None:
        chat, alert = self._chat, self._views.alert
        demo = {"demo"} if self._demo.shipped else set()
        match chat.engine.phase:
            case "dead":
                alert.show(chat.engine.problem, {"restart", "pairs", *demo})
            case "failed":
                alert.show(chat.engine.problem, {"retry", "pairs", *demo})
            case _ if self._context_limit.problem:
                alert.show(self._context_limit.problem, {"leave_out", "summary", "back"})
            case _:
                if alert.shown:
                    alert.show("", set())
