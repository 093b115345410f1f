"""The parts beside the chat (tree, figures, settings), which replace the chat or lie over it on small screens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType

from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.page import Page
from specchat.tui.state.settings_fields import Field, fields_of
from specchat.tui.state.stats_lines import StatsFacts, stats_lines
from specchat.tui.state.turn import Turn
from specchat.tui.text.key_names import bind, hint
from specchat.tui.tree import Mode
from specchat.tui.widgets.painted_lines import LinesView
from specchat.tui.widgets.settings_form import SettingsScreen

_REFRESH_S = 1 / 3


class SidePanel:
    """Shows and hides the parts by setting classes of the chat's screen, which the style sheet reads."""

    def __init__(self, view: ChatView) -> None:
        self._view, self._chat, self._app = view, view.chat, view.context.app
        self._files = view.context.settings_files
        self._shown_of: tuple[object, ...] = ()

    def fields(self) -> list[Field]:
        """The settings in force, or those that the pair being loaded will have; empty where neither is known."""
        return self._contents()[0]

    def show_fields(self) -> None:
        self._shown_of = self._settings_of
        self._view.form.show(*self._contents())

    def update_fields(self) -> None:
        """Show the settings in the form again if they are of another pair, or others are wanted for the next load."""
        if self._shown_of != self._settings_of:
            self.show_fields()

    @property
    def _settings_of(self) -> tuple[object, ...]:
        """What decides which settings are shown."""
        engine = self._chat.engine
        return engine.phase, engine.pair, engine.loading_pair, dict(engine.wanted), [*engine.changes], dict(engine.held)

    def _contents(self) -> tuple[list[Field], str, str]:
        """What the form shows: the settings, the pair in use, and whose settings they are if not its own."""
        engine = self._chat.engine
        if engine.hello is None:
            return [], engine.pair, ""
        if engine.phase == "ready":
            return fields_of(engine.hello, engine.chosen, self._files.shipped, self._files.saved), engine.pair, ""
        if expected := self._files.expected():
            loading = engine.phase in ("starting", "loading")
            remark = f"loading {engine.loading_pair}" if loading else f"{engine.loading_pair} is not loaded"
            return fields_of(engine.hello, *expected), "", remark
        if engine.ready is not None:
            return fields_of(engine.hello, engine.settings), "", f"still of {engine.pair}"
        return [], "", ""

    def toggle_settings(self) -> None:
        """Show the settings beside the chat if there is room, else over it; or hide them."""
        form = self._view.settings_form
        if self.hide_settings():
            return
        if self._has_room:
            self._view.set_class(True, "-settings")
            self._update()
            form.show_effect(self._chat.engine.effect)
            self.show_fields()
            form.focus()
            self._app.redraw()
        else:
            screen = SettingsScreen(*self._contents(), self._chat.engine.effect)
            self._app.push_screen(screen, lambda _: self._view.focus_chat())

    def hide_settings(self) -> bool:
        """Hide the settings beside the chat; False if they are not shown."""
        if not self._view.has_class("-settings"):
            return False
        self._view.set_class(False, "-settings")
        self._update()
        self._view.focus_chat()
        return True

    def turn_stats(self) -> None:
        """Show all figures, then none, then the most important ones again; those without room on a page."""
        if self._refuse("no figures stand beside it"):
            return
        view, stats = self._view, self._view.stats
        all_shown, hidden = view.has_class("-all-stats"), view.has_class("-no-stats")
        if not self._has_room or view.has_class("-h14") or view.has_class("-settings"):
            self._app.push_screen(FiguresScreen(lambda: stats.facts))
        elif all_shown and stats.left_out:

            def closed(goes_on: bool | None) -> None:
                if goes_on:
                    self._set_stats(all_shown=False, hidden=True)

            self._app.push_screen(FiguresScreen(lambda: stats.facts), closed)
        else:
            self._set_stats(all_shown=not all_shown and not hidden, hidden=all_shown)

    def _set_stats(self, *, all_shown: bool, hidden: bool) -> None:
        self._view.set_class(all_shown, "-all-stats")
        self._view.set_class(hidden, "-no-stats")
        self._view.stats.want_all(all_shown)
        self._update()

    def toggle_tree(self) -> None:
        """Hide or show the tree; on a small screen, first show it in place of the chat."""
        if self._refuse("it cannot be hidden"):
            return
        alone = not (self._has_room or self._view.has_class("-tree-alone") or self._view.has_class("-no-tree"))
        self._view.set_class(alone, "-tree-alone")
        if alone:
            self._app.call_after_refresh(self._view.tree_panel.focus)
        else:
            self._view.toggle_class("-no-tree")
            self._update()
            self._view.focus_chat()

    def set_tree_mode(self, mode: Mode) -> None:
        self._view.tree_panel.mode = mode
        self._view.set_class(False, "-no-tree")
        self._update()

    def look_at(self, turn: Turn | None) -> None:
        """Show the rounds of this reply, or of the one to this message; None: of the newest one again."""
        found = self._chat.reply_turn(turn) if turn else None
        self._chat.shown_rounds.look_at(found.reply if found else None)
        self._app.redraw()

    def _update(self) -> None:
        empty = self._view.has_class("-no-tree", "-no-stats") and not self._view.has_class("-settings")
        self._view.set_class(empty, "-no-side")

    @property
    def _has_room(self) -> bool:
        return not any(self._view.has_class(full) for full in ("-w0", "-h0", "-h8", "-show"))

    def _refuse(self, why: str) -> bool:
        """Say what cannot be done where the tree fills the window; False where it does not."""
        fills = self._view.has_class("-show")
        if fills:
            leaves = self._app.key_hint("show", "leaves", " · ")
            self._app.say(f"the tree fills the window: {why}{leaves}", "warn")
        return fills


class FiguresScreen(Page[bool]):
    """Every line of the figures, as they are now; scrolls where they do not fit. True: closed to go on."""

    DEFAULT_CSS = """
    FiguresScreen > VerticalScroll { width: 64; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    FiguresScreen LinesView { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,q", "dismiss(False)", "close", "figures.close"),
        bind("f3", "dismiss(True)", "close, and hide the figures beside the chat", "figures.hide"),
    ]

    def __init__(self, facts: Callable[[], StatsFacts]) -> None:
        self._facts = facts
        self._lines = LinesView(lambda width, _: stats_lines(facts(), width, sys.maxsize))
        super().__init__(self._lines, scrolls=True)

    def on_mount(self) -> None:
        self.entitle("speed", hint(self, "figures.close", "closes"))
        self.box.focus()
        self.set_interval(_REFRESH_S, self.redraw)

    def redraw(self) -> None:
        width = self._lines.size.width
        self._lines.styles.height = max(1, len(stats_lines(self._facts(), width, sys.maxsize)))
        self._lines.repaint()
