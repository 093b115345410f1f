"""A reply as it is written: its text and its rounds come while one iterates; a round's tree can be shown."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, overload

from specchat.engine.protocol.commands import Cancel, Message
from specchat.engine.protocol.events import Event, Failed, Finished, RoundDone, Started, Stats
from specchat.engine.protocol.round_nodes import ShownNode, nodes_of
from specchat.engine.protocol.text import one_line
from specchat.errors import EngineError, SpecchatError
from specchat.library.session import Session, raise_failure
from specchat.reply_page import PageTurn, in_notebook, turns_of

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


_T = TypeVar("_T")


class ReplyStream:
    """A reply as it is written: iterating gives its text piece by piece.

    What is asked for is read up to there: `text`, `tokens`, `stats` and `message` read to the end, `rounds[3]` reads
    four rounds. To leave a loop over it early, also by Ctrl+C or an error, cancels it; what was written stays.
    """

    def __init__(self, session: Session, id: int) -> None:
        self.id = id
        self.ended = False  # nothing of it will come any more
        self._session = session
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._pieces: list[str] = []
        self._rounds: list[RoundRecord] = []
        self._cancelling = False

    def __iter__(self) -> Iterator[str]:
        return self._follow(self._pieces)

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        """The rounds, which come while one iterates; their number is known at the end."""
        return _Rounds(self, self._rounds)

    @property
    def started(self) -> Started:
        """The record of the reply's beginning: messages, seed, settings, whether it is lossless."""
        while self._started is None:
            self._demand_event()
        return self._started

    @property
    def finished(self) -> Finished:
        """The record of the reply's end: why it stopped, figures."""
        while self._finished is None:
            self._demand_event()
        return self._finished

    @property
    def text(self) -> str:
        self._read_all()
        return "".join(self._pieces)

    @property
    def tokens(self) -> list[int]:
        self._read_all()
        return [piece.token for round in self._rounds for piece in round.pieces]

    @property
    def stats(self) -> Stats:
        return self.finished.stats

    @property
    def message(self) -> Message:
        """The reply as a turn of the chat."""
        return Message("assistant", self.text)

    def cancel(self) -> None:
        """Stop at the end of the round; the rounds until then stay."""
        if self.ended:
            return
        self._cancelling = True
        self._session.send(Cancel(self.id))
        try:
            with suppress(SpecchatError):
                self._read_all()
        finally:
            self.ended = True

    def __repr__(self) -> str:
        state = (self._finished.stop if self._finished else "ended") if self.ended else "being written"
        return f"<ReplyStream: {len(self._rounds)} rounds, {state}>"

    def _repr_html_(self) -> str:
        """What has been read so far, to play in a notebook."""
        known = [self._started, *self._rounds, self._finished]
        return in_notebook(560, *turns_of([event for event in known if event is not None]))

    def _follow(self, items: Sequence[_T]) -> Iterator[_T]:
        """Items that were there and those that come; a generator that is left early cancels the reply."""
        try:
            for at in itertools.count():
                while at >= len(items):
                    if not self._read():
                        return
                yield items[at]
        finally:
            self.cancel()

    def _read_all(self) -> None:
        while self._read():
            pass

    def _demand_event(self) -> None:
        if not self._read():
            raise EngineError("the reply ended before it began or was complete")

    def _read(self) -> bool:
        """Take one event of the reply; False where it has ended."""
        if self.ended:
            return False
        try:
            event = self._session.next()
            if isinstance(event, Failed) and event.id == self.id:
                raise_failure(event)
        except KeyboardInterrupt:
            if self._cancelling:  # a second Ctrl+C does not wait for the end of the round
                self.ended = True
            else:
                self.cancel()
            raise
        except BaseException:
            self.ended = True
            raise
        if getattr(event, "id", None) == self.id:
            self._take(event)
        return True

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._started = event
            case RoundDone():
                self._rounds.append(RoundRecord(*(getattr(event, name) for name in event.__struct_fields__)))
                self._say("".join(piece.text for piece in event.pieces))
            case Finished():
                self._finished = event
                self._say(event.tail)
                self.ended = True

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)


class _Rounds(Sequence[RoundRecord]):
    def __init__(self, reply: ReplyStream, rounds: list[RoundRecord]) -> None:
        self._reply, self._rounds = reply, rounds

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._reply._follow(self._rounds)

    def __len__(self) -> int:
        self._reply._read_all()
        return len(self._rounds)

    @overload
    def __getitem__(self, at: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[RoundRecord]: ...

    def __getitem__(self, at: int | slice) -> RoundRecord | Sequence[RoundRecord]:
        while not (isinstance(at, int) and 0 <= at < len(self._rounds)) and self._reply._read():
            pass
        return self._rounds[at]
