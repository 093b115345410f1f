"""From the engine's own records to the messages that cross the boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from specchat.core.reading import Reading
from specchat.core.round import Ledger, Round
from specchat.core.speedup import RoundIntervals
from specchat.core.tree import ROOT
from specchat.decoding.assemble import sampling
from specchat.decoding.combinations import LosslessClaim, losslessness
from specchat.decoding.conversation import Conversation
from specchat.decoding.emission import texts_of
from specchat.decoding.layer_lens import LayerChoices
from specchat.decoding.reply_events import ReplyStarted, RoundWritten
from specchat.decoding.teacher_forcing import Comparer
from specchat.decoding.vocabulary import Vocabulary
from specchat.engine.protocol import events, round_parts
from specchat.engine.protocol.bounds import LONGEST_FEW_WORDS
from specchat.engine.protocol.commands import Compare, Generate, Message
from specchat.engine.protocol.describe import settings_message
from specchat.engine.server.copy_sources import CopySources
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.memory import memory_bytes
from specchat.errors import SpecchatError, WeightsNotHere
from specchat.settings import Settings

_LONGEST_MESSAGE = 4000
"""Characters of an error: it may quote what it refuses, and that may be anything."""


def encode_prompt(conversation: Conversation, command: Generate) -> list[int]:
    """The tokens that a reply goes on from: a chat in the model's format, or a text as it stands."""
    if command.text is None:
        return encode_messages(conversation, command.messages, command.tools)
    return conversation.encode_text(command.text)


def encode_messages(conversation: Conversation, messages: Sequence[Message], tools: str = "") -> list[int]:
    """A chat as tokens, ready for a reply to begin."""
    return conversation.encode([msgspec.to_builtins(one) for one in messages], tools)


def ready_message(pair: LoadedPair, conversation: Conversation) -> events.Ready:
    """The pair that was loaded, where it runs, and the settings in force."""
    return events.Ready(
        pair=pair.name,
        target=pair.target.name,
        draft=pair.drafts_in_use(conversation.settings) or None,
        device=str(pair.device),
        dtype=pair.precision,
        threads=pair.threads,
        context_tokens=conversation.target.context_tokens,
        memory_bytes=memory_bytes(pair.device),
        load_s=pair.load_s,
        settings=settings_message(conversation.settings),
        loss=loss_message(conversation.losslessness, pair),
        notes=[*pair.notes, *pair.slower],
        kernels=pair.target.kernels,
        trained=list(dict.fromkeys(one.method for one in pair.trained.fitting)),
        streaming=pair.streaming,
    )


def changed_message(pair: LoadedPair, conversation: Conversation, *, grown: bool) -> events.Changed:
    """The settings in force after a change; `grown`: draft models were loaded for it."""
    return events.Changed(
        settings_message(conversation.settings),
        loss_message(conversation.losslessness, pair),
        pair.drafts_in_use(conversation.settings),
        memory_bytes(pair.device) if grown else 0,
    )


def loss_message(claim: LosslessClaim, pair: LoadedPair) -> events.Losslessness:
    return events.Losslessness(claim.lossless, claim.reason, pair.near_ties if claim.lossless else "")


def started_message(command: Generate, started: ReplyStarted, settings: Settings, pair: LoadedPair) -> events.Started:
    """A reply begins, with the settings that hold for it."""
    claim = losslessness(settings)
    if started.lossy and claim.lossless:
        claim = LosslessClaim(False, "it goes on from a prompt cache that was rounded to 8 bits (prompt_cache_8bit)")
    return events.Started(
        id=command.id,
        messages=command.messages,
        prompt_tokens=started.prompt_tokens,
        reused_tokens=started.reused_tokens,
        seed=started.seed,
        settings=settings_message(settings),
        loss=loss_message(claim, pair),
        pair=settings.pair,
        text=command.text,
        begun=command.begun or texts_of(pair.vocabulary, command.begun_tokens),
    )


