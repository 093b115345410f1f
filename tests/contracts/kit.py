"""What contract tests share: parts by name, a vocabulary without a tokenizer, whole replies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from contracts.pass_requests import requested
from contracts.tiny_networks import tiny_resources
from torch import Tensor

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Noise, Stream
from specchat.core.round import Ledger, Round
from specchat.core.sampling import Sampling
from specchat.core.seams import AcceptanceRule, Controller, Drafter, Model, TreePolicy
from specchat.core.states import TextStates
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.decoding.assemble import nested_engines
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import ReplyEnded, ReplyStarted, RoundWritten
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import choose
from specchat.drafters.parts import PairResources, Parts
from specchat.models.backends.scripted import Says, ScriptedModel, random_says
from specchat.registry import Method, Table
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

V = 23
PROMPT = [3, 5, 7, 3, 5, 9, 3, 5]


def every(table: Table) -> list[Any]:
    """Every method of a table, by name."""
    return [pytest.param(method, id=name) for name, method in table.items()]


def make_drafter(method: Method, draft: Model | None = None, vocab_size: int = V, **options: Any) -> Drafter:
    """A drafter with its default options, some changed."""
    given = {f"{method.name}.{key}": value for key, value in options.items()}
    return drafter_for(scripted_target(vocab_size), draft, method.name, given)


def drafter_for(target: Model, draft: Model | None, name: str, given: Mapping[str, Any]) -> Drafter:
    """A drafter for this target, with these options of it and of its members."""
    settings = Settings().but({"method_options": given})
    return Parts(
        target,
        draft,
        resources=tiny_resources(target),
        make_engine=nested_engines(settings),
    ).build(choose(name, settings))


@dataclass(frozen=True)
class MadeOf(Parts):
    """Parts whose members were made by hand."""

    drafters: tuple[Drafter, ...] = ()

    def members(self) -> list[Drafter]:
        return list(self.drafters)


def looks_up(method: Method) -> bool:
    """Whether it is made of drafters some of which go on without passes of a model."""
    members = choose(method.name, Settings()).members
    return any(not member.runs_a_network for member in members)


def begin(drafter: Drafter, history: Sequence[int], vocab_size: int = V) -> None:
    """Start a text of the scripted target, whose states a drafter is given that asks for them."""
    if drafter.hidden_state_sink is not None:
        model = scripted_target(vocab_size)
        for end in range(1, len(history)):
            tree = TokenTree(history[end - 1], vocab_size)
            model.prefill(history[: end - 1])
            states = model.read(tree.freeze(), request=requested(taps=drafter.hidden_state_sink.layers)).taps
            drafter.hidden_state_sink.take(TextStates(end - 1, (history[end - 1],), states))
    drafter.start(history)


def make_policy(method: Method, **options: Any) -> TreePolicy:
    policy: TreePolicy = method.load()(method.make_options(options))
    return policy


def make_rule(method: Method) -> AcceptanceRule:
    rule: AcceptanceRule = method.load()(method.options())
    return rule


def make_controller(method: Method, budget: Budget) -> Controller:
    controller: Controller = method.load()(method.options(), budget)
    return controller


class Always(Controller):
    """A controller that plans one budget; changeable, for switching in the middle."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def plan(self, context: Context) -> Budget:
        return self.budget


def fixed_speculator(target: Model, drafter: Drafter, policy: str, budget: Budget) -> Speculator:
    """Speculation that follows the target's own draws, with one budget for every round."""
    return Speculator(
        target, drafter, make_policy(TREE_POLICIES[policy]), make_rule(ACCEPTANCE_RULES["follow"]), Always(budget)
    )


