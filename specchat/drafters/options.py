"""Options of the drafters, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from specchat.drafters.members import Member, parse_members
from specchat.errors import UsageError, nearest, short
from specchat.registry import fraction, option

token_count = partial(option, unit="tokens")


@dataclass(frozen=True)
class PromptLookupOptions:
    max_ngram: int = token_count(4, "longest run of last tokens to look for", minimum=1, maximum=32)
    min_ngram: int = token_count(1, "shortest run of last tokens to look for", minimum=1, maximum=32)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise UsageError(
                f"prompt_lookup.min_ngram = {self.min_ngram} is above prompt_lookup.max_ngram = {self.max_ngram}"
            )


@dataclass(frozen=True)
class TokenRecyclingOptions:
    k: int = token_count(8, "successors kept for every token", minimum=1, maximum=64)
    remember: bool = option(True, "keep the successors when another text begins")


@dataclass(frozen=True)
class SuffixOptions:
    depth: int = token_count(64, "longest run looked at, match and continuation together", minimum=2, maximum=256)
    factor: float = option(1.0, "tokens drafted per token of the match", minimum=0.0, maximum=16.0)
    offset: int = token_count(1, "tokens drafted on top of that", minimum=0, maximum=64)
    min_match: int = token_count(
        1, "shortest run of last tokens that is drafted from, as prompt_lookup.min_ngram", minimum=1, maximum=255
    )
    min_probability: float = option(
        0.1, "continuations less likely than this are not drafted", minimum=0.001, maximum=1.0
    )
    remember: int = token_count(65536, "tokens of past replies kept; the oldest replies go first", minimum=0)

    def limit(self, match: int) -> int:
        """How many tokens a match of this length may draft."""
        return int(self.factor * match) + self.offset if match >= self.min_match else 0


@dataclass(frozen=True)
class DatastoreOptions:
    store: str = option("", "which datastore, by name; if empty, the newest with the target's tokens")
    longest: int = token_count(8, "longest run of last tokens to look for", minimum=1, maximum=32)


def which_draft_model() -> Any:
    """The option `model`, which every method that uses a draft model has."""
    return option("", "which of the pair's draft models to use, by name; if empty, the first")


DIVERGENCES = ("forward_kl", "reverse_kl", "jsd", "tvd")
"""How a draft model's law can be brought to the target's by `/learn`."""


def stops() -> Any:
    """The option `stop`: see `StopHead`."""
    return fraction(
        1.0,
        "a branch ends where a guess is refused with more than this chance, as a head on the draft model's states "
        "says, which learns from every round; 1: never",
    )


def learns_by() -> Any:
    """The option `divergence` of drafters whose draft model learns from replies."""
    return option(
        "forward_kl", "what /learn makes small between the target's law and the draft model's", choices=DIVERGENCES
    )


def learns_topics() -> Any:
    """The option `topics` of drafters whose draft model learns from replies."""
    return option(
        1, "the most topics for which /learn keeps adapters of their own; replies go to one by their prompts",
        minimum=1, maximum=16,
    )  # fmt: skip


def probabilities(text: str) -> tuple[float, ...]:
    """The numbers of `draft_model.leave_at`; UsageError for one that is no probability."""
    try:
        numbers = tuple(float(word) for word in text.split("/"))
    except ValueError:
        numbers = ()
    if not numbers or not all(0.0 <= number <= 1.0 for number in numbers):
        raise UsageError(
            f"draft_model.leave_at = {short(text)} is not a number from 0 to 1, or several with / between them, as "
            "0.7/0.5"
        )
    return numbers


@dataclass(frozen=True)
class DraftModelOptions:
    drawing: str = option(
        "auto",
        "how children are chosen: the most likely (top), or with the target's own noise (coupled); "
        "auto is coupled when the temperature is above 0",
        choices=("auto", "top", "coupled"),
    )
    model: str = which_draft_model()
    trim: int = token_count(
        -1,
        "how many of the target's most used tokens can be guessed, besides those of the text: a smaller head is "
        "quicker; 0 for all, -1 for what fits the pair: half of a vocabulary above 32768 tokens, at most 65536",
        minimum=-1,
    )
    stop: float = stops()
    leave_at: str = option(
        "0.7",
        "with a draft model that was trained at several depths, a token leaves at the first whose likeliest next token "
        "has at least this probability: one for all depths but the last, or one for each, as 0.7/0.5; 1: never",
        check=probabilities,
    )
    divergence: str = learns_by()
    topics: int = learns_topics()

    window: int = token_count(
        0,
        "of a longer text the draft model reads only the first 16 tokens and the last ones, so many together; 0: all",
        minimum=0,
        least_above_zero=32,
    )


@dataclass(frozen=True)
class CrossVocabularyOptions:
    model: str = which_draft_model()
    stop: float = stops()
    divergence: str = learns_by()
    topics: int = learns_topics()


@dataclass(frozen=True)
class RetrievedContextOptions:
    budget: int = token_count(1024, "tokens of a text that the draft model reads", minimum=32, maximum=1_000_000)
    chunk: int = token_count(64, "tokens that are retrieved together", minimum=4, maximum=4096)
    refresh: int = token_count(256, "tokens after which the part of the text is chosen again", minimum=1, maximum=65536)
    model: str = which_draft_model()


def trained_weights() -> Any:
    """The option `weights`, which every method that needs weights has."""
    return option("", "which trained drafter to use, by name; if empty, the newest for the target")


@dataclass(frozen=True)
class MaskRowsOptions:
    """Options of the drafters that are trained masks: `prompt_tokens` and `mtp`."""

    weights: str = trained_weights()
    rows: int = option(
        6,
        "the most rows of masks in a pass; 0: as many as pay, by what a row takes here and is worth",
        unit="rows",
        minimum=0,
        maximum=256,
    )
    behind: str = option(
        "likeliest",
        "where masks stand: behind all nodes, those first that are the likeliest to end what is accepted, or behind "
        "the last node of the likeliest path alone",
        choices=("likeliest", "last"),
    )


@dataclass(frozen=True)
class StreamOptions(MaskRowsOptions):
    rows: int = option(
        256,
        "the most rows of streams in a pass; 0: as many as pay, by what a row takes here and is worth",
        unit="rows",
        minimum=0,
        maximum=1024,
    )


@dataclass(frozen=True)
class TrainedNetworkOptions:
    """Options of the drafters that are trained networks, such as `hydra`."""

    weights: str = trained_weights()
    tokens: int = token_count(
        2048, "how many of the most used tokens it can guess, besides those of the text", minimum=1
    )


ORDERS = ("left_to_right", "confidence")
"""Orders in which the places of a window are filled."""


@dataclass(frozen=True)
class SpecDiffOptions(TrainedNetworkOptions):
    order: str = option(
        "left_to_right",
        "which places of a window are filled first: those to the left, or those of which the network is surest; filled "
        "in several steps by confidence, guesses have no true probabilities and are points",
        choices=ORDERS,
    )
    steps: int = option(2, "passes in which a window is filled", minimum=1, maximum=64)
    window: int = token_count(
        0, "tokens that are guessed ahead; 0: as many as it was trained for", minimum=0, maximum=64
    )

    def __post_init__(self) -> None:
        if self.window and self.steps > self.window:
            raise UsageError(
                f"specdiff.steps = {self.steps} is above specdiff.window = {self.window}; nearest that works: "
                f"{self.window}"
            )

    @property
    def draws(self) -> bool:
        """Whether each place is filled before those behind it are, so that its q is that of its draw."""
        return self.order == ORDERS[0] or self.steps == 1


@dataclass(frozen=True)
class JacobiOptions:
    window: int = token_count(
        4, "places ahead that are guessed in parallel, each a row of every pass", minimum=1, maximum=64
    )


@dataclass(frozen=True)
class LookaheadOptions:
    window: int = token_count(5, "places ahead that are guessed in parallel", minimum=2, maximum=64)
    ngram: int = token_count(
        3, "length of an n-gram; a pass gets window − 1 + window × (ngram − 2) more rows", minimum=2, maximum=16
    )
    guesses: int = option(8, "continuations kept for the beginning of an n-gram", minimum=1, maximum=64)
    remember: bool = option(True, "keep the n-grams when another text begins")


@dataclass(frozen=True)
class LayerSkipOptions:
    ratio: float = fraction(0.3, "share of all attention and MLP sub-layers that is left out")
    sure: float = fraction(0.8, "a guess gets no children if the likeliest token in its place is less likely than this")
    window: int = token_count(32, "tokens of the reply on which sets of sub-layers are tried", minimum=4, maximum=256)


@dataclass(frozen=True)
class EarlyExitOptions:
    exits: int = option(
        8, "layers that are compared as exits, at equal distances", unit="layers", minimum=1, maximum=64
    )
    decay: float = option(
        0.97, "factor on the weight of older tokens in an exit's record, per newer token", minimum=0.5, maximum=0.999
    )


@dataclass(frozen=True)
class SparseContextOptions:
    budget: int = token_count(1024, "rows of its cache that the target drafts with", minimum=32, maximum=1_000_000)
    refresh: int = token_count(64, "tokens after which the part of the text is chosen again", minimum=1, maximum=65536)
    below: str = option(
        "token_recycling", "the drafter for the target with the part, with options in parentheses; or none"
    )
    ahead: int = token_count(
        3, "guesses of that drafter in one pass of the target with the part", minimum=0, maximum=64
    )

    def __post_init__(self) -> None:
        if len(self.members) != 1:
            raise UsageError(f"sparse_context.below = {short(self.below)} must be one drafter, such as token_recycling")

    @property
    def members(self) -> tuple[Member, ...]:
        return parse_members("sparse_context.below", self.below)


PRUNED_GROUPS = ("heads", "channels", "dimensions")
"""Kinds of units that `pruned` can leave out."""


@dataclass(frozen=True)
class PrunedOptions:
    ratio: float = option(0.2, "share of the units of each kind that is left out", minimum=0.0, maximum=0.9)
    groups: str = option(
        "heads+channels",
        "kinds of units that are left out, with + between them: heads and channels of the MLP, in every layer, and "
        "dimensions of the hidden state, the same ones everywhere",
        check=lambda text: pruned_groups(text),
    )
    samples: int = option(8, "texts of 64 tokens on which importance is measured", minimum=1, maximum=64)
    recover: int = option(
        0,
        "steps of learning from these texts what was lost by pruning, while the engine is idle; 0: none",
        minimum=0,
        maximum=1000,
    )


def pruned_groups(text: str) -> frozenset[str]:
    """The kinds of units that an option like `heads+channels` names; UsageError for none and for others."""
    named = text.replace("+", " ").replace(",", " ").split()
    wrong = next((name for name in named if name not in PRUNED_GROUPS), None if named else "")
    if wrong is not None:
        raise UsageError(f"pruned.groups = {short(text)} names no kind of unit{nearest(wrong, PRUNED_GROUPS)}")
    return frozenset(named)


class _MadeOf:
    """Options of which `of` names drafters; those that cannot be read are refused at once."""

    method: ClassVar[str]
    of: str

    def __post_init__(self) -> None:
        _ = self.members

    @property
    def members(self) -> tuple[Member, ...]:
        """The drafters it is made of, in order; whether they exist, the drafters' table knows."""
        return parse_members(f"{self.method}.of", self.of)


