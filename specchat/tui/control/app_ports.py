"""Builds the ports: the functions of the running app that controllers use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from specchat.errors import SpecchatError
from specchat.tui.control.controllers import Controllers
from specchat.tui.control.terminal_app import TerminalApp
from specchat.tui.ports import AppPorts, Notify
from specchat.tui.text.key_names import hint


def app_ports(
    app: TerminalApp, notify: Notify, controllers: Callable[[], Controllers], tick: Callable[[], object]
) -> AppPorts:
    """The ports of this app.

    Args:
        notify: shows a remark.
        controllers: those of the app; called only once they are built, for they are built with these ports.
        tick: asks the app to look for events.
    """

    async def attempt(what: Awaitable[None]) -> None:
        try:
            await what
        except SpecchatError as error:
            notify(str(error), "warn")

    return AppPorts(
        notify=notify,
        redraw=lambda: controllers().screen_update(),
        key_of=app.key_of,
        key_hint=lambda id, does, before="": hint(app, id, does, before),
        attempt=attempt,
        new_chat=lambda: controllers().current_chat.new(),
        show_chat=lambda: controllers().current_chat.show(),
        after_refresh=app.call_after_refresh,
        set_timer=app.set_timer,
        set_interval=app.set_interval,
        push_screen=lambda screen, callback=None: app.push_screen(screen, callback),
        screen=lambda: app.screen,
        chat_screen=lambda: app.screen_stack[0],
        focused=lambda: app.focused,
        animated=lambda: app.animation_level != "none",
        copy=app.copy_to_clipboard,
        suspend=lambda: app.suspend(),
        repaint_all=lambda: app.refresh(layout=True),
        exit=app.exit,
        theme_names=lambda: list(app.available_themes),
        set_theme=lambda name: setattr(app, "theme", name),
        search_themes=app.search_themes,
        run_in_background=app.run_in_background,
        call_later=app.call_later,
        write=app.write_to_terminal,
        bell=app.bell,
        app_focused=lambda: app.app_focus,
        tick=tick,
    )
