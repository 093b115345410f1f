"""Parts of a round's event: the tree and its draws, the verdict, the emitted tokens, the times."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from specchat.engine.protocol.bounds import (
    MOST_FORBIDDEN,
    MOST_NODES,
    Count,
    FewWords,
    LogProbability,
    Name,
    Node,
    Parent,
    Seconds,
    Token,
    Whole,
    Words,
)
from specchat.settings import MOST_LAYERS

Origin = Literal["drafted", "target"]
Part = Literal["system", "user", "assistant", "reply", "prompt", "datastore"]
Reason = Literal["accepted", "rejected", "unreached", "pruned", "cut"]


class Draw(Struct, frozen=True):
    """How a child came into the tree: who proposed it, of what kind the draw was, how likely the drafter held it."""

    child: Node
    kind: Literal["iid", "wor", "point"]
    proposer: Name
    draft_logprob: LogProbability | None = None


class ForbiddenGuess(Struct, frozen=True):
    """A guess that got no place behind node `parent`, since it does not fit what the reply is held to."""

    parent: Node
    token: Token
    text: Words
    proposer: Name = ""


class Tree(Struct, frozen=True, omit_defaults=True):
    """A round's token tree, parents first; node 0 is the root, the last token emitted before the round.

    `texts` are for showing: half a character reads `⟨e2⟩`. `target_logprob[i]` is what the target gives node i
    after its parent (None where the target was not asked: the root, and children of nodes never visited).
    """

    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MOST_NODES)]
    parents: list[Parent]  # -1 for the root
    texts: list[Words]
    draws: list[Draw]
    target_logprob: list[LogProbability | None]
    forbidden: Annotated[list[ForbiddenGuess], Meta(max_length=MOST_FORBIDDEN)] = []


class Verdict(Struct, frozen=True):
    """The accepted path and the bonus token. `reasons` has one entry per node; the root's is `accepted`.

    `bonus` is None only where the reply ended on a drafted token.
    """

    path: list[Node]
    bonus: Token | None
    bonus_text: Words
    bonus_logprob: LogProbability | None
    reasons: list[Reason]


class Source(Struct, frozen=True):
    """Where in the text the token stands that a piece is a copy of.

    `part` is the role of the message that it is in, `reply` for the reply being written, `prompt` for what is
    part of no message, `datastore` for a text in one. `number` counts the messages of that role from 1.
    """

    token: Whole  # index in the text, or in the datastore
    part: Part
    number: Count = 1
    before: FewWords = ""  # the words before it, of the same part
    file: Name = ""  # the datastore's text is from this file, where that is known


class Likely(Struct, frozen=True):
    """A token, its bytes (`spelling`, special tokens by name, in JSON as base64), and its log-probability.

    The probability is the target's own: at temperature 1, before any penalty, truncation or constraint.
    """

    token: Token
    spelling: bytes
    logprob: LogProbability


class TokenLogprob(Likely, frozen=True):
    """A token of the text, and the likeliest tokens in its place, best first."""

    top: Annotated[list[Likely], Meta(max_length=20)] = []


class LayerTop(Struct, frozen=True):
    """After this layer, counted from 1, and later ones until the next entry, this token was the target's likeliest."""

    layer: Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
    token: Token
    text: FewWords


class Lens(Struct, frozen=True):
    """The likeliest tokens by the target's norm and head after each of its layers, at the place of one token.

    The last entry is the target's likeliest token, which sampling, a penalty or a constraint may replace, and the layer
    from which on it stayed so.
    """

    layers: Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
    tops: Annotated[list[LayerTop], Meta(min_length=1, max_length=MOST_LAYERS)]

    @property
    def decided(self) -> int:
        return self.tops[-1].layer

    @property
    def agrees(self) -> list[bool]:
        """Of each layer, whether its likeliest token is the last layer's."""
        ends = [top.layer - 1 for top in self.tops[1:]] + [self.layers]
        found: list[bool] = []
        for top, end in zip(self.tops, ends, strict=True):
            found += [top.token == self.tops[-1].token] * (end - top.layer + 1)
        return found


class Piece(Struct, frozen=True, omit_defaults=True):
    """One emitted token, where it came from, and the text that became readable with it (may be empty).

    `source` is there where the acceptance rule took the token as a copy from the text, `likely` where the reply was
    asked for with `top_logprobs`, `lens` where the setting of that name was on.
    """

    token: Token
    text: str
    origin: Origin
    source: Source | None = None
    likely: TokenLogprob | None = None
    lens: Lens | None = None


class Timings(Struct, frozen=True, omit_defaults=True):
    """Seconds one round spent drafting, verifying, and on everything else, planning and learning included.

    `there_s` is the part of verifying that passed on the target's own machine, where that is another one.
    """

    draft_s: Seconds
    verify_s: Seconds
    other_s: Seconds
    learn_s: Seconds = 0.0
    there_s: Seconds | None = None

    @property
    def total_s(self) -> float:
        return self.draft_s + self.verify_s + self.other_s
