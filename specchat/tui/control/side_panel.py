"""The parts beside the chat (tree, figures, settings), which replace the chat on small screens."""

from __future__ import annotations

from specchat.tui.ports import AppPorts
from specchat.tui.screens.figures import FiguresScreen
from specchat.tui.screens.settings import SettingsScreen
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.state.chat import Chat
from specchat.tui.state.settings_fields import Field, fields_of
from specchat.tui.state.turn import Turn
from specchat.tui.tree import Mode
from specchat.tui.view_ports import SettingsFormPort, ViewPorts


class SidePanel:
    """Shows and hides the parts by setting classes of the chat's screen, which the style sheet reads."""

    def __init__(self, chat: Chat, views: ViewPorts, files: SettingsFiles, ports: AppPorts) -> None:
        self._chat, self._views, self._files, self._ports = chat, views, files, ports
        self._shown_of: tuple[object, ...] = ()

    @property
    def form(self) -> SettingsFormPort:
        """The settings form that is visible."""
        screen = self._ports.screen()
        return screen.form if isinstance(screen, SettingsScreen) else self._views.settings_form

    def fields(self) -> list[Field]:
        """The settings in force, or those that the pair being loaded will have; empty where neither is known."""
        return self._contents()[0]

    def show_fields(self) -> None:
        """Show the settings in the form."""
        self._shown_of = self._settings_of
        self.form.show(*self._contents())

    def update_fields(self) -> None:
        """Show the settings in the form again if they are of another pair, or others are wanted for the next load."""
        if self._shown_of != self._settings_of:
            self.show_fields()

    @property
    def _settings_of(self) -> tuple[object, ...]:
        """What decides which settings are shown."""
        engine = self._chat.engine
        return engine.phase, engine.pair, engine.loading_pair, dict(engine.wanted)

    def _contents(self) -> tuple[list[Field], str, str]:
        """What the form shows: the settings, the pair in use, and whose settings they are if not its own."""
        engine = self._chat.engine
        if engine.hello is None:
            return [], engine.pair, ""
        if engine.phase == "ready":
            return fields_of(engine.hello, engine.settings, self._files.shipped, self._files.saved), engine.pair, ""
        if expected := self._files.expected():
            loading = engine.phase in ("starting", "loading")
            remark = f"loading {engine.loading_pair}" if loading else f"{engine.loading_pair} is not loaded"
            return fields_of(engine.hello, *expected), "", remark
        if engine.ready is not None:
            return fields_of(engine.hello, engine.settings), "", f"still of {engine.pair}"
        return [], "", ""

    def toggle_settings(self) -> None:
        """Show the settings beside the chat if there is room, else over it; or hide them."""
        views, base = self._views, self._ports.chat_screen()
        if self.hide_settings():
            return
        if self._has_room:
            base.set_class(True, "-settings")
            self._update()
            views.settings_form.show_effect(self._chat.engine.effect)
            self.show_fields()
            views.settings_form.focus()
        else:
            screen = SettingsScreen(*self._contents(), self._chat.engine.effect)
            self._ports.push_screen(screen, lambda _: self.focus_chat())

    def hide_settings(self) -> bool:
        """Hide the settings beside the chat; False if they are not shown."""
        base = self._ports.chat_screen()
        if not base.has_class("-settings"):
            return False
        base.set_class(False, "-settings")
        self._update()
        self.focus_chat()
        return True

    def turn_stats(self) -> None:
        """Show all figures, then none, then the most important ones again; those without room on a page."""
        if self._refuse("no figures stand beside it"):
            return
        base, stats = self._ports.chat_screen(), self._views.stats
        all_shown, hidden = base.has_class("-all-stats"), base.has_class("-no-stats")
        if not self._stats_have_room:
            self._ports.push_screen(FiguresScreen(lambda: stats.facts))
        elif all_shown and stats.left_out:
            self._ports.push_screen(FiguresScreen(lambda: stats.facts), self._figures_closed)
        else:
            self._set_stats(all_shown=not all_shown and not hidden, hidden=all_shown)

    async def _figures_closed(self, goes_on: bool | None) -> None:
        """The page with all figures is closed; `goes_on`: the figures beside the chat are hidden next."""
        if goes_on:
            self._set_stats(all_shown=False, hidden=True)

    def _set_stats(self, *, all_shown: bool, hidden: bool) -> None:
        base = self._ports.chat_screen()
        base.set_class(all_shown, "-all-stats")
        base.set_class(hidden, "-no-stats")
        self._views.stats.want_all(all_shown)
        self._update()

    def toggle_tree(self) -> None:
        """Hide or show the tree; on a small screen, first show it in place of the chat."""
        if self._refuse("it cannot be hidden"):
            return
        base = self._ports.chat_screen()
        alone = not (self._has_room or base.has_class("-tree-alone") or base.has_class("-no-tree"))
        base.set_class(alone, "-tree-alone")
        if alone:
            self._ports.after_refresh(self._views.tree_panel.focus)
        else:
            base.toggle_class("-no-tree")
            self._update()
            self.focus_chat()

    def set_tree_mode(self, mode: Mode) -> None:
        """Draw trees this way from now on."""
        self._views.tree_panel.set_mode(mode)
        self._ports.chat_screen().set_class(False, "-no-tree")
        self._update()

    def look_at(self, turn: Turn | None) -> None:
        """Show the rounds of this reply, or of the one to this message; None: of the newest one again."""
        found = self._chat.reply_turn(turn) if turn else None
        self._chat.shown_rounds.look_at(found.reply if found else None)
        self._ports.redraw()

    def leave_tree(self) -> None:
        """Show the chat again where the tree replaced it."""
        self._ports.chat_screen().set_class(False, "-tree-alone")

    def focus_chat(self) -> None:
        """Focus the prompt, or the chat where a recording is played."""
        (self._views.prompt if self._views.prompt.can_focus else self._views.transcript).focus()

    @property
    def _stats_have_room(self) -> bool:
        """Whether there is room for figures beside the chat, and nothing in their place."""
        base = self._ports.chat_screen()
        return self._has_room and not any(base.has_class(other) for other in ("-h14", "-settings"))

    def _update(self) -> None:
        """Hide the side where all its parts are hidden."""
        base = self._ports.chat_screen()
        empty = base.has_class("-no-tree") and base.has_class("-no-stats") and not base.has_class("-settings")
        base.set_class(empty, "-no-side")

    @property
    def _has_room(self) -> bool:
        """Whether there is room beside the chat."""
        base = self._ports.chat_screen()
        return not any(base.has_class(full) for full in ("-w0", "-h0", "-h8", "-show"))

    def _refuse(self, why: str) -> bool:
        """Say what cannot be done where the tree fills the window; False where it does not."""
        fills = self._ports.chat_screen().has_class("-show")
        if fills:
            leaves = self._ports.key_hint("show", "leaves", " · ")
            self._ports.notify(f"the tree fills the window: {why}{leaves}", "warn")
        return fills
