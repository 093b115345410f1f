"""The check of the law: samples under speculation follow plain decoding's softmax, by Pearson's chi-square."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    write,
)
from specchat.core.sampling import Law, Sampling, law
from specchat.core.seams import Model
from specchat.core.tree import ROOT
from specchat.decoding.assemble import sampling
from specchat.decoding.teacher_forcing import read_after
from specchat.models.backends.scripted import Says, ScriptedModel
from specchat.settings import Settings

_SMALLEST_EXPECTED = 5.0
"""Outcomes expected less often than this are counted together: the statistic is not chi-square there."""


@dataclass(frozen=True)
class Fit:
    """How well samples fit a law. `p_value` is how often samples of that very law would look this bad or worse."""

    samples: int
    statistic: float
    degrees: int
    p_value: float


def fit(samples: Sequence[Hashable], law: Mapping[Hashable, float]) -> Fit:
    """Compare samples with the exact probabilities of some outcomes.

    Args:
        law: outcome → probability; what is missing to 1 belongs to all other outcomes together.

    Returns:
        The fit; 0 degrees of freedom, and a p-value of 1, where the samples are too few to tell anything.
    """
    count, seen = len(samples), Counter(samples)
    bins: list[tuple[float, int]] = []
    rest_expected, rest_seen = count * max(0.0, 1.0 - sum(law.values())), count
    for outcome, probability in law.items():
        if count * probability >= _SMALLEST_EXPECTED:
            bins.append((count * probability, seen[outcome]))
            rest_seen -= seen[outcome]
        else:
            rest_expected += count * probability
    if rest_expected >= _SMALLEST_EXPECTED:
        bins.append((rest_expected, rest_seen))
    elif bins:  # too rare to stand alone: counted with the rarest of the others
        place = min(range(len(bins)), key=lambda i: bins[i][0])
        bins[place] = (bins[place][0] + rest_expected, bins[place][1] + rest_seen)
    statistic = sum((found - expected) ** 2 / expected for expected, found in bins)
    degrees = max(0, len(bins) - 1)
    return Fit(count, statistic, degrees, tail(statistic, degrees))


def tail(statistic: float, degrees: int) -> float:
    """The chance that a chi-square variable with so many degrees of freedom is at least this large."""
    if degrees < 1:
        return 1.0
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


_SAMPLED = 0.8
_WIDEST = 8.0
_TOP_SHARE = 0.6
"""A first token likelier than this leaves too little to test: the temperature is raised until it is not."""

_FIRST = 4
"""After so many first tokens the second one is tested too."""

_BINS = 64

_REFUSE = 0.001
"""A law is refused where its own samples would look this bad less often than this."""

_FLATTER = 0.7
"""The draft's logits are the target's times this, so that it is right often and wrong sometimes."""

_PROMPT = "Tell me a story."

_SMALL_TREE = {
    "drafter": "draft_model", "policy": "expansion", "controller": "fixed", "width": 2, "depth": 2, "nodes": 4
}  # fmt: skip
"""Of a draft model that is made for the check."""


@dataclass(frozen=True)
class PlainLogits:
    """Plain decoding's logits after the prompt, and after its likeliest first tokens."""

    prompt: list[int]
    first: Tensor
    second: dict[int, Tensor]


def check_law(subject: CheckedCombination) -> Finding:
    """The first two tokens are distributed as softmax says, and a biased sampler would be noticed"""
    claim = "what is sampled follows the target's distribution"
    if not subject.lossless:
        return Finding(claim, SKIPPED, f"rule {subject.settings.rule!r} changes the distribution on purpose")
    plain = _plain_logits(subject)
    settings = _settings(subject.settings, plain).but(_SMALL_TREE)
    draft = ScriptedModel(subject.target.vocab_size, _nearly(plain), subject.target.context_tokens)
    finding = _finding(claim, subject, settings, plain, _samples(subject, settings, plain, draft))
    if finding.status == PASSED and not finding.figures["accepted"]:
        return replace(finding, status=FAILED)
    return finding


def check_set_law(subject: CheckedCombination) -> Finding:
    """Sampled: what the combination that is set writes is distributed as softmax says"""
    claim = "what this combination samples follows the target's distribution"
    if not subject.lossless:
        return Finding(claim, SKIPPED, f"rule {subject.settings.rule!r} changes the distribution on purpose")
    plain = _plain_logits(subject)
    settings = _settings(subject.settings, plain)
    finding = _finding(claim, subject, settings, plain, _samples(subject, settings, plain))
    return skipped_without_guesses(finding, settings)