def round_message(
    id: int,
    written: RoundWritten,
    vocabulary: Vocabulary,
    copies: CopySources,
    logprobs: bool = True,
    top: int | None = None,
) -> events.RoundDone:
    """A round with its tree, verdict, pieces of text and timings; `logprobs`: and what the target gives each node.

    `top`: and what it gives each emitted token, and so many of the likeliest tokens in its place.
    """
    round = written.round
    tree, verdict, budget = round.tree, round.verdict, round.budget
    nodes = (ROOT, *verdict.path)[: len(round.emitted)]
    by_node: list[float | None] = [None] * len(tree)
    bonus_logprob: float | None = None
    if logprobs:
        by_node, bonus_logprob = target_logprobs(round)
    draws = [
        round_parts.Draw(
            child=draw.child,
            kind=draw.guess.kind.value,
            proposer=draw.guess.proposer,
            draft_logprob=None if draw.guess.logprob is None else _finite(draw.guess.logprob),
        )
        for parent in range(len(tree))
        for draw in tree.draws(parent)
    ]
    return events.RoundDone(
        id=id,
        index=round.index,
        at_s=written.at_s,
        context_tokens=round.start,
        budget={"nodes": budget.nodes, "depth": budget.depth, "width": budget.width, "floor": budget.floor},
        tree=round_parts.Tree(
            tokens=list(tree.tokens),
            parents=list(tree.parents),
            texts=[vocabulary.token_label(token) for token in tree.tokens],
            draws=draws,
            target_logprob=by_node,
            forbidden=[
                round_parts.ForbiddenGuess(one.parent, one.token, vocabulary.token_label(one.token), one.proposer)
                for one in round.refused
            ],
        ),
        verdict=round_parts.Verdict(
            path=list(verdict.path),
            bonus=verdict.bonus,
            bonus_text="" if verdict.bonus is None else vocabulary.token_label(verdict.bonus),
            bonus_logprob=bonus_logprob,
            reasons=[reason.value for reason in verdict.reasons],
        ),
        pieces=_pieces(
            written,
            copies,
            None if top is None else likely_tokens(round.reading, nodes, round.emitted, vocabulary, top),
            vocabulary,
        ),
        timings=round_parts.Timings(
            *(round.timings.draft_s, round.timings.verify_s, round.timings.other_s, round.timings.learn_s),
            round.timings.there_s,
        ),
        draft_passes=round.draft_passes,
        why=budget.why,
    )


def _pieces(
    written: RoundWritten,
    copies: CopySources,
    likely: Sequence[round_parts.TokenLogprob] | None,
    vocabulary: Vocabulary,
) -> list[round_parts.Piece]:
    """The emitted tokens: those of the path, with the sources of those that were copied, and the bonus."""
    round = written.round
    drafted, sources = len(round.verdict.path), dict(enumerate(round.verdict.sources))
    return [
        round_parts.Piece(
            token,
            text,
            "drafted" if place < drafted else "target",
            None if (source := sources.get(place)) is None else copies.describe(round.history, source),
            None if likely is None else likely[place],
            _lens(written.layers[place], vocabulary) if place < len(written.layers) else None,
        )
        for place, (token, text) in enumerate(zip(round.emitted, written.texts, strict=True))
    ]


def _lens(decided: LayerChoices, vocabulary: Vocabulary) -> round_parts.Lens:
    tops = [
        round_parts.LayerTop(one.layer, one.token, vocabulary.token_label(one.token)[:LONGEST_FEW_WORDS])
        for one in decided.choices
    ]
    return round_parts.Lens(decided.layers, tops)


