"""Checks of the text: greedy, seeded, with a perfect draft model, and with one that is always wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.bench.checked_combination import (
    FAILED,
    NEUTRAL,
    PASSED,
    SKIPPED,
    CheckedCombination,
    Finding,
    Text,
    skipped_without_guesses,
)
from specchat.bench.measured_reply import Measured
from specchat.core.round import Round
from specchat.core.sampling import Sampling
from specchat.core.seams import Model
from specchat.core.tree import ROOT
from specchat.decoding.assemble import sampling
from specchat.decoding.teacher_forcing import (
    Comparer,
    FirstDivergence,
    Judge,
    Margin,
    allowed_gap,
    first_difference,
    forced,
    read_after,
)
from specchat.models.backends.scripted import Says, ScriptedModel


@dataclass(frozen=True)
class Divergence(FirstDivergence):
    """The first place at which a contestant's reply is not plain's."""

    contestant: str
    question_id: str
    turn: int


@dataclass(frozen=True)
class SameText:
    """How many replies of a contestant are plain's, token by token, and where the others leave it.

    Args:
        promised: whether the same text is promised at all: rules that keep the distribution only do so greedily.
    """

    equal: int
    total: int
    promised: bool
    divergences: tuple[Divergence, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the contestant writes plain's text, ties apart, if it promises that."""
        return not self.promised or all(divergence.tie for divergence in self.divergences)


def compare_texts(
    comparer: Comparer, plain: Sequence[Measured], others: Sequence[Measured], sampling: Sampling, promised: bool
) -> SameText:
    """Judge replies against plain decoding's to the same prompts."""
    by_prompt = {reply.about: reply for reply in plain}
    matched = [(by_prompt[other.about], other) for other in others if other.about in by_prompt]
    found: list[Divergence] = []
    for reply, other in matched:
        written = (reply.written.tokens, other.written.tokens)
        if (divergence := comparer.first_divergence(other.prompt, *written, sampling, other.seed)) is not None:
            where = (other.contestant, other.question_id, other.turn)
            found.append(Divergence(divergence.margin, divergence.allowed, *where))
    return SameText(len(matched) - len(found), len(matched), promised, tuple(found))


_SAMPLED = 0.8
"""The temperature of sampled texts where the settings are greedy."""

_BY_ONE = {"drafter": "draft_model", "controller": "fixed", "method_options": {"draft_model.model": ""}}


def check_greedy(subject: CheckedCombination) -> Finding:
    """Greedy: the text is plain decoding's, and a wrong token would be noticed"""
    claim = "the greedy text is plain decoding's"
    if not subject.lossless:
        return Finding(claim, SKIPPED, f"rule {subject.settings.rule!r} changes the text on purpose")
    settings, judge = subject.greedy_settings, Judge(sampling(subject.greedy_settings), 0)
    allowed = allowed_gap(subject.moved, judge.sampling)
    texts = [subject.write(settings, prompt) for prompt in subject.prompts]
    differences: list[Margin] = []
    worst, equal = 0.0, 0
    for prompt, plain, text in zip(subject.prompts, subject.greedy_plain, texts, strict=True):
        place = first_difference(plain.tokens, text.tokens)
        equal += place is None
        logits = forced(subject.target, prompt, text.tokens)
        margins = [judge.margin(prompt, text.tokens, place, row) for place, row in enumerate(logits)]
        worst = max(worst, *(margin.gap for margin in margins), 0.0)
        if place is not None:
            differences.append(margins[place] if place < len(margins) else Margin(place, -1, -1, float("inf")))
    caught, planted = _planted_is_caught(subject, judge, allowed)
    wrong = bool(differences) if subject.exact else worst > allowed or any(d.gap > allowed for d in differences)
    drafted = sum(text.drafted for text in texts)
    figures = {
        "texts": len(texts),
        "equal": equal,
        "tokens": sum(len(text.tokens) for text in texts),
        "drafted": drafted,
        "accepted": sum(text.accepted for text in texts),
        "largest_margin": worst,
        "allowed_margin": 0.0 if subject.exact else allowed,
        "passes_differ_by": subject.moved,
        "planted_margin": planted,
    }
    detail = (
        f"{equal} of {len(texts)} texts the same, {figures['tokens']} tokens; "
        f"{figures['accepted']} of {drafted} drafted tokens accepted; "
        f"largest margin against plain decoding {worst:.3g} (allowed {figures['allowed_margin']:.3g})"
    )
    if differences:
        first = differences[0]
        detail += f"; first difference at token {first.place}, margin {first.gap:.3g}"
    detail += f"; planted wrong token {'caught' if caught else 'NOT caught'} (margin {planted:.3g})"
    finding = Finding(claim, FAILED if wrong or not caught else PASSED, detail, figures)
    return skipped_without_guesses(finding, settings)


