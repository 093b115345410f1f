"""The controllers of a pair that were used last: each keeps the times and counts it has learnt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from specchat.core.seams import Controller
from specchat.settings import SPECULATION, Settings

KEPT = 16
"""How many controllers are kept, the one in use included."""


class ControllerCache:
    """At most `KEPT` controllers, by the settings they were made from. The one unused for longest is dropped.

    What drafting takes here and how often guesses stand is learnt once, not again in every reply, and not again after
    settings were changed and changed back. Controllers remember times and counts, never texts.
    """

    def __init__(self) -> None:
        self._controllers: OrderedDict[str, tuple[Settings, Controller]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._controllers)

    def kept(self, settings: Settings, new: Controller) -> Controller:
        """The controller that was made from such settings before; the new one where none is kept, which is then."""
        made_from = _made_from(settings)
        _, controller = self._controllers.setdefault(made_from, (settings, new))
        self._controllers.move_to_end(made_from)
        while len(self._controllers) > KEPT:
            self._controllers.popitem(last=False)
        return controller

    def forget(self, those: Callable[[Settings], bool] = lambda settings: True) -> None:
        """Drop all of them, or those of such settings: what they were made with has changed."""
        for made_from in [name for name, (settings, _) in self._controllers.items() if those(settings)]:
            del self._controllers[made_from]


def _made_from(settings: Settings) -> str:
    """The settings that decide which controller is made, and what it learns of."""
    chosen = {name: getattr(settings, name) for name in (*SPECULATION, "memory")}
    return repr({**chosen, "method_options": sorted(settings.method_options.items())})
