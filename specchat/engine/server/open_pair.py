"""The pair in use: loading it, its conversation and comparisons, and draft models that come and go meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specchat.config import load_catalog, settings_of, starting_pair, state_dir, user_settings
from specchat.core.round import Ledger
from specchat.core.seams import Model, TargetElsewhere
from specchat.decoding.combinations import refuse_unknown_drafts
from specchat.decoding.conversation import Conversation
from specchat.decoding.kept_parts import ControllerCache
from specchat.decoding.teacher_forcing import Comparer
from specchat.drafters.choice import choose_drafter
from specchat.drafters.parts import PairResources
from specchat.engine.protocol import events
from specchat.engine.server.idle_time import IdleTime
from specchat.engine.server.kept_prompts import KeptPrompts
from specchat.engine.server.load_times import LoadTimes
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.measured_passes import ProfileStore, kept_profiles
from specchat.engine.server.memory import free_memory, limit_without_drafts, memory_bytes, watch_peak, widened
from specchat.engine.server.pair_loading import Loader
from specchat.errors import CombinationError, EngineError, NotEnoughMemory, SpecchatError
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.machine import available_bytes
from specchat.models.model_loading import Loaded
from specchat.settings import OPTIONS, Settings


@dataclass
class ReplyTotals:
    """Totals of the replies of one target, whatever drafted."""

    replies: int = 0
    ledger: Ledger = field(default_factory=Ledger)


_LAST_SAVING_S = 1.0
"""What was read is written for so long when the engine leaves, or another pair is loaded."""


@dataclass
class OpenPair:
    """The pair in use and everything that belongs to it. Drafters and controllers live as long as the pair."""

    loaded: LoadedPair
    conversation: Conversation
    idle: IdleTime
    comparer: Comparer
    totals: ReplyTotals
    _second: Model | None = field(default=None, init=False)
    _others: list[Conversation] = field(default_factory=list, init=False)

    @staticmethod
    def open(
        loaded: LoadedPair, settings: Settings, store: ProfileStore, say: Callable[[str], None], before: OpenPair | None
    ) -> OpenPair:
        """The pair under these settings; where it was open before, its drafters go on and keep what they have learnt.

        Raises:
            CombinationError: the settings do not fit the pair. What was open `before` stays as it is.
        """
        goes_on = before if before is not None and before.conversation.target is loaded.target.model else None
        idle = IdleTime(store, loaded, say, goes_on.prompts if goes_on else KeptPrompts(loaded, settings))
        if goes_on is not None:
            idle.kept, idle.accounts = goes_on.idle.kept, goes_on.idle.accounts
            idle.accounts.pair = loaded
            idle.prompts.use(loaded)
            idle.prompts.change(settings)
        conversation = Conversation(
            loaded.target.model,
            loaded.draft.model if loaded.draft else None,
            loaded.vocabulary,
            settings,
            idle.measuring.costs,
            idle.resources(loaded),
            plain_rounds=True,
            drafters=goes_on.conversation.drafters if goes_on else None,
            controllers=goes_on.conversation.controllers if goes_on else ControllerCache(idle.accounts.saved),
        )
        idle.kept.learn(settings.learn)
        comparer = goes_on.comparer if goes_on else Comparer(loaded.target.model, exact=loaded.exact)
        return OpenPair(loaded, conversation, idle, comparer, goes_on.totals if goes_on else ReplyTotals())

    def serves(self, settings: Settings) -> bool:
        """Whether the same loaded models serve these settings."""
        before = self.conversation.settings
        fixed = (name for name, option in OPTIONS.items() if not option.live and name != "threads")
        same = all(getattr(before, name) == getattr(settings, name) for name in fixed)
        if not same or self.loaded.unreadable:
            return False
        if not settings.memory:
            return True
        # what drafters make of the target's weights counts when the context is limited, and so do draft models
        made = choose_drafter(before).makers == choose_drafter(settings).makers
        return made and not self.loaded.missing_drafts(settings)

    def second_target(self) -> Model:
        """The target with a cache of its own, made once and kept until `drop_second_target`."""
        if self._second is None:
            self._second = self.loaded.target.model.with_new_cache()
        return self._second

    def drop_second_target(self) -> None:
        """Give its cache back."""
        self._second = None

    def place_for(
        self, prompt: Sequence[int], taken: Sequence[tuple[Conversation, int]], tokens: int
    ) -> Conversation | None:
        """A conversation over the same weights for one more reply, with a cache of its own; None: it has to wait.

        Of those that are free, the one that holds most of the prompt. There is memory for a reply beside others only if
        every text could become as long as the longest.

        Args:
            taken: the conversations that write replies now, and how many tokens their texts may get.
            tokens: the same of this text.
        """
        busy = [conversation for conversation, _ in taken]
        free = [chat for chat in (self.conversation, *self._others) if chat not in busy]
        if not free:
            self._others.append(self._another())
            free = self._others[-1:]
        if taken and not self._room_for(max(tokens, *(each for _, each in taken))):
            return None
        found = max(free, key=lambda chat: chat.target.cached(prompt))
        target, main = found.target, self.conversation.target
        if isinstance(target, CachedModel) and isinstance(main, CachedModel) and main.kept is not None:
            target.keep_texts_in(main.kept)
            most = max((self.conversation, *self._others), key=lambda chat: chat.target.cached(prompt)).target
            if isinstance(most, CachedModel) and most.cached(prompt) > target.cached(prompt):
                most.share(prompt)
        return found

    def follow_settings(self) -> None:
        """Let all conversations speculate as the settings in force say."""
        settings = self.conversation.settings
        for chat in self._others:
            if chat.settings is not settings:
                chat.change(settings)

    def _another(self) -> Conversation:
        """A conversation with parts of its own over the same weights. Its controllers learn with the first one's.

        What its drafters learn is not kept.
        """
        draft, resources = self._own_models()
        target, costs = self.loaded.target.model.with_new_cache(), self.idle.measuring.costs
        together = ControllerCache(beside=self.conversation.controllers)
        settings = self.conversation.settings
        return Conversation(target, draft, self.loaded.vocabulary, settings, costs, resources, controllers=together)

    def _own_models(self) -> tuple[Model | None, PairResources]:
        """The draft models with new caches, and the other resources of the pair."""
        draft, shared = self.loaded.draft, self.loaded.resources
        further = {name: replace(one, model=one.model.with_new_cache()) for name, one in shared.further.items()}
        return draft.model.with_new_cache() if draft else None, replace(shared, further=further)

    def _room_for(self, tokens: int) -> bool:
        """Whether the caches of all texts may hold so many tokens each."""
        models = (self.loaded.target.model, *(draft.model for draft in self.loaded.drafts))
        wanted = sum(model.cache_bytes(tokens) - model.cache_bytes(0) for model in models)
        device, limit = self.loaded.device, self.loaded.memory
        free = available_bytes(device) or 1 << 50
        if limit is not None and self.conversation.settings.memory:
            free = min(free, limit.bytes - memory_bytes(device))
        return wanted <= free

    def add_drafts(self, loader: Callable[[], Loader], settings: Settings) -> Sequence[str]:
        """Load the draft models that these settings use besides, if their weights are here; returns notes about them.

        Raises:
            CombinationError: the settings do not fit the pair, whatever is loaded.
            WeightsNotHere: the weights of one have to be fetched first.
        """
        refuse_unknown_drafts(settings, self.loaded.offered, self.loaded.trained)
        if not self.loaded.missing_drafts(settings):
            return ()
        self.conversation.check(settings, self.loaded.offered)
        told = len(self.loaded.notes)
        self.use(loader().add_drafts(self.loaded, settings, fetches=False))
        self.idle.measure_with(self.loaded)
        if self.idle.measuring.costs is not None:
            self.conversation.learn_costs(self.idle.measuring.costs)
        return self.loaded.notes[told:]

    @property
    def unused_drafts(self) -> tuple[Loaded, ...]:
        """The draft models that are loaded and that the settings in force do not use."""
        return self.loaded.unused_drafts(self.conversation.settings)

    def release_drafts(self) -> list[str]:
        """Give back the memory of the draft models that the settings do not use; their names. No reply may be running.

        Costs stay as they are planned with, since those of the target are the same.
        """
        self.idle.kept.save()
        names = [draft.name for draft in self.unused_drafts]
        for chat in self._others:
            chat.drafters.close()
        self._others.clear()
        self.conversation.drop_drafters(names)
        limit = limit_without_drafts(self.loaded.memory, self.unused_drafts)
        self.use(replace(self.loaded.without_drafts(names), memory=limit))
        self.idle.measure_with(self.loaded)
        self.conversation.build_parts()  # those in use until now hold the models
        free_memory()
        watch_peak(self.loaded.device)  # it counts from here, for those who watch it too
        return names

    def use(self, loaded: LoadedPair) -> None:
        """Build drafters from what this pair has from now on."""
        self.loaded = loaded
        self.prompts.use(loaded)
        self.idle.accounts.pair = loaded
        self.conversation.supply(loaded.draft.model if loaded.draft else None, self.idle.resources(loaded))
        for chat in self._others:
            chat.supply(*self._own_models())

    @property
    def prompts(self) -> KeptPrompts:
        return self.idle.prompts

    def save_prompts(self) -> None:
        """Write what was read, for a moment at most: somebody waits."""
        until = time.monotonic() + _LAST_SAVING_S
        self.prompts.save(lambda: time.monotonic() > until)

    def close(self) -> None:
        """Save what was read, and what drafters have learnt, and let them go."""
        self.save_prompts()
        self.idle.kept.save()
        if self.idle.accounts.due:
            self.idle.accounts.save(self.conversation.controllers)
        for chat in (self.conversation, *self._others):
            chat.drafters.close()


KEPT_UNUSED_S = 30.0
"""How long draft models stay after their last use: a user who tries drafters comes back to one, and reading it again
takes seconds."""


class CurrentPair:
    """The pair in use, if there is one."""

    def __init__(self, emit: Callable[[events.Event], None], load_cancelled: Callable[[], bool]) -> None:
        self._emit = emit
        self._load_cancelled = load_cancelled
        self._store = kept_profiles()
        self._open: OpenPair | None = None
        self._asked = Settings()  # those in force, but for what `widened` does where layers are read in every pass
        self._stated: frozenset[str] = frozenset()  # names that the user gave values
        self._used_s = time.monotonic()
        self._told_slower: set[str] = set()

    @property
    def there(self) -> bool:
        return self._open is not None

    @property
    def open(self) -> OpenPair:
        if self._open is None:
            raise EngineError("no pair is loaded")
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open.loaded.close_processes()
            self._open = None

    # ------------------------------------------------------------------------------------------- loading

    def load(self, changes: dict[str, Any]) -> OpenPair:
        """Use the pair that these settings name; where that fails, the one before stays."""
        loader = self._loader(self._load_cancelled)
        pair = loader.catalog.pair(starting_pair(changes))
        asked, stated = settings_of(pair, changes), frozenset((*user_settings(), *pair.own, *changes))
        settings = widened(asked, stated)  # the memory that a limit leaves to layers is what these do not need
        if self._open is not None and self._open.serves(settings):
            loaded = replace(self._open.loaded.using(settings.threads), trained=loader.trained_drafters(settings))
            loaded = loader.add_drafts(loaded, settings, fetches=True)
        else:
            loaded = self._load(loader, settings)
        now = self._take(loaded, settings if loaded.streaming else asked)
        self._asked, self._stated = asked, stated
        return now

    def _loader(self, cancelled: Callable[[], bool]) -> Loader:
        ranks = self._open.loaded.target.ranks if self._open is not None else None
        target = self._open.loaded.target.model if self._open is not None else None
        elsewhere = target if isinstance(target, TargetElsewhere) else None
        times = LoadTimes(state_dir() / "load_times.json")
        return Loader(load_catalog(), self._emit, cancelled, times, ranks=ranks, elsewhere=elsewhere)

    def _take(self, loaded: LoadedPair, settings: Settings) -> OpenPair:
        """Use these models from now on; where the settings do not fit them, nothing has changed."""
        before = self._open
        if before is not None:
            before.save_prompts()
            before.idle.kept.save()
        try:
            now = OpenPair.open(loaded, settings, self._store, lambda text: self._emit(events.Notice(text)), before)
        except BaseException:
            loaded.close_processes(None if before is None else before.loaded)
            raise
        if before is not None and now.totals is not before.totals:
            before.conversation.drafters.close()
        if before is not None:
            before.loaded.close_processes(loaded)
        self._open = now
        return now

    def _load(self, loader: Loader, settings: Settings) -> LoadedPair:
        """Keep the old pair until the new one runs; without memory for both, let it go and fetch it back if need be.

        Layers are left on the disk only when the old one is gone.
        """
        try:
            return replace(loader, streams=self._open is None).load(settings)
        except NotEnoughMemory:
            if self._open is None:
                raise
        before = self._open.conversation.settings
        self.close()
        free_memory()
        try:
            return loader.load(settings)
        except SpecchatError:
            self._take(replace(loader, cancelled=lambda: False).load(before), before)
            raise

    # ---------------------------------------------------------------------------------------- live settings

    def change(self, changes: dict[str, Any]) -> bool:
        """Use these live settings from the next round on; whether draft models were loaded for it."""
        now = self.open
        self.used(now.conversation.settings)
        before, asked, stated = now.loaded.drafts, self._asked.changed_live(changes), self._stated.union(changes)
        settings = widened(asked, stated) if now.loaded.streaming else asked
        try:
            now.conversation.check(settings, now.loaded.offered)
        except CombinationError:
            # trained drafters may have been fetched or made since the pair was loaded
            now.use(replace(now.loaded, trained=self._loader(lambda: False).drafters_here(settings)))
        self.add_drafts(settings)
        now.conversation.change(settings)
        self._asked, self._stated = asked, stated
        now.prompts.change(settings)
        now.idle.kept.learn(settings.learn)
        return now.loaded.drafts != before

    def add_drafts(self, settings: Settings) -> None:
        """Load the draft models that these settings use and that are not loaded yet; none is fetched."""
        for note in self.open.add_drafts(lambda: self._loader(lambda: False), settings):
            self._emit(events.Notice(note))

    def used(self, settings: Settings) -> None:
        """These settings were in use until now: draft models that they use stay for a while."""
        if self.open.loaded.drafts_in_use(settings):
            self._used_s = time.monotonic()

    def tell_slower(self) -> None:
        """Tell once of each thing that became slower while the models of the pair ran."""
        for note in self.open.loaded.slower:
            if note not in self._told_slower:
                self._told_slower.add(note)
                self._emit(events.Notice(note))

    def release_in_s(self) -> float | None:
        """In how many seconds draft models may go that the settings do not use; None where there are none."""
        if self._open is None or not self._open.unused_drafts:
            return None
        return max(0.0, self._used_s + KEPT_UNUSED_S - time.monotonic())

    def release_drafts(self) -> None:
        """Let go of draft models that the settings do not use. Never while a reply is being written."""
        self._used_s = time.monotonic()  # where this fails, the next try waits
        names = self.open.release_drafts()
        self._emit(events.Released(names, memory_bytes(self.open.loaded.device)))
