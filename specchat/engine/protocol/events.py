"""Events from the engine: one JSON object per line, each with its `type`.

The same events drive the app, `specchat run`, recordings, replay, tests and benchmarks. A recording is a `Header` line
followed by events. The types of the fields say which values they take; `codec` holds every event to them and to
what types cannot say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from specchat.engine.protocol.bounds import (
    Count,
    ExitCode,
    Id,
    Kind,
    Margin,
    Name,
    Rate,
    Seconds,
    Seed,
    Whole,
    Words,
)
from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.round_parts import Piece, Timings, TokenLogprob, Tree, Verdict


class OptionInfo(Struct, frozen=True):
    """One option, as the settings panel needs it. `kind` is int, float, str or bool."""

    name: Name
    kind: Kind
    default: Any
    help: Words
    unit: Name = ""
    minimum: float | None = None
    maximum: float | None = None
    least_above_zero: float | None = None
    choices: list[Name] = []
    live: bool = True


class MethodInfo(Struct, frozen=True):
    """One method, as `specchat methods` prints it."""

    family: Name
    name: Name
    summary: Words
    source: Words
    lossless: Words
    options: list[OptionInfo] = []
    needs_draft_model: bool = False


PROTOCOL = 1
"""Raised when a message changes its meaning; host and client must agree on it."""

StopReason = Literal["end", "length", "stop", "context", "cancelled"]


class Header(Struct, frozen=True, tag_field="type", tag="header"):
    """First line of a recording."""

    version: Whole
    specchat: Name
    made: Name  # ISO 8601, UTC
    command: Words = ""
    machine: Words = ""


class Hello(Struct, frozen=True, tag_field="type", tag="hello"):
    """First event of every engine: who it is and what it can do."""

    protocol: Whole
    specchat: Name
    methods: list[MethodInfo]
    settings: list[OptionInfo]
    pid: Whole = 0


class Loading(Struct, frozen=True, tag_field="type", tag="loading"):
    """Progress while a pair is fetched, verified, read and warmed. `total` 0 means unknown.

    In ms, `total` is how long all of the reading took the last time.
    """

    stage: Literal["import", "fetch", "verify", "read", "measure"]
    item: Words
    done: Whole = 0
    total: Whole = 0
    rate: Rate = 0.0  # units per second
    unit: Literal["bytes", "steps", "ms"] = "bytes"


class Losslessness(Struct, frozen=True, omit_defaults=True):
    """Whether the combination in force is lossless, computed from its parts, and why.

    `near_ties` is the number format whose near-ties a tree's pass may decide otherwise than plain decoding's, so that
    lossless means "up to those"; empty where passes of all sizes give the same bits.
    """

    lossless: bool
    reason: Words
    near_ties: Name = ""


class Ready(Struct, frozen=True, tag_field="type", tag="ready"):
    """A pair is loaded. `settings` are those in force, the pair's own defaults included."""

    pair: Name
    target: Name
    draft: Name | None
    device: Name
    dtype: Name
    threads: Whole
    context_tokens: Whole
    memory_bytes: Whole
    load_s: Seconds
    settings: dict[str, Any]
    loss: Losslessness
    notes: list[Words] = []
    kernels: Name = ""  # what multiplies the target's weights: native, torch, transformers
    trained: list[Name] = []  # drafters with weights on this machine that were trained for the target
    streaming: Words = ""  # which layers stay in memory and how much is read each pass; empty where all stay


class Changed(Struct, frozen=True, tag_field="type", tag="changed"):
    """The settings now in force and what they mean for losslessness; and the draft models that they use."""

    settings: dict[str, Any]
    loss: Losslessness
    draft: Name | None = None  # empty: none; None: not said
    memory_bytes: Whole = 0  # what the models take, where some were loaded for the change


class Released(Struct, frozen=True, tag_field="type", tag="released"):
    """Draft models that the settings no longer use were let go; nothing was asked for it."""

    models: list[Name]
    memory_bytes: Whole  # what the models take now


