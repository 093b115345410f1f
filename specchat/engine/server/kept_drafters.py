"""One target's drafters that learn: their state is kept between sessions, and they work while the engine is idle."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import sha256

from specchat.config.drafter_states import DrafterStateFile, erase_state, kept_states
from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.drafting_networks import (
    ChangedGuess,
    IdleWorker,
    JudgedReply,
    KeepsState,
    LearningDraft,
    LearningFigures,
    LearnsFromReplies,
)
from specchat.core.seams import Drafter
from specchat.decoding.combinations import trained_in_use
from specchat.decoding.conversation import Conversation
from specchat.engine.protocol import events
from specchat.errors import SpecchatError
from specchat.indexes.reply_buffer import MOST_BYTES
from specchat.settings import Settings

SLICE_S = 0.02
"""A drafter's idle work is asked for in slices of this length: a command waits no longer."""

_SAVE_EVERY_S = 30.0

_log = logging.getLogger(__name__)


class KeptDrafters:
    """Drafters by the name under which they are kept: a trained drafter's, or their method's.

    Several of one name, with different options, share one state.

    Args:
        say: tells the user, once for each drafter, that its state could not be read or written.
    """

    def __init__(self, target_sha256: Callable[[], str], say: Callable[[str], None]) -> None:
        self._target_sha256 = cache(target_sha256)
        self._say = say
        self._told: set[str] = set()
        self._drafters: list[tuple[str, weakref.ref[Drafter | LearningDraft]]] = []
        self._saved: dict[str, str] = {}  # name → checksum of the state that was written or read last
        self._learning = False
        self.due = False
        """Whether there may be idle work."""

    def keep(self, name: str, drafter: Drafter | LearningDraft) -> None:
        """A drafter was built: it goes on from what was kept, and is saved from now on."""
        if not isinstance(drafter, KeepsState | IdleWorker):
            return
        self._drafters = [*((n, ref) for n, ref in self._drafters if ref() is not None), (name, weakref.ref(drafter))]
        if isinstance(drafter, KeepsState):
            try:
                if (file := self._file(name)).there:
                    state = file.read()
                    drafter.restore_state(state)
                    self._saved[name] = sha256(state).hexdigest()
            except Exception as error:
                self._tell(name, error, "it starts with nothing learnt")
                drafter.restore_state(b"")
        if isinstance(drafter, LearnsFromReplies):
            drafter.learn(self._learning)
        self.due = True

    def learn(self, wanted: bool) -> None:
        """Let drafters learn from replies from now on, those that are built later too; or no longer."""
        self._learning = wanted
        for _, drafter in self._learners():
            drafter.learn(wanted)
        self.due = True

    def learnt(self, name: str) -> LearningFigures | None:
        """Figures of the learning from replies of the drafter with this name; None where it is not in use."""
        return next((drafter.learnt for known, drafter in self._learners() if known == name), None)

    @property
    def learner(self) -> str:
        """The name of the newest drafter or draft model that can learn; empty where none is in use."""
        return next((name for name, _ in self._learners()), "")

    def kept_bytes(self, name: str) -> int:
        """Bytes that the drafter with this name takes on the disk."""
        file = self._file(name).file
        return file.stat().st_size if file.is_file() else 0

    def forget(self, name: str) -> int:
        """Erase what the drafter with this name has learnt, here and on the disk; how many bytes that freed.

        Raises:
            StoreError: a file cannot be removed.
        """
        freed = erase_state(name) if name in kept_states() else 0
        self._saved.pop(name, None)
        self._share(name, b"")
        return freed

    def replied(self) -> None:
        """A reply has ended: save what was learnt from it; there may be idle work."""
        for _, learner in self._learners():
            learner.reply_ended()
        self.save(learners=False)
        self.due = any(isinstance(drafter, IdleWorker) for _, drafter in self._live())

    def save(self, *, learners: bool = True) -> None:
        """Write the states that have changed. What was erased from the disk meanwhile is forgotten here too.

        `learners`: those of drafters that learn from replies too, which are large.
        """
        for name, drafter in self._live():
            if isinstance(drafter, KeepsState) and (learners or not isinstance(drafter, LearnsFromReplies)):
                try:
                    self._save(name, drafter)
                except Exception as error:
                    self._tell(name, error, "what it has learnt cannot be saved")

    def work(self, interrupted: Callable[[], bool]) -> None:
        """Give idle drafters time, slice by slice, until they have no more to do or a command arrives."""
        waiting = [(name, drafter) for name, drafter in self._live() if isinstance(drafter, IdleWorker)]
        saved_s = time.monotonic()
        while waiting:
            for place in reversed(range(len(waiting))):
                if interrupted():
                    return
                if not self._slice(*waiting[place]):
                    del waiting[place]
            if time.monotonic() - saved_s > _SAVE_EVERY_S:
                self.save()
                saved_s = time.monotonic()
        self.due = False
        self.save()

    def _slice(self, name: str, drafter: IdleWorker) -> bool:
        try:
            return drafter.idle(time.monotonic() + SLICE_S)
        except Exception as error:
            self._tell(name, error, "its work while idle has ended")
            return False

    def _live(self) -> Iterator[tuple[str, Drafter | LearningDraft]]:
        for name, ref in self._drafters:
            if (drafter := ref()) is not None:
                yield name, drafter

    def _learners(self) -> Iterator[tuple[str, LearnsFromReplies]]:
        """The newest first."""
        for name, drafter in reversed(list(self._live())):
            if isinstance(drafter, LearnsFromReplies):
                yield name, drafter

    def _file(self, name: str) -> DrafterStateFile:
        return DrafterStateFile.of(self._target_sha256(), name)

    def _save(self, name: str, drafter: KeepsState) -> None:
        file = self._file(name)
        if name in self._saved and not file.there:
            del self._saved[name]
            self._share(name, b"")
            return
        state = drafter.save_state()
        checksum = sha256(state).hexdigest()
        if checksum != self._saved.get(name) and (state or name in self._saved):
            file.write(state)
            self._saved[name] = checksum
            self._share(name, state, besides=drafter)

    def _share(self, name: str, state: bytes, besides: KeepsState | None = None) -> None:
        for other_name, other in self._live():
            if other_name == name and isinstance(other, KeepsState) and other is not besides:
                other.restore_state(state)

    def _tell(self, name: str, error: Exception, consequence: str) -> None:
        if not isinstance(error, SpecchatError):
            _log.exception("drafter %s", name)
        if name not in self._told:
            self._told.add(name)
            why = str(error) if isinstance(error, SpecchatError) else f"{type(error).__name__}: {error}"
            self._say(f"drafter {name}: {consequence} ({why})")