def check_seeded(subject: CheckedCombination) -> Finding:
    """Sampled: the same seed gives the same text with speculation on and off"""
    claim = "the same seed gives plain decoding's text"
    if subject.settings.rule != "follow":
        return Finding(claim, SKIPPED, f"rule {subject.settings.rule!r} promises the distribution, not the same text")
    warmth = subject.settings.temperature or _SAMPLED
    settings = subject.settings.but({"temperature": warmth, "max_tokens": subject.effort.sampled_tokens})
    law = sampling(settings)
    allowed = 0.0 if subject.exact else allowed_gap(subject.moved, law)
    prompt, worst, equal = subject.prompts[0], 0.0, 0
    drafted = accepted = 0
    for seed in range(subject.effort.seeds):
        plain = subject.write(settings.but({"controller": "off"}), prompt, seed)
        text = subject.write(settings, prompt, seed)
        gap = _leaving_gap(subject, Judge(law, seed), prompt, plain, text)
        equal += gap is None
        worst = max(worst, gap or 0.0)
        drafted, accepted = drafted + text.drafted, accepted + text.accepted
    detail = (
        f"{equal} of {subject.effort.seeds} texts the same at temperature {warmth:g}; "
        f"{accepted} of {drafted} drafted tokens accepted"
    )
    if equal < subject.effort.seeds:
        detail += f"; largest margin where one leaves plain's {worst:.3g} (allowed {allowed:.3g})"
    fine = equal == subject.effort.seeds or (not subject.exact and worst <= allowed)
    figures = {
        "texts": subject.effort.seeds,
        "equal": equal,
        "drafted": drafted,
        "accepted": accepted,
        "largest_margin": worst,
        "allowed_margin": allowed,
    }
    return skipped_without_guesses(Finding(claim, PASSED if fine else FAILED, detail, figures), settings)


def check_twin(subject: CheckedCombination) -> Finding:
    """Drafted for by itself, the target accepts everything but ties"""
    claim = "a draft model that is the target has everything accepted but ties"
    shape = {"policy": "chain", "width": 1, "depth": 4, "nodes": 4, "max_tokens": subject.effort.twin_tokens}
    settings = subject.greedy_settings.but({**_BY_ONE, **shape, **NEUTRAL})
    text = subject.write(settings, subject.prompts[0], draft=subject.target.with_new_cache())
    allowed = allowed_gap(subject.moved, sampling(settings))
    gaps = [gap for round in text.rounds if (gap := _rejection_gap(round)) is not None]
    worst = max(gaps, default=0.0)
    detail = f"{text.accepted} of {text.drafted} accepted, {len(gaps)} rejected"
    if gaps:
        detail += f", the clearest by a margin of {worst:.3g} (allowed {allowed:.3g})"
    figures = {"drafted": text.drafted, "accepted": text.accepted, "rejections": len(gaps), "largest_margin": worst}
    fine = worst <= allowed and text.accepted > 0
    return Finding(claim, PASSED if fine else FAILED, detail, figures)


