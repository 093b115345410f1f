"""A race: one prompt and one seed, once plain and once speculative, by turns. Events in, commands out.

The engine writes both replies in slices of some tokens, in the order A B B A, so that disturbances affect both alike.
Each has its own clock. Both heats start from a cached prompt with parts that have learnt nothing, after a warm-up of a
few tokens each: the first reply of a process is slower than later ones, and a drafter that remembers the text of one
heat would repeat it in the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specchat.engine.protocol.commands import Cancel, Command, Compare, Generate, Message, SecondReply
from specchat.engine.protocol.events import Compared, Died, Event, Failed, Finished, Prefilled, RoundDone, Started
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.settings import GREEDY

Side = Literal["plain", "speculative", "own", "other"]
"""A column of a race: of two methods, or of two models; see `model_race`."""

RacePhase = Literal["loading", "warming", "racing", "comparing", "over", "stopped", "failed"]

SIDES: tuple[Side, Side] = ("plain", "speculative")

_APART: dict[Side, dict[str, Any]] = {"plain": {"controller": "off"}, "speculative": {}}
_WARM_UP_TOKENS = 8

RACE_DEFAULTS: Mapping[str, Any] = {**GREEDY, "max_tokens": 512}
"""Settings of a race unless the user asked for others: greedy, and short enough to watch."""


@dataclass
class Heat:
    """One side's reply, kept with its times."""

    side: Side
    started: Started | None = None
    rounds: list[RoundDone] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def tokens(self) -> list[int]:
        return [piece.token for round in self.rounds for piece in round.pieces]

    @property
    def text(self) -> str:
        tail = self.finished.tail if self.finished else ""
        return "".join(piece.text for round in self.rounds for piece in round.pieces) + tail

    @property
    def began_s(self) -> float:
        """When decoding began, in seconds since Started: the race does not include reading the prompt."""
        if self.finished is not None:
            return self.finished.stats.prefill_s
        if not self.rounds:
            return 0.0
        return self.rounds[0].at_s - self.rounds[0].timings.total_s

    @property
    def decode_s(self) -> float:
        """Seconds of decoding so far."""
        last = self.finished or (self.rounds[-1] if self.rounds else None)
        return last.at_s - self.began_s if last is not None else 0.0

    @property
    def tokens_per_s(self) -> float:
        return _per(sum(len(round.pieces) for round in self.rounds), self.decode_s)

    @property
    def acceptance_length(self) -> float:
        """τ: mean tokens per round."""
        return _per(sum(len(round.pieces) for round in self.rounds), len(self.rounds))


