"""The widgets of the chat's screen, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specchat.store.prompt_history import History
from specchat.tui.ports import KeyNames
from specchat.tui.state.chat import Chat
from specchat.tui.state.prompt_text import Completion
from specchat.tui.tree import ASCII, UNICODE
from specchat.tui.widgets.alert import Alert
from specchat.tui.widgets.command_menu import CommandMenu, Described
from specchat.tui.widgets.prompt import Prompt
from specchat.tui.widgets.settings_form import SettingsForm
from specchat.tui.widgets.small_panels import StatsPanel, Subtitle, TreeStrip
from specchat.tui.widgets.start_pages import StartPages
from specchat.tui.widgets.status_bars import Notice, QueuedMessage, ReplayBar, ServedLine, StatusBar
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel


@dataclass(frozen=True)
class ChatViews:
    """Everything the chat's screen is composed of."""

    transcript: Transcript
    start_pages: StartPages
    tree_panel: TreePanel
    tree_strip: TreeStrip
    subtitle: Subtitle  # below a tree that fills the window
    stats: StatsPanel
    settings_form: SettingsForm  # beside the chat
    prompt: Prompt
    command_list: CommandMenu
    status: StatusBar
    notice: Notice
    queued_message: QueuedMessage
    served_line: ServedLine
    alert: Alert
    replay_bar: ReplayBar


def chat_views(
    chat: Chat,
    history: History | None,
    key_of: KeyNames,
    complete: Callable[[str], Completion | None],
    commands: Mapping[str, Described],
    *,
    ascii: bool,
) -> ChatViews:
    """The widgets of a new app, which show this chat; `ascii` draws trees without other characters."""
    prompt = Prompt(history, complete, id="prompt")
    transcript = Transcript(id="transcript")
    views = ChatViews(
        transcript=transcript,
        start_pages=StartPages(chat, transcript, ASCII if ascii else UNICODE),
        tree_panel=TreePanel(ascii_marks=ascii, id="tree"),
        tree_strip=TreeStrip(ascii_marks=ascii, id="strip"),
        subtitle=Subtitle(chat, id="subtitle"),
        stats=StatsPanel(id="stats"),
        settings_form=SettingsForm(id="settings"),
        prompt=prompt,
        command_list=CommandMenu(prompt, commands, id="commands"),
        status=StatusBar(chat, key_of, id="status"),
        notice=Notice(chat, id="notice"),
        queued_message=QueuedMessage(chat, key_of, id="waiting"),
        served_line=ServedLine(chat, id="served"),
        alert=Alert(key_of, id="alert"),
        replay_bar=ReplayBar(key_of, id="replay"),
    )
    for watched in (views.transcript, views.tree_panel):
        watched.add_class("-paces")
    return views
