"""The settings form as lines: a pure function of its state and the size."""

from __future__ import annotations

from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.state.settings_editor import Form, Line
from specchat.tui.state.settings_fields import Field
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, cut, padded, width_of, wrap

_ERROR_LINES = 3
_ACTIONS = ("save", "save_pair", "reload")


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
        screen_lines = [line.text[a:b].strip() for a, b in wrap(line.text, max(8, width - 4))][:_ERROR_LINES]
        return [
            [("  " + ("✕ " if index == 0 else "  ") + screen_line, "bad")]
            for index, screen_line in enumerate(screen_lines)
        ]
    if line.kind in _ACTIONS:
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
    if height < 5:
        return []
    if height < 8:
        return about[1:2]
    did = effect.lines(width) if effect is not None else []
    lead: list[ScreenLine] = [[("─" * width, "line")]]
    return [*(lead + did if did and height >= 11 else []), *about]


def _about(form: Form, width: int) -> list[ScreenLine]:
    rule: ScreenLine = [("─" * width, "line")]
    line = form.line
    if line is None or line.field is None:
        return [rule, *_two_lines(_action_help(line), width), [], []]
    field = line.field
    return [rule, *_two_lines(field.info.help, width), _range_line(field, width), _keys_line(form, field, width)]


def _two_lines(text: str, width: int) -> list[ScreenLine]:
    lines = [text[a:b].rstrip() for a, b in wrap(text, width)]
    lines = [*lines[:1], cut(" ".join(lines[1:]), width)] if len(lines) > 2 else lines
    return [[(line, "text")] for line in [*lines, ""][:2]]


def _action_help(line: Line | None) -> str:
    kind = line.kind if line is not None else ""
    return {
        "save": "sampling and the rest for every pair, how to speculate for this one",
        "save_pair": "all of it for this pair, and for no other",
        "reload": "loads the models again with what is marked *",
    }.get(kind, "")


def _range_line(field: Field, width: int) -> ScreenLine:
    """`1 to 64 nodes · default 2 · saved 3`."""
    info = field.info
    parts = [f"{allowed} {info.unit}".strip()] if (allowed := _range_of(field)) else []
    parts.append(f"default {numbers.setting(field.default) or 'empty'}")
    if field.saved != field.value:
        parts.append(f"saved {numbers.setting(field.saved) or 'empty'}")
    while len(parts) > 1 and width_of([(" · ".join(parts), "")]) > width:
        parts.pop(0)
    return [(cut(" · ".join(parts), width), "dim")]


def _range_of(field: Field) -> str:
    info = field.info
    if info.choices:
        at = info.choices.index(field.value) + 1 if field.value in info.choices else 0
        return f"{at} of {len(info.choices)} choices" if at else f"{len(info.choices)} choices"
    return field.range_text


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
