"""The colours: two calm themes in blue and orange, and the roles that hand-drawn rows are styled by."""

from __future__ import annotations

from textual.theme import Theme

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
    accent="#b8640f",
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
        "quiet-color": "#647285",
    },
)

ROLES = (
    "root", "accepted", "bonus", "rejected", "crossed", "unreached", "pending", "river", "line", "dim", "bar", "text",
    "strong", "drafted", "target", "good", "warn", "bad", "selected", "cursor",
)  # fmt: skip

ROLE_CLASSES = frozenset(f"role--{role}" for role in ROLES)
"""Component classes of every widget that draws rows; their styles stand in app.tcss."""
