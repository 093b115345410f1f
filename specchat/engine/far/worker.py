"""The engine's one working thread: loads pairs, writes replies, answers questions, measures plain speed when idle."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specchat.config import load_catalog, settings_of, state_dir, user_settings
from specchat.core.ledger import Ledger
from specchat.decoding.assemble import sampling
from specchat.decoding.conversation import Begun, Conversation, Ended, Prefilled, Spoken
from specchat.decoding.first_divergence import Comparer
from specchat.decoding.profiling import measure
from specchat.decoding.stopwatch import Stopwatch
from specchat.engine.far.convert import (
    compared_message,
    curve_message,
    failure,
    finished_message,
    loss_message,
    round_message,
    stats_message,
)
from specchat.engine.far.host import Mailbox
from specchat.engine.far.loaded_pair import LoadedPair
from specchat.engine.far.pacing import Pacing
from specchat.engine.far.pair_loading import Loader
from specchat.engine.far.profiles import Entry, ProfileStore
from specchat.engine.protocol import events
from specchat.engine.protocol.describe import settings_message
from specchat.errors import EngineError, NotEnoughMemory, SpecchatError, UsageError
from specchat.models.machine import process_bytes
from specchat.settings import OPTIONS, Settings

_IDLE_S = 0.4
"""After so long without a command, plain speed is measured if it is not known yet."""

_log = logging.getLogger(__name__)


class Worker:
    """Answers commands one by one; between two rounds of a reply it answers those that can be answered then."""

    def __init__(self, mailbox: Mailbox, emit: Callable[[events.Event], None]) -> None:
        self._mailbox = mailbox
        self._emit = emit
        self._pair: LoadedPair | None = None
        self._conversation: Conversation | None = None
        self._store = ProfileStore(state_dir() / "profiles.json")
        self._plain: Entry | None = None
        self._comparer: Comparer | None = None
        self._measurable = True
        self._replies = 0
        self._totals = Ledger()
        self._deferred: list[events.Command] = []
        self._pacing = Pacing()

    def run(self) -> None:
        """Work until told to quit."""
        while not self._mailbox.quitting.is_set():
            command = self._deferred.pop(0) if self._deferred else self._wait()
            if command is not None and not isinstance(command, events.Quit):
                self._answer(command)

    def _wait(self) -> events.Command | None:
        if self._pair is None or self._plain is not None or not self._measurable:
            return self._mailbox.next()
        command = self._mailbox.next(_IDLE_S)
        if command is None:
            self._measure()
        return command

    def _answer(self, command: events.Command) -> None:
        """Do what the command says; a failure is an answer too, and the engine goes on."""
        during = type(command).__struct_config__.tag or ""
        try:
            match command:
                case events.Load():
                    self._load(command)
                case events.Generate():
                    self._generate(command)
                case events.Change():
                    self._change(command.settings)
                case events.Pace():
                    self._pacing.take(command)
                case events.Count():
                    self._count(command)
                case events.Compare():
                    self._compare(command)
                case events.Statistics():
                    self._emit(events.Totals(self._replies, stats_message(self._totals)))
        except Exception as error:
            if not hasattr(error, "exit_code"):
                _log.exception("while answering %s", during)
            self._emit(failure(error, str(during), getattr(command, "id", None)))

    # ------------------------------------------------------------------------------------------- loading

    def _load(self, command: events.Load) -> None:
        catalog = load_catalog()
        name = command.settings.get("pair") or user_settings().get("pair") or Settings().pair
        settings = settings_of(catalog.pair(name), command.settings)
        loader = Loader(catalog, self._emit, lambda: self._mailbox.cancelled(None))
        here = self._pair if self._pair is not None and self._serves(self._pair, settings) else None
        self._take(here.using(settings.threads) if here else self._load_pair(loader, settings), settings)
        self._emit(self._ready())

    def _take(self, loaded: LoadedPair, settings: Settings) -> None:
        """Speak with these models from now on; where the settings do not fit them, nothing has changed."""
        plain = self._store.get(loaded.key)
        conversation = Conversation(
            loaded.target.model,
            loaded.draft.model if loaded.draft else None,
            loaded.vocabulary,
            settings,
            plain.costs if plain else None,
        )
        if loaded is not self._pair:
            self._replies, self._totals, self._comparer = 0, Ledger(), None
        self._pair, self._conversation = loaded, conversation
        self._plain, self._measurable = plain, True

    def _load_pair(self, loader: Loader, settings: Settings) -> LoadedPair:
        """Keep the old pair until the new one runs; without memory for both, let it go and fetch it back if need be."""
        try:
            return loader.load(settings)
        except NotEnoughMemory:
            if self._conversation is None:
                raise
        before = self._conversation.settings
        self._pair = self._conversation = None
        _free_memory()
        try:
            return loader.load(settings)
        except SpecchatError:
            self._take(replace(loader, cancelled=lambda: False).load(before), before)
            raise

    def _serves(self, pair: LoadedPair, settings: Settings) -> bool:
        before = self._conversation.settings if self._conversation else Settings()
        names = [name for name, option in OPTIONS.items() if not option.live and name != "threads"]
        return all(getattr(before, name) == getattr(settings, name) for name in names)

    def _ready(self) -> events.Ready:
        pair, conversation = self._pair, self._loaded()
        assert pair is not None, "a conversation has a pair"
        return events.Ready(
            pair=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft else None,
            device=str(pair.device),
            dtype=pair.precision,
            threads=pair.threads,
            context_tokens=conversation.target.context_tokens,
            memory_bytes=_memory_bytes(pair.device),
            load_s=pair.load_s,
            settings=settings_message(conversation.settings),
            loss=loss_message(conversation.losslessness),
            plain=curve_message(self._plain.curve, self._plain.measured) if self._plain else None,
            notes=pair.notes,
            kernels=pair.target.kernels,
        )

    # ------------------------------------------------------------------------------------------- replies

    def _generate(self, command: events.Generate) -> None:
        conversation = self._asked(command)
        prompt = _encode(conversation, command.messages)
        id, begun, plain_s = command.id, None, 0.0
        watch = Stopwatch()
        self._pacing.begin(id)

        def on_prefill(progress: Prefilled) -> None:
            self._emit(events.Prefilled(id, progress.done, progress.total, progress.at_s))

        def cancelled() -> bool:
            return self._mailbox.cancelled(id)

        for event in conversation.reply(prompt, command.seed, cancelled, on_prefill, watch):
            match event:
                case Begun():
                    begun = event
                    self._emit(self._started(command, event, conversation))
                case Spoken():
                    plain_s += self._plain_seconds(event)
                    self._emit(round_message(id, event, conversation.vocabulary))
                    self._answer_between_rounds()
                    if not event.last:
                        self._rest(watch, cancelled)
                case Ended():
                    assert begun is not None, "a reply begins before it ends"
                    self._emit(finished_message(id, event, self._stats(begun, event, plain_s)))
        self._pacing.end()
        self._mailbox.forget_cancel(id)

    def _started(self, command: events.Generate, begun: Begun, conversation: Conversation) -> events.Started:
        return events.Started(
            id=command.id,
            messages=command.messages,
            prompt_tokens=begun.prompt_tokens,
            reused_tokens=begun.reused_tokens,
            seed=begun.seed,
            settings=settings_message(conversation.settings),
            loss=loss_message(conversation.losslessness),
            pair=conversation.settings.pair,
        )

    def _stats(self, begun: Begun, ended: Ended, plain_s: float) -> events.Stats:
        """The reply's figures. Decoding time is what passed on the clock, sending events included."""
        ledger = ended.ledger
        decode_s = ended.at_s - ended.prefill_s
        ledger.other_s = max(0.0, decode_s - ledger.draft_s - ledger.verify_s)
        self._replies += 1
        self._totals.add_ledger(ledger)
        known = plain_s > 0 and ledger.tokens > 0
        return stats_message(
            ledger,
            ended.prefill_s,
            prompt_tokens=begun.prompt_tokens,
            reused_tokens=begun.reused_tokens,
            plain_tokens_per_s=ledger.tokens / plain_s if known else None,
            speedup=plain_s / decode_s if known and decode_s else None,
            speedup_source="measured" if self._plain else "est.",
        )

    def _plain_seconds(self, spoken: Spoken) -> float:
        """What plain decoding would have needed for this round's tokens.

        Until it is measured, the estimate is this round's own pass: one token costs at most that.
        """
        round = spoken.round
        if self._plain is not None:
            each = self._plain.curve.seconds_at(round.start)
        else:
            each = round.timings.verify_s + round.timings.other_s
        return each * len(round.emitted)

    def _answer_between_rounds(self) -> None:
        for command in self._mailbox.pending():
            self._answer_or_defer(command)

    def _answer_or_defer(self, command: events.Command) -> None:
        if isinstance(command, events.Change | events.Pace | events.Count | events.Statistics):
            self._answer(command)
        else:
            self._deferred.append(command)

    def _rest(self, watch: Stopwatch, cancelled: Callable[[], bool]) -> None:
        """Wait as long as the pace says, answering what can be answered meanwhile."""
        told = time.monotonic()
        while (wait_s := self._pacing.wait_s(time.monotonic() - told)) != 0.0 and not cancelled():
            with watch.stopped():
                command = self._mailbox.next(wait_s)
            if command is not None:
                self._answer_or_defer(command)
        self._pacing.went()

    # ----------------------------------------------------------------------------------------- the rest

    def _change(self, changes: dict[str, Any]) -> None:
        conversation = self._loaded()
        conversation.change(conversation.settings.but(changes))
        claim = loss_message(conversation.losslessness)
        self._emit(events.Changed(settings_message(conversation.settings), claim))

    def _count(self, command: events.Count) -> None:
        conversation = self._loaded()
        tokens = _encode(conversation, command.messages)
        self._emit(events.Counted(command.id, len(tokens), conversation.target.context_tokens))

    def _compare(self, command: events.Compare) -> None:
        pair, conversation = self._pair, self._asked(command)
        assert pair is not None, "a conversation has a pair"
        size = conversation.target.vocab_size
        if (token := max([0, *command.plain, *command.other])) >= size:
            raise UsageError(f"token {token} is outside the vocabulary of {size}")
        if self._comparer is None:
            self._comparer = Comparer(pair.target.model, exact=pair.precision == "float32")
        law = sampling(conversation.settings)
        prompt = _encode(conversation, command.messages)
        parting = self._comparer.parting(prompt, command.plain, command.other, law, command.seed)
        self._emit(compared_message(command, parting, conversation.vocabulary))

    def _measure(self) -> None:
        pair, conversation = self._pair, self._loaded()
        assert pair is not None, "a conversation has a pair"
        draft = pair.draft.model if pair.draft else None

        def interrupted() -> bool:
            return not self._mailbox.empty

        try:
            measured = measure(conversation.target, draft, interrupted)
        except Exception:
            _log.exception("while measuring")
            self._measurable = False
            return
        if measured is not None:
            curve, costs = measured
            self._plain = self._store.put(pair.key, curve, costs)
            conversation.learn_costs(costs)
            self._emit(curve_message(curve, self._plain.measured))

    def _asked(self, command: events.Generate | events.Compare) -> Conversation:
        """The conversation a command is about: the chat's, or one of its own."""
        conversation = self._loaded()
        return conversation if command.apart is None else conversation.apart(command.apart)

    def _loaded(self) -> Conversation:
        if self._conversation is None:
            raise EngineError("no pair is loaded")
        return self._conversation


def _encode(conversation: Conversation, messages: list[events.Message]) -> list[int]:
    return conversation.encode([{"role": message.role, "content": message.content} for message in messages])


def _free_memory() -> None:
    gc.unfreeze()  # what a pair's loading set aside
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # else what was freed still counts as taken


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return process_bytes()
