"""The result of a race in one sentence: the same tokens, or where they first differ and whether that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specchat.engine.client.race import Race
from specchat.engine.protocol.events import Compared
from specchat.engine.protocol.text import visible

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
    if race.same and race.promised:
        return RaceResult("same", f"identical: {_all(count)} {'is' if count == 1 else 'are'} the same, one by one")
    loss = race.speculative.started.loss if race.speculative.started else None
    if race.same:
        return RaceResult(
            "same", f"identical here, {_all(count)}; though less is promised: {loss.reason if loss else ''}"
        )
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


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _all(count: int) -> str:
    return "the one token" if count == 1 else f"all {count:,} tokens"


def _where(compared: Compared | None) -> str:
    """` for 57 tokens, then plain wrote ' a' and speculation ' the'`."""
    if compared is None or compared.place is None:
        return ""
    if not compared.plain_text or not compared.other_text:
        ended = "speculation" if compared.plain_text else "plain"
        return f" for {_tokens(compared.place)}, where {ended} ended"
    plain, other = (repr(visible(text)) for text in (compared.plain_text, compared.other_text))
    return f" for {_tokens(compared.place)}, then plain wrote {plain} and speculation {other}"


def _margin(compared: Compared, dtype: str) -> str:
    if compared.allowed:
        rounding = f"passes of different sizes round apart by up to {compared.allowed:.2g} in {dtype or 'this format'}"
    else:
        rounding = f"{dtype or 'float32'} allows no difference"
    if compared.margin is None:
        return f"no margin explains it ({rounding})"
    return f"plain's own is {compared.margin:.2g} ahead ({rounding})"
