"""Checks and cost of a training before it begins, and the drafter that it starts from. Torch-free.

All of it is asked before torch is imported or any weights are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from specchat.config import ModelSpec, load_catalog, own_drafters_dir
from specchat.config.directories import expanded
from specchat.config.toml_file import NAME
from specchat.config.trained_drafters import TrainedDrafter, free_name, whose_name
from specchat.errors import UsageError, nearest, short
from specchat.models.draft_heads import FAMILIES, methods
from specchat.models.draft_heads.sizes import LEAST_TEXTS, MOST_DEPTH, MOST_ENSEMBLE
from specchat.models.hub import checksum, fetching
from specchat.models.hub.disk import OnProgress
from specchat.models.hub.trained_drafters import ListedDrafter, damage, drafters_of, found_drafters, listed_drafters

SELF = "self"
"""Prompts that the target writes itself."""

CHATS = "chats"
"""Prompts that are the user's own messages."""

LOSSES = ("forward_kl", "reverse_kl", "jsd", "tvd", "tvd_plus_plus", "lk", "lk_mixed")
"""How a drafter's law can be brought to the target's; the first where none is named."""

TREE_LOSS = "tree"
"""The loss of networks that guess in chains which is a last stage of their training; see `tree_loss`."""

BOOSTED = "prompts"
"""The selection of whole texts, before any is learnt from; see `distillation.unreproduced`."""

SELECTIONS = ("behind", "missed", BOOSTED)
"""How a reference can decide what is learnt from; the first where none is named."""

CHAIN_SELECTIONS = ("reached", "confidence", "guessable")
"""Which guesses of chains are learnt, and how much each counts; see `chain_loss`. The first where none is named."""

TARGETS_TEXTS = "target"

TEXTS = (TARGETS_TEXTS, "draft", "mixed")
"""Who writes the replies that a draft model learns from; the first where none is named."""

FORMS = ("eagle", "fs", "fspad")
"""What the layer of `eagle` makes of states and tokens; the first where none is named."""

_FEWEST_TOKENS = 5200
"""Some 40 texts of the longest replies: fewer cannot be told from chance."""

_MOST_TOKENS = 10**10
_MOST_HOURS = 10_000

FIRST_CHOICE = "hydra"
"""The method that is trained where neither a method nor a drafter to begin with is named."""

LIKELIEST = 32
"""How many of the target's likeliest tokens are kept at every place, with the weight of all others together."""

TAPS = 4
"""Layers whose states are kept: an early one, the middle, a late one and the last."""

TOKENS_PER_REPLY_TOKEN = 1.7
"""Tokens read for every token of a reply: chat format and prompt come before it. Measured on smol."""

_MOST_TEXTS, _WIDTH_OF_A_TEXT = 32, 128

_MATRIX_SHARE = 0.5
"""Muon's share of the time of learning where it was measured, with the fewest texts in a step."""

_MEASURED_PARAMETERS, _MEASURED_WIDTH = 134_515_008, 576
_WRITTEN_PER_S, _READ_PER_S = 510.0, 1500.0


@dataclass(frozen=True)
class TrainingCost:
    """Bytes of disk, and about how long it takes one thread of a machine like the one that was measured."""

    disk_bytes: int
    seconds: float


def training_cost(drafter: str, reply_tokens: int, parameters: int, hidden: int) -> TrainingCost:
    """Cost of learning from so many tokens of replies; `parameters` and `hidden`, a state's width, are the target's."""
    size, width = parameters / _MEASURED_PARAMETERS, hidden / _MEASURED_WIDTH
    write, read = size / _WRITTEN_PER_S, size * TOKENS_PER_REPLY_TOKEN / _READ_PER_S
    muon = _MATRIX_SHARE * width**3 * LEAST_TEXTS / texts_per_batch(hidden)
    family = FAMILIES[drafter]
    learn = family.epochs * ((1.0 - _MATRIX_SHARE) * width + muon) / family.learnt_per_s
    return TrainingCost(states_bytes(reply_tokens, TAPS, hidden), reply_tokens * (write + read + learn))


