"""Puts a message that was not sent back into the prompt."""

from __future__ import annotations

from specchat.tui.ports import AppPorts
from specchat.tui.state import attachments
from specchat.tui.view_ports import PromptPort


def as_typed(message: str) -> str:
    """What to type to send this message: its files are named in it, and one that begins with a slash has two."""
    spoken = attachments.split(message)[0]
    return "/" * spoken.startswith("/") + spoken


def put_back(message: str, prompt: PromptPort, ports: AppPorts) -> str:
    """Write a message that waited into the prompt if that is empty; what to say of it."""
    if prompt.text:
        return "the message that waited was not sent" + ports.key_hint("search", "finds it", " · ")
    prompt.write(as_typed(message))
    return "the message that waited was not sent: it is in the prompt again"
