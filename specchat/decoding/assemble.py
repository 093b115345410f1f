"""Settings → Speculator. The one place where families meet; refuses parts that do not fit, and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.acceptance.judge import JudgeHead
from specchat.config.trained_drafters import NO_TRAINED
from specchat.controllers import choose_controllers
from specchat.controllers.combined import SmallestBudget
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.drafting_networks import Prunable
from specchat.core.memory import MemoryLimit, NetworkMemory, PairMemory
from specchat.core.reading import Reading
from specchat.core.request import HeadNeeds, Judging
from specchat.core.round import Verdict
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule, Controller, Drafter, Model, NestedEngine, TargetElsewhere, TreePolicy
from specchat.core.tree import DrawKind, TokenTree
from specchat.decoding.combinations import check_settings
from specchat.decoding.early_pruning import EarlyHead, EarlyPruning, low_rank_bytes
from specchat.decoding.kept_parts import DrafterCache
from specchat.decoding.overlap import AheadState, Overlapped
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import choose_drafter
from specchat.drafters.parts import NO_RESOURCES, EngineFactory, PairResources, Parts
from specchat.errors import CombinationError
from specchat.settings import Settings, memory_text
from specchat.trees import TREE_POLICIES

_NESTED: Mapping[str, Any] = {
    "drafter": "none",
    "policy": "chain",
    "rule": "follow",
    "controller": "fixed",
    "prune_layer": 0,
    "loop": "sequential",
    "memory": "",
}
"""How a nested engine speculates unless its drafter says otherwise: not at all."""


def assemble(
    settings: Settings,
    target: Model,
    draft: Model | None,
    drafters: DrafterCache | None = None,
    costs: Costs | None = None,
    resources: PairResources = NO_RESOURCES,
) -> Speculator:
    """The speculator these settings ask for.

    Args:
        drafters: those that were built for these models and have learnt something; a new one joins them.
        resources: what the pair has for its drafters besides models.

    Raises:
        CombinationError: parts that cannot be right together.
        UsageError: a method or an option that does not exist.
    """
    check_settings(settings, draft is not None, resources.trained, resources.datastores, resources.draft_models)
    choice = choose_drafter(settings)
    if costs is not None and not choice.needs_draft_model:
        costs = dataclasses.replace(costs, draft=())
    parts = Parts(target, draft, resources=resources, make_engine=nested_engines(settings))
    feed = (DrafterCache() if drafters is None else drafters).get(choice, lambda: parts.build(choice))
    memory = pair_memory(settings, target, parts.drafts_of(choice), resources.prunable)
    memory = _without_map_where_no_room(memory, resources.memory)
    _refuse_without_room(settings, memory, resources.memory)
    learns = not settings.memory or memory.map_bytes > 0
    parts_in_use = (
        target,
        feed.drafter,
        _policy(settings, target, learns=learns),
        _rule(settings, target, resources),
        _controller(settings, costs, memory, resources.memory),
    )
    speculator = _looped(settings, parts_in_use, learns=learns)
    _refuse_parts_of_passes(speculator, settings)
    speculator.feed = feed
    return speculator


def _looped(
    settings: Settings, parts: tuple[Model, Drafter, TreePolicy, AcceptanceRule, Controller], *, learns: bool
) -> Speculator:
    """The speculator of these parts, with the loop that the settings name; `learns` as for `_policy`."""
    if settings.loop == "sequential" or settings.controller == "off":
        return Speculator(*parts)
    target, drafter, *_ = parts
    loop = Overlapped(*parts, settings.loop, AheadState(drafter))
    if settings.loop == "mirror":
        if not target.flexible_passes:
            raise pass_refused("loop 'mirror' looks into the middle of a pass", target, "loop 'overlap', or ")
        loop.early_layer = min(settings.mirror_layer or max(1, 2 * target.layers // 3), target.layers)
        loop.early = EarlyHead(target, loop.early_layer, learns, low_rank=bool(settings.memory))
        loop.candidates = settings.mirror_candidates
    return loop


def _refuse_parts_of_passes(speculator: Speculator, settings: Settings) -> None:
    """Refuse parts that leave a pass between its layers, of a target that computes whole passes alone. It shows states
    to rules, which look at them afterwards."""
    named = (
        ("drafter", settings.drafter, speculator.drafter.taps),
        ("policy", settings.policy, speculator.policy.taps),
    )
    for family, name, taps in named:
        if taps and not speculator.target.flexible_passes:
            wants = f"{family} {name!r} looks into the middle of a pass"
            raise pass_refused(wants, speculator.target, "drafter 'token_recycling', or ")


def pass_refused(wants: str, target: Model, nearest: str = "") -> CombinationError:
    """The refusal of what wants more of a pass than this target's `flexible_passes` allow."""
    where, other = ("llama.cpp", "backend = own")
    if isinstance(target, TargetElsewhere):
        where, other = ("a target on another machine", "the target here")
    return CombinationError(f"{wants}, which {where} does not allow; nearest that works: {nearest}{other}")


def nested_engines(settings: Settings) -> EngineFactory:
    """Makes engines that draft for another: methods have the user's options, and are those that the drafter names."""

    def make(changes: Mapping[str, Any], model: Model, draft: Model | None, resources: PairResources) -> NestedEngine:
        inner = dataclasses.replace(resources.keeping(None), trained=NO_TRAINED)
        return assemble(settings.but({**_NESTED, **changes}), model, draft, resources=inner)

    return make


def sampling(settings: Settings, bias: Mapping[int, float] | None = None) -> Sampling:
    """How these settings sample, and what a reply adds to tokens' logits."""
    names = {field.name for field in dataclasses.fields(Sampling)} - {"bias"}
    return Sampling(**{name: getattr(settings, name) for name in names}, bias=tuple((bias or {}).items()))


