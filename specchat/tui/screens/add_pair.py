"""The screen that adds a pair: target, optional draft model and name; they are checked before they are saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from specchat.tui.system.processes import OwnProcess
from specchat.tui.text.key_names import hint
from specchat.tui.widgets.prompt import LineInput
from specchat.tui.widgets.tinted_text import TintedText

_HELP = "A .gguf file, a folder of safetensors, owner/name of the hub, owner/name/file.gguf, or a known model."


class AddPairScreen(ModalScreen[str | None]):
    """Three inputs; its result is the name of the pair that was added."""

    DEFAULT_CSS = """
    AddPairScreen { align: center middle; background: $background 60%; }
    AddPairScreen > Vertical {
        width: 72; max-width: 96%; height: auto; max-height: 96%; padding: 0 1;
        border: round $primary; border-title-color: $primary; border-subtitle-color: $quiet-color;
        background: $surface;
    }
    AddPairScreen Input { border: none; padding: 0 1; height: 1; margin: 0 0 1 0; background: $panel; }
    AddPairScreen Input:focus { border: none; background: $primary 20%; }
    AddPairScreen TintedText { height: auto; max-height: 8; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "stop looking, or close", show=False, id="add_pair.close"),
        Binding("down", "app.focus_next", "the next line", show=False, id="add_pair.next"),
        Binding("up", "app.focus_previous", "the line above", show=False, id="add_pair.previous"),
    ]

    def __init__(self, command: Callable[..., list[str]]) -> None:
        super().__init__()
        self._command = command
        self._process: OwnProcess | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "add a pair"
            box.border_subtitle = "Enter adds it" + hint(self, "add_pair.close", "closes", " · ")
            for id, label in (
                ("target", "target"),
                ("draft", "draft model, or nothing; several with ; between them"),
                ("name", "name"),
            ):
                yield TintedText([(label, "dim")])
                yield LineInput(id=id, select_on_focus=False)
            yield TintedText([(_HELP, "dim")], id="said")

    def on_mount(self) -> None:
        self.query_one("#target").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self._text("target") and not self._text("name"):
            self.query_one("#name", Input).value = _name_for(self._text("target"))
            self.query_one("#name").focus()
        elif not self._text("target"):
            self.query_one("#target").focus()
        elif self._process is None:
            self.run_worker(self._add(), exclusive=True)

    def action_leave(self) -> None:
        if self._process is not None:
            self._process.cancel()
        else:
            self.dismiss(None)

    async def on_unmount(self) -> None:
        if self._process is not None:
            await self._process.end()

    async def _add(self) -> None:
        drafts = [draft.strip() for draft in self._text("draft").split(";") if draft.strip()]
        words = ["models", "add", self._text("name"), "--target", self._text("target")]
        words += [word for draft in drafts for word in ("--draft", draft)]
        self._process = process = OwnProcess(self._command(*words))
        self._say([(f"looking at it … {hint(self, 'add_pair.close', 'stops')}", "bonus")])
        try:
            added = await process.run()
        finally:
            self._process = None
        if added:
            self.dismiss(self._text("name"))
        elif process.cancelled:
            self._say([("stopped; nothing was written", "dim")])
        else:
            self.query_one("#target").focus()
            lines = [line for line in process.words if line.startswith("specchat: ")] or [process.last_words]
            self._say([("\n".join("✕ " + line.removeprefix("specchat: ") for line in lines), "bad")])

    def _text(self, id: str) -> str:
        return self.query_one(f"#{id}", Input).value.strip()

    def _say(self, runs: list[tuple[str, str]]) -> None:
        self.query_one("#said", TintedText).set(runs)


def _name_for(target: str) -> str:
    """A name that a pair with this target could have: `~/weights/My Model.gguf` → `my-model`."""
    last = target.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._")
