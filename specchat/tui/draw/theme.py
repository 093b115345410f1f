"""The themes (dark, light, high contrast, greys), and the names of the text roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.theme import BUILTIN_THEMES, Theme

from specchat.errors import nearest, short

DARK = Theme(
    name="specchat",
    primary="#6cb2f7",
    secondary="#5a7ea6",
    accent="#f2a65a",
    warning="#e8b860",
    error="#ec7d86",
    success="#7fc4b2",
    foreground="#d5dbe5",
    background="#10141b",
    surface="#151a23",
    panel="#1d2430",
    dark=True,
    variables={
        "border": "#2d3747",
        "border-blurred": "#2d3747",
        "footer-key-foreground": "#6cb2f7",
        "input-selection-background": "#6cb2f7 30%",
        "scrollbar": "#2d3747",
        "scrollbar-hover": "#3b485c",
        "scrollbar-active": "#6cb2f7",
        "scrollbar-background": "#10141b",
        "scrollbar-background-hover": "#10141b",
        "scrollbar-background-active": "#10141b",
        "scrollbar-corner-color": "#10141b",
        "line-color": "#4b586c",
        "quiet-color": "#8390a3",
    },
)
LIGHT = Theme(
    name="specchat-light",
    primary="#1f6fb8",
    secondary="#46688c",
    accent="#a8590b",
    warning="#94670a",
    error="#b3313c",
    success="#22776a",
    foreground="#222a35",
    background="#fafbfc",
    surface="#f1f4f8",
    panel="#e5eaf1",
    dark=False,
    variables={
        "border": "#c4cedb",
        "border-blurred": "#c4cedb",
        "scrollbar": "#c4cedb",
        "scrollbar-hover": "#aab7c8",
        "scrollbar-background": "#fafbfc",
        "scrollbar-background-hover": "#fafbfc",
        "scrollbar-background-active": "#fafbfc",
        "scrollbar-corner-color": "#fafbfc",
        "line-color": "#9aa8ba",
        "quiet-color": "#5c6a7d",
    },
)

CONTRAST = Theme(
    name="specchat-contrast",
    primary="#8ecbff",
    secondary="#9fc4ea",
    accent="#ffb84d",
    warning="#ffd75f",
    error="#ff9aa2",
    success="#8df0d0",
    foreground="#ffffff",
    background="#000000",
    surface="#0a0a0a",
    panel="#262626",
    dark=True,
    variables={
        "border": "#9a9a9a",
        "border-blurred": "#9a9a9a",
        "footer-key-foreground": "#8ecbff",
        "input-selection-background": "#8ecbff 40%",
        "scrollbar": "#9a9a9a",
        "scrollbar-hover": "#c6c6c6",
        "scrollbar-active": "#ffffff",
        "scrollbar-background": "#000000",
        "scrollbar-background-hover": "#000000",
        "scrollbar-background-active": "#000000",
        "scrollbar-corner-color": "#000000",
        "line-color": "#a8a8a8",
        "quiet-color": "#c6c6c6",
    },
)
MONO = Theme(
    name="specchat-mono",
    primary="#ffffff",
    secondary="#b2b2b2",
    accent="#ffffff",
    warning="#ffffff",
    error="#ffffff",
    success="#d0d0d0",
    foreground="#d0d0d0",
    background="#000000",
    surface="#0a0a0a",
    panel="#303030",
    dark=True,
    variables=CONTRAST.variables | {"footer-key-foreground": "#ffffff", "input-selection-background": "#ffffff 40%"},
)

OWN = (DARK, LIGHT, CONTRAST, MONO)


def unknown_theme(said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the theme of config.toml, as `user_app` asks for it."""
    known = [*(theme.name for theme in OWN), *BUILTIN_THEMES]
    if (name := said["theme"]) and name not in known:
        yield "theme", f"= {short(name)} is no theme{nearest(name, known)}"


ROLES = (
    "root", "accepted", "bonus", "rejected", "crossed", "unreached", "pending", "river", "line", "dim", "bar", "text",
    "strong", "drafted", "target", "good", "warn", "bad", "selected", "cursor", "pruned", "cut", "ancestor", "agreed",
)  # fmt: skip
"""The roles of a run of text; app.tcss defines their styles."""
