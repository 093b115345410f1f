"""What goes on beside the chat or in its place: downloads, a training, other programs that use the engine, the demo."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.tui.state.training import Training


@dataclass
class Background:
    """What the screen says of work that is no reply of the chat."""

    fetching: str = ""  # the downloads and their progress
    fetched: str = ""  # the pair that was downloaded last, until it is loaded
    found: str = ""  # models of other programs, offered on the welcome page
    training: Training | None = None  # of a drafter, until its verdict is answered
    serving: str = ""  # the address at which other programs may use the engine
    waiting_client: str = ""  # one of them whose reply waits until the engine is free
    replaying: bool = False  # a recording is played in place of the chat, or is about to be
    racing: bool = False  # a race or a benchmark has the engine
