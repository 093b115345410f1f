"""The trained drafter that a training begins with: found by its name, refused where it does not fit. Torch-free."""

from __future__ import annotations

from collections.abc import Collection

from specchat.config import ModelSpec, load_catalog
from specchat.config.trained_drafters import TrainedDrafter
from specchat.errors import UsageError, nearest, short
from specchat.models.hub import checksum, fetching
from specchat.models.hub.disk import OnProgress
from specchat.models.hub.trained_drafters import ListedDrafter, damage, drafters_of, found_drafters, listed_drafters
from specchat.models.inspect.training_cost import TOKENS_LEARNT_PER_S
from specchat.models.inspect.training_limits import refuse_unknown_method

FIRST_CHOICE = "hydra"
"""What is trained where neither a method nor a drafter to begin with is named."""


def method_of(drafter: str, start: str, target: ModelSpec) -> str:
    """What is trained: what was asked for, else what the drafter is that it begins with.

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
    """The trained drafter of this name, here or still to be fetched. No weights are read.

    Args:
        drafter: the method that is to be trained; empty for that of the drafter named.
        flag: which names it, for errors.

    Raises:
        UsageError: there is none, it is damaged, or it was trained for another target or by another method; names the
            nearest that can be begun with.
    """
    listed = listed_drafters(load_catalog(), TOKENS_LEARNT_PER_S)
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
    """Refuse a start, or what else the flag names, whose method is not the one that is to be trained.

    Raises:
        UsageError: what goes on with it.
    """
    if method != drafter:
        raise UsageError(
            f"{flag} {short(name)} is a {method!r}, and --drafter says {short(drafter)}; "
            f"--drafter {method} goes on with it"
        )


def fetched_start(name: str, report: OnProgress, flag: str = "--from") -> TrainedDrafter:
    """The drafter of this name, fetched where it is not here, its weights compared with its checksum.

    Raises:
        UsageError: it is damaged or gone.
        WeightsError: it cannot be fetched.
    """
    catalog = load_catalog()
    found = found_drafters(catalog, TOKENS_LEARNT_PER_S).get(name)
    if found is None and name in catalog.drafters:
        fetching.fetch(catalog.drafters[name], report)
        found = found_drafters(catalog, TOKENS_LEARNT_PER_S).get(name)
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
