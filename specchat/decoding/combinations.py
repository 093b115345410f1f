"""Checks that parts fit together, from settings and from what methods declare. Nothing is built for it.

Names, options and requirements are read from the tables, without torch. A method's class is imported only where a rule
may ask for sampled draws, which no rule does at temperature 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.config.trained_drafters import DRAFT_MODEL, NO_TRAINED, TrainedDrafters
from specchat.controllers import choose_controllers
from specchat.decoding.families import methods
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import DrafterChoice, choose, choose_drafter
from specchat.errors import CombinationError, UsageError, nearest, short
from specchat.registry import Method
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

if TYPE_CHECKING:
    from specchat.config.datastore_files import Datastores
    from specchat.core.tree import DrawKind


@dataclass(frozen=True)
class LosslessClaim:
    """Whether a combination writes exactly the target's text, computed from its parts, and why."""

    lossless: bool
    reason: str


def check_settings(
    settings: Settings,
    has_draft_model: bool,
    trained: TrainedDrafters = NO_TRAINED,
    datastores: Datastores | None = None,
    draft_models: Mapping[str, bool] | None = None,
) -> None:
    """Refuse unknown methods, unknown options, and parts that do not fit; says what is nearest and works.

    Args:
        datastores: those with the target's tokens; None before its tokens are known, and then nothing is said of them.
        has_draft_model: whether the pair has one, or, where it is loaded, whether one is.
        draft_models: the pair's, by name, the first one first, and whether each has the target's tokens; None where
            nothing is known of them.

    Raises:
        CombinationError: parts that cannot be right together.
        UsageError: a method or an option that does not exist.
    """
    chosen = choose(settings.drafter, settings)
    _ = TREE_POLICIES[settings.policy], ACCEPTANCE_RULES[settings.rule], choose_controllers(settings)
    _check_options(settings)
    if not has_draft_model:
        refuse_unknown_drafts(settings, (), trained)
    elif draft_models is not None:
        refuse_unknown_drafts(settings, draft_models, trained)
        _refuse_other_tokens(settings, draft_models)
    for choice in _with_weights(chosen):
        trained.choose(choice.name, choice.options.weights)
    if (judge := _judge_of(settings)) is not None:
        trained.choose(settings.rule, judge)
    for choice in chosen.leaves():
        if choice.method.needs_datastore and datastores is not None:
            datastores.choose(choice.options.store)
    _check_loop(settings, has_draft_model)
    if settings.temperature > 0.0 or not ACCEPTANCE_RULES[settings.rule].lossless.startswith("yes"):
        _check_rule(settings)


def _check_loop(settings: Settings, has_draft_model: bool) -> None:
    """Refuse a drafter that goes on from confirmed texts alone, where the loop asks for more."""
    method = choose_drafter(settings).method
    if settings.loop == "sequential" or settings.controller == "off" or method.drafts_ahead:
        return
    raise CombinationError(
        f"loop {settings.loop!r} drafts while the target reads, for a text that it has not confirmed, and drafter "
        f"{settings.drafter!r} goes on from confirmed texts alone; nearest that works: loop 'sequential', or drafter "
        f"{'draft_model' if has_draft_model else 'pruned'!r}"
    )


