"""Messages between a target on another machine and those who draft for it. Checked in one place, here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.reading import Elsewhere
from specchat.core.request import Judging
from specchat.core.sampling import Sampling
from specchat.core.tree import STORED, DrawKind, Guess, TokenTree
from specchat.models.ranks.plan import MOST_BYTES, MOST_ROWS, Above, Number, Numbers, PlanMessage, decoding, demand

PROTOCOL = 1
"""Of these messages."""

_FLOATS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_TOKENS = {"int32": torch.int32}

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Source = Annotated[int, msgspec.Meta(ge=0)]
"""As in `Guess`: a place in the text, or from `STORED` on one in a datastore."""


class Packed(PlanMessage):
    """A tensor."""

    dtype: str
    sizes: Numbers
    data: bytes


class Law(PlanMessage):
    """(V,) the law that draws came from: `values` at `ids`, or everywhere where there are none."""

    ids: Packed | None
    values: Packed


class Drawn(PlanMessage):
    """One draw of a tree; `law` is a place among the laws of the message."""

    child: Number
    kind: DrawKind
    proposer: Text
    law: Place | None = None
    source: Source | None = None


class Judge(PlanMessage):
    """How to judge the tree: a rule of the table with its options, and what it asks of the context.

    Args:
        text: tokens of the text, the root included, to compare.
        draws: of all nodes in their order; none for rules that do not look at them.
    """

    rule: Text
    options: dict[Text, Any]
    text: Number
    prompt: Number
    round: Number
    seed: Seed
    sampling: dict[Text, float]
    bias: list[tuple[Number, float]]
    laws: list[Law]
    draws: list[Drawn]


class Open(PlanMessage, tag=0):
    """Load this model of the catalog there, on the device that the user's settings there name."""

    protocol: Number
    model: Text
    dtype: Text
    kernels: Text
    backend: Text


class NewCache(PlanMessage, tag=1):
    """Have a cache of this number over the same weights."""

    cache: Number


class Prefill(PlanMessage, tag=2):
    """`Model.keep`, where a path is given, then `Model.prefill`: of a text whose first `common` tokens are those of the
    one before. States after the layers `taps` are sent as they are computed."""

    cache: Number
    kept: Numbers | None
    common: Number
    tokens: Numbers
    taps: Numbers


class Read(PlanMessage, tag=3):
    """`Model.keep`, where a path is given, then `Model.read` of a tree, and judging it. States are sent of visited
    nodes where the tree is judged, else of all."""

    cache: Number
    kept: Numbers | None
    tokens: Numbers
    parents: Above
    new: Numbers | None
    likeliest: bool
    logits: bool
    taps: Numbers
    judge: Judge | None


class Fill(PlanMessage, tag=4):
    """`Model.fill_for_benchmark`."""

    cache: Number
    tokens: Number


class Rows(PlanMessage, tag=5):
    """Send the logits of this cache's last pass."""

    cache: Number


class Weights(PlanMessage, tag=7):
    """Send rows of the embedding, or of the head, for these tokens."""

    tokens: Numbers
    head: bool


class Checksum(PlanMessage, tag=8):
    """Send the checksum of the model's weights."""


class Stop(PlanMessage, tag=6):
    """Stop reading a prompt. Not answered: what it stops is."""


Request = Open | NewCache | Prefill | Read | Fill | Rows | Weights | Checksum | Stop


class Call(PlanMessage):
    """A request, and the numbers of caches that are no longer used."""

    gone: Numbers
    request: Request


class Hello(PlanMessage, tag=0):
    """The first message of a target's process."""

    protocol: Number


class Said(PlanMessage, tag=1):
    """The stage of loading."""

    text: Text


class Opened(PlanMessage, tag=2):
    """The model is loaded.

    Args:
        files: those that its tokenizer and chat template are made of; none for the scripted model.
    """

    vocab_size: Annotated[int, msgspec.Meta(gt=0, lt=1 << 24)]
    hidden_size: Number
    layers: Number
    context_tokens: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    weight_bytes: Annotated[int, msgspec.Meta(ge=0)]
    precision: Text
    kernels: Text
    notes: list[Text]
    ends: Numbers
    files: dict[Text, bytes]


class Progress(PlanMessage, tag=3):
    """Tokens of a prompt that are read."""

    done: Number
    total: Number


class Done(PlanMessage, tag=4):
    """The request is done; so many tokens of its text are held."""

    held: Number = 0


class Verdict(PlanMessage):
    """The rule's decision, and log-probabilities of the children of visited nodes and of the bonus."""

    path: Numbers
    bonus: Number
    sources: list[Source | None]
    logprobs: list[float]
    bonus_logprob: float


class Embedded(PlanMessage):
    """(tokens, d) rows of the embedding."""

    tokens: Numbers
    rows: Packed


