"""A reply from prompt to stop: prefill what is new, rounds, live changes, cancel."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from specchat.controllers import limits_memory
from specchat.controllers.combined import PlainRounds
from specchat.core.constraint import Constraint, ConstraintSource, compiled
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.noise import Noise
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.request import FIRST, HeadNeeds
from specchat.core.round import Ledger
from specchat.core.seams import Drafter, Model
from specchat.core.speedup import RoundIntervals
from specchat.core.tree import ROOT
from specchat.decoding.assemble import assemble, pass_refused, sampling
from specchat.decoding.chat_tools import (
    HERMES,
    CallForm,
    ChatMessage,
    calls_grammar,
    form_of_template,
    in_words,
    special_parts,
    told_in_words,
)
from specchat.decoding.combinations import LosslessClaim, check_settings, losslessness
from specchat.decoding.emission import Emission, Limits, Stop, tokens_of
from specchat.decoding.kept_parts import ControllerCache, DrafterCache
from specchat.decoding.layer_lens import LayerChoices, layer_choices
from specchat.decoding.reply_events import Event, PromptRead, ReplyEnded, ReplyStarted, RoundWritten, Stopwatch
from specchat.decoding.speculate import Draft, Speculator, Submitted
from specchat.decoding.teacher_forcing import chain
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.grammar import WithGrammar
from specchat.drafters.parts import PairResources
from specchat.drafters.reference import ExpectedReply, WithReference
from specchat.errors import (
    CombinationError,
    ConstraintError,
    InstallationError,
    ModelError,
    PromptEmpty,
    PromptTooLong,
    UsageError,
)
from specchat.models.decoder.cache_rows import LAZY_TOKENS
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.decoder.prompt_cache import KeptText
from specchat.settings import MOST_LAYERS, SPECULATION, Settings


class _Cancelled(Exception):
    """Raised inside a prefill that was cancelled."""


FORCED_ROWS = 64
"""Rows of logits that are held at once while a prompt's tokens are scored."""


@record
class PromptDue:
    """Tokens of a prompt are to be read: so many are left."""

    tokens: int


@record
class Drafted:
    """A round has its draft, which the target is to be given next."""

    speculator: Speculator
    draft: Draft


Steps = Generator[Event | PromptDue | Drafted, Any, None]
"""A reply that is being written; see `Conversation.steps`."""


