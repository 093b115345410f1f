"""Settings → Speculator. The one place where families meet; refuses parts that do not fit, and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafters
from specchat.controllers import CONTROLLERS
from specchat.core.budget import Budget
from specchat.core.costs import Costs
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule, Drafter, Engine, Model, TreePolicy
from specchat.core.tree import DrawKind
from specchat.decoding.families import methods
from specchat.decoding.pruning import EarlyPruning
from specchat.decoding.speculate import Speculator
from specchat.decoding.state_feed import StateFeed
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import NO_SUPPLIES, EngineFactory, Parts, Supplies
from specchat.errors import CombinationError, UsageError, nearest
from specchat.models.learned.loading import trained_network
from specchat.registry import Method
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

_NESTED: Mapping[str, Any] = {
    "drafter": "none",
    "policy": "chain",
    "rule": "follow",
    "controller": "fixed",
    "prune_layer": 0,
}
"""How a nested engine speculates unless its drafter says otherwise: not at all."""


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
    members: tuple[DrafterChoice, ...] = ()

    def all(self) -> Iterator[DrafterChoice]:
        """This one, and the drafters it is made of."""
        yield self
        for member in self.members:
            yield from member.all()


def check_settings(settings: Settings, has_draft_model: bool, trained: TrainedDrafters = NO_TRAINED) -> None:
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
    for choice in _choice(settings.drafter, settings).all():
        if DRAFTERS[choice.name].needs_draft_model and not has_draft_model:
            raise CombinationError(
                f"drafter {choice.name!r} needs a draft model and pair {settings.pair!r} has none; "
                "nearest that works: drafter 'prompt_lookup', or a pair with a draft model (specchat models list)"
            )
        if DRAFTERS[choice.name].needs_weights:
            trained.choose(choice.name, choice.options.weights)
    _check_draws(settings, chosen["rule"].load().wanted)


def needs_weights(settings: Settings) -> bool:
    """Whether a drafter that the settings ask for is built from trained weights."""
    return any(DRAFTERS[choice.name].needs_weights for choice in choose_drafter(settings).all())


def drafters_to_fetch(settings: Settings, trained: TrainedDrafters) -> list[str]:
    """Names of the trained drafters that the settings need and that can be fetched."""
    names: list[str] = []
    for choice in choose_drafter(settings).all():
        if DRAFTERS[choice.name].needs_weights:
            names += trained.to_fetch(choice.name, choice.options.weights)
    return names


def choose_drafter(settings: Settings) -> DrafterChoice:
    """The drafter these settings ask for. A controller that never speculates needs none."""
    return _choice("none" if settings.controller == "off" else settings.drafter, settings)


def make_drafter(choice: DrafterChoice, parts: Parts) -> Drafter:
    """Build the drafter from the parts it may need."""
    options = {member.name: member.options for member in choice.all()}
    return dataclasses.replace(parts, options=options).member(choice.name, options=choice.options)


def assemble(
    settings: Settings,
    target: Model,
    draft: Model | None,
    feed: StateFeed | None = None,
    costs: Costs | None = None,
    supplies: Supplies = NO_SUPPLIES,
) -> Speculator:
    """The speculator these settings ask for.

    Args:
        feed: one whose drafter is to go on being used (it has learnt something), instead of building it anew.
        costs: what passes cost on this machine, as far as it has been measured.
        supplies: what the pair has for its drafters besides models.

    Raises:
        CombinationError: parts that cannot be right together.
        UsageError: a method or an option that does not exist.
    """
    check_settings(settings, draft is not None, supplies.trained)
    budget = Budget(settings.nodes, settings.depth, settings.width)
    controller = CONTROLLERS[settings.controller]
    policy: TreePolicy = _make(TREE_POLICIES[settings.policy], settings)
    if settings.prune_layer:
        policy = EarlyPruning(policy, target, settings.prune_layer, settings.prune_keep)
    if feed is None:
        engines = nested_engines(settings, supplies)
        feed = StateFeed(
            make_drafter(
                choose_drafter(settings),
                Parts(target, draft, supplies=supplies, make_engine=engines, make_network=trained_network),
            )
        )
    speculator = Speculator(
        target=target,
        drafter=feed.drafter,
        policy=policy,
        rule=_make(ACCEPTANCE_RULES[settings.rule], settings),
        controller=controller.load()(controller.make_options(settings.options_for(controller.name)), budget, costs),
    )
    speculator.feed = feed
    return speculator


def nested_engines(settings: Settings, supplies: Supplies) -> EngineFactory:
    """Makes engines that draft for another: methods have the user's options, and are those that the drafter names."""

    inner = dataclasses.replace(
        supplies.keeping(None), trained=NO_TRAINED
    )  # trained for the target, and another model writes

    def make(changes: Mapping[str, Any], model: Model, draft: Model | None) -> Engine:
        return assemble(settings.but({**_NESTED, **changes}), model, draft, supplies=inner)

    return make


