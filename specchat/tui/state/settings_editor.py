"""The settings form: its lines, the chosen one, typed, staged or refused values, and how it is drawn in a size."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specchat.engine.protocol.text import visible
from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.state.settings_fields import Field
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, cut, padded, width_of, wrapped_lines

LineKind = Literal["heading", "field", "error", "preview", "save", "save_pair", "reload"]


@dataclass(frozen=True)
class Line:
    """One line of the form: a heading, a field, a remark under a field, or something to do."""

    kind: LineKind
    text: str = ""
    field: Field | None = None


@dataclass
class Form:
    pair: str = ""
    fields: list[Field] = field(default_factory=list)
    at: int = 0  # among the lines that can be chosen
    typed: str | None = None  # the value being typed
    query: str = ""
    searching: bool = False  # the search is being typed
    errors: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Any] = field(default_factory=dict)  # values that need a reload
    posted: dict[str, Any] = field(default_factory=dict)  # values chosen here that nobody has taken yet
    preview: tuple[str, str] = ("", "")  # a field, and what its change would have meant for the last reply
    _last_change: tuple[str, Any] = ("", None)
    _refused: dict[str, Any] = field(default_factory=dict)  # refused choices: the next step continues from them

    def show(self, fields: list[Field], pair: str = "") -> None:
        """Show the values in force, without remarks; staged values that are now in force are removed."""
        chosen = self.current
        before = {field.name: field.value for field in self.fields}
        self._refused = {f.name: self._refused[f.name] for f in fields
                         if f.name in self._refused and before.get(f.name) == f.value}  # fmt: skip
        self.fields = [replace(f, value=self.posted.get(f.name, f.value)) for f in fields]
        self.pair, self.errors = pair, {}
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
            if self.preview[1] and self.preview[0] == one.name:
                lines.append(Line("preview", self.preview[1]))
        actions: list[Line] = []
        if unsaved := self.unsaved:
            actions.append(Line("save", f"save {len(unsaved)} as default"))
            if self.pair:
                actions.append(Line("save_pair", f"save {len(unsaved)} for {self.pair} only"))
        if self.staged:
            actions.append(Line("reload", f"apply and reload ({len(self.staged)} changed)"))
        return lines + ([Line("heading", "what you changed"), *actions] if actions else [])

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
        return [line for line in self.lines() if line.kind not in ("heading", "error", "preview")]

    @property
    def line(self) -> Line | None:
        stops = self.selectable_lines
        self.at = max(0, min(self.at, len(stops) - 1))
        return stops[self.at] if stops else None

    @property
    def current(self) -> Field | None:
        line = self.line
        if line is None or line.field is None:
            return None
        return next(field for field in self.fields if field.name == line.field.name)

    def move(self, step: int) -> None:
        self.at = max(0, min(len(self.selectable_lines) - 1, self.at + step))

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
        self._refused.pop(field.name, None)
        self._last_change = (field.name, value)
        if not field.info.live:
            self.staged.pop(field.name, None)
            if value != field.value:
                self.staged[field.name] = value
            return False
        if value == field.value:
            return False
        self.posted[field.name] = value
        self.fields = [replace(f, value=value) if f.name == field.name else f for f in self.fields]
        return True

    def taken(self, name: str, value: Any) -> None:
        """A value chosen here is the engine's to answer now; a later one is not yet."""
        if self.posted.get(name) == value:
            del self.posted[name]

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


_ERROR_LINES = 3
_PREVIEW_LINES = 5
_ACTION_HELP = {
    "save": "sampling and the rest for every pair, how to speculate for this one",
    "save_pair": "all of it for this pair, and for no other",
    "reload": "loads the models again with what is marked *",
}


def form_lines(
    form: Form, effect: SettingEffect | None, width: int, height: int, top: int
) -> tuple[list[ScreenLine], list[Line], int]:
    """The screen lines, the form's line that each shows, and which comes first so that the chosen one is visible."""
    if not form.fields:
        return [[("the settings come with the pair", "dim")]], [], 0
    below = _below(form, effect, width, height)
    room = max(1, height - len(below))
    chosen = form.line
    drawn = [(screen_line, line) for line in form.lines() for screen_line in _lines(line, line == chosen, form, width)]
    if not drawn:
        drawn = [([("nothing fits", "dim")], Line("heading"))]
    here = next((index for index, (_, line) in enumerate(drawn) if line == chosen), 0)
    ahead = 2 if here + 1 < len(drawn) else 1
    top = max(min(top, max(0, here - 1)), here + ahead - room)
    top = max(0, min(top, max(0, len(drawn) - room)))
    seen = drawn[top : top + room]
    screen_lines = [screen_line for screen_line, _ in seen]
    return [*screen_lines, *([] for _ in range(room - len(screen_lines))), *below], [line for _, line in seen], top