class Letters:
    """A vocabulary in which every token is one visible character, or the text it is given. A `Vocabulary`."""

    def __init__(self, size: int = V, eos_ids: Collection[int] = (), texts: dict[int, bytes] | None = None) -> None:
        self.eos_ids = frozenset(eos_ids)
        self._size = size
        self._texts = texts or {}

    def token_bytes(self, token: int) -> bytes:
        if token in self.eos_ids:
            return b""
        return self._texts.get(token, chr(ord("A") + token).encode())

    def token_spelling(self, token: int) -> bytes:
        return self.token_bytes(token)

    @property
    def size(self) -> int:
        return self._size

    def encode(self, text: str) -> list[int]:
        return [ord(character) - ord("A") for character in text]

    def token_label(self, token: int) -> str:
        return repr(token)

    def encode_text(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [ord(c) - ord("A") for m in messages for c in m["content"]]

    def starts_with_space(self) -> bool:
        return False


def cached_says(says: Says, memory: int) -> Says:
    """The same law, computed once for every run of `memory` last tokens."""
    known: dict[tuple[int, ...], Tensor] = {}

    def looked_up(text: Sequence[int]) -> Tensor:
        key = tuple(text[-memory:])
        if key not in known:
            known[key] = says(key)
        return known[key]

    return looked_up


@cache
def target_says(vocab_size: int = V, memory: int = 2, sharpness: float = 1.6, seed: int = 0) -> Says:
    return cached_says(random_says(vocab_size, seed, memory, sharpness), memory)


@cache
def draft_says(vocab_size: int = V, memory: int = 2, sharpness: float = 1.6, noise: float = 0.7) -> Says:
    """A law that leans the target's way, but not always: some drafts are right and some are wrong."""
    target, other = target_says(vocab_size, memory, sharpness), random_says(vocab_size, 99, memory, noise)
    return cached_says(lambda text: target(text) + other(text), memory)


def scripted_target(vocab_size: int = V, **law: Any) -> ScriptedModel:
    return ScriptedModel(vocab_size, target_says(vocab_size, **law))


def scripted_draft(vocab_size: int = V, **law: Any) -> ScriptedModel:
    return ScriptedModel(vocab_size, draft_says(vocab_size, **law))


# ------------------------------------------------------------------------------------------ whole replies


@dataclass(frozen=True)
class Reply:
    """What a reply amounted to."""

    tokens: list[int]
    text: str
    ended: ReplyEnded
    begun: ReplyStarted
    rounds: list[Round]

    @property
    def ledger(self) -> Ledger:
        return self.ended.ledger


def collect(events: Iterable[Any]) -> Reply:
    """Run a reply to its end."""
    begun: ReplyStarted | None = None
    spoken: list[RoundWritten] = []
    for event in events:
        if isinstance(event, ReplyStarted):
            begun = event
        elif isinstance(event, RoundWritten):
            spoken.append(event)
        else:
            ended = event
    assert begun is not None
    text = "".join(t for s in spoken for t in s.texts) + ended.tail
    return Reply([t for s in spoken for t in s.round.emitted], text, ended, begun, [s.round for s in spoken])


def converse(
    target: Model,
    draft: Model | None = None,
    vocabulary: Any = None,
    resources: PairResources | None = None,
    **settings: Any,
) -> Conversation:
    """A conversation with these settings."""
    vocabulary = vocabulary or Letters(target.vocab_size)
    resources = resources or tiny_resources(target)
    return Conversation(target, draft, vocabulary, Settings().but(settings), resources=resources)


def reply(
    target: Model,
    draft: Model | None = None,
    prompt: Sequence[int] = PROMPT,
    seed: int = 7,
    vocabulary: Any = None,
    **settings: Any,
) -> Reply:
    """One whole reply, from a new conversation."""
    return collect(converse(target, draft, vocabulary, **settings).reply(prompt, seed))


def speak(speculator: Speculator, count: int, context: Context) -> tuple[list[int], list[Round]]:
    """At least `count` tokens from parts put together by hand, cut to `count`; and the rounds."""
    speculator.start(context.history)
    began, rounds = len(context.history), []
    while len(context.history) - began < count:
        rounds.append(speculator.round(context))
    return context.history[began:][:count], rounds


def context_for(
    sampling: Sampling | None = None, seed: int = 7, vocab_size: int = V, prompt: Sequence[int] = PROMPT
) -> Context:
    return Context(list(prompt), len(prompt), vocab_size, sampling or Sampling(), Noise(seed))


def plain_text(
    target: Model, count: int, sampling: Sampling | None = None, seed: int = 7, prompt: Sequence[int] = PROMPT
) -> list[int]:
    """Plain decoding written down the long way: the law after the text, one draw by Gumbel-max, no tree at all."""
    context = context_for(sampling, seed, target.vocab_size, prompt)
    began = len(context.history)
    for _ in range(count):
        target.prefill(context.history[:-1])
        tree = TokenTree(context.root, target.vocab_size).freeze()
        logits = target.read(tree).after(0)
        target.keep(())
        context.emit([context.law_after(tree, 0, logits).draw(context.noise, Stream.TARGET, len(context.history))])
    return context.history[began:]


def random_tree(vocab_size: int, nodes: int, seed: int, root: int = 3) -> TokenTree:
    """A tree of any shape."""
    generator = torch.Generator().manual_seed(seed)
    tree = TokenTree(root, vocab_size)
    while tree.drafted < nodes:
        parent = int(torch.randint(len(tree), (1,), generator=generator))
        tree.add(parent, Guess(int(torch.randint(vocab_size, (1,), generator=generator))))
    return tree.freeze()


def lossless_rules() -> Iterator[Any]:
    """Every rule of the table that says it is lossless."""
    for name, method in ACCEPTANCE_RULES.items():
        if make_rule(method).lossless:
            yield pytest.param(method, id=name)


def keeps_the_draws(method: Method) -> bool:
    """Whether a rule promises the same text for the same seed also above temperature 0."""
    rule = make_rule(method)
    return rule.lossless and rule.wanted is DrawKind.POINT