class Started(Struct, frozen=True, tag_field="type", tag="started"):
    """A reply begins. `reused_tokens` of the prompt were still in the target's cache.

    `text` is what it continues, if that is not a chat. `begun` is the part of the reply that exists, token by token.
    """

    id: Id
    messages: list[Message]
    prompt_tokens: Whole
    reused_tokens: Whole
    seed: Seed
    settings: dict[str, Any]
    loss: Losslessness
    pair: Name
    text: str | None = None
    begun: list[str] = []


class Prefilled(Struct, frozen=True, tag_field="type", tag="prefilled"):
    """Prompt tokens read so far, out of those that had to be read."""

    id: Id
    done: Whole
    total: Whole
    at_s: Seconds


class PromptLogprobs(Struct, frozen=True, tag_field="type", tag="prompt_logprobs"):
    """Further tokens of the prompt, as likely as the target holds them; before Started.

    Without the first, which follows nothing.
    """

    id: Id
    tokens: list[TokenLogprob]


class RoundDone(Struct, frozen=True, tag_field="type", tag="round"):
    """One round: plan, draft, verify, judge, keep, learn. Joining the pieces' texts gives the reply so far."""

    id: Id
    index: Whole
    at_s: Seconds  # since Started
    context_tokens: Whole  # history before this round, the root included
    budget: dict[Name, Whole | Rate]  # nodes, depth, width, floor
    tree: Tree
    verdict: Verdict
    pieces: list[Piece]
    timings: Timings
    draft_passes: Whole = 0  # forward passes of a draft model in this round
    why: Words = ""  # what made the controller choose this budget, in a few words


class Stats(Struct, frozen=True):
    """A reply in figures. Acceptance length counts the bonus token, acceptance rate does not.

    `speedup` is what plain decoding would have taken over what the reply took, by the reply's own plain rounds; low
    and high are its 95 % interval. None where there were too few of those to say.
    """

    rounds: Whole
    tokens: Whole
    drafted: Whole
    accepted: Whole
    tokens_per_s: Rate  # decoding only, prefill apart
    acceptance_length: Rate
    acceptance_rate: Rate
    prefill_s: Seconds
    draft_s: Seconds
    verify_s: Seconds
    other_s: Seconds
    prompt_tokens: Whole = 0
    reused_tokens: Whole = 0
    offered_by_depth: list[Whole] = []  # rounds that drafted a node at depth 1, 2, …
    accepted_by_depth: list[Whole] = []  # rounds that accepted one there
    draft_passes: Whole = 0
    speedup: Rate | None = None
    speedup_low: Rate | None = None
    speedup_high: Rate | None = None
    plain_rounds: Whole = 0
    there_s: Seconds | None = None  # of verify_s, on the target's machine, where that is another one


class Finished(Struct, frozen=True, tag_field="type", tag="finished"):
    """A reply is complete. `tail` is text that was held back (half a stop string, half a character) and is now due."""

    id: Id
    stop: StopReason
    tail: str
    stats: Stats
    at_s: Seconds
    stop_string: Words | None = None


class Counted(Struct, frozen=True, tag_field="type", tag="counted"):
    """Answer to Count."""

    id: Id
    tokens: Whole
    context_tokens: Whole


class Compared(Struct, frozen=True, tag_field="type", tag="compared"):
    """Answer to Compare. `place` is the first token at which the replies differ, None where they do not.

    There `plain_text` and `other_text` stand (empty where a reply ended), and plain decoding prefers its own by
    `margin`: a difference of logits, or, when sampling, of noisy log-probabilities; None where one reply just ended.
    Up to `allowed` two tokens count as tied, since that is what passes of different sizes differ by.
    """

    id: Id
    place: Whole | None = None
    plain_text: Words = ""
    other_text: Words = ""
    margin: Margin | None = None
    allowed: Rate = 0.0
    tie: bool = False


class RedoneRounds(Struct, frozen=True):
    """The rounds of a reply that was done once more: how many, their tokens, their guesses.

    `round_s` is what a mean one takes: its pass by its rows, and drafting as it was timed meanwhile.
    """

    rounds: Whole
    tokens: Whole
    drafted: Whole
    round_s: Seconds


