"""The themes (dark, light, high contrast, greys), and the names of the text roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from textual.theme import BUILTIN_THEMES, Theme

from specchat.errors import nearest, short

_NAMES = ("specchat", "specchat-light", "specchat-contrast", "specchat-mono")
_LIGHT = "specchat-light"

_COLOURS = {
    "primary":    ("#6cb2f7", "#1f6fb8", "#8ecbff", "#ffffff"),
    "secondary":  ("#6086b0", "#46688c", "#9fc4ea", "#b2b2b2"),
    "warning":    ("#e8b860", "#94670a", "#ffd75f", "#ffffff"),
    "error":      ("#ec7d86", "#b3313c", "#ff9aa2", "#ffffff"),
    "success":    ("#7fc4b2", "#22776a", "#8df0d0", "#d0d0d0"),
    "accent":     ("#f2a65a", "#a8590b", "#ffb84d", "#ffffff"),
    "foreground": ("#d5dbe5", "#222a35", "#ffffff", "#d0d0d0"),
    "background": ("#10141b", "#fafbfc", "#000000", "#000000"),
    "surface":    ("#151a23", "#f1f4f8", "#0a0a0a", "#0a0a0a"),
    "panel":      ("#1d2430", "#e5eaf1", "#262626", "#303030"),
}  # fmt: skip
"""Textual's colour → its value in each theme."""

_BORDER = ("#2d3747", "#c4cedb", "#9a9a9a", "#9a9a9a")
_HOVERED_SCROLLBAR = ("#3b485c", "#aab7c8", "#c6c6c6", "#c6c6c6")
_LINE = ("#4b586c", "#9aa8ba", "#a8a8a8", "#a8a8a8")
_QUIET_TEXT = ("#8390a3", "#5c6a7d", "#c6c6c6", "#c6c6c6")
_SELECTION_SHARE = ("30%", "", "40%", "40%")
_DRAGGED_SCROLLBAR = ("#6cb2f7", "", "#ffffff", "#ffffff")
"""Of the dark themes; the light one keeps what Textual makes of its colours."""


def _theme(at: int) -> Theme:
    colours: dict[str, Any] = {name: values[at] for name, values in _COLOURS.items()}
    border, background, key = _BORDER[at], colours["background"], colours["primary"]
    variables = {
        "border": border, "border-blurred": border, "line-color": _LINE[at], "quiet-color": _QUIET_TEXT[at],
        "scrollbar": border, "scrollbar-hover": _HOVERED_SCROLLBAR[at], "scrollbar-corner-color": background,
        "scrollbar-background": background, "scrollbar-background-hover": background,
        "scrollbar-background-active": background,
    }  # fmt: skip
    if dark := _NAMES[at] != _LIGHT:
        variables |= {
            "footer-key-foreground": key, "input-selection-background": f"{key} {_SELECTION_SHARE[at]}",
            "scrollbar-active": _DRAGGED_SCROLLBAR[at],
        }  # fmt: skip
    return Theme(_NAMES[at], **colours, dark=dark, variables=variables)


OWN = tuple(_theme(at) for at in range(len(_NAMES)))
DARK, LIGHT, CONTRAST, MONO = OWN


def unknown_theme(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the theme of config.toml, as `user_app` asks for it."""
    known = [*(theme.name for theme in OWN), *BUILTIN_THEMES]
    if (name := said["theme"]) and name not in known:
        yield "theme", f"= {short(name)} is not a theme{nearest(name, known)}"


ROLES = (
    "root", "accepted", "bonus", "rejected", "crossed", "unreached", "pending", "river", "line", "dim", "bar", "text",
    "strong", "drafted", "target", "good", "warn", "bad", "selected", "cursor", "pruned", "cut", "ancestor", "agreed",
    "column", "forced", "forbidden",
)  # fmt: skip
"""The roles of a run of text; app.tcss defines their styles."""