def target_logprobs(round: Round) -> tuple[list[float | None], float | None]:
    """The target's log-probabilities of each node after its parent, at temperature 1 and before any truncation.

    Known for the children of visited nodes and for the bonus token. One copy to the host for all of them.
    """
    tree, verdict, reading = round.tree, round.verdict, round.reading
    visited = (ROOT, *verdict.path)
    children = [child for node in visited for child in tree.children(node)]
    nodes = [tree.parents[child] for child in children]
    tokens = [tree.tokens[child] for child in children]
    if verdict.bonus is not None:
        nodes.append(visited[-1])
        tokens.append(verdict.bonus)
    values = [_finite(value) for value in reading.logprobs_after(nodes, tokens)]
    found: list[float | None] = [None] * len(tree)
    for child, value in zip(children, values, strict=False):
        found[child] = value
    return found, values[-1] if verdict.bonus is not None else None


def likely_tokens(
    reading: Reading, nodes: Sequence[int], tokens: Sequence[int], vocabulary: Vocabulary, top: int
) -> list[round_parts.TokenLogprob]:
    """Log-probabilities of these tokens after these nodes, one each, and the likeliest after each node."""
    best = reading.best_after(nodes, top) if top and nodes else [[] for _ in nodes]
    asked = [[token, *others] for token, others in zip(tokens, best, strict=True)]
    rows = [node for node, row in zip(nodes, asked, strict=True) for _ in row]
    values = iter(reading.logprobs_after(rows, [token for row in asked for token in row]))
    found: list[round_parts.TokenLogprob] = []
    for row in asked:
        own, *others = ((token, vocabulary.token_spelling(token), _finite(next(values))) for token in row)
        found.append(round_parts.TokenLogprob(*own, top=[round_parts.Likely(*one) for one in others]))
    return found


def _finite(value: float) -> float:
    """JSON has no infinity; e^−999 stands for never."""
    return value if math.isfinite(value) else -999.0


def stats_message(
    ledger: Ledger,
    prefill_s: float = 0.0,
    gaps: RoundIntervals | None = None,
    prompt_tokens: int = 0,
    reused_tokens: int = 0,
) -> events.Stats:
    """Ledger → events.Stats, with the speed-up that the plain rounds of the reply give."""
    speedup = gaps.speedup if gaps else None
    same = {name: getattr(ledger, name) for name in events.Stats.__struct_fields__ if hasattr(ledger, name)}
    same |= {name: list(same[name]) for name in ("offered_by_depth", "accepted_by_depth")}
    return events.Stats(
        **same,
        prefill_s=prefill_s,
        prompt_tokens=prompt_tokens,
        reused_tokens=reused_tokens,
        speedup=speedup.value if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
        plain_rounds=gaps.plain_rounds if gaps else 0,
    )


def compared_message(asked: Compare, conversation: Conversation, comparer: Comparer) -> events.Compared:
    """Where two replies part, if they do.

    Raises:
        UsageError: a token that the target does not have.
    """
    prompt, law = encode_messages(conversation, asked.messages), sampling(conversation.settings.but(asked.apart or {}))
    divergence = comparer.first_divergence(prompt, asked.plain, asked.other, law, asked.seed)
    if divergence is None:
        return events.Compared(asked.id)
    place, gap = divergence.margin.place, divergence.margin.gap

    def label(tokens: list[int]) -> str:
        return conversation.vocabulary.token_label(tokens[place]) if place < len(tokens) else ""

    margin = gap if math.isfinite(gap) else None
    return events.Compared(
        asked.id, place, label(asked.plain), label(asked.other), margin, divergence.allowed, divergence.tie
    )


def failure(error: Exception, during: str, id: int | None = None) -> events.Failed:
    """An error as one line. Anything that is not a SpecchatError is a fault of ours and says so."""
    text = str(error) if isinstance(error, SpecchatError) else f"internal error: {type(error).__name__}: {error}"
    missing = dict(error.models) if isinstance(error, WeightsNotHere) else {}
    return events.Failed(
        kind=type(error).__name__,
        message=text[:_LONGEST_MESSAGE],
        exit_code=error.exit_code if isinstance(error, SpecchatError) else 1,
        id=id,
        during=during,
        missing=missing,
    )
