"""Commands to the engine: one JSON object per line, each with its `type`.

The types of the fields say which values they take; `codec` holds every command to them and to
what types cannot say.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from specchat.engine.protocol.bounds import (
    MOST_REDONE,
    Bias,
    ConstraintKind,
    Id,
    KeptName,
    Name,
    Role,
    Seconds,
    Seed,
    Token,
    TopCount,
    Whole,
)


class ToolCall(Struct, frozen=True):
    """A function that an assistant's message calls."""

    id: Name
    name: Name
    arguments: dict[str, Any]


class Message(Struct, frozen=True, omit_defaults=True):
    """One turn of a chat. `role` is `system`, `user` or `assistant`.

    With `calls`, an assistant's message calls functions after what it says; with `answers`, the id of a call, a user's
    message is the result of that call.
    """

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()
    answers: Name = ""


class Load(Struct, frozen=True, tag_field="type", tag="load"):
    """Load the pair that the settings name (or switch to it). Answered by Loading…, then Ready or Failed."""

    settings: dict[str, Any] = {}


class SecondReply(Struct, frozen=True):
    """A second reply that is written by turns with the first: its id, and the settings that hold for it alone."""

    id: Id
    apart: dict[str, Any]


class ReplyConstraint(Struct, frozen=True):
    """What a reply must be: JSON that fits a schema, any JSON object (no text), a match of an expression, or a text
    of a grammar in Lark's notation.

    With `calls`, calls of the command's tools fit their schemas, in the form that the model's template writes. The
    reply is calls of the `chosen` tools, at least one; without any it is free up to what opens a call. `single`: one
    call.
    """

    kind: ConstraintKind
    text: str = ""
    chosen: tuple[Name, ...] = ()
    single: bool = False


class Generate(Struct, frozen=True, tag_field="type", tag="generate"):
    """Write one reply to these messages. Answered by Started, Prefilled…, RoundDone…, Finished (or Failed).

    Args:
        seed: None draws a fresh one unless the settings pin it.
        apart: settings of this reply alone, whose parts know nothing of other replies and are forgotten afterwards.
        beside: a second reply; both are written by turns of some tokens, A B B A, so that they meet the same moments of
            the machine. Each has its own events, and a clock that stands still in the other's turns. One of them must
            be plain decoding (controller off).
        text: in place of messages: the reply goes on with it as it stands, without the model's chat format.
        reference: a text that the reply is expected to follow closely: its words are proposed before the drafter's.
        begun, begun_tokens: a part of the reply that exists, as the text of each token or as tokens, whose texts
            Started then says. With the same seed the reply becomes what it would have become without the break; nothing
            follows an end token.
        logprobs: whether rounds say what the target gives each node, which takes as long as the rest of an event.
        constraint: tokens that do not fit are as if the target could not say them. Failed where it cannot be used.
        tools: a list of functions as JSON; the model is told of them in its own chat format.
        top_logprobs: rounds say how likely the target held each emitted token, and so many of the likeliest tokens.
        prompt_logprobs: PromptLogprobs… say the same of the prompt before Started: it is read anew for that.
        logit_bias: is added to the logits of these tokens before penalties and temperature.
        keep: the name of the chat under which what was read, and the reply, is kept on the disk until that is erased.
        own: settings that say how the reply is sampled and where it ends. It is written together with other such
            replies, up to `MOST_TOGETHER`, by passes that read the trees of all, and is what it would be alone. Those
            without a place or memory wait; other commands that write, and all after them, wait until all have ended.
    """

    id: Id
    messages: list[Message]
    seed: Seed | None = None
    apart: dict[str, Any] | None = None
    beside: SecondReply | None = None
    text: str | None = None
    reference: str = ""
    begun: list[str] = []
    begun_tokens: list[Token] = []
    logprobs: bool = True
    constraint: ReplyConstraint | None = None
    tools: str = ""
    top_logprobs: TopCount | None = None
    prompt_logprobs: bool = False
    logit_bias: dict[Token, Bias] = {}
    keep: KeptName = ""
    own: dict[str, Any] | None = None


class Cancel(Struct, frozen=True, tag_field="type", tag="cancel"):
    """Stop reply `id` at the next round, out of band; or stop loading when `id` is None."""

    id: Id | None = None


class Change(Struct, frozen=True, tag_field="type", tag="change"):
    """Change live settings; acts before the next round, also of a running reply. Answered by Changed or Failed."""

    settings: dict[str, Any]


class Pace(Struct, frozen=True, tag_field="type", tag="pace"):
    """How the rounds of reply `id` follow each other from now on, so that they can be watched. Not answered.

    Held, it does `rounds` more and then waits for the next `Pace`, a `Cancel` or a `Quit`; else a round begins no
    sooner than `gap_s` after the one before it was reported. Changes act meanwhile, and waiting counts in no figure.
    Sent before its Generate, it acts from the first round on.
    """

    id: Id
    hold: bool = False
    rounds: Whole = 0
    gap_s: Seconds = 0.0


class Count(Struct, frozen=True, tag_field="type", tag="count"):
    """How many tokens would these messages take, with these tools? Answered by Counted."""

    id: Id
    messages: list[Message]
    tools: str = ""


class Compare(Struct, frozen=True, tag_field="type", tag="compare"):
    """Where do two replies to these messages part, both written with this seed? Answered by Compared.

    `plain` and `other` are their tokens; `apart` is the settings they were sampled with, as in Generate.
    """

    id: Id
    messages: list[Message]
    seed: Seed
    plain: list[Token]
    other: list[Token]
    apart: dict[str, Any] | None = None


class WhatIf(Struct, frozen=True, tag_field="type", tag="what_if"):
    """What would the rounds of this reply have been under other settings? Answered by WouldBe or Failed.

    The reply to these messages is done twice along its `tokens`, with `own`, the settings that it was written with, and
    with `changes` besides; by parts that know nothing of other replies and are forgotten. Only where the tokens do not
    decide the guesses by themselves is the target asked, with the noise of `seed`.

    `plain` are the numbers of its rounds that were plain in order to measure its speed. With `at`, a round begins
    behind so many of the tokens, and is told with its tree. `pair` must be the one that is loaded. A Cancel of its
    id ends it, and so does each command that would have to wait for it.
    """

    id: Id
    pair: Name
    messages: list[Message]
    seed: Seed
    tokens: Annotated[list[Token], Meta(min_length=1, max_length=MOST_REDONE)]
    own: dict[str, Any]
    changes: dict[str, Any]
    plain: Annotated[list[Whole], Meta(max_length=MOST_REDONE)] = []
    at: Whole | None = None
    constraint: ReplyConstraint | None = None


class Statistics(Struct, frozen=True, tag_field="type", tag="statistics"):
    """Ask for totals since the pair was loaded. Answered by Totals."""


class Learning(Struct, frozen=True, tag_field="type", tag="learning"):
    """Ask what the drafter in use has learnt from replies; with `forget` it forgets that first. Answered by Learnt."""

    forget: bool = False


class Quit(Struct, frozen=True, tag_field="type", tag="quit"):
    """Leave. Closing standard input means the same."""


Command = Load | Generate | Cancel | Change | Pace | Count | Compare | WhatIf | Statistics | Learning | Quit