def pair_memory(settings: Settings, target: Model, drafts: tuple[Model, ...], prunable: Prunable | None) -> PairMemory:
    """The memory that these settings take on top of weights, if these draft models are used."""
    rule = ACCEPTANCE_RULES[settings.rule].load()
    draws = rule.wanted is not DrawKind.POINT and rule.wanted in choose_drafter(settings).draw_kinds
    carries_law = draws or (bool(drafts) and rule.wants_q)
    held = 3 if rule.judges_branches else 1  # the target's law and what is left of it wait at every node of a branch
    law_bytes = held * 8 * target.vocab_size if carries_law else 0
    return PairMemory(target, drafts, law_bytes, made_networks(settings, prunable), early_map_bytes(settings, target))


def early_map_bytes(settings: Settings, target: Model) -> int:
    """Memory of the maps that early heads learn, where memory is limited; they are of low rank there."""
    heads = (settings.prune_layer > 0) + (settings.loop == "mirror")
    return heads * low_rank_bytes(target.hidden_size) if settings.memory else 0


def _without_map_where_no_room(memory: PairMemory, limit: MemoryLimit | None) -> PairMemory:
    """The memory without early pruning's map where the limit leaves no room for it beside the context."""
    if limit is None or limit.base_bytes + memory.plain_bytes(memory.target.context_tokens) <= limit.bytes:
        return memory
    return dataclasses.replace(memory, map_bytes=0)


def made_networks(settings: Settings, prunable: Prunable | None) -> tuple[NetworkMemory, ...]:
    """The memory of the networks that drafters make from the target's weights."""
    makers = () if prunable is None else choose_drafter(settings).makers
    return tuple(maker.method.load().network_memory(maker.options, prunable) for maker in makers)


def _refuse_without_room(settings: Settings, pair: PairMemory, limit: MemoryLimit | None) -> None:
    """CombinationError, with the least that works, where its network does not fit beside the context."""
    if not (settings.memory and pair.made and limit is not None):
        return
    least = limit.base_bytes + pair.plain_bytes(pair.target.context_tokens)
    if least > limit.bytes:
        raise CombinationError(
            f"drafter {settings.drafter!r} makes a network of its own, for which memory = {settings.memory} leaves too "
            f"little with this context: {memory_text(least)} is the least; nearest that works: to load the pair with "
            "this drafter, which limits the context, or drafter 'layer_skip'"
        )


def _controller(settings: Settings, costs: Costs | None, memory: PairMemory, limit: MemoryLimit | None) -> Controller:
    """The controller, or several of which the smallest budget holds; one that limits memory is told of it."""
    budget = Budget(settings.nodes, settings.depth, settings.width)
    made: list[Controller] = []
    for method in choose_controllers(settings):
        build, options = method.load(), method.make_options(settings.options_for(method.name))
        about = (memory, limit) if getattr(build, "wants_memory", False) else ()
        made.append(build(options, budget, costs, *about))
    return made[0] if len(made) == 1 else SmallestBudget(made)


def _policy(settings: Settings, target: Model, *, learns: bool) -> TreePolicy:
    """The policy, with early pruning where that is set; `learns` says whether there is memory for its map."""
    method = TREE_POLICIES[settings.policy]
    policy: TreePolicy = method.load()(method.make_options(settings.options_for(method.name)))
    if settings.prune_layer:
        head = EarlyHead(target, settings.prune_layer, learns, low_rank=bool(settings.memory))
        return EarlyPruning(policy, head, settings.prune_layer, settings.prune_keep)
    return policy


def _rule(settings: Settings, target: Model, resources: PairResources) -> AcceptanceRule:
    """The rule; one that reads the text in another version is handed the target and its tokens."""
    method = ACCEPTANCE_RULES[settings.rule]
    made, options = method.load(), method.make_options(settings.options_for(method.name))
    if getattr(made, "wants_target", False):
        by_target: AcceptanceRule = made(options, target, resources.vocabulary)
        return by_target
    if method.needs_weights:
        trained = resources.trained.choose(method.name, options.weights)
        judge: AcceptanceRule = made(options, JudgeHead.read(trained, target.hidden_size, target.layers))
        return judge
    rule: AcceptanceRule = made(options)
    if isinstance(target, TargetElsewhere):
        return JudgedElsewhere(rule, method.name, settings.options_for(method.name))
    return rule


class JudgedElsewhere(AcceptanceRule):
    """Has the target judge by the same rule, over the same logits with the same noise: the text is the same.

    A reply that is held to a constraint is judged here, by logits that come here.
    """

    def __init__(self, rule: AcceptanceRule, name: str, options: Mapping[str, Any]) -> None:
        """The rule, which is built there by its name and these options alone."""
        self._rule, self._name, self._options = rule, name, options
        self.lossless, self.wanted, self.wants_q = rule.lossless, rule.wanted, rule.wants_q
        self.wants_sources, self.judges_branches = rule.wants_sources, rule.judges_branches
        self._looks_at_draws = self.wanted is not DrawKind.POINT or self.wants_q or self.wants_sources

    @property
    def taps(self) -> Collection[int]:
        return self._rule.taps

    def needs(self, sampling: Sampling) -> HeadNeeds:
        return self._rule.needs(sampling)

    def judging(self, context: Context) -> Judging | None:
        if context.constraint is not None:
            return None
        text, prompt, drawn = len(context.history), context.prompt_tokens, (context.sampling, context.noise)
        return Judging(self._name, self._options, text, prompt, context.round, *drawn, self._looks_at_draws)

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        there = reading.elsewhere
        if there is None or there.path is None:
            return self._rule.judge(tree, reading, context)
        return Verdict(there.path, there.bonus, tree, reading.pruned, there.sources)
