"""The themes (dark, light, high contrast, greys), and the names of the text roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.theme import BUILTIN_THEMES, Theme

from specchat.errors import nearest, short


def _variables(border: str, hover: str, background: str, line: str, quiet: str) -> dict[str, str]:
    """The variables that every theme sets: borders, scroll bars, lines and quiet text."""
    return {
        "border": border, "border-blurred": border, "line-color": line, "quiet-color": quiet,
        "scrollbar": border, "scrollbar-hover": hover, "scrollbar-corner-color": background,
        "scrollbar-background": background, "scrollbar-background-hover": background,
        "scrollbar-background-active": background,
    }  # fmt: skip


def _emphasis(key: str, selection: str, scrollbar: str) -> dict[str, str]:
    """The variables of dark themes for keys, selected text and the scroll bar that is dragged."""
    return {"footer-key-foreground": key, "input-selection-background": selection, "scrollbar-active": scrollbar}


DARK = Theme(
    "specchat",
    primary="#6cb2f7", secondary="#5a7ea6", warning="#e8b860", error="#ec7d86",
    success="#7fc4b2", accent="#f2a65a",
    foreground="#d5dbe5", background="#10141b", surface="#151a23", panel="#1d2430",
    variables=_variables("#2d3747", "#3b485c", "#10141b", "#4b586c", "#8390a3")
    | _emphasis("#6cb2f7", "#6cb2f7 30%", "#6cb2f7"),
)  # fmt: skip
LIGHT = Theme(
    "specchat-light",
    primary="#1f6fb8", secondary="#46688c", warning="#94670a", error="#b3313c",
    success="#22776a", accent="#a8590b",
    foreground="#222a35", background="#fafbfc", surface="#f1f4f8", panel="#e5eaf1", dark=False,
    variables=_variables("#c4cedb", "#aab7c8", "#fafbfc", "#9aa8ba", "#5c6a7d"),
)  # fmt: skip
CONTRAST = Theme(
    "specchat-contrast",
    primary="#8ecbff", secondary="#9fc4ea", warning="#ffd75f", error="#ff9aa2",
    success="#8df0d0", accent="#ffb84d",
    foreground="#ffffff", background="#000000", surface="#0a0a0a", panel="#262626",
    variables=_variables("#9a9a9a", "#c6c6c6", "#000000", "#a8a8a8", "#c6c6c6")
    | _emphasis("#8ecbff", "#8ecbff 40%", "#ffffff"),
)  # fmt: skip
MONO = Theme(
    "specchat-mono",
    primary="#ffffff", secondary="#b2b2b2", warning="#ffffff", error="#ffffff",
    success="#d0d0d0", accent="#ffffff",
    foreground="#d0d0d0", background="#000000", surface="#0a0a0a", panel="#303030",
    variables=_variables("#9a9a9a", "#c6c6c6", "#000000", "#a8a8a8", "#c6c6c6")
    | _emphasis("#ffffff", "#ffffff 40%", "#ffffff"),
)  # fmt: skip

OWN = (DARK, LIGHT, CONTRAST, MONO)


def unknown_theme(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the theme of config.toml, as `user_app` asks for it."""
    known = [*(theme.name for theme in OWN), *BUILTIN_THEMES]
    if (name := said["theme"]) and name not in known:
        yield "theme", f"= {short(name)} is no theme{nearest(name, known)}"


ROLES = (
    "root", "accepted", "bonus", "rejected", "crossed", "unreached", "pending", "river", "line", "dim", "bar", "text",
    "strong", "drafted", "target", "good", "warn", "bad", "selected", "cursor", "pruned", "cut", "ancestor", "agreed",
    "column",
)  # fmt: skip
"""The roles of a run of text; app.tcss defines their styles."""