class Passed(PlanMessage, tag=5):
    """A tree was read, in so many seconds.

    Args:
        first: the likeliest token of each row.
        likeliest, highest: (rows, K) tokens and their log-probabilities, where they were asked for.
        states: for each layer asked for, of visited nodes where there is a verdict, else of all.
        text: of tokens of the text that were read in the same pass, where there were any.
        embedded: of emitted tokens, where embeddings were asked for before, and not those of these tokens.
    """

    took_s: float
    first: Numbers
    likeliest: Packed | None
    highest: Packed | None
    verdict: Verdict | None
    logits: Packed | None
    states: list[Packed]
    text: States | None
    embedded: Embedded | None = None


class Tensors(PlanMessage, tag=6):
    """(rows, V) logits, or (tokens, d) rows of a matrix."""

    rows: Packed


class States(PlanMessage, tag=8):
    """States of tokens of the text from `start` on that were just read: (tokens, d) for each layer."""

    start: Number
    layers: list[Packed]


class Sum(PlanMessage, tag=9):
    """The checksum of weights."""

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Failed(PlanMessage, tag=7):
    """The request could not be done."""

    why: Text


Answer = Hello | Said | Opened | Progress | Done | Passed | Tensors | States | Sum | Failed

_encoder = msgspec.msgpack.Encoder()
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
call_of = decoding(msgspec.msgpack.Decoder(Call), "what arrived is no message")
answer_of = decoding(_answers, "what arrived is no message")


def encoded(message: Call | Answer) -> bytes:
    """PlanRefused: it is larger than a message may be."""
    data = _encoder.encode(message)
    demand(len(data) <= MOST_BYTES, f"a message of {len(data)} bytes")
    return data


# -------------------------------------------------------------------------------------------------- tensors


