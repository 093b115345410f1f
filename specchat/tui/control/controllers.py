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
from specchat.tui.control.current_chat import CurrentChat
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
    """The controllers of one app, by name."""

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        ports: AppPorts,
        options: AppOptions,
        keys: Mapping[str, str],
        setup: AppSetup,
    ) -> None:
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
        self.archive = ChatArchive(
            chat,
            setup.store,
            notify=ports.notify,
            note=views.transcript.add_note,
            redraw=views.status.repaint,
            call_later=ports.call_later,
            listening=lambda: not self.session.replaying,
        )
        self.branches = Branches(chat, views, self.archive, ports, lambda: self.session.replaying)
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
            demo=setup.demo,
            before_reply=lambda id: self.speed.begin(id),
        )
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
            racing=lambda: self.races.on,
            sizes=setup.sizes,
            finds_models=setup.finds_models,
        )
        self.speed = PlaybackSpeed(chat, self.session, views.tree_panel, ports, self.pump.wake)
        self.show = ShowMode(chat, views, self.session, self.speed, self.side_panel, ports)
        self.races = Races(chat, self.session, ports, setup.questions)
        self.served = ServedReplies(chat, self.session.send, lambda: self.races.on, self.pump.wake)
        self.server = EngineServer(chat, self.served, ports, setup.server, setup.serve_on)
        self.trainings = Trainings(chat, views, self.session, ports, setup.training, racing=lambda: self.races.on)
        self.context_limit = ContextLimit(chat, self.session, views, ports)
        self.learning = LearningControl(chat, views, self.session, self.settings_files)
        self.current_chat = CurrentChat(chat, views, self.session, self.context_limit, self.archive, ports)
        self.actions = Actions(
            chat=chat,
            views=views,
            ports=ports,
            session=self.session,
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
            clips=Clips(chat, self.session),
            learning=self.learning,
            keys=keys,
        )
        self.starting_page = StartingPage(views, self.session, self.context_limit, ports, setup.demo)
        self.prompt_controller = PromptController(self.actions, self.context_limit)
        self.stop_keys = StopKeys(self.actions, self.context_limit, self.prompt_controller)
        self.round_animation = RoundAnimation(chat, views, self.speed, self.pump, ports)
        self.events = EventDispatch(self.actions, self.context_limit, self.terminal, self.garbage)
        self.screen_update = ScreenUpdate(
            chat,
            views,
            self.session,
            context_limit=self.context_limit,
            speed=self.speed,
            animation=self.round_animation,
            pump=self.pump,
            terminal=self.terminal,
            show=self.show,
            trainings=self.trainings,
            side=self.side_panel,
        )

    def close_chat(self) -> None:
        """Write everything of the chat that is not written yet, and the text in the prompt."""
        try:
            self.current_chat.keep_draft()
        finally:
            self.archive.close()

    async def end_processes(self) -> None:
        """Stop what runs beside the engine: downloads, and a training."""
        await asyncio.gather(self.pairs.close(), self.trainings.runner.close())
