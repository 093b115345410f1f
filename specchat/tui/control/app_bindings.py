"""The keys that act everywhere in the app. `command('NAME')` runs a slash command without arguments."""

from __future__ import annotations

from textual.binding import Binding, BindingType

_QUESTIONS = [
    Binding(key, f"ask_question({at})", f"ask {which} of the empty page's questions", show=False, priority=True, id=id)
    for at, (key, which, id) in enumerate(
        (
            ("alt+x", "the first", "question.first"),
            ("alt+y", "the second", "question.second"),
            ("alt+z", "the third", "question.third"),
        )
    )
]
"""Terminals send Alt+B and Alt+F as other keys, and Textual takes Alt with a digit for a character."""

APP_BINDINGS: list[BindingType] = [
    Binding("f1", "command('help')", "all keys and commands", show=False, priority=True, id="help"),
    Binding("ctrl+p", "command_palette", "find a command", show=False, priority=True, id="palette"),
    Binding("escape", "stop", "stop at the next round, keep the text", show=False, id="stop"),
    Binding(
        "ctrl+c",
        "interrupt",
        "copy the selection, else stop; twice: leave",
        show=False,
        priority=True,
        id="interrupt",
    ),
    Binding("ctrl+q", "quit", "leave at once", show=False, priority=True, id="quit"),
    Binding("ctrl+r", "search", "search what you sent before", show=False, id="search"),
    Binding("ctrl+g", "open_editor", "edit the prompt in $VISUAL or $EDITOR", show=False, id="editor"),
    Binding("ctrl+n", "command('new')", "begin a new chat", show=False, id="new"),
    Binding("ctrl+o", "command('chats')", "open, search, rename, delete, export chats", show=False, id="chats"),
    Binding("f4", "command('pair')", "choose what to talk to", show=False, id="pair"),
    Binding("f2", "command('settings')", "show or hide all settings", show=False, id="settings"),
    Binding("ctrl+t", "command('tree')", "hide or show the tree", show=False, id="tree"),
    Binding("ctrl+l", "command('show')", "fill the window with the tree, slowly", show=False, id="show"),
    Binding("f3", "command('stats')", "all figures, none, or the most important ones", show=False, id="stats"),
    Binding("f8", "command('tokens')", "flip a reply between Markdown and tokens", show=False, id="tokens"),
    Binding("ctrl+z", "suspend_process", "go to the background; fg returns", show=False, priority=True, id="suspend"),
    Binding("f5", "command('restart')", "start an engine that has stopped", show=False, id="restart"),
    *_QUESTIONS,
    Binding("space", "pace('hold')", "hold the rounds, or let them go on", show=False, id="pace.hold"),
    Binding("full_stop", "pace('step')", "do one round", show=False, id="pace.step"),
    Binding("less_than_sign", "pace('slower')", "slower", show=False, id="pace.slower"),
    Binding("greater_than_sign", "pace('faster')", "faster", show=False, id="pace.faster"),
    Binding("R,shift+r", "pace('rewind')", "play a recording again", show=False, id="pace.rewind"),
]
