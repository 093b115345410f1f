"""All settings in one form: arrows choose and change, Enter types a value, effects show at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from specchat.engine.text import visible
from specchat.errors import UsageError
from specchat.tui import format
from specchat.tui.fields import Field
from specchat.tui.rows import Row, cut, padded, width_of
from specchat.tui.widgets.painted import Painted
from specchat.tui.wrap import wrap

_ERROR_ROWS = 3


@dataclass
class _Line:
    """One row of the form: a heading, a field, a remark under a field, or the reload button."""

    kind: str  # heading, field, error, reload
    text: str = ""
    field: Field | None = None


class SettingsForm(Painted, can_focus=True):
    """The fields, one chosen; live ones act at once, the others when applied."""

    DEFAULT_CSS = """
    SettingsForm { height: 1fr; padding: 0 1; border: round $border; border-title-color: $foreground 80%;
        border-subtitle-color: $warning; }
    SettingsForm:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False, id="settings.up"),
        Binding("down,j,tab", "move(1)", "down", show=False, id="settings.down"),
        Binding("left,h,minus", "step(-1)", "less", show=False, id="settings.less"),
        Binding("right,l,plus,space", "step(1)", "more", show=False, id="settings.more"),
        Binding("home", "edge(0)", "first", show=False, id="settings.first"),
        Binding("end", "edge(-1)", "last", show=False, id="settings.last"),
        Binding("enter", "edit", "type a value", show=False, id="settings.edit"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fields: list[Field] = []
        self._at = 0
        self._top = 0
        self._typed: str | None = None
        self._errors: dict[str, str] = {}
        self._asked: tuple[str, Any] = ("", None)
        self._refused: dict[str, Any] = {}  # choices that did not fit: the next step goes on from there
        self._staged: dict[str, Any] = {}
        self.border_title = "settings"

    class Chosen(Message):
        """The user gave a live setting another value."""

        def __init__(self, name: str, value: Any) -> None:
            super().__init__()
            self.name = name
            self.value = value

    class ReloadAsked(Message):
        """The user wants these settings, which need the models loaded again."""

        def __init__(self, changes: dict[str, Any]) -> None:
            super().__init__()
            self.changes = changes

    class Left(Message):
        """The user is done with the form."""

    def on_key(self, event: events.Key) -> None:
        """Letters and digits go into the value being typed; Escape ends typing, then the form."""
        if self._typed is None:
            if event.key == "escape":
                event.stop()
                self.post_message(self.Left())
            elif event.character and (event.character.isdigit() or event.character == ".") and self._current():
                event.stop()
                self._typed = event.character
                self.repaint()
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self._accept_typed()
        elif event.key == "escape":
            self._typed = None
        elif event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.is_printable and event.character:
            self._typed += event.character
        self.repaint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a value is typed, every key belongs to it."""
        return self._typed is None

    def action_move(self, step: int) -> None:
        """Choose another line."""
        stops = self._stops()
        self._at = max(0, min(len(stops) - 1, self._at + step))
        self.repaint()

    def action_edge(self, index: int) -> None:
        """Choose the first or last line."""
        self._at = 0 if index == 0 else len(self._stops()) - 1
        self.repaint()

    def action_step(self, direction: int) -> None:
        """One step more or less, or the next choice."""
        if field := self._current():
            refused = self._refused.get(field.name, field.value)
            start = Field(field.name, field.info, refused, field.section) if field.info.choices else field
            self._choose(field, start.stepped(direction))

    def action_edit(self) -> None:
        """Type a value; on the last line: apply what needs a reload."""
        field = self._current()
        if field is None:
            if self._staged:
                staged, self._staged = self._staged, {}
                self.post_message(self.ReloadAsked(staged))
        elif field.info.choices or field.info.kind == "bool":
            self.action_step(1)
        else:
            self._typed = format.setting(field.value)
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        """Choose the line that was clicked."""
        lines = self._lines()
        y = event.y - 1 + self._top
        if 0 <= y < len(lines) and lines[y].kind in ("field", "reload"):
            self._at = sum(line.kind in ("field", "reload") for line in lines[:y])
            self.repaint()

    def show(self, fields: list[Field]) -> None:
        """Show these fields with the values in force; what was staged and is now in force is staged no longer."""
        chosen = self._current()
        before = {field.name: field.value for field in self._fields}
        self._refused = {f.name: self._refused[f.name] for f in fields
                         if f.name in self._refused and before.get(f.name) == f.value}  # fmt: skip
        self._fields = fields
        self._staged = {f.name: v for f in fields if (v := self._staged.get(f.name)) is not None and v != f.value}
        if chosen is not None:
            self._at = next((i for i, f in enumerate(fields) if f.name == chosen.name), self._at)
        self.repaint()

    def fail(self, name: str, message: str) -> None:
        """Say beside a field why its change was refused; the value in force is shown again."""
        self._errors = {name: visible(message)}
        if self._asked[0] == name:
            self._refused[name] = self._asked[1]
        self.repaint()

    def paint(self, width: int, height: int) -> list[Row]:
        """Lines around the chosen one, and at the bottom what it means."""
        self.border_subtitle = Content(f"{len(self._staged)} to apply · End Enter" if self._staged else "")
        if not self._fields:
            return [[("the engine has not said yet what can be set", "dim")]]
        about = self._about(width) if height >= 8 else []
        room = max(1, height - len(about))
        lines = self._lines()
        stops = [index for index, line in enumerate(lines) if line.kind in ("field", "reload")]
        self._at = max(0, min(self._at, len(stops) - 1))
        here = stops[self._at]
        self._top = max(min(self._top, max(0, here - 1)), here + 2 - room if here + 1 < len(lines) else here + 1 - room)
        self._top = max(0, min(self._top, max(0, len(lines) - room)))
        rows = [self._row(line, index == here, width) for index, line in enumerate(lines)][self._top : self._top + room]
        return [*rows, *([] for _ in range(room - len(rows))), *about]

    def _stops(self) -> list[_Line]:
        return [line for line in self._lines() if line.kind in ("field", "reload")]

    def _current(self) -> Field | None:
        stops = self._stops()
        return stops[min(self._at, len(stops) - 1)].field if stops else None

    def _lines(self) -> list[_Line]:
        lines: list[_Line] = []
        section = ""
        for field in self._fields:
            if field.section != section:
                section = field.section
                lines.append(_Line("heading", section))
            lines.append(_Line("field", field=self._with_staged(field)))
            if message := self._errors.get(field.name):
                room = max(8, self.size.width - 4)
                rows = [message[a:b].strip() for a, b in wrap(message, room)][:_ERROR_ROWS]
                lines += [_Line("error", ("✕ " if i == 0 else "  ") + row) for i, row in enumerate(rows)]
        if self._staged:
            lines.append(_Line("reload", f"apply and reload ({len(self._staged)} changed)"))
        return lines

    def _with_staged(self, field: Field) -> Field:
        return Field(field.name, field.info, self._staged.get(field.name, field.value), field.section)

    def _row(self, line: _Line, chosen: bool, width: int) -> Row:
        if line.kind == "heading":
            return [(line.text, "strong")]
        if line.kind == "error":
            return [("  " + line.text, "bad")]
        if line.kind == "reload":
            return padded([(f"⏎ {line.text}", "selected" if chosen else "warn")], width)
        assert line.field is not None, "a field's line has its field"
        return self._field_row(line.field, chosen, width)

    def _field_row(self, field: Field, chosen: bool, width: int) -> Row:
        staged = field.name in self._staged
        value = format.setting(field.value) or "—"
        if chosen and self._typed is not None:
            value = self._typed + "▏"
        elif chosen:
            value = f"‹ {value} ›"
        value = cut(value, max(3, width - 8))
        name = cut(("* " if staged else "  ") + field.label, max(1, width - width_of([(value, "")]) - 1))
        gap = " " * (width - width_of([(name, ""), (value, "")]))
        if chosen:
            return [(name + gap + value, "selected")]
        changed = field.value != field.info.default
        return [(name, "text"), (gap, ""), (value, "warn" if staged else "accepted" if changed else "dim")]

    def _about(self, width: int) -> list[Row]:
        """What the chosen field means and takes, in two or three rows."""
        field = self._current()
        if field is None:
            return [[("─" * width, "line")], [("Enter loads the models again", "dim")], []]
        text = field.info.help + (f" ({field.info.unit})" if field.info.unit else "")
        rows = [text[a:b].rstrip() for a, b in wrap(text, width)][:2]
        keys = "← → change · Enter type" if field.info.live else "← → change · needs a reload"
        allowed = _option_range(field)
        last = cut(allowed, width) if allowed else keys
        return [[("─" * width, "line")], *([(row, "text")] for row in [*rows, ""][:2]), [(last, "dim")]]

    def _choose(self, field: Field, value: Any) -> None:
        self._errors.pop(field.name, None)
        if value == field.value:
            return
        self._asked = (field.name, value)
        if field.info.live:
            self.post_message(self.Chosen(field.name, value))
        else:
            self._staged[field.name] = value
        self.repaint()

    def _accept_typed(self) -> None:
        field, typed = self._current(), self._typed
        self._typed = None
        if field is None or typed is None:
            return
        try:
            self._choose(field, field.parse(typed))
        except UsageError as error:
            self.fail(field.name, str(error))


def _option_range(field: Field) -> str:
    info = field.info
    if info.choices:
        return f"{len(info.choices)} choices"
    if info.minimum is not None and info.maximum is not None:
        return f"{info.minimum:g} to {info.maximum:g}"
    return f"{info.minimum:g} or more" if info.minimum is not None else ""