def learning_report(
    conversation: Conversation, trained: TrainedDrafters, kept: KeptDrafters, forget: bool
) -> events.Learnt:
    """The report on the drafter in use that learns from replies; with `forget`, after it has forgotten them."""
    conversation.build_parts()
    settings = conversation.settings
    name = next(iter(trained_in_use(settings, trained)), "") or kept.learner
    freed = kept.forget(name) if forget and name else 0
    learnt = kept.learnt(name) or LearningFigures()
    same = ("replies", "tokens", "kept_tokens", "updates", "went_back", "chains")
    return events.Learnt(
        **{field: getattr(learnt, field) for field in same},
        drafter=name,
        learning=settings.learn,
        before=list(learnt.before),
        now=list(learnt.now),
        disk_bytes=kept.kept_bytes(name) if name else 0,
        freed_bytes=freed,
        most_bytes=MOST_BYTES,
        why="" if name else _why_not(settings, trained),
        judged=[_told(one, conversation.vocabulary.token_label) for one in learnt.judged],
    )


def _told(judged: JudgedReply, label: Callable[[int], str]) -> events.ReplyJudged:
    return events.ReplyJudged(
        judged.chains,
        judged.before,
        judged.now,
        judged.updates,
        judged.became_right,
        judged.became_wrong,
        told_changes(judged.changed, label),
    )


def told_changes(changed: Iterable[ChangedGuess], label: Callable[[int], str]) -> list[events.GuessChange]:
    """Changed guesses in words of the vocabulary."""
    return [
        events.GuessChange(
            one.place, "".join(map(label, one.text)), label(one.before), label(one.now), label(one.wrote)
        )
        for one in changed
    ]


def _why_not(settings: Settings, trained: TrainedDrafters) -> str:
    """Why nothing is learnt, and what to do about it."""
    if not trained.fitting:
        return f"no drafter was trained for {trained.target}; `specchat train {settings.pair}` makes one"
    nearest = trained.fitting[0]
    if settings.controller == "off":
        return f"controller 'off' drafts nothing; with another one {nearest.name} can learn"
    return f"drafter {settings.drafter!r} is not trained; drafter {nearest.method!r} uses {nearest.name}, which learns"
