"""Answers what the drafter in use has learnt from the user's replies, or why it learns nothing."""

from __future__ import annotations

from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.drafting_networks import LearningFigures
from specchat.decoding.combinations import trained_in_use
from specchat.engine.protocol import events
from specchat.engine.server.open_pair import OpenPair
from specchat.indexes.reply_buffer import MOST_BYTES
from specchat.settings import Settings


def learning_report(pair: OpenPair, forget: bool) -> events.Learnt:
    """What the pair's drafter has learnt so far; with `forget`, what is left once it has forgotten that."""
    conversation, kept = pair.conversation, pair.idle.kept
    conversation.build_parts()
    settings, trained = conversation.settings, pair.loaded.trained
    name = next(iter(trained_in_use(settings, trained)), "")
    freed = kept.forget(name) if forget and name else 0
    learnt = kept.learnt(name) or LearningFigures()
    return events.Learnt(
        drafter=name,
        learning=settings.learn,
        replies=learnt.replies,
        tokens=learnt.tokens,
        kept_tokens=learnt.kept_tokens,
        updates=learnt.updates,
        went_back=learnt.went_back,
        chains=learnt.chains,
        before=list(learnt.before),
        now=list(learnt.now),
        disk_bytes=kept.kept_bytes(name) if name else 0,
        freed_bytes=freed,
        most_bytes=MOST_BYTES,
        why="" if name else _why_not(settings, trained),
    )


def _why_not(settings: Settings, trained: TrainedDrafters) -> str:
    """Why nothing is learnt, and what to do about it."""
    if not trained.fitting:
        return f"no drafter was trained for {trained.target}; `specchat train {settings.pair}` makes one"
    nearest = trained.fitting[0]
    if settings.controller == "off":
        return f"controller 'off' drafts nothing; with another one {nearest.name} can learn"
    return f"drafter {settings.drafter!r} is not trained; drafter {nearest.method!r} uses {nearest.name}, which learns"
