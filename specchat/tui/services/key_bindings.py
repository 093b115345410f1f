"""All key bindings: collected from the classes, checked, remapped by the user, named for the help page."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from textual.app import App
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.keys import key_to_character
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import TextArea

from specchat.errors import nearest, short
from specchat.tui.text.key_names import NAMED_KEYS, bind, name_of, names_of
from specchat.tui.textual_patches.fixed_app import key_of_character

UNBOUND = "none"
"""The key of a binding that the user has disabled."""

PLACES = {
    "": "Keys", "prompt": "In the prompt", "transcript": "In the chat", "tree": "In the tree",
    "settings": "In the settings", "pairs": "In the list of pairs", "add_pair": "While a pair is added",
    "chats": "In the list of chats", "alternatives": "Where another token is chosen", "question": "On the empty page",
    "what_if": "Where a round is done once more",
    "train_form": "Before a training", "training": "In a training",
    "figures": "On the page of all figures", "race": "In a race", "bench": "In a benchmark",
    "pace": "In the chat or the tree, while rounds are written or played",
}  # fmt: skip
"""Where keys act, by the first part of their ids; the help page shows others under their own name."""


APP_BINDINGS: list[BindingType] = [
    bind("f1", "command('help')", "all keys and commands", "help", priority=True),
    bind("ctrl+p", "command_palette", "find a command", "palette", priority=True),
    bind("escape", "screen.stop", "stop at the next round, keep the text", "stop"),
    bind("ctrl+c", "interrupt", "copy the selection, else stop; twice: leave", "interrupt", priority=True),
    bind("ctrl+q", "quit", "leave at once", "quit", priority=True),
    bind("ctrl+r", "screen.search", "search what you sent before", "search"),
    bind("ctrl+g", "screen.open_editor", "edit the prompt in $VISUAL or $EDITOR", "editor"),
    bind("ctrl+n", "command('new')", "begin a new chat", "new"),
    bind("ctrl+o", "command('chats')", "open, search, rename, delete, export chats", "chats"),
    bind("f4", "command('pair')", "choose the model to chat with", "pair"),
    bind("f2", "command('settings')", "show or hide all settings", "settings"),
    bind("ctrl+t", "command('tree')", "hide or show the tree", "tree"),
    bind("ctrl+l", "command('show')", "fill the window with the tree, slowly", "show"),
    bind("f3", "command('stats')", "all figures, none, or the most important ones", "stats"),
    bind("f8", "command('tokens')", "flip a reply between Markdown and tokens", "tokens"),
    bind("ctrl+z", "suspend_process", "go to the background; fg returns", "suspend", priority=True),
    bind("f5", "command('restart')", "start an engine that has stopped", "restart"),
    # Terminals send Alt+B and Alt+F as other keys, and Textual takes Alt with a digit for a character.
    bind("alt+x", "ask_question(0)", "ask the first of the empty page's questions", "question.first", priority=True),
    bind("alt+y", "ask_question(1)", "ask the second of the empty page's questions", "question.second", priority=True),
    bind("alt+z", "ask_question(2)", "ask the third of the empty page's questions", "question.third", priority=True),
    bind(
        "alt+w",
        "ask_question(3)",
        "ask the fourth of them, with trees that fill the window",
        "question.fourth",
        priority=True,
    ),
    bind("space", "screen.pace('hold')", "hold the rounds, or let them go on", "pace.hold"),
    bind("full_stop", "screen.pace('step')", "do one round", "pace.step"),
    bind("less_than_sign", "screen.pace('slower')", "slower", "pace.slower"),
    bind("greater_than_sign", "screen.pace('faster')", "faster", "pace.faster"),
    bind("R,shift+r", "screen.pace('rewind')", "play a recording again", "pace.rewind"),
]
"""The keys that act everywhere in the app.

`command('NAME')` runs a slash command without arguments; `screen.…` is an action of the chat's screen.
"""

_PACKAGES = ("specchat.tui.screens", "specchat.tui.widgets")
"""Where the other classes are that declare bindings."""

_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")
_ALIASES = {"esc": "escape", "return": "enter", "del": "delete", "ins": "insert", "pgup": "pageup", "pgdn": "pagedown"}


@dataclass(frozen=True)
class Key:
    """One binding: what the user calls it, which keys it has, what it does, and which widgets listen."""

    id: str
    keys: tuple[str, ...]
    help: str
    owner: type[DOMNode]

    @property
    def place(self) -> str:
        """The first part of the id; empty where the key acts everywhere."""
        return self.id.rpartition(".")[0]


@cache
def every_key() -> dict[str, Key]:
    """All bindings of the app by id, in the order in which they are written."""
    found: dict[str, Key] = {}
    for owner, binding in _bindings():
        if isinstance(binding, Binding) and binding.id:
            keys = tuple(_textual_name(key) for key in binding.key.split(","))
            found.setdefault(binding.id, Key(binding.id, keys, binding.description, owner))
    return found


def problems(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the user's own keys: pairs of an id and the reason."""
    known = every_key()
    for id, keys in given.items():
        if id not in known:
            yield id, f"is not a key binding{nearest(id, known)}"
        for key in keys.split(","):
            if why := _parse_problem(key.strip()) or (id in known and _reserved_for_typing(known[id], _parsed(key))):
                yield id, f"= {short(keys)}: {why}"
                break
    if all(id in known for id in given):
        yield from _clashes(given)


