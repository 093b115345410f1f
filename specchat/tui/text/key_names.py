"""The display names of keys, and short hints with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.events import Key
from textual.keys import format_key

if TYPE_CHECKING:
    from textual.dom import DOMNode
    from textual.widget import Widget

KeyTable = Mapping[str, tuple[str, ...]]
"""The keys in force of every binding, by its id."""

_SHOWN = {
    "escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "delete": "Del", "insert": "Ins", "space": "Space",
    "backspace": "Backspace", "enter": "Enter", "tab": "Tab", "home": "Home", "end": "End",
    "up": "Up", "down": "Down", "left": "Left", "right": "Right",
}  # fmt: skip
NAMED_KEYS = frozenset(_SHOWN) | {f"f{number}" for number in range(1, 25)}
"""Keys that have a name instead of a character."""


def bind(keys: str, action: str, does: str, id: str, *, priority: bool = False) -> Binding:
    """A binding as all of the app's are: named for the help page, remapped by its id, and in no footer."""
    return Binding(keys, action, does, show=False, priority=priority, id=id)


def name_of(key: str) -> str:
    """`ctrl+f8` as `Ctrl+F8`, `full_stop` as `.`"""
    *modifiers, last = key.split("+")
    upper = last in NAMED_KEYS or (modifiers and len(last) == 1)
    name = _SHOWN.get(last) or (last.upper() if upper else format_key(last))
    return "+".join([*(modifier.capitalize() for modifier in modifiers), name])


def names_of(keys: Iterable[str]) -> str:
    """`Ctrl+J, Shift+Enter`: several keys as people write them."""
    keys = tuple(keys)
    spare = {f"shift+{key.lower()}" for key in keys if len(key) == 1}  # some terminals send capitals so
    return ", ".join(name_of(key) for key in keys if key not in spare)


def _table(node: DOMNode) -> KeyTable:
    """The keys in force, by binding, as the app that `node` belongs to says."""
    table: KeyTable = getattr(node.app, "key_table", {})
    return table


def keys_of(node: DOMNode, prefix: str) -> set[str]:
    """The keys in force of all bindings whose ids begin so."""
    return {key for id, keys in _table(node).items() if id.startswith(prefix) for key in keys}


def label_of(node: DOMNode, id: str) -> str:
    """The keys of a binding as people write them; empty where it has none."""
    return names_of(_table(node).get(id, ()))


def hint(node: DOMNode, id: str, does: str, before: str = "") -> str:
    """`Esc closes`, after `before`: the first key of a binding and what it does; empty where it has no key."""
    keys = _table(node).get(id, ())
    return f"{before}{name_of(keys[0])} {does}" if keys else ""


def typed_by(event: Key) -> str:
    """What the key writes; empty where it writes nothing, as with Ctrl or Alt, with which terminals send the letter."""
    writes = event.is_printable and not event.key.startswith(("ctrl+", "alt+"))
    return (event.character or "") if writes else ""


async def run_bound(widget: Widget, event: Key) -> bool:
    """Run what a widget itself binds to a key at once, so that fast typing cannot overtake it; False: nothing is.

    Textual would hand the key up to the app, while the next ones arrive here.
    """
    bound = widget.screen.active_bindings.get(event.key)
    if bound is None or bound.node is not widget:
        return False
    event.stop()
    event.prevent_default()
    await widget.run_action(bound.binding.action)
    return True