def _finding(
    claim: str, subject: CheckedCombination, settings: Settings, plain: PlainLogits, texts: Sequence[Text]
) -> Finding:
    law_of_first, laws_of_second = _laws_in_force(sampling(settings), plain, texts)
    firsts: list[Hashable] = [text.tokens[0] for text in texts]
    both: list[Hashable] = [tuple(text.tokens[:2]) for text in texts]
    exact_first: dict[Hashable, float] = dict(_likeliest(law_of_first))
    exact_both = _joint_law(exact_first, laws_of_second, subject.vocabulary.eos_ids)
    one, two = fit(firsts, exact_first), fit(both, exact_both)
    likeliest = max(exact_first, key=exact_first.__getitem__)
    biased = fit([likeliest if i % 2 else first for i, first in enumerate(firsts)], exact_first)
    if one.degrees == 0:
        return Finding(claim, SKIPPED, "the target is too sure of its first token for anything to be tested")
    drafted, accepted = sum(text.drafted for text in texts), sum(text.accepted for text in texts)
    fine = one.p_value >= _REFUSE and two.p_value >= _REFUSE
    caught = biased.p_value < _REFUSE
    detail = (
        f"{len(texts)} samples at temperature {settings.temperature:.2g}, "
        f"{accepted} of {drafted} drafted tokens accepted; first token {_said(one)}, first two {_said(two)}; "
        f"biased sampler {'caught' if caught else 'NOT caught'} ({_said(biased)})"
    )
    figures = {
        "samples": len(texts),
        "first": one,
        "first_two": two,
        "control": biased,
        "drafted": drafted,
        "accepted": accepted,
        "temperature": settings.temperature,
        "passes_differ_by": _distance(law(plain.first, sampling(settings)), law_of_first, subject.target.vocab_size),
    }
    return Finding(claim, PASSED if fine and caught else FAILED, detail, figures)


def _plain_logits(subject: CheckedCombination) -> PlainLogits:
    prompt = subject.vocabulary.encode_chat([{"role": "user", "content": _PROMPT}])
    first = read_after(subject.target, prompt).float().clone()
    likeliest = first.topk(min(_FIRST, first.numel())).indices.tolist()
    return PlainLogits(prompt, first, {t: read_after(subject.target, [*prompt, t]).float().clone() for t in likeliest})


def _settings(settings: Settings, plain: PlainLogits) -> Settings:
    """The same combination and truncation without penalties, at a temperature that leaves a choice, for two tokens."""
    warmth = settings.temperature or _SAMPLED
    while warmth < _WIDEST and float(torch.softmax(plain.first.double() / warmth, dim=-1).max()) > _TOP_SHARE:
        warmth *= 1.25
    return settings.but({**NEUTRAL, "temperature": min(warmth, _WIDEST), "max_tokens": 2})


def _samples(
    subject: CheckedCombination, settings: Settings, plain: PlainLogits, draft: Model | None = None
) -> list[Text]:
    """Many replies of two tokens; `draft` takes the place of the pair's draft model."""
    conversation = subject.conversation(settings, draft)
    return [write(conversation, plain.prompt, seed) for seed in range(subject.effort.samples)]


def _nearly(plain: PlainLogits) -> Says:
    """A draft that knows the target's own logits and trusts them a little less."""
    length, nothing = len(plain.prompt), torch.zeros_like(plain.first)

    def says(text: Sequence[int]) -> Tensor:
        if len(text) == length:
            return plain.first * _FLATTER
        if len(text) == length + 1 and text[-1] in plain.second:
            return plain.second[text[-1]] * _FLATTER
        return nothing

    return says


def _laws_in_force(law_settings: Sampling, plain: PlainLogits, texts: Sequence[Text]) -> tuple[Law, dict[int, Law]]:
    """The first token's law, and the second's after some first ones: those of the very passes that were sampled from,
    plain decoding's where there was none.

    A pass of several rows rounds differently from a pass of one; thousands of samples would show the difference.
    """
    first, second = plain.first, dict(plain.second)
    if texts and texts[0].rounds:
        first = texts[0].rounds[0].reading.after(ROOT).float()
    for text in texts:
        tree, reading = text.rounds[0].tree, text.rounds[0].reading
        for token in [t for t in second if second[t] is plain.second[t]]:
            child = tree.child(ROOT, token)
            if child is not None and child in reading.alive:
                second[token] = reading.after(child).float().clone()
    return law(first, law_settings), {token: law(logits, law_settings) for token, logits in second.items()}


def _joint_law(
    chances_of_first: Mapping[Hashable, float], laws_of_second: Mapping[int, Law], eos_ids: frozenset[int]
) -> dict[Hashable, float]:
    """Probabilities of the likeliest pairs; a first token that ends the reply stands alone."""
    joint: dict[Hashable, float] = {}
    for token, second in laws_of_second.items():
        chance = chances_of_first.get(token, 0.0)
        if token in eos_ids:
            joint[token,] = chance
        else:
            joint |= {(token, next_token): chance * p for next_token, p in _likeliest(second)}
    return joint


def _likeliest(one: Law) -> list[tuple[int, float]]:
    values, places = one.logprobs.exp().topk(min(_BINS, one.logprobs.numel()))
    return list(zip(one.all_ids()[places].tolist(), values.tolist(), strict=True))


def _distance(one: Law, other: Law, vocab_size: int) -> float:
    """Total variation between two laws."""
    return float((one.dense(vocab_size) - other.dense(vocab_size)).abs().sum()) / 2


def _said(found: Fit) -> str:
    return f"χ² {found.statistic:.1f} on {found.degrees}, p = {found.p_value:.2g}"