def check_adversary(subject: CheckedCombination) -> Finding:
    """A drafter that is always wrong changes nothing"""
    claim = "a draft model that is always wrong changes nothing"
    if not subject.lossless:
        return Finding(claim, SKIPPED, f"rule {subject.settings.rule!r} changes the text on purpose")
    prompt, known = subject.prompts[0], subject.greedy_plain[0].tokens[: subject.effort.adversary_tokens]
    adversary = ScriptedModel(
        subject.target.vocab_size, always_wrong(prompt, known, subject.target), subject.target.context_tokens
    )
    shape = {"policy": "expansion", "width": 3, "depth": 3, "nodes": 9, "max_tokens": len(known)}
    settings = subject.greedy_settings.but({**_BY_ONE, **shape})
    text = subject.write(settings, prompt, draft=adversary)
    judge = Judge(sampling(settings), 0)
    allowed = 0.0 if subject.exact else allowed_gap(subject.moved, judge.sampling)
    gap = _leaving_gap(subject, judge, prompt, Text(known, []), text)
    same = (
        "the text is the same" if gap is None else f"the text differs by a margin of {gap:.3g} (allowed {allowed:.3g})"
    )
    detail = f"{text.accepted} of {text.drafted} wrong guesses accepted; {same}"
    fine = (gap is None and text.accepted == 0) or (gap is not None and not subject.exact and gap <= allowed)
    figures = {"drafted": text.drafted, "accepted": text.accepted, "tokens": len(text.tokens), "margin": gap}
    return Finding(claim, PASSED if fine and text.drafted else FAILED, detail, figures)


def always_wrong(prompt: Sequence[int], reply: Sequence[int], target: Model) -> Says:
    """(text) → (V,) logits that favour a few tokens, never the one that the target says there."""
    begin, size = len(prompt), target.vocab_size

    def says(text: Sequence[int]) -> Tensor:
        place = len(text) - begin
        right = reply[place] if 0 <= place < len(reply) else -1
        favoured = [token for k in range(5) if (token := (7 * len(text) + text[-1] + k) % size) != right]
        logits = torch.zeros(size, device=target.device)
        logits[favoured] = torch.arange(len(favoured), 0, -1, dtype=torch.float32, device=target.device) + 10.0
        if right >= 0:
            logits[right] = -10.0
        return logits

    return says


def _planted_is_caught(subject: CheckedCombination, judge: Judge, allowed: float) -> tuple[bool, float]:
    """Whether this very comparison would notice the second-best token in an ordinary place: the control.

    Ordinary is where the second-best token is as far behind as in half of all places.
    """
    reply, logits = subject.greedy_plain[0].tokens, subject.first_logits
    planted: list[Margin] = []
    for place, row in enumerate(logits):
        second = int(row.topk(2).indices[1])
        planted.append(judge.margin(subject.prompts[0], [*reply[:place], second], place, row))
    if not planted:
        return False, 0.0
    ordinary = sorted(planted, key=lambda margin: margin.gap)[len(planted) // 2]
    return ordinary.gap > allowed, ordinary.gap


def _leaving_gap(subject: CheckedCombination, judge: Judge, prompt: list[int], plain: Text, text: Text) -> float | None:
    """The margin at the first place where a text leaves plain's; None where it does not."""
    place = first_difference(plain.tokens, text.tokens)
    if place is None:
        return None
    if place >= min(len(plain.tokens), len(text.tokens)):
        return float("inf")
    logits = read_after(subject.target, [*prompt, *text.tokens[:place]])
    return max(judge.margin(prompt, tokens, place, logits).gap for tokens in (plain.tokens, text.tokens))


def _rejection_gap(round: Round) -> float | None:
    """In a chain: by how much the target preferred another token where it stopped; None where it accepted all."""
    verdict, tree = round.verdict, round.tree
    if verdict.bonus is None or round.accepted == tree.drafted:
        return None
    node = verdict.path[-1] if verdict.path else ROOT
    logits = round.reading.after(node).double()
    return float(logits.max() - logits[tree.tokens[tree.children(node)[0]]])
