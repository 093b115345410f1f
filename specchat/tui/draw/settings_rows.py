"""The settings form as rows: a pure function of its state and the size."""

from __future__ import annotations

from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.state.settings_editor import Form, Line
from specchat.tui.state.settings_fields import Field
from specchat.tui.text import numbers
from specchat.tui.text.cells import Row, cut, padded, width_of
from specchat.tui.text.wrap import wrap

_ERROR_ROWS = 3
_ACTIONS = ("save", "save_pair", "reload")


def form_rows(
    form: Form, effect: SettingEffect | None, width: int, height: int, top: int
) -> tuple[list[Row], list[Line], int]:
    """The rows, the line that each of them shows, and the first visible row so that the chosen line is visible."""
    if not form.fields:
        return [[("the engine has not said yet what can be set", "dim")]], [], 0
    below = _below(form, effect, width, height)
    room = max(1, height - len(below))
    chosen = form.line
    drawn = [(row, line) for line in form.lines() for row in _rows(line, line == chosen, form, width)]
    if not drawn:
        drawn = [([("nothing fits", "dim")], Line("heading"))]
    here = next((index for index, (_, line) in enumerate(drawn) if line == chosen), 0)
    ahead = 2 if here + 1 < len(drawn) else 1
    top = max(min(top, max(0, here - 1)), here + ahead - room)
    top = max(0, min(top, max(0, len(drawn) - room)))
    seen = drawn[top : top + room]
    rows = [row for row, _ in seen]
    return [*rows, *([] for _ in range(room - len(rows))), *below], [line for _, line in seen], top


def _rows(line: Line, chosen: bool, form: Form, width: int) -> list[Row]:
    if line.kind == "heading":
        return [[(line.text, "strong")]]
    if line.kind == "error":
        rows = [line.text[a:b].strip() for a, b in wrap(line.text, max(8, width - 4))][:_ERROR_ROWS]
        return [[("  " + ("✕ " if index == 0 else "  ") + row, "bad")] for index, row in enumerate(rows)]
    if line.kind in _ACTIONS:
        return [padded([(f"⏎ {line.text}", "selected" if chosen else "warn")], width)]
    assert line.field is not None, "a field's line has its field"
    return [_field_row(line.field, chosen, form, width)]


def _field_row(field: Field, chosen: bool, form: Form, width: int) -> Row:
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


def _below(form: Form, effect: SettingEffect | None, width: int, height: int) -> list[Row]:
    """The effect of the last change and the description of the chosen line, as far as they fit."""
    about = _about(form, width)
    if height < 5:
        return []
    if height < 8:
        return about[1:2]
    did = effect.rows(width) if effect is not None else []
    lead: list[Row] = [[("─" * width, "line")]]
    return [*(lead + did if did and height >= 11 else []), *about]


def _about(form: Form, width: int) -> list[Row]:
    rule: Row = [("─" * width, "line")]
    line = form.line
    if line is None or line.field is None:
        return [rule, *_two_rows(_action_help(line), width), [], []]
    field = line.field
    return [rule, *_two_rows(field.info.help, width), _range_row(field, width), _keys_row(form, field, width)]


def _two_rows(text: str, width: int) -> list[Row]:
    rows = [text[a:b].rstrip() for a, b in wrap(text, width)]
    rows = [*rows[:1], cut(" ".join(rows[1:]), width)] if len(rows) > 2 else rows
    return [[(row, "text")] for row in [*rows, ""][:2]]


def _action_help(line: Line | None) -> str:
    kind = line.kind if line is not None else ""
    return {
        "save": "sampling and the rest for every pair, how to speculate for this one",
        "save_pair": "all of it for this pair, and for no other",
        "reload": "loads the models again with what is marked *",
    }.get(kind, "")


def _range_row(field: Field, width: int) -> Row:
    """`1 to 64 nodes · default 2 · saved 3`."""
    info = field.info
    parts = [f"{allowed} {info.unit}".strip()] if (allowed := _range_of(field)) else []
    parts.append(f"default {numbers.setting(field.default) or 'empty'}")
    if field.saved != field.value:
        parts.append(f"saved {numbers.setting(field.saved) or 'empty'}")
    return [(cut(" · ".join(parts), width), "dim")]


def _range_of(field: Field) -> str:
    info = field.info
    if info.choices:
        at = info.choices.index(field.value) + 1 if field.value in info.choices else 0
        return f"{at} of {len(info.choices)} choices" if at else f"{len(info.choices)} choices"
    if info.minimum is not None and info.maximum is not None:
        return f"{info.minimum:g} to {info.maximum:g}"
    return f"{info.minimum:g} or more" if info.minimum is not None else info.unit and "any number of"


def _keys_row(form: Form, field: Field, width: int) -> Row:
    if form.typed is not None:
        return [(cut("Enter takes it · Esc leaves it", width), "dim")]
    keys = ["← → change", *([] if field.info.choices or field.info.kind == "bool" else ["Enter type"])]
    keys += ["Del default"] if field.value != field.default else []
    keys += [] if field.info.live else ["needs a reload"]
    keys.append("/ find")
    while len(keys) > 1 and len(" · ".join(keys)) > width:
        keys.pop()
    return [(" · ".join(keys), "dim")]