class Conversation:
    """Replies of one loaded pair. Settings may change while a reply is being written; they act between rounds.

    Args:
        plain_rounds: have a plain round now and then, by which a reply can say how much sooner it came. Not
            needed where plain decoding is measured separately.
        drafters, controllers: those of an earlier conversation over the same models, which go on.

    Attributes:
        speculator: the parts that the last round was, or the next one will be, done with.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        vocabulary: Vocabulary,
        settings: Settings,
        costs: Costs | None = None,
        resources: PairResources | None = None,
        *,
        plain_rounds: bool = False,
        drafters: DrafterCache | None = None,
        controllers: ControllerCache | None = None,
    ) -> None:
        self.target = target
        self.vocabulary = vocabulary
        self._draft = draft
        self._settings = settings
        self._costs = costs
        self._plain_rounds = plain_rounds
        self._resources = resources or PairResources(vocabulary)
        self.drafters = DrafterCache() if drafters is None else drafters
        self.controllers = ControllerCache() if controllers is None else controllers
        self._refuse_lens(settings)
        self.speculator = self._put_together()
        self._assembled: Settings | None = settings

    @property
    def settings(self) -> Settings:
        """The settings in force from the next round on."""
        return self._settings

    @property
    def losslessness(self) -> LosslessClaim:
        return losslessness(self._settings)

    @contextmanager
    def apart(self, changes: Mapping[str, Any] | Settings, target: Model | None = None) -> Iterator[Conversation]:
        """The same models with some settings changed and parts that have learnt nothing; this one stays as it is.

        `target` is one to use instead: the same weights with a cache of its own.
        """
        settings = changes if isinstance(changes, Settings) else self._settings.but(changes)
        model = target or self.target
        apart = Conversation(model, self._draft, self.vocabulary, settings, self._costs, self._resources.keeping(None))
        try:
            yield apart
        finally:
            apart.drafters.close()

    def change(self, settings: Settings) -> None:
        """Use these settings from the next round on; refuses what does not fit and then changes nothing."""
        self.check(settings)
        self._settings = settings

    def check(self, settings: Settings, offered: Sequence[str] = ()) -> None:
        """Refuse settings that do not fit; `offered` draft models are taken to be there, with the target's tokens.

        Raises:
            CombinationError: parts that cannot be right together.
            UsageError: a method or an option that does not exist.
        """
        resources, here = self._resources, self._draft is not None
        drafts = dict.fromkeys(offered, True) | (resources.draft_models if here else {})
        check_settings(settings, here or bool(offered), resources.trained, resources.datastores, drafts)
        self._refuse_lens(settings)

    def _refuse_lens(self, settings: Settings) -> None:
        if settings.lens and not self.target.flexible_passes:
            raise pass_refused("lens = true needs the head on the states of early layers", self.target)
        if settings.lens and self.target.layers > MOST_LAYERS:
            raise CombinationError(f"lens = true is for models of up to {MOST_LAYERS} layers; this one has more")

    def build_parts(self) -> None:
        """Build what the settings in force ask for now, where the next reply would have to."""
        self._current_speculator(None)

    def supply(self, draft: Model | None, resources: PairResources) -> None:
        """Build drafters from these from now on; those that were built stay."""
        if resources.memory is not self._resources.memory:
            self.controllers.forget(limits_memory)
            self._assembled = None
        self._draft, self._resources = draft, resources

    def drop_drafters(self, drafts: Collection[str]) -> None:
        """Drop all that was built with the draft models of these names. Settings in force use none; no reply runs."""
        first = self._resources.draft_name
        self.drafters.drop(lambda choice: not choice.draft_models(first).isdisjoint(drafts))
        self._assembled = None

    def learn_costs(self, costs: Costs) -> None:
        if costs == self._costs:
            return
        self._costs = costs
        self.controllers.forget()
        self._assembled = None

    def encode(self, messages: Sequence[ChatMessage], tools: str = "") -> list[int]:
        """The messages as tokens, ready for a reply to begin; ModelError for a token that the target has no row for.

        Args:
            tools: functions that it may call, as a JSON list.
        """
        given: list[Any] = json.loads(tools or "[]")
        found: list[int] | None = None
        if given or any(message.get("calls") or message.get("answers") for message in messages):
            found = self.vocabulary.encode_chat_with_tools(messages, given)
        return self._known(self.vocabulary.encode_chat(in_words(messages, given)) if found is None else found)

    @cached_property
    def _template_form(self) -> CallForm | None:
        def written(messages: Sequence[ChatMessage], tools: list[Any]) -> str | None:
            found = self.vocabulary.encode_chat_with_tools(messages, tools)
            return None if found is None else self._spelled(found).decode(errors="replace")

        return form_of_template(written)

    def _spelled(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.vocabulary.token_spelling, tokens))

    def _control_token(self, text: str) -> int | None:
        """The token of this name that adds no text; None where there is none."""
        found = self.vocabulary.encode(text)
        return found[0] if len(found) == 1 and not self.vocabulary.token_bytes(found[0]) else None

    @cached_property
    def _controls(self) -> tuple[int, ...]:
        """The control tokens that do not end a reply."""
        table = self.vocabulary
        tokens = set(range(min(table.size, self.target.vocab_size))) - table.eos_ids
        return tuple(token for token in sorted(tokens) if not table.token_bytes(token) and table.token_spelling(token))

    def hold_calls(
        self, tools: str, prompt: Sequence[int], *, chosen: Sequence[str] = (), single: bool = False
    ) -> Constraint | None:
        """A constraint of a reply's calls to the parameters' schemas, in the form that the model is told to write.

        Args:
            prompt: what `encode` made of them and of the chat.
            chosen: those one of which must be called; none where the model decides.

        Returns None where the model decides and writes calls in no known form, or in a form that cannot be held.

        Raises:
            ConstraintError, InstallationError: as `compile` does, where a call is required.
            UsageError: a function that is no function, or is not among them.
        """
        given: list[Any] = json.loads(tools or "[]")
        try:
            schemas = {one["function"]["name"]: dict(one["function"].get("parameters") or {}) for one in given}
            held = {name: schemas[name] for name in chosen or schemas}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UsageError("the tools are no list of functions that holds the one to be called") from None
        form = HERMES if told_in_words(given).encode() in self._spelled(prompt) else self._template_form
        if form is None or not form.can_name(held):
            if not chosen:
                return None
            form = HERMES
        special = special_parts(form, self._control_token)
        controls = [token for token in self._controls if token not in special.values()]
        grammar = calls_grammar(form, held, required=bool(chosen), single=single, special=special, controls=controls)
        try:
            constraint = self.compile(ConstraintSource("calls", grammar))
        except (ConstraintError, InstallationError):
            if chosen:
                raise
            return None
        constraint.spelled = frozenset(special.values())
        return constraint

    def encode_text(self, text: str) -> list[int]:
        """A text as tokens, to go on with as it stands; raises as `encode` does."""
        return self._known(self.vocabulary.encode_text(text))

    def encode_reference(self, text: str) -> list[int]:
        """A text as the tokens that a reply would write it with; raises as `encode` does."""
        return self._known(self.vocabulary.encode(text))

    def encode_begun(self, pieces: Sequence[str], tokens: Sequence[int]) -> list[int]:
        """The tokens that wrote these pieces of a reply, or these tokens where they are known; raises as `encode` does.

        Raises:
            UsageError: one of the tokens is outside the vocabulary.
        """
        if (largest := max(tokens, default=0)) >= self.target.vocab_size:
            raise UsageError(f"token {largest} is outside the vocabulary of {self.target.vocab_size}")
        return list(tokens) or self._known(tokens_of(self.vocabulary, pieces))

    def compile(self, source: ConstraintSource) -> Constraint:
        """A constraint of a reply; raises as `core.constraint.compiled` does."""
        return compiled(source, self.vocabulary, self.target.vocab_size)

    def _known(self, tokens: list[int]) -> list[int]:
        if (largest := max(tokens, default=0)) >= self.target.vocab_size:
            raise ModelError(f"the tokenizer gives token {largest}, and the model has {self.target.vocab_size} tokens")
        return tokens

    def teacher_forced(
        self, prompt: Sequence[int], cancelled: Callable[[], bool]
    ) -> Iterator[tuple[Reading, Sequence[int]]]:
        """The readings that decide each token of a prompt but the first, and these tokens; reads the prompt anew.

        Raises:
            PromptEmpty, PromptTooLong: as `reply` does.
        """
        self._check_room(prompt)
        self.target.prefill(())
        for begin in range(0, len(prompt) - 1, FORCED_ROWS):
            if cancelled():
                return
            text = prompt[begin : min(begin + FORCED_ROWS, len(prompt) - 1)]
            reading = self.target.read(chain(text, self.target.vocab_size))
            yield reading, prompt[begin + 1 : begin + 1 + len(text)]
            self.target.keep(range(1, len(text)))

    def reply(self, prompt: Sequence[int], *args: Any, **more: Any) -> Iterator[Event]:
        """Write one reply to the prompt's tokens by itself; arguments and errors are those of `steps`.

        Yields ReplyStarted, RoundWritten…, ReplyEnded.
        """
        steps = self.steps(prompt, *args, **more)
        for step in steps:
            if isinstance(step, Drafted):
                step = steps.send(step.speculator.submit(step.draft))
            if not isinstance(step, PromptDue | Drafted):
                yield step

    def steps(
        self,
        prompt: Sequence[int],
        seed: int | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        on_prefill: Callable[[PromptRead], None] = lambda progress: None,
        watch: Stopwatch | None = None,
        reference: Sequence[int] = (),
        begun: Sequence[int] = (),
        shown: HeadNeeds = FIRST,
        constraint: Constraint | None = None,
        bias: Mapping[int, float] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> Steps:
        """Write one reply to the prompt's tokens, with stops where replies of other conversations may go on.

        Yields ReplyStarted, PromptDue…, then Drafted and RoundWritten by turns, ReplyEnded. PromptDue is answered with
        how many tokens of the prompt are read now, None for all that are left, 0 to end the reply; Drafted with what
        the target said of the draft. The cache keeps what was read, so a follow-up prompt reads only what is new.

        Args:
            watch: times are its; a caller that lets the reply wait between two rounds stops it meanwhile.
            reference: a text that the reply is expected to follow.
            begun: the reply goes on behind these tokens, which penalties count as reply. Noise depends on the position
                alone, so with the same seed and settings it becomes the text it would have become without the break.
            on_prefill: called while the prompt is read.
            shown: what the caller looks at of the rounds' readings, so that it need not be computed anew.
            constraint: made for this reply; the text is that of plain decoding under the same masks.
            bias: added to the logits of these tokens, as a part of the target's law.
            own: settings of this reply alone, which none of its parts is made from: how it samples, where it ends.

        Raises:
            PromptEmpty: there is no token in it.
            PromptTooLong: it leaves no room in the context.
            ConstraintError: what has begun does not fit the constraint, or it became too complex.
        """
        history = [*prompt, *begun]
        if bias and not 0 <= (largest := max(bias)) < self.target.vocab_size:
            raise UsageError(
                f"logit_bias: the model has no token {largest}; its tokens are 0 to {self.target.vocab_size - 1}"
            )
        self._check_room(history)
        settings, in_force = self._settings, self.with_own(own)
        if seed is None:
            seed = in_force.seed if in_force.seed >= 0 else secrets.randbits(53)
        speculator = self._current_speculator(None)
        context = Context(
            history, len(prompt), self.target.vocab_size, sampling(in_force, bias), Noise(seed), shown=shown
        )
        if constraint is not None:
            constraint.advance(begun)
            context.constraint = constraint
        room = self.target.context_tokens - len(history)
        context.lens = self.lens_of(own)
        spelled = frozenset[int]() if constraint is None else constraint.spelled
        limits = Limits(in_force.max_tokens, room, in_force.stop)
        emission = Emission(self.vocabulary, limits, begun, spelled)
        expected = ExpectedReply(reference) if reference else None
        ledger, gaps = Ledger(), RoundIntervals()
        watch = watch or Stopwatch()
        watch.start()

        self._keep_states(speculator)
        reused = speculator.feed.recall(self.target, context.history[:-1])
        lossy = isinstance(self.target, CachedModel) and self.target.is_lossy(context.history[:-1])
        yield ReplyStarted(len(history), reused, seed, lossy)

        def on_chunk(done: int, total: int) -> None:
            on_prefill(PromptRead(done, total, watch.seconds))
            if cancelled():
                raise _Cancelled

        try:
            yield from self._read_prompt(speculator, context.history, reused, on_chunk)
        except _Cancelled:
            emission.ended = Stop.CANCELLED
        prefill_s = watch.seconds
        while emission.ended is None:
            if cancelled():
                emission.ended = Stop.CANCELLED
            else:
                if self._settings is not settings:
                    settings, in_force = self._settings, self.with_own(own)
                    context.sampling = sampling(in_force, bias)
                    emission.limit(Limits(in_force.max_tokens, room, in_force.stop))
                    context.lens = self.lens_of(own)
                    with watch.stopped():  # drafters may be built for a change, and read what there is
                        self._current_speculator(context)
                speculator = with_reference(self._current_speculator(context), expected)
                if constraint is not None or context.sampling.banned:
                    speculator = with_drafter(speculator, WithGrammar(speculator.drafter))
                written = yield from self._round(speculator, context, emission, ledger, watch)
                round, timings = written.round, written.round.timings
                own_s = timings.draft_s + timings.verify_s + timings.other_s
                plain = round.budget.nodes == 0
                gaps.add(written.at_s, own_s, len(round.emitted), round.tree.drafted, plain, timings.learn_s)
                yield written
        tail = emission.finish()
        at_s = watch.seconds
        gaps.end(at_s)
        yield ReplyEnded(emission.ended, tail, ledger, gaps, prefill_s, at_s, emission.stop_string)

    def lens_of(self, own: Mapping[str, Any] | None) -> bool:
        """Whether a reply says where it was decided. Those with settings of their own do not: others wait for them."""
        return self._settings.lens and own is None

    def with_own(self, own: Mapping[str, Any] | None) -> Settings:
        """The settings in force, with those of one reply."""
        return self._settings.changed_live(dict(own)) if own else self._settings

    def _read_prompt(
        self, speculator: Speculator, history: Sequence[int], reused: int, on_chunk: Callable[[int, int], None]
    ) -> Generator[PromptDue, int | None, None]:
        """Read the prompt, slice by slice, and show it to the drafter."""
        text, total, read = history[:-1], len(history) - 1 - reused, 0
        while total - read > LAZY_TOKENS:
            count = yield PromptDue(total - read)
            if count == 0:
                raise _Cancelled
            if count is None or read + count >= total - LAZY_TOKENS:
                break
            read += count
            speculator.feed.read(self.target, text[: reused + read])
            on_chunk(read, total)
        before = read
        speculator.start(history, lambda done, _: on_chunk(before + done, total))

    def _round(
        self, speculator: Speculator, context: Context, emission: Emission, ledger: Ledger, watch: Stopwatch
    ) -> Generator[Drafted, Submitted, RoundWritten]:
        texts: list[str] = []

        def cut(emitted: Sequence[int]) -> int:
            texts.extend(emission.take(emitted))
            return len(texts)

        draft = speculator.propose(context, speculator.plan(context))
        submitted = yield Drafted(speculator, draft)
        round = speculator.settle(submitted, context, cut)
        ledger.add(round)
        layers: list[LayerChoices] = []
        if context.lens:
            with watch.stopped():  # it is for watching, and no part of writing
                nodes = (ROOT, *round.verdict.path)[: len(round.emitted)]
                layers = layer_choices(self.target, round.reading, nodes)
        return RoundWritten(round, tuple(texts), watch.seconds, emission.ended is not None, tuple(layers))

    def _current_speculator(self, context: Context | None) -> Speculator:
        """The speculator for the settings in force; the drafters used last keep what they have learnt."""
        settings, assembled = self._settings, self._assembled
        if settings is not assembled:
            if assembled is None or _how_to_speculate(settings) != _how_to_speculate(assembled):
                before = self.speculator.drafter
                self.speculator = self._put_together()
                if self.speculator.drafter is not before and context is not None:
                    self.speculator.start(context.history)
            self._assembled = settings
        return self.speculator

    def _put_together(self) -> Speculator:
        speculator = assemble(self._settings, self.target, self._draft, self.drafters, self._costs, self._resources)
        speculator.controller = self.controllers.kept(self._settings, speculator.controller)
        if self._plain_rounds:
            speculator.controller = PlainRounds(speculator.controller)
        self._keep_states(speculator)
        return speculator

    def _keep_states(self, speculator: Speculator) -> None:
        """Keep the states that drafters are given where the target's rows are kept."""
        speculator.feed.keep_states_in(self.target.kept if isinstance(self.target, CachedModel) else None)

    @property
    def held_text(self) -> Sequence[int]:
        """The tokens that the target holds, where it keeps texts."""
        return self.target.rows.prefix if isinstance(self.target, CachedModel) and self.target.kept is not None else ()

    def kept_texts(self) -> list[KeptText]:
        """The last text as each model that keeps texts holds it, and as the drafter was given its states."""
        target, feed = self.target, self.speculator.feed
        texts: list[KeptText] = []
        for model in (target, self._draft, *(one.model for one in self._resources.further.values())):
            if isinstance(model, CachedModel) and (text := model.kept_text()) is not None:
                texts.append(text)
        if feed.kept is not None:
            texts.append(KeptText(list(self.held_text), lambda: feed.kept))
        return texts

    def _check_room(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise PromptEmpty("the prompt is empty: there is no token to go on from")
        if len(prompt) >= self.target.context_tokens:
            raise PromptTooLong(
                f"the prompt takes {len(prompt)} tokens and the context of this model holds "
                f"{self.target.context_tokens}; shorten it"
            )


def _how_to_speculate(settings: Settings) -> dict[str, Any]:
    """The settings that parts are made from; while they stay, the parts do, and what they have learnt."""
    return {name: getattr(settings, name) for name in SPECULATION}


def with_reference(speculator: Speculator, expected: ExpectedReply | None) -> Speculator:
    """The same parts, with a reference's guesses before the drafter's own where there is one."""
    if expected is None:
        return speculator
    return with_drafter(speculator, WithReference(speculator.drafter, expected, speculator.rule.judges_branches))


def with_drafter(speculator: Speculator, drafter: Drafter) -> Speculator:
    """The same parts with a drafter that asks theirs and is given the same states."""
    changed = replace(speculator, drafter=drafter)
    changed.feed = speculator.feed
    return changed
