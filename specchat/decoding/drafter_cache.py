"""The drafters of a pair that were used last: each keeps what it has learnt until others take its place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from specchat.core.seams import Drafter
from specchat.decoding.state_feed import StateFeed
from specchat.drafters.choice import DrafterChoice

KEPT = 4
"""How many drafters are kept, the one in use included."""


class DrafterCache:
    """At most `KEPT` drafters, by name, options and members. The one unused for longest is closed and dropped."""

    def __init__(self) -> None:
        self._feeds: OrderedDict[DrafterChoice, StateFeed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._feeds)

    def get(self, choice: DrafterChoice, build: Callable[[], Drafter]) -> StateFeed:
        """The drafter of this choice with the states it was given; built where it is not kept."""
        feed = self._feeds.get(choice)
        if feed is None:
            feed = self._feeds[choice] = StateFeed(build())
        self._feeds.move_to_end(choice)
        while len(self._feeds) > KEPT:
            self._feeds.popitem(last=False)[1].drafter.close()
        return feed

    def drop(self, those: Callable[[DrafterChoice], bool]) -> None:
        """Close and drop the drafters of such choices."""
        for choice in [choice for choice in self._feeds if those(choice)]:
            self._feeds.pop(choice).drafter.close()

    def close(self) -> None:
        """Close and drop all of them."""
        self.drop(lambda choice: True)