def _lines(line: Line, chosen: bool, form: Form, width: int) -> list[ScreenLine]:
    if line.kind == "heading":
        return [[(line.text, "strong")]]
    if line.kind == "error":
        screen_lines = wrapped_lines(line.text, max(8, width - 4))[:_ERROR_LINES]
        return [[(("    " if at else "  ✕ ") + screen_line, "bad")] for at, screen_line in enumerate(screen_lines)]
    if line.kind == "preview":
        return [[("  " + told, "dim")] for told in wrapped_lines(line.text, max(8, width - 2))[:_PREVIEW_LINES]]
    if line.kind in _ACTION_HELP:
        return [padded([(f"⏎ {line.text}", "selected" if chosen else "warn")], width)]
    assert line.field is not None, "a field's line has its field"
    return [_field_line(line.field, chosen, form, width)]


def _field_line(field: Field, chosen: bool, form: Form, width: int) -> ScreenLine:
    """`• width          4`: a dot for a value other than the shipped one, an asterisk for one that needs a reload."""
    staged = field.name in form.staged
    changed = field.value != field.default
    value = numbers.setting(field.value) or "—"
    if chosen and form.typed is not None:
        value = form.typed + "▏"
    elif chosen:
        value = f"‹ {value} ›"
    value = cut(value, max(3, width - 8))
    mark = "* " if staged else "• " if changed else "  "
    label = ("  " if field.of_method else "") + field.label
    label = cut(label, max(1, width - width_of([(value, "")]) - 3))
    gap = " " * (width - 2 - width_of([(label, ""), (value, "")]))
    if chosen:
        return [(mark + label + gap + value, "selected")]
    role = "warn" if staged else "accepted" if changed else "dim"
    return [(mark, role), (label, "dim" if field.of_method else "text"), (gap, ""), (value, role)]


def _below(form: Form, effect: SettingEffect | None, width: int, height: int) -> list[ScreenLine]:
    """The effect of the last change and the description of the chosen line, as far as they fit."""
    about = _about(form, width)
    if height < 8:
        return about[:1] if height >= 5 else []
    rule: ScreenLine = [("─" * width, "line")]
    did = effect.lines(width) if effect is not None and height >= 11 else []
    return [*([rule, *did] if did else []), rule, *about]


def _about(form: Form, width: int) -> list[ScreenLine]:
    """Two lines of help, the range, and the keys."""
    line = form.line
    field = line.field if line is not None else None
    text = field.info.help if field is not None else _ACTION_HELP.get(line.kind if line is not None else "", "")
    lines = [*wrapped_lines(text, width, 2), ""][:2]
    ends = [[], []] if field is None else [_range_line(field, width), _keys_line(form, field, width)]
    return [*([(line, "text")] for line in lines), *ends]


def _range_line(field: Field, width: int) -> ScreenLine:
    """`1 to 64 nodes · default 2 · saved 3`."""
    info, allowed = field.info, field.range_text
    if info.choices:
        at = f"{info.choices.index(field.value) + 1} of " if field.value in info.choices else ""
        allowed = f"{at}{len(info.choices)} choices"
    parts = [f"{allowed} {info.unit}".strip()] if allowed else []
    parts.append(f"default {numbers.setting(field.default) or 'empty'}")
    if field.saved != field.value:
        parts.append(f"saved {numbers.setting(field.saved) or 'empty'}")
    while len(parts) > 1 and width_of([(" · ".join(parts), "")]) > width:
        parts.pop(0)
    return [(cut(" · ".join(parts), width), "dim")]


def _keys_line(form: Form, field: Field, width: int) -> ScreenLine:
    if form.typed is not None:
        return [(cut("Enter takes it · Esc leaves it", width), "dim")]
    keys = ["← → change", *(["Enter type"] if field.typed else [])]
    keys += ["Del default"] if field.value != field.default else []
    keys += [] if field.info.live else ["needs a reload"]
    keys.append("/ find")
    while len(keys) > 1 and len(" · ".join(keys)) > width:
        keys.pop()
    return [(" · ".join(keys), "dim")]