def refuse_unknown_drafts(settings: Settings, drafts: Collection[str], trained: TrainedDrafters = NO_TRAINED) -> None:
    """Refuse a drafter that uses a draft model which is not one of these, the pair's.

    Args:
        trained: knows why a draft model that was trained is none of them.

    Raises:
        CombinationError: with what the pair has, or what needs none.
    """
    for choice in choose_drafter(settings).leaves():
        for name in choice.draft_models("").difference(drafts):
            if (refused := trained.refused.get(name)) is not None:
                others = [f"{choice.name}.model = {other!r}" for other in drafts] or ["drafter 'suffix'"]
                reason = f"cannot be used: {refused.reason}; nearest that works: {others[0]}"
                raise CombinationError(f"{choice.name}.model = {short(name)} {reason}")
            if name in trained.fetchable.get(DRAFT_MODEL, ()):
                where = f"is not here; `specchat models pull {name}` fetches it"
                raise CombinationError(f"{choice.name}.model = {short(name)} {where}")
        if choice.method.needs_draft_model and not drafts:
            raise CombinationError(
                f"drafter {choice.name!r} needs a draft model and pair {settings.pair!r} has none; "
                "nearest that works: drafter 'prompt_lookup', or a pair with a draft model (specchat models list)"
            )
        for name in choice.draft_models(""):
            if name and name not in drafts:
                raise CombinationError(
                    f"{choice.name}.model = {short(name)} is not a draft model of pair {settings.pair!r}"
                    f"{nearest(name, drafts)}"
                )


def _refuse_other_tokens(settings: Settings, known: Mapping[str, bool]) -> None:
    """CombinationError, naming the drafter that translates, for a draft model that must have the target's tokens."""
    first = next(iter(known))
    for choice in choose_drafter(settings).leaves():
        for name in choice.draft_models(first, same_tokens=True):
            if not known[name]:
                which = f"{short(name)}, which has other tokens" if len(known) > 1 else "one with other tokens"
                raise CombinationError(
                    f"drafter {choice.name!r} needs a draft model with the target's tokens, and pair "
                    f"{settings.pair!r} has {which}; nearest that works: drafter 'cross_vocabulary'"
                )


def needs_weights(settings: Settings) -> bool:
    """Whether a drafter or rule that the settings ask for is built from trained weights."""
    return bool(_with_weights(choose_drafter(settings))) or _judge_of(settings) is not None


def drafters_to_fetch(settings: Settings, trained: TrainedDrafters) -> list[str]:
    """Names of the trained drafters that the settings need and that can be fetched."""
    chosen = choose_drafter(settings)
    models = {choice.options.model for choice in chosen.leaves() if choice.method.needs_draft_model}
    fetchable = trained.fetchable.get(DRAFT_MODEL, ())
    names = [name for choice in _with_weights(chosen) for name in trained.to_fetch(choice.name, choice.options.weights)]
    return [*names, *(name for name in fetchable if name in models)]


def trained_in_use(settings: Settings, trained: TrainedDrafters) -> list[str]:
    """Names of the trained drafters that these settings draft with; the settings fit the pair."""
    needed = _with_weights(choose_drafter(settings))
    names = [trained.choose(choice.name, choice.options.weights).name for choice in needed]
    judge = _judge_of(settings)
    return names if judge is None else [*names, trained.choose(settings.rule, judge).name]


def losslessness(settings: Settings) -> LosslessClaim:
    """The claim that holds for the text of settings that `check_settings` lets through.

    A rule that wants points is right about any tree. One that wants sampled draws is right about trees whose draws
    are distributed as they say, and gets no others: `check_settings` refuses drafters that cannot draw so and
    policies that choose among draws by their tokens; points it judges as `follow` does.
    """
    from specchat.core.tree import DrawKind

    name, rule = settings.rule, ACCEPTANCE_RULES[settings.rule].load()
    if not rule.lossless:
        return LosslessClaim(False, f"rule {name!r} changes the target's distribution on purpose")
    if rule.wanted is DrawKind.POINT:
        return LosslessClaim(True, f"a guess stays only where the target writes the same itself (rule {name!r})")
    return LosslessClaim(
        True,
        f"rule {name!r} accepts draws of the draft so that the text is distributed exactly as the target's; "
        "for one seed it may differ from plain decoding's",
    )


def keeps_draws(policy: Method, kind: DrawKind) -> bool:
    """Whether a policy declares that draws of this kind keep their distribution in its trees."""
    made = policy.load()
    declared = getattr(made, "keeps_draws", False)
    assert isinstance(declared, bool), f"policy {policy.name!r} declares keeps_draws = {declared!r}, not true or false"
    return declared and kind not in getattr(made, "unsuited_draws", ())