def packed(values: Tensor) -> Packed:
    values = values.detach().cpu().contiguous()
    if str(values.dtype).removeprefix("torch.") not in _FLOATS | _TOKENS:
        values = values.float()
    name = str(values.dtype).removeprefix("torch.")
    return Packed(name, list(values.shape), values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")


def unpacked(values: Packed, *sizes: int) -> Tensor:
    """The tensor of floats; PlanRefused: it has not these sizes, of which −1 may be any."""
    return _unpacked(values, _FLOATS, sizes)


def unpacked_tokens(values: Packed, vocab_size: int, *sizes: int) -> Tensor:
    """The tensor of tokens, int64; PlanRefused: as for floats, or the vocabulary does not have them."""
    tokens = _unpacked(values, _TOKENS, sizes).long()
    inside = not tokens.numel() or (int(tokens.min()) >= 0 and int(tokens.max()) < vocab_size)
    demand(inside, "a token that the vocabulary does not have")
    return tokens


def _unpacked(values: Packed, dtypes: Mapping[str, torch.dtype], sizes: Sequence[int]) -> Tensor:
    fits = len(values.sizes) == len(sizes) and all(
        have == want or want < 0 for have, want in zip(values.sizes, sizes, strict=True)
    )
    dtype = dtypes.get(values.dtype)
    demand(dtype is not None and fits, f"a tensor of {values.dtype[:20]} and {values.sizes[:4]}")
    assert dtype is not None, "refused above"
    demand(dtype.itemsize * math.prod(values.sizes) == len(values.data), "a tensor of another length")
    if not values.data:
        return torch.zeros(values.sizes, dtype=dtype)
    return torch.frombuffer(bytearray(values.data), dtype=dtype).view(values.sizes)


# -------------------------------------------------------------------------------------------------- judging


def judge_message(tree: TokenTree, judging: Judging) -> Judge:
    """How to judge this tree, as a message."""
    wanted = judging.sampling
    sampling = {name: getattr(wanted, name) for name in Sampling.__dataclass_fields__ if name != "bias"}
    laws: list[Law] = []
    draws = _draws(tree, laws) if judging.looks_at_draws else []
    return Judge(
        *(judging.rule, dict(judging.options), judging.text, judging.prompt, judging.round),
        *(judging.noise.seed, sampling, list(wanted.bias), laws, draws),
    )


def _draws(tree: TokenTree, laws: list[Law]) -> list[Drawn]:
    places: dict[tuple[int, int], int] = {}  # children of a node share a law
    held: list[Tensor] = []  # so that no address is used twice
    found: list[Drawn] = []
    for parent in range(len(tree)):
        for child, guess in tree.draws(parent):
            place = None
            if guess.q is not None:
                key = guess.q.data_ptr(), guess.q.numel()
                if key not in places:
                    places[key] = len(laws)
                    held.append(guess.q)
                    laws.append(_law(guess.q))
                place = places[key]
            found.append(Drawn(child, guess.kind, guess.proposer[:256], place, guess.source))
    return found


def _law(q: Tensor) -> Law:
    q = q.detach().cpu()
    ids = torch.nonzero(q).squeeze(1)
    if ids.numel() * (4 + q.element_size()) < q.numel() * q.element_size():
        return Law(packed(ids.int()), packed(q[ids]))
    return Law(None, packed(q))


def _law_of(law: Law, vocab_size: int) -> Tensor:
    if law.ids is None:
        return unpacked(law.values, vocab_size)
    ids, values = unpacked_tokens(law.ids, vocab_size, -1), unpacked(law.values, -1)
    demand(len(ids) == len(values), "a law of another length")
    return torch.zeros(vocab_size, dtype=values.dtype).index_put_((ids,), values)


def context_of(judge: Judge, history: list[int], vocab_size: int) -> Context:
    """The context of the round there; PlanRefused: it speaks of another text, or of sampling that there is not."""
    demand(judge.text == len(history) and 0 < judge.prompt <= judge.text, "a round of another text")
    demand(judge.sampling.keys() <= Sampling.__dataclass_fields__.keys(), "sampling that there is not")
    fields: dict[str, Any] = dict(judge.sampling)
    if "top_k" in fields:
        fields["top_k"] = int(fields["top_k"])
    sampling = Sampling(**fields, bias=tuple(judge.bias))
    return Context(history, judge.prompt, vocab_size, sampling, Noise(judge.seed), round=judge.round)


def tree_of(read: Read, vocab_size: int) -> TokenTree:
    """The tree that a message tells, its nodes numbered alike; PlanRefused: it is none."""
    tokens, parents, count = read.tokens, read.parents, len(read.tokens)
    demand(0 < count <= MOST_ROWS and len(parents) == count and parents[0] == -1, f"a tree of {count} nodes")
    demand(all(0 <= parent < node for node, parent in enumerate(parents[1:], 1)), "a node before its parent")
    demand(all(token < vocab_size for token in tokens), "a token that the vocabulary does not have")
    demand(len(set(zip(parents, tokens, strict=True))) == count, "two children with one token")
    if read.judge is None or not read.judge.draws:
        return TokenTree.of_points(tokens[0], vocab_size, parents[1:], tokens[1:], map(Guess, tokens[1:]))
    tree = TokenTree(tokens[0], vocab_size)
    laws = [_law_of(law, vocab_size) for law in read.judge.laws]
    draws: dict[int, list[tuple[int, Guess]]] = {}
    for drawn in read.judge.draws:
        demand(0 < drawn.child < count and (drawn.law is None or drawn.law < len(laws)), "a draw of no node")
        q = None if drawn.law is None else laws[drawn.law]
        guess = Guess(tokens[drawn.child], drawn.kind, q, None, drawn.proposer, drawn.source)
        demand(q is not None or guess.kind is DrawKind.POINT, "a sampled draw without a law")
        known = guess.source is None or guess.source < read.judge.text or guess.source >= STORED
        demand(known, "a copy of a token that there is not")
        draws.setdefault(parents[drawn.child], []).append((drawn.child, guess))
    taken = dict.fromkeys(draws, 0)
    for node in range(1, count):  # in the order of nodes, so that they get their numbers again
        parent = parents[node]
        while tree.child(parent, tokens[node]) is None:
            demand(taken.get(parent, 0) < len(draws.get(parent, ())), "a node that nobody drew")
            demand(draws[parent][taken[parent]][0] <= node, "draws in another order than their nodes")
            tree.add(parent, draws[parent][taken[parent]][1])
            taken[parent] += 1
    for parent, all_draws in draws.items():
        for _, guess in all_draws[taken[parent] :]:
            tree.add(parent, guess)
    return tree.freeze()


def judged(verdict: Verdict | None, took_s: float, tree: TokenTree, vocab_size: int) -> Elsewhere:
    """The target's verdict; PlanRefused: it is none about this tree."""
    demand(0 <= took_s < 1e9, "no time that a pass takes")
    if verdict is None:
        return Elsewhere(took_s)
    at = 0
    for node in verdict.path:
        demand(node < len(tree) and tree.parents[node] == at, "a path that is not in the tree")
        at = node
    demand(verdict.bonus < vocab_size, "a bonus that the vocabulary does not have")
    demand(all(value < 1 for value in (*verdict.logprobs, verdict.bonus_logprob)), "no log-probabilities")
    if verdict.sources:
        demand(len(verdict.sources) == len(verdict.path), "sources of other tokens")
        for node, source in zip(verdict.path, verdict.sources, strict=True):
            drawn = {draw.guess.source for draw in tree.draws(tree.parents[node]) if draw.child == node}
            demand(source is None or source in drawn, "sources of other tokens")
    return Elsewhere(took_s, tuple(verdict.path), verdict.bonus, tuple(verdict.sources))


def logprob_pairs(tree: TokenTree, path: Sequence[int]) -> list[tuple[int, int]]:
    """Node and token of each child of a visited node: a verdict's log-probabilities are theirs."""
    below: dict[int, list[int]] = {node: [] for node in (0, *path)}
    for node in range(1, len(tree)):
        if (found := below.get(tree.parents[node])) is not None:
            found.append(tree.tokens[node])
    return [(node, token) for node, tokens in below.items() for token in tokens]