def losslessness(rule: AcceptanceRule, name: str) -> Losslessness:
    """What may be claimed for what this rule judges, its other parts having been let through by `assemble`.

    A rule that wants points is right about any tree. One that wants sampled draws is right about trees whose draws
    are distributed as they say, and gets no others: `check_settings` refuses drafters that cannot draw so and
    policies that choose among draws by their tokens; points it judges as `follow` does.
    """
    if not rule.lossless:
        return Losslessness(False, f"rule {name!r} changes the target's distribution on purpose")
    if rule.wanted is DrawKind.POINT:
        return Losslessness(True, f"rule {name!r} keeps exactly what the target itself draws")
    return Losslessness(
        True,
        f"rule {name!r} accepts draws of the draft so that the text is distributed exactly as the target's; "
        "for one seed it may differ from plain decoding's",
    )


def sampling(settings: Settings) -> Sampling:
    """The part of the settings that says how the target samples."""
    return Sampling(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(Sampling)})


def _make(method: Method, settings: Settings) -> Any:
    return method.load()(method.make_options(settings.options_for(method.name)))


def _choice(name: str, settings: Settings) -> DrafterChoice:
    options = DRAFTERS[name].make_options(settings.options_for(name))
    members = tuple(_choice(member, settings) for member in getattr(options, "members", ()))
    return DrafterChoice(name, options, members)


def _check_draws(settings: Settings, wanted: DrawKind) -> None:
    """Refuse a rule that judges by draft probabilities where the draws have none that are true.

    At temperature 0 all draws are points and every such rule is `follow`.
    """
    if wanted is DrawKind.POINT or settings.temperature == 0.0:
        return
    choice = choose_drafter(settings)
    if not any(wanted in _draw_kinds(part) for part in choice.all()):
        able = [name for name in DRAFTERS if name != "none" and wanted in _draw_kinds(_choice(name, Settings()))]
        raise CombinationError(
            f"rule {settings.rule!r} judges draws by the probability they were drawn with, and drafter "
            f"{choice.name!r} with its options proposes points, which have none; nearest that works: rule 'follow', "
            f"or drafter {' or '.join(map(repr, able))} with its default options"
        )
    if not getattr(TREE_POLICIES[settings.policy].load(), "keeps_draws", False):
        keeping = [name for name, method in TREE_POLICIES.items() if getattr(method.load(), "keeps_draws", False)]
        raise CombinationError(
            f"rule {settings.rule!r} needs draws that keep their distribution, and policy {settings.policy!r} "
            "chooses among them by their tokens; nearest that works: rule 'follow', or policy "
            + " or ".join(map(repr, keeping))
        )


def _draw_kinds(choice: DrafterChoice) -> Collection[DrawKind]:
    """The kinds of draws a drafter makes with these options; points alone where it says nothing."""
    declared = getattr(DRAFTERS[choice.name].load(), "draw_kinds", None)
    return declared(choice.options) if declared is not None else (DrawKind.POINT,)