def _with_weights(choice: DrafterChoice) -> list[DrafterChoice]:
    return [part for part in choice.leaves() if part.method.needs_weights]


def _judge_of(settings: Settings) -> str | None:
    """The name of the weights that the rule uses, empty for the newest; None for a rule without weights."""
    method = ACCEPTANCE_RULES[settings.rule]
    return str(method.make_options(settings.options_for(method.name)).weights) if method.needs_weights else None


def _check_options(settings: Settings) -> None:
    known: dict[str, Method] = {method.name: method for _, method in methods()}
    for key in settings.method_options:
        owner = key.split(".")[0]
        if owner not in known:
            raise UsageError(f"method option {key!r} names no method{nearest(owner, known)}")
        if owner in DRAFTERS:
            choose(owner, settings)
        else:
            known[owner].make_options(settings.options_for(owner))


def _check_rule(settings: Settings) -> None:
    """Refuse a rule that wants what the drafter does not give. At temperature 0 lossless rules want nothing."""
    from specchat.core.tree import DrawKind

    rule: Any = ACCEPTANCE_RULES[settings.rule].load()
    if rule.wants_q and rule.wanted is not DrawKind.POINT and settings.temperature == 0.0:
        raise CombinationError(
            f"rule {settings.rule!r} compares the draft's distribution with the target's, and at temperature 0 both "
            "are points; nearest that works: a temperature above 0, or rule 'follow'"
        )
    choice = choose_drafter(settings)
    if getattr(rule, "wants_sources", False) and not choice.names_sources:
        able = [name for name in DRAFTERS if name != "none" and choose(name, Settings()).names_sources]
        raise CombinationError(
            f"rule {settings.rule!r} needs guesses that say what they are copies of, and drafter {settings.drafter!r} "
            f"makes none; nearest that works: rule 'follow', or drafter {' or '.join(map(repr, able))}"
        )
    if rule.wanted is not DrawKind.POINT and settings.temperature > 0.0:
        _check_draws(settings, rule.wanted)
        if rule.judges_branches and choice.mixes(rule.wanted):
            raise CombinationError(
                f"rule {settings.rule!r} judges whole branches, and drafter {settings.drafter!r} with its members puts "
                "points beside draws, which compete with what stands below these; nearest that works: rule "
                f"{'multi_step' if rule.wanted is DrawKind.IID else 'recursive'!r}, or drafter 'cascade'"
            )


def _check_draws(settings: Settings, wanted: DrawKind) -> None:
    """Refuse a rule that judges by draft probabilities where the draws have none that are true."""
    from specchat.core.tree import DrawKind

    choice = choose_drafter(settings)
    if wanted not in choice.draw_kinds:
        able = [name for name in DRAFTERS if name != "none" and wanted in choose(name, Settings()).draw_kinds]
        raise CombinationError(
            f"rule {settings.rule!r} judges draws by the probability they were drawn with, and drafter "
            f"{choice.name!r} with its options proposes points, which have none; nearest that works: rule 'follow', "
            f"or drafter {' or '.join(map(repr, able))} with its default options"
        )
    if not keeps_draws(TREE_POLICIES[settings.policy], wanted):
        keeping = [name for name, method in TREE_POLICIES.items() if keeps_draws(method, wanted)]
        draws = {DrawKind.IID: "independent draws", DrawKind.WOR: "draws without replacement"}
        kept = [words for kind, words in draws.items() if keeps_draws(TREE_POLICIES[settings.policy], kind)]
        why = f"takes {kept[0]} alone" if kept else "cannot place such draws without looking at their tokens"
        raise CombinationError(
            f"rule {settings.rule!r} needs {draws[wanted]} that keep their distribution, and policy "
            f"{settings.policy!r} {why}; nearest that works: rule 'follow', or policy {' or '.join(map(repr, keeping))}"
        )
