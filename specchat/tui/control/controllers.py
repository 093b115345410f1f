"""Builds every controller and service of the app and hands each what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from specchat.config import AppOptions
from specchat.tui.control.actions import Actions
from specchat.tui.control.app_setup import AppSetup
from specchat.tui.control.branches import Branches
from specchat.tui.control.clips import Clips
from specchat.tui.control.context_limit import ContextLimit
from specchat.tui.control.context_use import ContextUse
from specchat.tui.control.current_chat import CurrentChat
from specchat.tui.control.demo import Demo
from specchat.tui.control.engine_server import EngineServer
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.control.event_dispatch import EventDispatch
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.learning import LearningControl
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.control.prompt_controller import PromptController
from specchat.tui.control.races import Races
from specchat.tui.control.round_animation import RoundAnimation
from specchat.tui.control.screen_update import ScreenUpdate
from specchat.tui.control.served_replies import ServedReplies
from specchat.tui.control.show_mode import ShowMode
from specchat.tui.control.side_panel import SidePanel
from specchat.tui.control.starting_page import StartingPage
from specchat.tui.control.stop_keys import StopKeys
from specchat.tui.control.tour import Tour
from specchat.tui.control.trainings import Trainings
from specchat.tui.ports import AppPorts
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.services.pair_library import PairLibrary
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.services.terminal_window import TerminalWindow
from specchat.tui.state.chat import Chat
from specchat.tui.view_ports import ViewPorts


class Controllers:
    """The controllers of one app, by name, in groups; each is built from those before it."""

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        ports: AppPorts,
        options: AppOptions,
        keys: Mapping[str, str],
        setup: AppSetup,
    ) -> None:
        self._chat, self._views, self._ports, self._setup = chat, views, ports, setup
        self._build_window(options)
        self._build_session()
        self._build_engine_users()
        self._build_pages()
        self.actions = self._all_actions(keys)
        self._build_input_and_output()

    def _build_window(self, options: AppOptions) -> None:
        """What needs no engine: ticks, memory, settings, side panel, tour, terminal."""
        chat, views, ports, setup = self._chat, self._views, self._ports, self._setup
        self.pump = EventPump(ports.tick)
        self.garbage = GarbageCollection(lambda: self.pump.idle)
        self.settings_files = SettingsFiles(chat, here=setup.engine_here)
        self.side_panel = SidePanel(chat, views, self.settings_files, ports)
        self.tour = Tour(views.start_pages, views.prompt, ports.key_of, ports.redraw, setup.toured)
        self.terminal = TerminalWindow(
            chat,
            options,
            notify=ports.notify,
            run=ports.run_in_background,
            write=ports.write,
            bell=ports.bell,
            focused=ports.app_focused,
        )

    def _build_session(self) -> None:
        """The engine, the speed of its rounds, and the chat that is kept while it answers."""
        chat, views, ports, setup = self._chat, self._views, self._ports, self._setup
        self.archive = ChatArchive(
            chat,
            setup.store,
            notify=ports.notify,
            note=views.transcript.add_note,
            redraw=views.status.repaint,
            call_later=ports.call_later,
        )
        self.branches = Branches(chat, views, self.archive, ports)
        self.session = EngineSession(
            chat,
            views,
            self.pump,
            self.archive,
            self.branches,
            self.tour,
            self.garbage,
            ports,
            factory=setup.link_factory,
        )
        self.speed = PlaybackSpeed(chat, self.session, views.tree_panel, ports, self.pump.wake)
        self.session.before_reply = self.speed.begin
        self.demo = Demo(chat, views, self.session, ports, self.pump.wake, setup.demo)

    def _build_engine_users(self) -> None:
        """What uses the engine besides the chat; while a race has it, the others wait."""
        chat, views, ports, setup = self._chat, self._views, self._ports, self._setup
        self.races = races = Races(chat, self.session, ports, setup.questions)
        self.pairs = PairLibrary(
            chat,
            setup.pairs,
            setup.judge,
            here=setup.engine_here,
            notify=ports.notify,
            redraw=ports.redraw,
            load=self.session.load,
            change=self.session.change_all,
            note=views.transcript.add_note,
            run=ports.run_in_background,
            key_of=ports.key_of,
            racing=lambda: races.on,
            sizes=setup.sizes,
            finds_models=setup.finds_models,
        )
        self.served = ServedReplies(chat, self.session.send, lambda: races.on, self.pump.wake)
        self.server = EngineServer(chat, self.served, ports, setup.server, setup.serve_on)
        self.trainings = Trainings(chat, views, self.session, ports, setup.training, racing=lambda: races.on)
        self.learning = LearningControl(chat, views, self.session, self.settings_files)

    def _build_pages(self) -> None:
        """What shows the chat, another chat, or something in its place."""
        chat, views, ports = self._chat, self._views, self._ports
        self.show = ShowMode(chat, views, self.session, self.speed, self.side_panel, ports)
        self.context_limit = ContextLimit(chat, self.session, views, ports)
        self.context_use = ContextUse(chat, self.context_limit, ports.redraw)
        self.current_chat = CurrentChat(chat, views, self.session, self.context_limit, self.archive, ports)
        self.starting_page = StartingPage(views, self.session, self.context_limit, ports, self._setup.demo)

    def _all_actions(self, keys: Mapping[str, str]) -> Actions:
        """What commands and keys can do."""
        return Actions(
            chat=self._chat,
            views=self._views,
            ports=self._ports,
            session=self.session,
            demo=self.demo,
            branches=self.branches,
            current_chat=self.current_chat,
            archive=self.archive,
            pairs=self.pairs,
            settings_files=self.settings_files,
            speed=self.speed,
            races=self.races,
            tour=self.tour,
            side_panel=self.side_panel,
            show=self.show,
            server=self.server,
            trainings=self.trainings,
            clips=Clips(self._chat, self.session),
            learning=self.learning,
            keys=keys,
        )

    def _build_input_and_output(self) -> None:
        """What turns keys, text and the engine's events into actions, and what draws the result."""
        chat, views, ports = self._chat, self._views, self._ports
        self.prompt_controller = PromptController(self.actions, self.context_limit)
        self.stop_keys = StopKeys(self.actions, self.context_limit, self.prompt_controller)
        self.round_animation = RoundAnimation(chat, views, self.speed, self.pump, ports)
        self.events = EventDispatch(self.actions, self.context_limit, self.context_use, self.terminal, self.garbage)
        self.screen_update = ScreenUpdate(
            chat,
            views,
            self.session,
            context_limit=self.context_limit,
            speed=self.speed,
            demo=self.demo,
            animation=self.round_animation,
            pump=self.pump,
            terminal=self.terminal,
            show=self.show,
            trainings=self.trainings,
            side=self.side_panel,
        )

    def close_chat(self) -> None:
        """Write everything of the chat that is not written yet, and the text in the prompt."""
        self.demo.close()  # the chat to write is the one that it took the place of
        try:
            self.current_chat.keep_draft()
        finally:
            self.archive.close()

    async def end_processes(self) -> None:
        """Stop what runs beside the engine: downloads, and a training."""
        await asyncio.gather(self.pairs.close(), self.trainings.runner.close())
