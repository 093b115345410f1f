"""The budget of a round: how many nodes, how deep, how wide, and the least probability that pays."""

from __future__ import annotations

from dataclasses import field

from specchat.core.record import record


@record
class Budget:
    """How hard to speculate in a round.

    Args:
        nodes: the most draft nodes in the tree; 0 is plain decoding.
        depth: the most levels below the root.
        width: the most children of a node.
        prices: for the first node, the second, …: the least acceptance probability (the product of the probabilities
            down to the node) at which it is worth its row, never falling; the last holds for all that follow. Empty:
            nodes cost nothing.
        why: what made the controller choose so, in a few words for the screen.
        passes: whether drafters may run passes of draft models.
        pass_price: the least acceptance probability of a node at which a pass of a draft model below it is worth its
            time. What the pass proposes has been paid for then, and needs only be worth its rows.
        search: whether a drafter may look for a better form of itself after this round.
    """

    nodes: int
    depth: int = 1
    width: int = 1
    prices: tuple[float, ...] = ()
    why: str = field(default="", compare=False)
    passes: bool = True
    pass_price: float = 0.0
    search: bool = False

    @property
    def floor(self) -> float:
        """The least acceptance probability at which any node is worth its row."""
        return self.prices[0] if self.prices else 0.0

    def price(self, node: int) -> float:
        """The least acceptance probability at which this node is worth its row; the first node is 1."""
        return self.prices[min(node, len(self.prices)) - 1] if self.prices else 0.0


def smaller(first: Budget, second: Budget) -> Budget:
    """The largest budget that both allow, and the search that either asks for.

    Its reason is that of the one with fewer nodes, of equals the first one's.
    """
    last = max(len(first.prices), len(second.prices))
    return Budget(
        nodes=min(first.nodes, second.nodes),
        depth=min(first.depth, second.depth),
        width=min(first.width, second.width),
        prices=tuple(max(first.price(node), second.price(node)) for node in range(1, last + 1)),
        why=second.why if second.nodes < first.nodes else first.why,
        passes=first.passes and second.passes,
        pass_price=max(first.pass_price, second.pass_price),
        search=first.search or second.search,
    )
