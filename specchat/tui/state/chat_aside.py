"""Setting the chat aside while something else is shown in its place, and taking it back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specchat.tui.state.chat import Chat
from specchat.tui.state.engine_state import EngineState

_OF_THE_APP = ("background", "unsaved", "served")
"""What belongs to no chat and goes on while one is set aside."""


def set_aside(chat: Chat) -> dict[str, Any]:
    """Everything about the chat and its engine, which begin anew; `take_back` shows it again as it was."""
    aside = dict(chat.__dict__)
    fresh = Chat(engine=EngineState(wanted=dict(chat.engine.wanted)))
    chat.__dict__.update({name: value for name, value in fresh.__dict__.items() if name not in _OF_THE_APP})
    return aside


def take_back(chat: Chat, aside: Mapping[str, Any]) -> None:
    """Show a chat again that was set aside."""
    chat.__dict__.update({name: value for name, value in aside.items() if name not in _OF_THE_APP})