class Race:
    """Says what to send next, and keeps what came of it.

    Args:
        ids: unused ids for replies.
        changes: settings that hold for both sides, on top of those in force.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        seed: int,
        ids: Iterator[int],
        changes: Mapping[str, Any] | None = None,
        order: Sequence[Side] = SIDES,
        warm_up: bool = True,
    ) -> None:
        self.messages = list(messages)
        self.seed = seed
        self.heats: dict[Side, Heat] = {side: Heat(side) for side in SIDES}
        self.phase: RacePhase = "warming"
        self.running: Side | None = None  # whose turn it is
        self.prefilled = (0, 0)
        self.compared: Compared | None = None
        self.problem = ""
        self._ids = ids
        self._id = 0  # of the command that was sent last
        self._sides: dict[int, Side] = {}  # ids of the replies it asked for
        self._changes = dict(changes or {})
        self._over: set[int] = set()  # replies that are complete
        self._order = tuple(order)
        self._warm = not warm_up

    @property
    def plain(self) -> Heat:
        return self.heats["plain"]

    @property
    def speculative(self) -> Heat:
        return self.heats["speculative"]

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the speculative side, once it has begun."""
        return self.speculative.started.settings if self.speculative.started else {}

    @property
    def ended(self) -> bool:
        return self.phase in ("over", "stopped", "failed")

    @property
    def same(self) -> bool:
        """Both sides wrote the same tokens."""
        return self.plain.tokens == self.speculative.tokens

    @property
    def promised(self) -> bool:
        """The settings promise the same text, not only the same distribution."""
        begun = self.speculative.started
        return begun is not None and same_text_promised(begun.settings, begun.loss.lossless)

    @property
    def ratio(self) -> float:
        """How much sooner a token of the speculative side came, prompts apart."""
        return _per(self.speculative.tokens_per_s, self.plain.tokens_per_s)

    @property
    def sound(self) -> bool:
        """No promise was broken: the same tokens, or a tie of rounded logits, or nothing of the kind was promised."""
        return self.same or not self.promised or self.compared is None or self.compared.tie

    def begin(self) -> Command:
        return self._next()

    def stop(self) -> Command | None:
        """The command that stops the race at the next round; None if there is nothing to stop."""
        if self.ended:
            return None
        self.phase = "stopped"
        return Cancel(self._id)

    def hear(self, event: Event) -> Command | None:
        """Learn from one event; what to send next, if anything."""
        if self.ended:
            return None
        match event:
            case Died():
                self._fail("the engine stopped")
            case Failed() if self.owns(event) or event.during == "protocol":
                self._failed(event)
            case Started() if self.owns(event):
                return self._begun(event, self._sides[event.id])
            case Prefilled() if self.owns(event):
                self.prefilled = (event.done, event.total)
            case RoundDone() if self.owns(event) and self.phase == "racing":
                self.running = self._sides[event.id]
                self.heats[self.running].rounds.append(event)
            case Finished() if self.owns(event):
                return self._finished(event, self._sides[event.id])
            case Compared() if self.owns(event):
                self.compared, self.phase = event, "over"
        return None

    def owns(self, event: Event) -> bool:
        """The event is an answer to something this race sent."""
        return getattr(event, "id", None) in (self._id, *self._sides)

    def side_of(self, event: Event) -> Side | None:
        """Whose reply the event is about."""
        return self._sides.get(getattr(event, "id", 0))

    def _next(self) -> Command:
        self.prefilled = (0, 0)
        if not self._warm:
            self._warm = True
            return self._generate({"max_tokens": _WARM_UP_TOKENS})
        if self.phase == "warming":
            self.phase, self.running = "racing", self._order[0]
            return self._generate({})
        self.phase, self.running = "comparing", None
        self._id = next(self._ids)
        tokens = (self.plain.tokens, self.speculative.tokens)
        return Compare(self._id, self.messages, self.seed, *tokens, self._changes)

    def _generate(self, more: dict[str, Any]) -> Generate:
        self._sides = {next(self._ids): side for side in self._order}
        (self._id, first), (beside, second) = self._sides.items()
        apart = {side: {**self._changes, **_APART[side], **more} for side in self._order}
        return Generate(self._id, self.messages, self.seed, apart[first], SecondReply(beside, apart[second]))

    def _begun(self, event: Started, side: Side) -> Command | None:
        if self.phase != "racing":
            return None
        if side == "plain" and event.settings.get("controller") != "off":
            self._fail("this engine is too old to race: it cannot write a reply with other settings")
            return Cancel(self._id)
        self.running = side
        self.heats[side].started = event
        begun = [heat.started for heat in self.heats.values() if heat.started]
        if len({(one.pair, repr(sorted({**one.settings, "controller": ""}.items()))) for one in begun}) > 1:
            self._fail("pair or settings were changed in the middle of the race")
            return Cancel(self._id)
        return None

    def _finished(self, event: Finished, side: Side) -> Command | None:
        if event.stop == "cancelled":
            self.phase = "stopped"
            return None
        if self.phase == "racing":
            self.heats[side].finished = event
        self._over.add(event.id)
        if self._sides.keys() - self._over:
            return None
        if self.phase == "warming" or not self.same:
            return self._next()
        self.phase, self.running = "over", None
        return None

    def _failed(self, event: Failed) -> None:
        if self.phase == "comparing":
            self.phase = "over"  # they differ, and the margin is unknown
        else:
            self._fail(event.message)

    def _fail(self, why: str) -> None:
        self.phase, self.problem = "failed", why


def same_text_promised(settings: Mapping[str, Any], lossless: bool) -> bool:
    """Whether a seed must give plain decoding's tokens; rules that keep only the law promise that only greedily."""
    return settings["rule"] == "follow" or (lossless and settings["temperature"] == 0)


