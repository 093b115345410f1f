"""`specchat serve --watch`: the reply that is being written and the tree of its last round, drawn in the terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specchat.cli.run import stats_line
from specchat.engine.protocol.events import Died, Event, Failed, Finished, RoundDone, Started
from specchat.engine.protocol.text import one_line, visible
from specchat.tui.tree import layout

_BEAT_S = 0.08
"""The least time between two pictures; each shows a real round."""

_TREE_LINES, _TEXT_LINES = 12, 4

_STYLES = {
    "root": "bold", "accepted": "blue", "bonus": "yellow", "rejected": "red strike", "crossed": "red",
    "unreached": "dim", "pruned": "dim", "cut": "dim", "river": "blue", "line": "dim", "dim": "dim", "bar": "blue",
    "agreed": "cyan",
}  # fmt: skip
"""How the roles of a drawn line look here; glyphs say the same."""


class TreeWatch:
    """Draws what it hears: one picture while a reply is written, one line when it is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._asked = ""
        self._text = ""
        self._drawn_s = 0.0

    def hear(self, event: Event) -> None:
        """Take an event of the reply that is being written."""
        match event:
            case Started():
                self._asked = one_line(event.messages[-1].content if event.messages else event.text or "")
                self._text = ""
                self._console.print(self._line(f"› {self._asked}", "bold"))
                self._live.start()
            case RoundDone():
                self._text = (self._text + "".join(piece.text for piece in event.pieces))[-4000:]
                if time.monotonic() - self._drawn_s >= _BEAT_S:
                    self._drawn_s = time.monotonic()
                    self._live.update(self._picture(event), refresh=True)
            case Finished():
                self._end(f"{stats_line(event.stats)} · {event.stop}")
            case Failed():
                self._end(f"refused: {one_line(event.message)}")
            case Died():
                self._end("the engine died; it is being started again")
            case _:
                pass

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._live.stop()

    def _end(self, words: str) -> None:
        self._live.stop()
        self._console.print(self._line(f"  {words}", "dim"))

    def _picture(self, round: RoundDone) -> Text:
        """The end of the text so far, and below it the round's tree."""
        width, height = self._console.width, self._console.height
        lines = max(1, min(_TREE_LINES, height - _TEXT_LINES - 2))
        picture = Text("\n".join(_last_lines(visible(self._text), width, _TEXT_LINES)) + "\n")
        for line in layout(round, width - 1, lines):
            for text, role in line:
                picture.append(text, _STYLES.get(role, ""))
            picture.append("\n")
        return picture

    def _line(self, words: str, style: str) -> Text:
        line = Text(words, style)
        line.truncate(self._console.width - 1, overflow="ellipsis")
        return line


def _last_lines(text: str, width: int, count: int) -> list[str]:
    """The last lines that the text takes in a terminal of this width."""
    lines = [line[at : at + width - 1] for line in text.split("\n") for at in range(0, max(1, len(line)), width - 1)]
    return lines[-count:]
