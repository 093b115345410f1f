"""The engine's one working thread: loads pairs, writes replies, answers questions, measures plain speed when idle."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch

from specchat.config import load_catalog, state_dir, user_settings
from specchat.core.ledger import Ledger
from specchat.decoding.conversation import Begun, Conversation, Ended, Prefilled, Spoken
from specchat.decoding.plain import measure_plain
from specchat.decoding.profiling import measure_costs
from specchat.engine import events
from specchat.engine.convert import curve_message, failure, finished_message, loss_message, round_message, stats_message
from specchat.engine.describe import settings_message
from specchat.engine.host import Mailbox
from specchat.engine.pairs import LoadedPair, Loader
from specchat.engine.profiles import Entry, ProfileStore
from specchat.errors import EngineError, ModelError
from specchat.models.machine import default_threads, process_bytes
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
        self._measurable = True
        self._replies = 0
        self._totals = Ledger()
        self._deferred: list[events.Command] = []

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
                case events.Count():
                    self._count(command)
                case events.Statistics():
                    self._emit(events.Totals(self._replies, stats_message(self._totals)))
        except Exception as error:
            if not hasattr(error, "exit_code"):
                _log.exception("while answering %s", during)
            self._emit(failure(error, str(during), getattr(command, "id", None)))

    # ------------------------------------------------------------------------------------------- loading

    def _load(self, command: events.Load) -> None:
        catalog = load_catalog()
        defaults = user_settings()
        name = command.settings.get("pair") or defaults.get("pair") or Settings().pair
        pair = catalog.pair(name)
        settings = Settings().but({**pair.defaults, **defaults, **command.settings, "pair": name})
        torch.set_num_threads(settings.threads or default_threads())
        loader = Loader(catalog, self._emit, lambda: self._mailbox.cancelled(None))
        if self._pair is None or not self._serves(self._pair, settings):
            loaded = self._load_pair(loader, settings)
            self._replies, self._totals = 0, Ledger()
        else:
            loaded = self._pair
        self._plain, self._measurable = self._store.get(loaded.key), True
        self._conversation = Conversation(
            loaded.target.model,
            loaded.draft.model if loaded.draft else None,
            loaded.vocabulary,
            settings,
            self._plain.costs if self._plain else None,
        )
        self._pair = loaded
        self._emit(self._ready(loaded, self._conversation))

    def _load_pair(self, loader: Loader, settings: Settings) -> LoadedPair:
        """Keep the old pair until the new one runs, unless there is no memory for both."""
        try:
            return loader.load(settings)
        except ModelError:
            if self._pair is None:
                raise
            self._pair = self._conversation = None
            gc.collect()
            return loader.load(settings)

    def _serves(self, pair: LoadedPair, settings: Settings) -> bool:
        before = self._conversation.settings if self._conversation else Settings()
        names = [name for name, option in OPTIONS.items() if not option.live and name != "threads"]
        return all(getattr(before, name) == getattr(settings, name) for name in names)

    def _ready(self, pair: LoadedPair, conversation: Conversation) -> events.Ready:
        return events.Ready(
            pair=pair.name,
            target=pair.target.name,
            draft=pair.draft.name if pair.draft else None,
            device=str(pair.device),
            dtype=pair.precision,
            threads=torch.get_num_threads(),
            context_tokens=conversation.target.context_tokens,
            memory_bytes=_memory_bytes(pair.device),
            load_s=pair.load_s,
            settings=settings_message(conversation.settings),
            loss=loss_message(conversation.losslessness),
            plain=curve_message(self._plain.curve, self._plain.measured) if self._plain else None,
            notes=pair.notes,
        )

    # ------------------------------------------------------------------------------------------- replies

    def _generate(self, command: events.Generate) -> None:
        conversation = self._loaded()
        prompt = conversation.encode([{"role": m.role, "content": m.content} for m in command.messages])
        id, begun, plain_s = command.id, None, 0.0

        def on_prefill(progress: Prefilled) -> None:
            self._emit(events.Prefilled(id, progress.done, progress.total, progress.at_s))

        for event in conversation.reply(prompt, command.seed, lambda: self._mailbox.cancelled(id), on_prefill):
            match event:
                case Begun():
                    begun = event
                    self._emit(self._started(command, event, conversation))
                case Spoken():
                    plain_s += self._plain_seconds(event)
                    self._emit(round_message(id, event, conversation.vocabulary))
                    self._answer_between_rounds()
                case Ended():
                    assert begun is not None, "a reply begins before it ends"
                    self._emit(finished_message(id, event, self._stats(begun, event, plain_s)))
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
            if isinstance(command, events.Change | events.Count | events.Statistics):
                self._answer(command)
            else:
                self._deferred.append(command)

    # ----------------------------------------------------------------------------------------- the rest

    def _change(self, changes: dict[str, Any]) -> None:
        conversation = self._loaded()
        conversation.change(conversation.settings.but(changes))
        claim = loss_message(conversation.losslessness)
        self._emit(events.Changed(settings_message(conversation.settings), claim))

    def _count(self, command: events.Count) -> None:
        conversation = self._loaded()
        tokens = conversation.encode([{"role": m.role, "content": m.content} for m in command.messages])
        self._emit(events.Counted(command.id, len(tokens), conversation.target.context_tokens))

    def _measure(self) -> None:
        pair, conversation = self._pair, self._loaded()
        assert pair is not None, "a conversation has a pair"
        draft = pair.draft.model if pair.draft else None

        def interrupted() -> bool:
            return not self._mailbox.empty

        try:
            curve = measure_plain(conversation.target, interrupted=interrupted)
            costs = measure_costs(conversation.target, draft, interrupted) if curve else None
        except Exception:
            _log.exception("while measuring")
            self._measurable = False
            return
        if curve is not None and costs is not None:
            self._plain = self._store.put(pair.key, curve, costs)
            conversation.learn_costs(costs)
            self._emit(curve_message(curve, self._plain.measured))

    def _loaded(self) -> Conversation:
        if self._conversation is None:
            raise EngineError("no pair is loaded")
        return self._conversation


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return process_bytes()