@dataclass(frozen=True)
class MergeOptions(_MadeOf):
    method: ClassVar[str] = "merge"

    of: str = option(
        "suffix,token_recycling",
        "drafters whose guesses are merged, with commas or + between them; one may be named again with other options: "
        "suffix(depth=8)+suffix(depth=64)",
    )
    sure: float = fraction(
        0.6, "a draft model or a trained network is not asked where the others have a guess at least this likely"
    )


@dataclass(frozen=True)
class CascadeOptions(_MadeOf):
    method: ClassVar[str] = "cascade"

    of: str = option(
        "suffix,token_recycling",
        "drafters in the order in which they are asked, with commas or + between them: suffix+draft_model",
    )
    least: float = fraction(0.0, "a drafter before the last is used if it has a guess at least this likely")


@dataclass(frozen=True)
class SeveralOptions(_MadeOf):
    method: ClassVar[str] = "several"

    of: str = option(
        "suffix,token_recycling",
        "drafters that grow a tree each, with commas or + between them: draft_model+draft_model(model=NAME)+suffix",
    )


@dataclass(frozen=True)
class FuseOptions:
    draft: str = option("draft_model", "the drafter that decides what is likely: a draft model or a trained network")
    lookup: str = option("suffix", "the drafter whose guesses are pruned and grafted")
    top: int = token_count(8, "looked-up tokens stay if they are among this many of the draft's likeliest", minimum=1)

    def __post_init__(self) -> None:
        for key in ("draft", "lookup"):
            if len(parse_members(f"fuse.{key}", getattr(self, key))) != 1:
                raise UsageError(f"fuse.{key} = {short(getattr(self, key))} must name one drafter")

    @property
    def members(self) -> tuple[Member, ...]:
        """The draft, then the lookup."""
        return (*parse_members("fuse.draft", self.draft), *parse_members("fuse.lookup", self.lookup))
