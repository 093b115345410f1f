"""The state of the settings form: its lines, the chosen one, and typed, staged or refused values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specchat.engine.protocol.text import visible
from specchat.tui.state.settings_fields import Field
from specchat.tui.text import numbers

Kind = Literal["heading", "field", "error", "save", "save_pair", "reload"]


@dataclass(frozen=True)
class Line:
    """One line of the form: a heading, a field, a remark under a field, or something to do."""

    kind: Kind
    text: str = ""
    field: Field | None = None

    @property
    def selectable(self) -> bool:
        """Whether the line can be chosen."""
        return self.kind not in ("heading", "error")


@dataclass
class Form:
    """The form and what the user does in it."""

    pair: str = ""
    fields: list[Field] = field(default_factory=list)
    at: int = 0  # among the lines that can be chosen
    typed: str | None = None  # the value being typed
    query: str = ""
    searching: bool = False  # the search is being typed
    errors: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Any] = field(default_factory=dict)  # values that need a reload
    _last_change: tuple[str, Any] = ("", None)
    _refused: dict[str, Any] = field(default_factory=dict)  # refused choices: the next step continues from them

    def show(self, fields: list[Field], pair: str = "") -> None:
        """Show the values in force, without remarks; staged values that are now in force are removed."""
        chosen = self.current
        before = {field.name: field.value for field in self.fields}
        self._refused = {f.name: self._refused[f.name] for f in fields
                         if f.name in self._refused and before.get(f.name) == f.value}  # fmt: skip
        self.fields, self.pair, self.errors = fields, pair, {}
        self.staged = {f.name: v for f in fields if (v := self.staged.get(f.name)) is not None and v != f.value}
        if chosen is not None:
            self._choose_line(chosen.name)

    def fail(self, name: str, message: str) -> None:
        """A change was refused: say why under its field; the value in force is shown again."""
        self.errors = {name: visible(message)}
        if self._last_change[0] == name:
            self._refused[name] = self._last_change[1]

    def lines(self) -> list[Line]:
        """All lines in order: the fields that match the search, then the actions."""
        lines: list[Line] = []
        section = ""
        for one in self.matching_fields():
            if one.section != section:
                section = one.section
                lines.append(Line("heading", section))
            lines.append(Line("field", field=replace(one, value=self.staged.get(one.name, one.value))))
            if message := self.errors.get(one.name):
                lines.append(Line("error", message))
        return lines + self._action_lines()

    def _action_lines(self) -> list[Line]:
        actions: list[Line] = []
        if unsaved := self.unsaved:
            actions.append(Line("save", f"save {len(unsaved)} as default"))
            if self.pair:
                actions.append(Line("save_pair", f"save {len(unsaved)} for {self.pair} only"))
        if self.staged:
            actions.append(Line("reload", f"apply and reload ({len(self.staged)} changed)"))
        return [Line("heading", "what you changed"), *actions] if actions else []

    def matching_fields(self) -> list[Field]:
        """The fields that match the search, the best first; all in their order without one."""
        words = self.query.lower().split()
        found = [field for field in self.fields if all(word in field.words for word in words)]
        return sorted(found, key=lambda field: field.rank(self.query)) if words else found

    @property
    def unsaved(self) -> list[Field]:
        """Fields whose value would be another after the next start."""
        return [field for field in self.fields if field.value != field.saved]

    @property
    def selectable_lines(self) -> list[Line]:
        """The lines that can be chosen."""
        return [line for line in self.lines() if line.selectable]

    @property
    def line(self) -> Line | None:
        """The chosen line."""
        stops = self.selectable_lines
        self.at = max(0, min(self.at, len(stops) - 1))
        return stops[self.at] if stops else None

    @property
    def current(self) -> Field | None:
        """The chosen field, with the value in force."""
        line = self.line
        if line is None or line.field is None:
            return None
        return next(field for field in self.fields if field.name == line.field.name)

    def move(self, step: int) -> None:
        """Choose another line."""
        self.at = max(0, min(len(self.selectable_lines) - 1, self.at + step))

    def choose_end(self, last: bool) -> None:
        """Choose the first or the last line."""
        self.at = len(self.selectable_lines) - 1 if last else 0

    def stepped(self, direction: int) -> Any:
        """The chosen field's value one step further, from the staged value or the refused choice."""
        field = self.current
        assert field is not None, "only a field has steps"
        start = self.staged.get(field.name, field.value)
        if field.info.choices:
            start = self._refused.get(field.name, start)
        return replace(field, value=start).stepped(direction)

    def begin_typing(self, first: str | None = None) -> None:
        """Type a value: the one in force, or a new one that begins with this character."""
        if field := self.current:
            self.typed = numbers.setting(self.staged.get(field.name, field.value)) if first is None else first

    def set_value(self, value: Any) -> bool:
        """Set the chosen field; True if the engine has to change it now, False if it is staged or unchanged."""
        field = self.current
        assert field is not None, "only a field takes a value"
        self.errors.pop(field.name, None)
        self._last_change = (field.name, value)
        if not field.info.live:
            self.staged.pop(field.name, None)
            if value != field.value:
                self.staged[field.name] = value
            return False
        return bool(value != field.value)

    def search(self, text: str) -> None:
        """Show only the fields that match, and choose the first; an empty search keeps the chosen one."""
        chosen = self.current
        self.query = text
        self.at = 0
        if chosen is not None and not text:
            self._choose_line(chosen.name)

    def _choose_line(self, name: str) -> None:
        names = [line.field.name if line.field else "" for line in self.selectable_lines]
        self.at = names.index(name) if name in names else self.at
