"""The settings form without a screen: its lines, which one is chosen, what is typed, staged, refused or looked for."""

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
    def stop(self) -> bool:
        """Whether the line can be chosen."""
        return self.kind not in ("heading", "error")


@dataclass
class Form:
    """What the user sees and does, as state."""

    pair: str = ""
    fields: list[Field] = field(default_factory=list)
    at: int = 0  # among the lines that can be chosen
    typed: str | None = None  # the value being typed
    looking_for: str = ""
    looking: bool = False  # what is looked for is being typed
    errors: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Any] = field(default_factory=dict)  # wanted, but only after a reload
    _asked: tuple[str, Any] = ("", None)
    _refused: dict[str, Any] = field(default_factory=dict)  # choices that did not fit: the next step goes on there

    def show(self, fields: list[Field], pair: str = "") -> None:
        """Take the values in force; what was staged and is now in force is staged no longer."""
        chosen = self.current
        before = {field.name: field.value for field in self.fields}
        self._refused = {f.name: self._refused[f.name] for f in fields
                         if f.name in self._refused and before.get(f.name) == f.value}  # fmt: skip
        self.fields, self.pair = fields, pair
        self.staged = {f.name: v for f in fields if (v := self.staged.get(f.name)) is not None and v != f.value}
        if chosen is not None:
            self._choose_line(chosen.name)

    def fail(self, name: str, message: str) -> None:
        """A change was refused: say why under its field; the value in force is shown again."""
        self.errors = {name: visible(message)}
        if self._asked[0] == name:
            self._refused[name] = self._asked[1]

    def lines(self) -> list[Line]:
        """Everything in order: what fits what is looked for, then what can be done."""
        lines: list[Line] = []
        section = ""
        for one in self.fitting():
            if one.section != section:
                section = one.section
                lines.append(Line("heading", section))
            lines.append(Line("field", field=replace(one, value=self.staged.get(one.name, one.value))))
            if message := self.errors.get(one.name):
                lines.append(Line("error", message))
        return lines + self._deeds()

    def _deeds(self) -> list[Line]:
        deeds: list[Line] = []
        if unsaved := self.unsaved:
            deeds.append(Line("save", f"save {len(unsaved)} as default"))
            if self.pair:
                deeds.append(Line("save_pair", f"save {len(unsaved)} for {self.pair} alone"))
        if self.staged:
            deeds.append(Line("reload", f"apply and reload ({len(self.staged)} changed)"))
        return [Line("heading", "what you changed"), *deeds] if deeds else []

    def fitting(self) -> list[Field]:
        """The fields that what is looked for fits; all of them if nothing is."""
        words = self.looking_for.lower().split()
        return [field for field in self.fields if all(word in field.words for word in words)]

    @property
    def unsaved(self) -> list[Field]:
        """Fields whose value would be another after the next start."""
        return [field for field in self.fields if field.value != field.saved]

    @property
    def stops(self) -> list[Line]:
        """The lines that can be chosen."""
        return [line for line in self.lines() if line.stop]

    @property
    def line(self) -> Line | None:
        """The chosen line."""
        stops = self.stops
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
        self.at = max(0, min(len(self.stops) - 1, self.at + step))

    def edge(self, last: bool) -> None:
        """Choose the first or the last line."""
        self.at = len(self.stops) - 1 if last else 0

    def stepped(self, direction: int) -> Any:
        """The chosen field's value one step away, from where the user has got to: a staged value, a refused choice."""
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

    def take(self, value: Any) -> bool:
        """Give the chosen field this value; whether to ask the engine for it now. Else it is staged, or the same."""
        field = self.current
        assert field is not None, "only a field takes a value"
        self.errors.pop(field.name, None)
        self._asked = (field.name, value)
        if not field.info.live:
            self.staged.pop(field.name, None)
            if value != field.value:
                self.staged[field.name] = value
            return False
        return bool(value != field.value)

    def look_for(self, text: str) -> None:
        """Show only what this fits, and go to the first of it; with nothing to look for, stay where one is."""
        chosen = self.current
        self.looking_for = text
        self.at = 0
        if chosen is not None and not text:
            self._choose_line(chosen.name)

    def _choose_line(self, name: str) -> None:
        names = [line.field.name if line.field else "" for line in self.stops]
        self.at = names.index(name) if name in names else self.at
