"""A loaded pair with everything that belongs to it: its conversation, its idle time, its comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specchat.core.round import Ledger
from specchat.core.seams import Model
from specchat.decoding.combinations import refuse_unknown_drafts
from specchat.decoding.conversation import Conversation
from specchat.drafters.choice import choose_drafter
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Compare
from specchat.engine.server.event_conversion import encode_messages
from specchat.engine.server.idle_time import IdleTime
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.memory import free_memory, watch_peak
from specchat.engine.server.memory_limit import limit_without_drafts
from specchat.engine.server.pair_loading import Loader
from specchat.engine.server.profiles import ProfileStore
from specchat.engine.server.reply_comparison import Comparing
from specchat.models.model_loading import Loaded
from specchat.settings import OPTIONS, Settings


@dataclass
class Totals:
    """How many replies were written, and their rounds."""

    replies: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass
class OpenPair:
    """The pair in use and everything that belongs to it.

    Args:
        loaded: the models.
        conversation: writes with them; its drafters and controllers live as long as the pair.
        idle: what is done for the pair while no command waits.
        comparing: answers where two of its replies part.
        totals: of the replies of this target, whatever drafted.
    """

    loaded: LoadedPair
    conversation: Conversation
    idle: IdleTime
    comparing: Comparing
    totals: Totals
    _twin: Model | None = field(default=None, init=False)

    @staticmethod
    def open(
        loaded: LoadedPair, settings: Settings, store: ProfileStore, say: Callable[[str], None], before: OpenPair | None
    ) -> OpenPair:
        """The pair under these settings; where it was open before, its drafters go on and keep what they have learnt.

        Args:
            say: tells the user what a drafter could not keep.
            before: what was open until now. It stays as it is where the settings do not fit the pair.

        Raises:
            CombinationError: the settings do not fit the pair.
        """
        goes_on = before if before is not None and before.conversation.target is loaded.target.model else None
        idle = IdleTime(store, loaded, say)
        if goes_on is not None:
            idle.kept = goes_on.idle.kept
        conversation = Conversation(
            loaded.target.model,
            loaded.draft.model if loaded.draft else None,
            loaded.vocabulary,
            settings,
            idle.measuring.profile.costs if idle.measuring.profile else None,
            idle.resources(loaded),
            plain_rounds=True,
            drafters=goes_on.conversation.drafters if goes_on else None,
            controllers=goes_on.conversation.controllers if goes_on else None,
        )
        idle.kept.learn(settings.learn)
        if goes_on is not None:
            return OpenPair(loaded, conversation, idle, goes_on.comparing, goes_on.totals)
        return OpenPair(loaded, conversation, idle, Comparing(loaded), Totals())

    def serves(self, settings: Settings) -> bool:
        """Whether the same loaded models serve these settings."""
        before = self.conversation.settings
        fixed = (name for name, option in OPTIONS.items() if not option.live and name != "threads")
        same = all(getattr(before, name) == getattr(settings, name) for name in fixed)
        if not (same and settings.memory):
            return same
        # what drafters make of the target's weights counts when the context is limited, and so do draft models
        made = choose_drafter(before).makers == choose_drafter(settings).makers
        return made and not self.loaded.missing_drafts(settings)

    def with_new_cache(self) -> Model:
        """The target with a cache of its own, made once and kept until `forget_twin`."""
        if self._twin is None:
            self._twin = self.loaded.target.model.with_new_cache()
        return self._twin

    def forget_twin(self) -> None:
        """Give its cache back."""
        self._twin = None

    def supply_drafters(self, loader: Loader, settings: Settings) -> None:
        """Know the trained drafters that are here now: some may have been fetched or made since the pair was loaded."""
        self._use(replace(self.loaded, trained=loader.drafters_here(settings)))

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
        self._use(loader().add_drafts(self.loaded, settings, fetches=False))
        self.idle.measure_with(self.loaded)
        if self.idle.measuring.profile is not None:
            self.conversation.learn_costs(self.idle.measuring.profile.costs)
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
        self.conversation.drop_drafters(names)
        limit = limit_without_drafts(self.loaded.memory, self.unused_drafts)
        self._use(replace(self.loaded.without_drafts(names), memory=limit))
        self.idle.measure_with(self.loaded)
        self.conversation.build_parts()  # those in use until now hold the models
        free_memory()
        watch_peak(self.loaded.device)  # it counts from here, for those who watch it too
        return names

    def _use(self, loaded: LoadedPair) -> None:
        """Build drafters from what this pair has from now on."""
        self.loaded = loaded
        self.conversation.supply(loaded.draft.model if loaded.draft else None, self.idle.resources(loaded))

    def compare(self, command: Compare) -> events.Compared:
        """Where two replies part."""
        prompt = encode_messages(self.conversation, command.messages)
        return self.comparing.answer(command, self.conversation, prompt)

    def close(self) -> None:
        """Save what drafters have learnt and let them go."""
        self.idle.kept.save()
        self.conversation.drafters.close()