def texts_per_batch(hidden: int) -> int:
    """Texts in a step of learning, for a target whose states are `hidden` wide.

    A step of Muon multiplies matrices: it grows with the cube of the width, what a text takes with less. So wider
    networks take more texts together. With 1,536 numbers in a state and 4 texts Muon took 0.85 of the time.
    """
    return min(_MOST_TEXTS, max(LEAST_TEXTS, hidden // _WIDTH_OF_A_TEXT))


def states_bytes(reply_tokens: int, taps: int, hidden: int) -> int:
    """Bytes on disk of the states of so many tokens of replies and of their prompts."""
    return int(reply_tokens * TOKENS_PER_REPLY_TOKEN) * bytes_of_token(taps, hidden)


def bytes_of_token(taps: int, hidden: int) -> int:
    """Bytes on disk of a token: its states, its likeliest next tokens, itself, and the probability of the rest."""
    return taps * hidden * 2 + LIKELIEST * (4 + 2) + 4 + 4


def trainable_target(pair: str) -> ModelSpec:
    """The target of a pair; UsageError if there is no such pair, or if it has no weights to learn from."""
    catalog = load_catalog()
    target = catalog.model(catalog.pair(pair).target)
    if target.scripted:
        raise UsageError(f"pair {pair!r} has no weights to learn from; choose a pair with a model")
    return target


def refuse_impossible(drafter: str, prompts: str, reply_tokens: int, hours: float, name: str) -> None:
    """Raise UsageError, with the nearest that can be trained."""
    refuse_unknown_method(drafter)
    if prompts not in (SELF, CHATS) and not os.path.isfile(expanded(prompts, "--prompts")):
        raise UsageError(f"--prompts {short(prompts)} is neither {SELF!r}, {CHATS!r} nor a file")
    if reply_tokens < _FEWEST_TOKENS:
        raise UsageError(f"--tokens {reply_tokens} is too few to learn from; at least {_FEWEST_TOKENS}")
    if reply_tokens > _MOST_TOKENS:
        raise UsageError(f"--tokens {reply_tokens} is too many; at most {_MOST_TOKENS}")
    if not 0 <= hours < _MOST_HOURS:
        raise UsageError(f"--hours {hours:g} must be 0 (as long as it helps) or more, and below {_MOST_HOURS}")
    refuse_wrong_name(name)


def refuse_wrong_name(name: str) -> None:
    """Raise UsageError for a name that no folder of a drafter may have."""
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {short(name)} is not a valid name: letters, digits, '.', '_' and '-'")


def refuse_unknown_method(drafter: str) -> None:
    """Raise UsageError, with the nearest, for a drafter that is not trained."""
    if drafter not in FAMILIES:
        raise UsageError(f"--drafter {short(drafter)} is not one that can be trained{nearest(drafter, FAMILIES)}")


def refuse_unknown_loss(drafter: str, loss: str, reference: str, select: str, start: str = "") -> None:
    """Raise UsageError for an unknown loss or selection, or either for a drafter that learns in another way; `start`
    is the name of the drafter that it begins with."""
    distilled = methods("draft model")
    if drafter in methods("masks") and (loss or select):
        flag = "--loss" if loss else "--select"
        raise UsageError(f"{flag} is for networks of their own; {drafter} learns through the target")
    if drafter in methods("denoiser") and (select or reference):
        flag = "--select" if select else "--reference"
        raise UsageError(f"{flag} is for networks that learn place by place; {drafter} learns from windows of masks")
    if drafter not in distilled and reference:
        raise UsageError(
            f"--reference is for --drafter {' and '.join(distilled)}; {drafter} learns in chains of its guesses"
        )
    selections = SELECTIONS if drafter in distilled else CHAIN_SELECTIONS
    losses = (*LOSSES, TREE_LOSS) if drafter in methods("head") else LOSSES
    if loss and loss not in losses:
        raise UsageError(f"--loss {short(loss)} is not one that can be learnt with{nearest(loss, losses)}")
    if loss == TREE_LOSS and not start:
        raise UsageError(f"--loss {TREE_LOSS} is a last stage; --from NAME is the trained drafter that it begins with")
    if loss == TREE_LOSS and select:
        raise UsageError(f"--select {short(select)} is for other losses than --loss {TREE_LOSS}")
    if select and select not in selections:
        raise UsageError(f"--select {short(select)} is not a way to select tokens{nearest(select, selections)}")
    if select and not reference and drafter in distilled:
        raise UsageError(f"--select {select} needs --reference NAME, an earlier draft model that decides")


def refuse_unknown_texts(drafter: str, texts: str) -> None:
    """Raise UsageError for unknown writers of texts, or a drafter that cannot write any."""
    if texts and texts not in TEXTS:
        raise UsageError(f"--texts {short(texts)} is not one of {', '.join(TEXTS)}{nearest(texts, TEXTS)}")
    able = methods("draft model")
    if texts not in ("", TARGETS_TEXTS) and drafter not in able:
        raise UsageError(f"--texts {texts} is for --drafter {' and '.join(able)}; {drafter} writes no texts by itself")


def refuse_ensemble(drafter: str, ensemble: int) -> None:
    """Raise UsageError for an ensemble of nothing, of too many, or for a drafter without masks."""
    if not 1 <= ensemble <= MOST_ENSEMBLE:
        raise UsageError(f"--ensemble {ensemble} must be 1 to {MOST_ENSEMBLE}")
    if ensemble > 1 and drafter not in (masks := methods("masks")):
        raise UsageError(f"--ensemble is for --drafter {' and '.join(masks)}; {drafter} has no masks")


def depths_of(drafter: str, depths: str) -> tuple[int, ...]:
    """The numbers of `--depths`; UsageError for other than ascending numbers of layers, or another drafter."""
    if not depths:
        return ()
    if drafter not in (able := methods("draft model")):
        raise UsageError(f"--depths is for --drafter {' and '.join(able)}; {drafter} guesses at its last layer alone")
    words = [word.strip() for word in depths.split(",")]
    found = tuple(int(word) for word in words if word.isdecimal() and len(word) < 4)
    if len(found) < len(words) or sorted(set(found)) != list(found) or not 1 <= found[0] <= found[-1] <= MOST_DEPTH:
        raise UsageError(
            f"--depths {short(depths)} are not ascending numbers of layers from 1 to {MOST_DEPTH}, as 1,2,4"
        )
    return found


def refuse_unknown_form(drafter: str, form: str) -> None:
    """Raise UsageError for an unknown form, or one for a drafter that has none to choose."""
    if form and drafter != "eagle":
        raise UsageError(f"--form is for --drafter eagle; {drafter} has one form")
    if form and form not in FORMS:
        raise UsageError(f"--form {short(form)} is not one of {', '.join(FORMS)}{nearest(form, FORMS)}")


def refuse_plain(drafter: str, plain: str, start: str) -> None:
    """Raise UsageError for plain text where it cannot be learnt first."""
    able = methods("draft model")
    if plain and drafter not in able:
        raise UsageError(f"--plain is for --drafter {' and '.join(able)}; {drafter} learns from the target's states")
    if plain and start:
        raise UsageError("--plain is learnt by a draft model that begins with nothing; leave out --from")
    if plain and not os.path.isfile(expanded(plain, "--plain")):
        raise UsageError(f"--plain {short(plain)} is not a file")


def refuse_hiding(name: str) -> None:
    """Refuse a name under which another drafter would be hidden; UsageError with the nearest that is free."""
    if whose := whose_name(name):
        free = free_name(name, lambda one: (own_drafters_dir() / one).exists())
        raise UsageError(
            f"--name {short(name)}: the drafter of this name {whose}, and yours would be used in its place; "
            f"{free!r} is free"
        )


def refuse_replacing_start(name: str, start: str) -> None:
    """Refuse the name of the drafter that it begins with; UsageError with the nearest that is free."""
    if start and name == start:
        free = free_name(name, lambda one: (own_drafters_dir() / one).exists())
        raise UsageError(
            f"--name {short(name)} is also the drafter that --from names, and would be replaced; {free!r} is free"
        )


def method_of(drafter: str, start: str, target: ModelSpec) -> str:
    """The method that is trained: the one asked for, else that of the drafter it begins with.

    Args:
        drafter: a method, or empty.
        start: the name of a trained drafter, or empty.

    Raises:
        UsageError: as `start_named`, or the method is not one that can be trained.
    """
    if drafter:
        refuse_unknown_method(drafter)
    return start_named(start, target, drafter).method if start else drafter or FIRST_CHOICE


def start_named(name: str, target: ModelSpec, drafter: str = "", flag: str = "--from") -> ListedDrafter:
    """The trained drafter of this name, here or still to be fetched; no weights are read. `drafter` is the method that
    is to be trained, empty for any, and `flag` names the drafter in errors.

    Raises:
        UsageError: there is none, it is damaged, or it was trained for another target or by another method; names the
            nearest that can be begun with.
    """
    listed = listed_drafters(load_catalog(), FAMILIES)
    fitting = _fitting(listed, target)
    able = [one.name for one in fitting if not one.problem and drafter in ("", one.method)]
    found = next((one for one in listed if one.name == name), None)
    if found is None:
        raise UsageError(f"{flag} {short(name)} names no trained drafter{_instead(name, able, target, flag)}")
    if found.problem:
        raise UsageError(f"{flag} {short(name)} cannot be used: {found.problem}{_instead(name, able, target, flag)}")
    if found not in fitting:
        meant = f"{'other weights of ' if found.target == target.name else ''}{found.target}"
        raise UsageError(f"{flag} {short(name)} was trained for {meant}{_instead(name, able, target, flag)}")
    if drafter:
        refuse_other_method(name, found.method, drafter, flag)
    return found


def refuse_other_method(name: str, method: str, drafter: str, flag: str = "--from") -> None:
    """Refuse a start, or what else the flag names, of another method; UsageError says what goes on with it."""
    if method != drafter:
        raise UsageError(
            f"{flag} {short(name)} is a {method!r}, and --drafter says {short(drafter)}; "
            f"--drafter {method} goes on with it"
        )


def fetched_start(name: str, report: OnProgress, flag: str) -> TrainedDrafter:
    """The drafter of this name, fetched where it is not here, its weights compared with its checksum.

    Raises:
        UsageError: it is damaged or gone.
        WeightsError: it cannot be fetched.
    """
    catalog = load_catalog()
    found = found_drafters(catalog, FAMILIES).get(name)
    if found is None and name in catalog.drafters:
        fetching.fetch(catalog.drafters[name], report)
        found = found_drafters(catalog, FAMILIES).get(name)
    problem = "it is not here" if found is None or found.drafter is None else found.problem or damage(found.drafter)
    if found is None or found.drafter is None or problem:
        raise UsageError(f"{flag} {short(name)} cannot be used: {problem}")
    return found.drafter


def _fitting(listed: Collection[ListedDrafter], target: ModelSpec) -> list[ListedDrafter]:
    """Those for this target: by its checksum, or by its name as long as its weights are not here."""
    if checksum.known_sha256(target) is None:
        return [one for one in listed if one.target == target.name]
    return drafters_of(listed, target)


def _instead(name: str, able: Collection[str], target: ModelSpec, flag: str) -> str:
    if able:
        return nearest(name, able)
    without = f"leave out {flag}" + (" and begin with nothing" if flag == "--from" else "")
    return f"; none for {target.name} is known, so {without}"
