"""The engine's one working thread: loads pairs, writes replies, answers questions, times passes when idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import msgspec

from specchat.config import load_catalog, settings_of, starting_pair, state_dir
from specchat.core.head_needs import FIRST, LOGITS
from specchat.core.ledger import Ledger
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import Prefilled, ReplyEnded, ReplyStarted, RoundWritten
from specchat.decoding.stopwatch import Stopwatch
from specchat.engine.far.alternation import AlternatingReply, alternate
from specchat.engine.far.command_queue import CommandQueue
from specchat.engine.far.copy_sources import CopySources
from specchat.engine.far.event_conversion import (
    changed_message,
    encode_messages,
    encode_prompt,
    failure,
    finished_message,
    ready_message,
    round_message,
    started_message,
    stats_message,
)
from specchat.engine.far.learning_report import learning_report
from specchat.engine.far.load_times import LoadTimes
from specchat.engine.far.loaded_pair import LoadedPair
from specchat.engine.far.memory import free_memory
from specchat.engine.far.open_pair import OpenPair
from specchat.engine.far.pacing import Pacing
from specchat.engine.far.pair_loading import Loader
from specchat.engine.far.profiles import ProfileStore
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import (
    Change,
    Command,
    Compare,
    Count,
    Generate,
    Learning,
    Load,
    Pace,
    Quit,
    SecondReply,
    Statistics,
)
from specchat.errors import CombinationError, EngineError, NotEnoughMemory, SpecchatError, UsageError
from specchat.settings import Settings

_IDLE_S = 0.4
"""After so long without a command, passes are timed if what they cost is not known yet, and drafters may work."""

_log = logging.getLogger(__name__)


class Worker:
    """Answers commands one by one; between two rounds of a reply it answers those that can be answered then."""

    def __init__(self, commands: CommandQueue, emit: Callable[[events.Event], None]) -> None:
        self._commands = commands
        self._emit = emit
        self._open: OpenPair | None = None
        self._store = ProfileStore(state_dir() / "profiles.json")
        self._replies = 0
        self._totals = Ledger()
        self._deferred: list[Command] = []
        self._pacing = Pacing()

    def run(self) -> None:
        """Work until told to quit."""
        while not self._commands.quitting.is_set():
            command = self._deferred.pop(0) if self._deferred else self._wait()
            if command is not None and not isinstance(command, Quit):
                self._answer(command)
        if self._open is not None:
            self._open.close()

    def _wait(self) -> Command | None:
        if self._open is None or not self._open.idle.due:
            return self._commands.next()
        command = self._commands.next(_IDLE_S)
        if command is None:
            self._open.idle.work(self._open.conversation, lambda: not self._commands.empty)
        return command

    def _answer(self, command: Command) -> None:
        """Do what the command says; a failure is an answer too, and the engine goes on."""
        during = type(command).__struct_config__.tag or ""
        try:
            match command:
                case Load():
                    self._load(command)
                case Generate():
                    self._generate(command)
                case Change():
                    self._change(command.settings)
                case Pace():
                    self._pacing.take(command)
                case Count():
                    self._count(command)
                case Compare():
                    self._emit(self._pair().compare(command))
                case Learning():
                    self._emit(learning_report(self._pair(), command.forget))
                case Statistics():
                    self._emit(events.Totals(self._replies, stats_message(self._totals)))
        except Exception as error:
            if not hasattr(error, "exit_code"):
                _log.exception("while answering %s", during)
            self._emit(failure(error, str(during), getattr(command, "id", None)))

    # ------------------------------------------------------------------------------------------- loading

    def _load(self, command: Load) -> None:
        loader = self._loader(lambda: self._commands.cancelled(None))
        settings = settings_of(loader.catalog.pair(starting_pair(command.settings)), command.settings)
        if self._open is not None and self._open.serves(settings):
            loaded = replace(self._open.loaded.using(settings.threads), trained=loader.trained_drafters(settings))
            loaded = loader.add_drafts(loaded, settings, fetches=True)
        else:
            loaded = self._load_pair(loader, settings)
        now = self._take(loaded, settings)
        self._emit(ready_message(now.loaded, now.conversation))

    def _loader(self, cancelled: Callable[[], bool]) -> Loader:
        return Loader(load_catalog(), self._emit, cancelled, LoadTimes(state_dir() / "load_times.json"))

    def _take(self, loaded: LoadedPair, settings: Settings) -> OpenPair:
        """Speak with these models from now on; where the settings do not fit them, nothing has changed."""
        before = self._open
        if before is not None:
            before.idle.kept.save()
        now = OpenPair.open(loaded, settings, self._store, lambda text: self._emit(events.Notice(text)), before)
        if before is None or now.comparing is not before.comparing:
            if before is not None:
                before.conversation.drafters.close()
            self._replies, self._totals = 0, Ledger()
        self._open = now
        return now

    def _load_pair(self, loader: Loader, settings: Settings) -> LoadedPair:
        """Keep the old pair until the new one runs; without memory for both, let it go and fetch it back if need be."""
        try:
            return loader.load(settings)
        except NotEnoughMemory:
            if self._open is None:
                raise
        before = self._open.conversation.settings
        self._open.close()
        self._open = None
        free_memory()
        try:
            return loader.load(settings)
        except SpecchatError:
            self._take(replace(loader, cancelled=lambda: False).load(before), before)
            raise

    # ------------------------------------------------------------------------------------------- replies

    def _generate(self, command: Generate) -> None:
        if command.beside is not None:
            self._generate_two(command, command.beside)
            return
        now = self._pair()
        now.forget_twin()
        self._add_drafts(now.conversation.settings.but(command.apart or {}))
        watch = Stopwatch()

        def cancelled() -> bool:
            return self._commands.cancelled(command.id)

        self._pacing.begin(command.id)
        chat = now.conversation
        with nullcontext(chat) if command.apart is None else chat.apart(command.apart) as conversation:
            for written in self._write(command, conversation, watch, cancelled):
                if not written.last:
                    self._rest(watch, cancelled)
        self._pacing.end()
        now.idle.kept.replied()
        self._commands.forget_cancel(command.id)

    def _generate_two(self, command: Generate, beside: SecondReply) -> None:
        """Two replies by turns. The plain one has the target's weights with a cache of its own."""
        commands = (command, msgspec.structs.replace(command, id=beside.id, apart=beside.apart, beside=None))
        plainly = [(one.apart or {}).get("controller") == "off" for one in commands]
        if sorted(plainly) != [False, True]:
            raise UsageError("of two replies by turns one must be plain decoding, with controller = 'off'")
        now = self._pair()
        for one in commands:
            self._add_drafts(now.conversation.settings.but(one.apart or {}))

        def cancelled() -> bool:
            return any(self._commands.cancelled(one.id) for one in commands)

        def side(one: Generate, plain: bool) -> AlternatingReply:
            apart = stack.enter_context(now.conversation.apart(one.apart or {}, now.twin() if plain else None))
            watch = Stopwatch()
            written = self._write(one, apart, watch, cancelled)
            return AlternatingReply((len(event.round.emitted) for event in written), watch)

        with ExitStack() as stack:
            alternate(*(side(one, plain) for one, plain in zip(commands, plainly, strict=True)))
        for one in commands:
            self._commands.forget_cancel(one.id)

    def _write(
        self, command: Generate, conversation: Conversation, watch: Stopwatch, cancelled: Callable[[], bool]
    ) -> Iterator[RoundWritten]:
        """Write a reply and tell of it, round by round."""
        prompt, reference = encode_prompt(conversation, command), conversation.encode_reference(command.reference)
        begun = conversation.encode_begun(command.begun)
        copies = CopySources(conversation.vocabulary, command.messages, prompt)
        id, started = command.id, None

        def on_prefill(progress: Prefilled) -> None:
            self._emit(events.Prefilled(id, progress.done, progress.total, progress.at_s))

        shown = LOGITS if command.logprobs else FIRST
        for event in conversation.reply(prompt, command.seed, cancelled, on_prefill, watch, reference, begun, shown):
            match event:
                case ReplyStarted():
                    started = event
                    self._emit(started_message(command, event, conversation))
                case RoundWritten():
                    self._emit(round_message(id, event, conversation.vocabulary, copies, command.logprobs))
                    self._answer_between_rounds(watch)
                    yield event
                case ReplyEnded():
                    assert started is not None, "a reply begins before it ends"
                    self._emit(finished_message(id, event, self._stats(started, event)))

    def _stats(self, started: ReplyStarted, ended: ReplyEnded) -> events.Stats:
        """The reply's figures. Decoding time is what passed on the clock, sending events included."""
        ledger = ended.ledger
        decode_s = ended.at_s - ended.prefill_s
        ledger.other_s = max(0.0, decode_s - ledger.draft_s - ledger.verify_s)
        self._replies += 1
        self._totals.add_ledger(ledger)
        return stats_message(ledger, ended.prefill_s, ended.gaps, started.prompt_tokens, started.reused_tokens)

    def _answer_between_rounds(self, watch: Stopwatch) -> None:
        for command in self._commands.pending():
            self._answer_or_defer(command, watch)

    def _answer_or_defer(self, command: Command, watch: Stopwatch) -> None:
        if isinstance(command, Change):
            with watch.stopped():  # a draft model may have to be read for it
                self._answer(command)
        elif isinstance(command, Pace | Count | Statistics):
            self._answer(command)
        else:
            self._deferred.append(command)

    def _rest(self, watch: Stopwatch, cancelled: Callable[[], bool]) -> None:
        """Wait as long as the pace says, answering what can be answered meanwhile."""
        told = time.monotonic()
        while (wait_s := self._pacing.wait_s(time.monotonic() - told)) != 0.0 and not cancelled():
            with watch.stopped():
                command = self._commands.next(wait_s)
            if command is not None:
                self._answer_or_defer(command, watch)
        self._pacing.went()

    # ----------------------------------------------------------------------------------------- the rest

    def _change(self, changes: dict[str, Any]) -> None:
        now = self._pair()
        before, settings = now.loaded.drafts, now.conversation.settings.but(changes)
        try:
            now.conversation.check(settings, now.loaded.offered)
        except CombinationError:
            now.supply_drafters(self._loader(lambda: False), settings)
        self._add_drafts(settings)
        now.conversation.change(settings)
        now.idle.kept.learn(settings.learn)
        self._emit(changed_message(now.loaded, now.conversation, grown=now.loaded.drafts != before))

    def _add_drafts(self, settings: Settings) -> None:
        """Load the draft models that these settings use and that are not loaded yet; none is fetched."""
        for note in self._pair().add_drafts(lambda: self._loader(lambda: False), settings):
            self._emit(events.Notice(note))

    def _count(self, command: Count) -> None:
        conversation = self._pair().conversation
        tokens = encode_messages(conversation, command.messages)
        self._emit(events.Counted(command.id, len(tokens), conversation.target.context_tokens))

    def _pair(self) -> OpenPair:
        if self._open is None:
            raise EngineError("no pair is loaded")
        return self._open
