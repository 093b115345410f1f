"""The record of a round, with its tree as text, in Rich's colours, and as a page in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import ShownNode, nodes_of
from specchat.engine.protocol.text import one_line
from specchat.reply_page import PageTurn, in_notebook

if TYPE_CHECKING:
    from rich.text import Text

_MARKS = {"root": "", "accepted": "● ", "bonus": "★ ", "rejected": "✕ ", "unreached": "○ ", "pruned": "⊘ ", "cut": "◐ "}
_STYLES = {"accepted": "bold blue", "bonus": "bold orange3", "rejected": "strike dim", "cut": "strike blue"}


class RoundRecord(RoundDone, frozen=True, tag_field="type", tag="round"):
    """The record of a round as the engine sent it; printed, it shows the tree."""

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line) for line in _tree_lines(nodes_of(self)))

    def _repr_html_(self) -> str:
        nodes = nodes_of(self)
        ends = len(nodes) - len({node.parent for node in nodes[1:]})
        return in_notebook(190 + 32 * ends, PageTurn("", rounds=[self]))

    def __rich__(self) -> Text:
        from rich.text import Text

        lines = [Text.assemble(*line, no_wrap=True) for line in _tree_lines(nodes_of(self))]
        return Text("\n").join(lines)


def _tree_lines(nodes: Sequence[ShownNode]) -> Iterator[list[tuple[str, str]]]:
    """A line for each node, below its parent: text and style of each part. What was kept comes first."""
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes[1:], 1):
        children[node.parent].append(number)
    waiting = [(0, "", "")]  # node, what leads to it, and what leads to its children
    while waiting:
        number, lead, below = waiting.pop()
        node = nodes[number]
        known = [f"{who} {p:.2f}" for who, p in (("target", node.target), ("draft", node.draft)) if p is not None]
        told = " · ".join([*known, "+".join(node.proposers)]).removesuffix(" · ")
        style = _STYLES.get(node.state, "dim")
        label = one_line(node.text).replace(" ", "·")
        yield [
            (lead, "dim"),
            (_MARKS[node.state], style.removeprefix("strike ")),
            (label, style),
            (f"  {told}" * bool(told), "dim"),
        ]
        kept_first = sorted(children[number], key=lambda child: nodes[child].state not in ("accepted", "bonus"))
        for at, child in reversed([*enumerate(kept_first, 1)]):
            last = at == len(kept_first)
            waiting.append((child, below + ("╰─" if last else "├─"), below + ("  " if last else "│ ")))
