"""The drafters and controllers of a pair that were used last; each keeps what it has learnt."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator

from specchat.core.seams import Controller, Drafter
from specchat.decoding.state_feed import StateFeed
from specchat.drafters.choice import DrafterChoice
from specchat.settings import SPECULATION, Settings

KEPT_DRAFTERS = 4
"""How many drafters are kept, the one in use included."""


class DrafterCache:
    """At most `KEPT_DRAFTERS`, by name, options and members. The one unused for longest is closed and dropped."""

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
        while len(self._feeds) > KEPT_DRAFTERS:
            self._feeds.popitem(last=False)[1].drafter.close()
        return feed

    def drop(self, those: Callable[[DrafterChoice], bool]) -> None:
        """Close and drop the drafters of such choices."""
        for choice in [choice for choice in self._feeds if those(choice)]:
            self._feeds.pop(choice).drafter.close()

    def close(self) -> None:
        self.drop(lambda choice: True)


_log = logging.getLogger(__name__)

KEPT_CONTROLLERS = 16
"""How many controllers are kept, the one in use included."""


class ControllerCache:
    """At most `KEPT_CONTROLLERS`, by the settings they were made from. The one unused for longest is dropped.

    What drafting takes here and how often guesses stand is learnt once, not again in every reply, and not again after
    settings were changed and changed back. Controllers remember times and counts, never texts.
    """

    def __init__(
        self, saved: Callable[[Settings], bytes] = lambda settings: b"", beside: ControllerCache | None = None
    ) -> None:
        """Nothing kept yet.

        Args:
            saved: what a controller of such settings had learnt in an earlier engine; empty where that is nothing.
            beside: those of another text over the same models: controllers of the same settings learn together.
        """
        self._controllers: OrderedDict[str, tuple[Settings, Controller]] = OrderedDict()
        self._saved, self._beside = saved, beside

    def __len__(self) -> int:
        return len(self._controllers)

    def kept(self, settings: Settings, new: Controller) -> Controller:
        """The controller that was made from such settings before; the new one where none is kept, which is then."""
        made_from = made_with(settings)
        if made_from in self._controllers:
            pass
        elif self._beside is not None and made_from in self._beside._controllers:
            new.learn_with(self._beside._controllers[made_from][1])
        elif state := self._saved(settings):
            try:
                new.restore_state(state)
            except ValueError as error:
                _log.warning("what a controller had learnt is no longer used: %s", error)
        _, controller = self._controllers.setdefault(made_from, (settings, new))
        self._controllers.move_to_end(made_from)
        while len(self._controllers) > KEPT_CONTROLLERS:
            self._controllers.popitem(last=False)
        return controller

    def states(self) -> Iterator[tuple[Settings, bytes]]:
        """The learnt state of each, the one used last at the end."""
        for settings, controller in self._controllers.values():
            if state := controller.save_state():
                yield settings, state

    def forget(self, those: Callable[[Settings], bool] = lambda settings: True) -> None:
        """Drop all of them, or those of such settings: what they were made with has changed."""
        for made_from in [name for name, (settings, _) in self._controllers.items() if those(settings)]:
            del self._controllers[made_from]


def made_with(settings: Settings) -> str:
    """The settings that decide which controller is made, and what it learns of."""
    chosen = {name: getattr(settings, name) for name in (*SPECULATION, "memory")}
    return repr({**chosen, "method_options": sorted(settings.method_options.items())})