def race_seed(settings: Mapping[str, Any]) -> int:
    """The seed that the settings fix, else a random one, short enough to be read and typed."""
    fixed = int(settings.get("seed", -1))
    return fixed if fixed >= 0 else secrets.randbelow(1_000_000)


def refuse_plain(settings: Mapping[str, Any]) -> None:
    """UsageError for settings that draft nothing: plain decoding would race against itself."""
    if settings.get("controller") == "off":
        raise UsageError("controller = 'off' is plain decoding already; controller fixed or goodput would speculate")
    if settings.get("nodes") == 0:
        raise UsageError("nodes = 0 is plain decoding already; with nodes 8 there would be a tree to race with")
    if settings.get("drafter") == "none":
        raise UsageError("drafter = 'none' is plain decoding already; drafter prompt_lookup would speculate")


def _per(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0


Kind = Literal["same", "tie", "law", "open", "fault"]


@dataclass(frozen=True)
class RaceResult:
    """One sentence, and of what kind it is.

    Args:
        kind: the same tokens · apart at a tie of rounded logits · apart where only the law is promised, or nothing
            is · apart, by an unknown margin · apart although the same text was promised.
    """

    kind: Kind
    line: str


def race_result(race: Race, dtype: str = "") -> RaceResult:
    """The result of a race that is over. `dtype` is the number format, for the words."""
    count = len(race.plain.tokens)
    every, are = ("the one token", "is") if count == 1 else (f"all {count:,} tokens", "are")
    if race.same and race.promised:
        return RaceResult("same", f"identical: {every} {are} the same, one by one")
    loss = race.speculative.started.loss if race.speculative.started else None
    if race.same:
        less = loss.reason if loss else ""
        return RaceResult("same", f"identical here, {every}; though less is promised: {less}")
    where = _where(race.compared)
    if not race.promised and loss is not None:
        lead = "another text, same distribution" if loss.lossless else "another text"
        return RaceResult("law", f"{lead}{where}: {loss.reason}")
    if race.compared is None or race.compared.place is None:
        return RaceResult("open", "the tokens differ, and the engine could not say by what margin")
    if race.compared.tie:
        return RaceResult("tie", f"the same{where}: a near-tie, {_margin(race.compared, dtype)}")
    return RaceResult("fault", f"NOT the same{where}: {_margin(race.compared, dtype)}; please report this")


def settings_line(settings: Mapping[str, Any], seed: int, dtype: str = "") -> str:
    """The settings that are compared: `prompt_lookup · chain · 16 nodes · int4 · greedy · seed 7`."""
    warmth = settings.get("temperature", 0)
    rule = [str(settings["rule"])] if settings.get("rule", "follow") != "follow" else []
    controller = [str(settings["controller"])] if settings.get("controller", "fixed") != "fixed" else []
    parts = [str(settings.get("drafter", "")), str(settings.get("policy", "")), *rule, *controller]
    parts += [f"{settings.get('nodes', 0)} nodes", dtype, f"temperature {warmth:g}" if warmth else "greedy"]
    return " · ".join(part for part in [*parts, f"seed {seed}"] if part)


def _where(compared: Compared | None) -> str:
    """` for 57 tokens, then plain wrote ' a' and speculation ' the'`."""
    if compared is None or compared.place is None:
        return ""
    same = "1 token" if compared.place == 1 else f"{compared.place:,} tokens"
    if not compared.plain_text or not compared.other_text:
        ended = "speculation" if compared.plain_text else "plain"
        return f" for {same}, where {ended} ended"
    plain, other = (repr(visible(text)) for text in (compared.plain_text, compared.other_text))
    return f" for {same}, then plain wrote {plain} and speculation {other}"


def _margin(compared: Compared, dtype: str) -> str:
    if compared.allowed:
        rounding = f"passes of different sizes round apart by up to {compared.allowed:.2g} in {dtype or 'this format'}"
    else:
        rounding = f"{dtype or 'float32'} allows no difference"
    if compared.margin is None:
        return f"no margin explains it ({rounding})"
    return f"plain's own is {compared.margin:.2g} ahead ({rounding})"
