"""Settings → Speculator. The one place where families meet; refuses parts that do not fit, and says why."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers import CONTROLLERS
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule, Budget, Drafter, Model
from specchat.decoding.families import methods
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.errors import CombinationError, UsageError, nearest
from specchat.registry import Method
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES


@dataclass(frozen=True)
class Losslessness:
    """Whether a combination writes exactly the target's text, computed from its parts, and why."""

    lossless: bool
    reason: str


@dataclass(frozen=True)
class DrafterChoice:
    """What identifies a drafter: while it stays the same, a change of settings keeps what the drafter has learnt."""

    name: str
    options: Any


def check_settings(settings: Settings, has_draft_model: bool) -> None:
    """Refuse unknown methods, unknown options, and parts that do not fit; says what is nearest and works."""
    chosen = {
        "drafter": DRAFTERS[settings.drafter],
        "policy": TREE_POLICIES[settings.policy],
        "rule": ACCEPTANCE_RULES[settings.rule],
        "controller": CONTROLLERS[settings.controller],
    }
    known = {method.name: method for _, method in methods()}
    for key in settings.method_options:
        owner = key.split(".")[0]
        if owner not in known:
            raise UsageError(f"method option {key!r} names no method{nearest(owner, known)}")
        known[owner].make_options(settings.options_for(owner))
    if chosen["drafter"].needs_draft_model and not has_draft_model:
        raise CombinationError(
            f"drafter {settings.drafter!r} needs a draft model and pair {settings.pair!r} has none; "
            "nearest that works: drafter 'prompt_lookup', or a pair with a draft model (specchat models list)"
        )


def choose_drafter(settings: Settings) -> DrafterChoice:
    """The drafter these settings ask for. A controller that never speculates needs none."""
    name = "none" if settings.controller == "off" else settings.drafter
    return DrafterChoice(name, DRAFTERS[name].make_options(settings.options_for(name)))


def make_drafter(choice: DrafterChoice, target: Model, draft: Model | None) -> Drafter:
    """Build the drafter from the parts it may need."""
    drafter: Drafter = DRAFTERS[choice.name].load()(choice.options, Parts(target.vocab_size, draft))
    return drafter


def assemble(settings: Settings, target: Model, draft: Model | None, drafter: Drafter | None = None) -> Speculator:
    """The speculator these settings ask for.

    Args:
        drafter: one to go on using (it has learnt something), instead of building it anew.

    Raises:
        CombinationError: parts that cannot be right together.
        UsageError: a method or an option that does not exist.
    """
    check_settings(settings, draft is not None)
    budget = Budget(settings.nodes, settings.depth, settings.width)
    controller = CONTROLLERS[settings.controller]
    return Speculator(
        target=target,
        drafter=drafter or make_drafter(choose_drafter(settings), target, draft),
        policy=_make(TREE_POLICIES[settings.policy], settings),
        rule=_make(ACCEPTANCE_RULES[settings.rule], settings),
        controller=controller.load()(controller.make_options(settings.options_for(controller.name)), budget),
    )


def losslessness(rule: AcceptanceRule, name: str) -> Losslessness:
    """What may be claimed for whatever this rule judges. Computed from the rule's own properties."""
    if not rule.lossless:
        return Losslessness(False, f"rule {name!r} changes the target's distribution on purpose")
    return Losslessness(True, f"rule {name!r} keeps exactly what the target itself draws")


def sampling(settings: Settings) -> Sampling:
    """The part of the settings that says how the target samples."""
    return Sampling(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Sampling)})


def _make(method: Method, settings: Settings) -> Any:
    return method.load()(method.make_options(settings.options_for(method.name)))