def keymap(given: Mapping[str, str]) -> dict[str, str]:
    """The user's keys in the form Textual takes; they must have no `problems`."""
    return {id: ",".join(_parsed(key) for key in keys.split(",")) for id, keys in given.items()}


def keys_of(id: str, changed: Mapping[str, str]) -> tuple[str, ...]:
    """The keys a binding has, the user's changes included; none where there is no such binding."""
    if id in changed:
        return tuple(key for key in changed[id].split(",") if key != UNBOUND)
    return every_key()[id].keys if id in every_key() else ()


def key_table(changed: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    return {id: keys_of(id, changed) for id in every_key()}


def key_sections(changed: Mapping[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The help page's part about keys: the keys in force, by where they act."""
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in PLACES.values()}
    for key in every_key().values():
        if said := names_of(keys_of(key.id, changed)):
            title = PLACES.get(key.place, f"In {key.place}")
            sections.setdefault(title, []).append((said, key.help))
    taken = {key for id in every_key() for key in keys_of(id, changed)}
    for binding in (one for one in TextArea.BINDINGS if isinstance(one, Binding)):
        own = [key for key in binding.key.split(",") if re.fullmatch(r"ctrl\+[a-z]|f\d+", key)]
        if free := [name_of(key) for key in own if key not in taken]:
            sections["In the prompt"].append((", ".join(free), binding.description.lower()))
    return [(title, entries) for title, entries in sections.items() if entries]


def _bindings() -> Iterator[tuple[type[DOMNode], BindingType]]:
    """Every binding with the class that declares it: those of the app, then of screens, then of widgets."""
    yield from ((App, binding) for binding in APP_BINDINGS)
    yield from ((owner, binding) for owner in _owners() for binding in owner.__dict__.get("BINDINGS", ()))


def _owners() -> list[type[DOMNode]]:
    for package in _PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    owners: list[type[DOMNode]] = []
    for base in (Screen, Widget):
        found: list[type[DOMNode]] = []
        waiting: list[type[DOMNode]] = [base]
        while waiting:
            kind = waiting.pop()
            waiting += kind.__subclasses__()
            if kind.__module__.startswith(_PACKAGES) and kind not in (*owners, *found):
                found.append(kind)
        owners += sorted(found, key=lambda kind: kind.__name__)
    return owners


def _textual_name(key: str) -> str:
    """A key as Textual sends it: `.` is `full_stop`."""
    key = key.strip()
    return key_of_character(key) if len(key) == 1 else key


def _parsed(key: str) -> str:
    """A key as the user may write it, `Ctrl+R` or `?`, as Textual sends it."""
    key = key.strip()
    if len(key) == 1:
        return _textual_name(key)
    *modifiers, last = key.lower().split("+")
    return "+".join([*modifiers, _textual_name(_ALIASES.get(last, last))])


def _parse_problem(key: str) -> str:
    """Why this is not a key; empty if it is one."""
    if not key:
        return 'an empty name is not a key; "none" turns a binding off'
    if len(key) == 1 or key == UNBOUND:
        return ""
    *modifiers, last = _parsed(key).split("+")
    if wrong := next((modifier for modifier in modifiers if modifier not in _MODIFIERS), None):
        return f"{short(wrong)} is not a modifier{nearest(wrong, _MODIFIERS)}"
    if last in NAMED_KEYS or len(last) == 1 or key_to_character(last) is not None:
        return ""
    return f"{short(last)} is not a key{nearest(last, sorted(NAMED_KEYS))}"


def _reserved_for_typing(binding: Key, key: str) -> str:
    """Why the binding cannot have this key: the prompt takes it; empty if it can."""
    if key == UNBOUND:
        return ""
    if binding.place in ("", "prompt") and key_to_character(key) is not None:
        return f"{name_of(key)} is written into the prompt, so it cannot be a key"
    if binding.place == "":
        for own in TextArea.BINDINGS:
            if isinstance(own, Binding) and key in own.key.split(",") and key not in binding.keys:
                return f"{name_of(key)} belongs to the prompt ({own.description.lower()})"
    return ""


def _clashes(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Keys that the user gave to two bindings of the same widget."""
    changed, known = keymap(given), every_key()
    for id in given:
        for other in known.values():
            if other.id != id and _share_keys(known[id].owner, other.owner):
                for key in set(keys_of(id, changed)) & set(keys_of(other.id, changed)):
                    yield id, f"= {short(given[id])}: {name_of(key)} is bound twice, also to {other.id} ({other.help})"


def _share_keys(one: type[DOMNode], other: type[DOMNode]) -> bool:
    """Whether both owners may get the same key press: they are the same, or the app and a widget of its screen."""
    if one is other:
        return True
    return App in (one, other) and not any(issubclass(owner, Screen) for owner in (one, other))