class Redoing(Struct, frozen=True, tag_field="type", tag="redoing"):
    """How far a WhatIf is: tokens of prompt and reply, once for each of the settings that it is done with."""

    id: Id
    done: Whole
    total: Whole


class WouldBe(Struct, frozen=True, tag_field="type", tag="would_be"):
    """Answer to WhatIf: the rounds under the reply's own settings, and under the others.

    `decided`: the reply's tokens decided every guess; else the target judged, and its text would have become another.
    `measured`: what passes cost by their rows was measured on this machine when it was idle; else it comes from these
    rounds alone. `full`: every round guessed all it may, since the controller of both goes by time and would
    decide otherwise in the next run. `stopped`: another command came before it was done. `round` is the one that
    was asked for.
    """

    id: Id
    own: RedoneRounds | None = None
    other: RedoneRounds | None = None
    decided: bool = False
    measured: bool = False
    full: bool = False
    stopped: bool = False
    round: RoundDone | None = None


class Totals(Struct, frozen=True, tag_field="type", tag="totals"):
    """Answer to Statistics."""

    replies: Whole
    stats: Stats


class GuessChange(Struct, frozen=True):
    """A guess that learning changed: of the reply's token `place`, from 1, behind the text `behind`.

    `before` is the guess by the weights as they were trained, `now` by the learnt ones, `wrote` the target's token.
    """

    place: Count
    behind: Words
    before: Words
    now: Words
    wrote: Words


class ReplyJudged(Struct, frozen=True):
    """A reply, judged before it was learnt from: by the weights as trained, and as the replies before it left them.

    `chains` counts places, `before` and `now` the right guesses of all chains together. `updates` of the weights were
    made until then. `became_right` and `became_wrong` count first guesses, of which `changed` tells some.
    """

    chains: Whole
    before: Whole
    now: Whole
    updates: Whole = 0
    became_right: Whole = 0
    became_wrong: Whole = 0
    changed: Annotated[list[GuessChange], Meta(max_length=16)] = []


class Learnt(Struct, frozen=True, tag_field="type", tag="learnt"):
    """Answer to Learning: what the trained drafter in use has learnt from replies.

    `chains` counts places in recent replies from which guesses were compared before those replies were learnt from, and
    `before` and `now` how many of them were right as far as each depth: by the weights as they were trained, and by
    those that were in use.
    """

    drafter: Name = ""  # empty: none learns
    learning: bool = False  # whether it does at present
    replies: Whole = 0
    tokens: Whole = 0
    kept_tokens: Whole = 0  # of those, what can still be learnt from
    updates: Whole = 0
    went_back: Whole = 0  # times that what was learnt was dropped, since it did worse
    chains: Whole = 0
    before: list[Whole] = []
    now: list[Whole] = []
    disk_bytes: Whole = 0
    freed_bytes: Whole = 0  # by forgetting
    most_bytes: Whole = 0  # that kept replies may take
    why: Words = ""  # what stands in the way, and what to do about it
    judged: Annotated[list[ReplyJudged], Meta(max_length=64)] = []  # the last replies, the newest at the end


class Notice(Struct, frozen=True, tag_field="type", tag="notice"):
    """Something the user should know; nothing that was asked for failed."""

    text: Words


class Failed(Struct, frozen=True, tag_field="type", tag="failed"):
    """Something asked for did not happen; the engine goes on. `kind` is the error's class name."""

    kind: Name
    message: Words
    exit_code: ExitCode = 1
    id: Id | None = None
    during: Name = ""  # the type of the command that failed
    missing: dict[Name, Whole] = {}  # models that have to be fetched first, and their bytes, 0 where not known


class Died(Struct, frozen=True, tag_field="type", tag="died"):
    """Made by the client, never sent: the engine process is gone without being asked to go."""

    returncode: int | None
    last_words: str


Event = (
    Header
    | Hello
    | Loading
    | Ready
    | Changed
    | Released
    | Started
    | Prefilled
    | PromptLogprobs
    | RoundDone
    | Finished
    | Counted
    | Compared
    | Redoing
    | WouldBe
    | Totals
    | Learnt
    | Notice
    | Failed
    | Died
)
