"""The parts beside the chat (tree, figures, settings), which replace the chat on small screens."""

from __future__ import annotations

from specchat.tui.draw.token_tree import Mode
from specchat.tui.ports import AppPorts
from specchat.tui.screens.settings import SettingsScreen
from specchat.tui.services.settings_files import SettingsFiles
from specchat.tui.state.session import Chat
from specchat.tui.state.settings_fields import Field, fields_of
from specchat.tui.state.turn import Turn
from specchat.tui.view_ports import SettingsFormPort, ViewPorts


class SidePanel:
    """Shows and hides the parts by setting classes of the chat's screen, which the style sheet reads."""

    def __init__(self, chat: Chat, views: ViewPorts, files: SettingsFiles, ports: AppPorts) -> None:
        self._chat, self._views, self._files, self._ports = chat, views, files, ports

    @property
    def form(self) -> SettingsFormPort:
        """The settings form that is visible."""
        screen = self._ports.screen()
        return screen.form if isinstance(screen, SettingsScreen) else self._views.settings_form

    def fields(self) -> list[Field]:
        """The settings as they are in force."""
        if self._chat.engine.hello is None:
            return []
        return fields_of(self._chat.engine.hello, self._chat.engine.settings, self._files.shipped, self._files.saved)

    def show_fields(self) -> None:
        """Show the settings in force in the form."""
        self.form.show(self.fields(), self._chat.engine.pair)

    def toggle_settings(self) -> None:
        """Show the settings beside the chat if there is room, else over it; or hide them."""
        views, base = self._views, self._ports.chat_screen()
        if self._ports.screen().has_class("-settings"):
            base.set_class(False, "-settings")
            self._update()
            views.prompt.focus()
        elif self._has_room:
            base.set_class(True, "-settings")
            self._update()
            views.settings_form.show_effect(self._chat.engine.effect)
            views.settings_form.show(self.fields(), self._chat.engine.pair)
            views.settings_form.focus()
        else:
            screen = SettingsScreen(self.fields(), self._chat.engine.pair, self._chat.engine.effect)
            self._ports.push_screen(screen, lambda _: views.prompt.focus())

    def turn_stats(self) -> None:
        """Show all figures, then none, then the most important ones again."""
        base = self._ports.chat_screen()
        all_shown, hidden = base.has_class("-all-stats"), base.has_class("-no-stats")
        base.set_class(not all_shown and not hidden, "-all-stats")
        base.set_class(all_shown, "-no-stats")
        self._update()

    def toggle_tree(self) -> None:
        """Hide or show the tree; on a small screen, first show it in place of the chat."""
        base = self._ports.chat_screen()
        alone = not (self._has_room or base.has_class("-tree-alone") or base.has_class("-no-tree"))
        base.set_class(alone, "-tree-alone")
        if alone:
            self._ports.after_refresh(self._views.tree_panel.focus)
        else:
            base.toggle_class("-no-tree")
            self._update()
            self._views.prompt.focus()

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

    @property
    def _has_room(self) -> bool:
        """Whether there is room beside the chat."""
        base = self._ports.chat_screen()
        return not any(base.has_class(small) for small in ("-w0", "-h0", "-h8"))

    def _update(self) -> None:
        """Hide the side where all its parts are hidden."""
        base = self._ports.chat_screen()
        empty = base.has_class("-no-tree") and base.has_class("-no-stats") and not base.has_class("-settings")
        base.set_class(empty, "-no-side")
