"""The messages that the transcript posts about the chat's messages."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from specchat.tui.state.turn import Turn


@dataclass
class Pointed(Message, namespace="transcript"):
    """The user points at this message."""

    turn: Turn


class Shortened(Message, namespace="transcript"):
    """Messages were removed from the page."""


@dataclass
class CopyAsked(Message, namespace="transcript"):
    """The user wants this text in the clipboard; empty if there is none."""

    text: str
    what: str = "message"


@dataclass
class RegenerateAsked(Message, namespace="transcript"):
    """The user wants a question answered again: this one, the one that this reply answers, or the last."""

    turn: Turn | None


@dataclass
class EditAsked(Message, namespace="transcript"):
    """The user wants to say this differently (or what was said last); `reply`: to edit the reply's text."""

    turn: Turn | None
    reply: bool


@dataclass
class SwitchAsked(Message, namespace="transcript"):
    """The user wants to see another branch at this turn, or at the last turn with several."""

    turn: Turn | None
    step: int
