"""The reply whose tree and figures are shown beside the chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import Losslessness, RoundDone
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.served_reply import ServedReply
from specchat.tui.state.shown_rounds import ShownRounds
from specchat.tui.state.turn import Reply


@dataclass(frozen=True)
class VisibleReply:
    """An earlier reply that the user looks back at, else one for another program, else the chat's last one."""

    shown_rounds: ShownRounds
    for_another_program: ServedReply | None  # which may be hidden, as the user looks back
    last: Reply | None  # of the chat
    last_figures: Figures | None
    of_settings: Losslessness | None  # whether the settings in use are lossless

    @property
    def served(self) -> ServedReply | None:
        """The reply for another program that is shown; None where a reply of the chat is."""
        return None if self.shown_rounds.looks_back else self.for_another_program

    @property
    def rounds(self) -> Sequence[RoundDone]:
        """Its rounds; those of the chat's last reply that has any, where the last one has none."""
        reply = self.served.reply if self.served else self.shown_rounds.reply
        return reply.rounds.list if reply else ()

    @property
    def figures(self) -> Figures | None:
        """Its figures."""
        return shown.figures if (shown := self._in_place_of_last) else self.last_figures

    @property
    def loss(self) -> Losslessness | None:
        """Whether it is lossless, as far as known; without one, whether the settings are."""
        reply = self._in_place_of_last or self.last
        return reply.loss if reply is not None and reply.figures.rounds else self.of_settings

    @property
    def _in_place_of_last(self) -> Reply | None:
        if self.served:
            return self.served.reply
        return self.shown_rounds.reply if self.shown_rounds.looks_back else None
