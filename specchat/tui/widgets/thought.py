"""The thoughts before an answer: one line of summary, and the text below it on request."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive

from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, first_runs
from specchat.tui.widgets.tinted_text import TintedText


class ThoughtView(Vertical):
    """Unfolded while the model thinks, folded when it has finished; the user can change that."""

    DEFAULT_CSS = """
    ThoughtView { height: auto; display: none; margin: 0 0 1 0; }
    ThoughtView > .thoughts { padding: 0 0 0 2; display: none; }
    ThoughtView.-unfolded > .thoughts { display: block; }
    ReplyView.-tokens > ThoughtView { display: none; }
    """

    unfolded: reactive[bool] = reactive(False)
    """Whether the thoughts are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._line = TintedText()
        self._thoughts = TintedText(classes="thoughts")
        self._caption = ("", "")

    def compose(self) -> ComposeResult:
        """The line, then the thoughts."""
        yield self._line
        yield self._thoughts

    def watch_unfolded(self, unfolded: bool) -> None:
        """Show or hide the thoughts."""
        self.set_class(unfolded, "-unfolded")
        self._draw()

    def on_click(self) -> None:
        """Unfold, or fold."""
        self.unfolded = not self.unfolded

    def add(self, thoughts: list[tuple[str, str]], tokens: int) -> None:
        """Add text of thoughts; nothing is shown while it is only white space."""
        text = "".join(text for text, _ in thoughts)
        if not self.display and not (text := text.lstrip()):
            return
        if not self.display:
            self.display = self.unfolded = True
        self._thoughts.add(first_runs([(text, "dim")]))
        self._caption = ("thinking", f" · {numbers.count(tokens)} tokens")
        self._draw()

    def set_preview(self, runs: ScreenLine, *, within: bool = False) -> None:
        """Show these runs behind the thoughts as a preview of draft tokens."""
        self._thoughts.set_preview(runs, within=within)

    def close(self, seconds: float | None, tokens: int) -> None:
        """The thought is complete."""
        if not self.display:
            return
        took = f" for {seconds:.1f} s" if seconds is not None else ""
        self._caption = (f"thought{took}", f", {numbers.count(tokens)} tokens")
        self.unfolded = False
        self._draw()

    def _draw(self) -> None:
        what, figures = self._caption
        self._line.set([("▾ " if self.unfolded else "▸ ", "dim"), (what, "text"), (figures, "dim")])
