"""The seams: what a round's parts are asked. The second file to read, after `decoding/speculate.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.reading import Counters, Reading
from specchat.core.request import (
    DEFAULT_REQUEST,
    FIRST,
    LOGITS,
    ExtraRow,
    HeadNeeds,
    HeadOfSome,
    Judging,
    LayerHook,
    PassRequest,
)
from specchat.core.round import Round, Verdict
from specchat.core.sampling import Sampling
from specchat.core.states import HiddenStateSink
from specchat.core.tree import DrawKind, Guess, TokenTree

OnChunk = Callable[[int, int], None] | None
"""Told how many tokens of a text are read, and of how many, while it is being read; may raise to stop."""


class Weights(Protocol):
    """A network's weights and what can be made of them without touching its cache.

    Layers count from 0, in views as in what they are views of.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    context_tokens: int
    device: torch.device

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) what the first layer gets for these tokens."""

    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) output-head rows of these tokens, the final norm's factors folded in; float32, on the processor."""

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head with rows for these tokens alone, for passes that ask for it (`PassRequest.head`)."""

    def with_new_cache(self) -> Model:
        """The same network with a cache of its own."""

    def view(
        self,
        layers: Collection[int] | None = None,
        skip_attention: Collection[int] = (),
        skip_mlp: Collection[int] = (),
    ) -> Model:
        """The same network with some of its layers or half layers left out, and a cache of its own.

        What is left out adds nothing to the states and costs nothing.

        Args:
            layers: those that take part; None for all.
            skip_attention: layers whose attention is left out.
            skip_mlp: layers whose MLP is left out.
        """


class Model(Weights, Protocol):
    """A network with a cache, which reads token trees. Target and draft model are both one.

    A text longer than `context_tokens` is not refused here: callers keep within it, as `decoding.conversation` does by
    refusing long prompts and ending replies. A tree may reach a little beyond it.

    Attributes:
        flexible_passes: whether it takes hooks and extra rows, makes views, and applies its head alone. One that cannot
            refuses what asks for that, and still shows states after its layers.
        chunk_bytes: memory that a pass over more than CHUNK_TOKENS of a prompt may take on top of the caches.
    """

    flexible_passes: bool
    chunk_bytes: int

    counters: Counters

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""

    def recall(self, tokens: Sequence[int]) -> None:
        """Put back into the cache what was kept of this text elsewhere, where that is more than the cache holds."""

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk = None, tap: HiddenStateSink | None = None) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet.

        Ends a round that was not kept: rows of its tree are forgotten. `on_chunk(done, total)` is told about
        progress and may raise to stop; what was read so far stays in the cache. A handful of missing tokens may
        be put off until the next `read`, which then reads them in the same pass. `tap` is given the states of what
        is read here; those of tokens that were put off come with that `read`, if it asks for taps.

        Raises:
            Exception: whatever `on_chunk` or `tap` raises.
        """

    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Make the cache hold some rows of a text: copies of those that the model it was made from holds.

        To what is read afterwards it is as if the text's other tokens could not be seen; positions stay those of the
        text. `prefill` and `keep` go on from there. Of the text only as much counts as the other model holds; `cached`
        says how much that was.

        Args:
            tokens: the text.
            positions: ascending, which of its tokens; those that the other model does not hold are left out.
        """

    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones (ascending, their parents read before).

        Raises:
            ModelError: the adapter of an extra row does not fit the network.
            Exception: whatever a hook of the request raises.
        """

    def keep(self, path: Sequence[int]) -> None:
        """End the round: keep the root and the accepted path, forget the rest of the tree.

        The path may end in nodes that were never read; the cache then ends before them. It needs no free context and
        raises nothing.
        """

    def fill_for_benchmark(self, tokens: int) -> None:
        """Act as if so many tokens had been read, with arbitrary contents: for measuring costs only."""

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """The most memory that its cache, and those of its twins and views, take until each holds so many tokens.

        Args:
            longest: the longest text that the caches must hold, if not `context_tokens`.
        """

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        """The most memory that a pass of so many rows behind a text of so many tokens takes on top of the caches, its
        result included.

        Args:
            logits: whether the head is computed, as it is not for a prompt.
        """

    def chunk_after(self, tokens: int) -> int:
        """How many tokens of a prompt are read in one pass behind so many of them."""

    def limit_context_(self, tokens: int) -> None:
        """Take no longer texts than this. In place; its caches grow no further."""


Proposal = Sequence[Sequence[Guess]]
"""For each frontier node in order, its guesses, best first."""


class Drafter(ABC):
    """Guesses what probably follows the nodes of a tree. A method overrides what it needs; all but `propose` has a
    default.

    A drafter made of others says which in its options (a property `members`), and its line in the table
    says what it requires of a pair (`registry.Method.requires`): both are read without importing the drafter.

    Attributes:
        hidden_state_sink: receives the target's hidden states of every accepted token, each once and without a gap,
            those of the prompt included; never those of rejected nodes. Where it can `skip`, rounds whose budget
            allows no passes bring it tokens alone. States that begin at a position it was given before replace what it
            knows from there on: the text was edited or cut.
    """

    hidden_state_sink: HiddenStateSink | None = None
    kinds: ClassVar[frozenset[DrawKind]] = frozenset({DrawKind.POINT})
    """What `draw_kinds` says where neither options nor members decide it."""
    mixes_members: ClassVar[bool] = False
    """Whether guesses of several members may stand beside each other at a node."""

    @classmethod
    def draw_kinds(cls, options: Any, members: Sequence[Collection[DrawKind]]) -> Collection[DrawKind]:
        """The kinds of draws it makes where a rule wants them: what a rule may rely on. By default points alone,
        whatever its members promise.

        Args:
            options: the drafter's.
            members: for each drafter it is made of, the kinds that one promises.
        """
        return cls.kinds

    @staticmethod
    def names_sources(options: Any, members: Sequence[bool]) -> bool:
        """Whether its guesses say which token of the text they are copies of (`Guess.source`)."""
        return False

    def stored_text(self, source: int, most: int) -> tuple[str, int, Sequence[int]] | None:
        """For a source of its guesses in a datastore: the file, the index there, up to `most` tokens before it in its
        text; None for other sources."""
        return None

    @property
    def taps(self) -> Collection[int]:
        """Layers of the target whose states it wants to find in the reading of rounds that may draft with passes."""
        return ()

    @property
    def needs(self) -> HeadNeeds:
        """Which parts of the target's readings `observe` looks at. Asked when a text begins or changes."""
        return FIRST

    @property
    def passes(self) -> int:
        """How many forward passes of draft models it has run so far."""
        return 0

    def start(self, history: Sequence[int]) -> None:
        """A text begins or changed other than by a round: new chat, edit, branch, switch of methods."""

    @abstractmethod
    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """Up to `width` guesses for each frontier node of a growing tree."""

    def grow_at_once(self, context: Context, plan: GrowthPlan) -> TokenTree | None:
        """The frozen tree that policies would grow of its proposals, in one call of compiled code; None where it must
        be grown level by level."""
        return None

    def extra_rows(self, tree: TokenTree) -> Sequence[ExtraRow]:
        """Rows to attach to the target's pass over this tree; their logits come back in the round's reading.

        Not asked in rounds that were planned without any nodes: plain decoding stays a pass of one row.
        """
        return ()

    def observe(self, round: Round) -> None:
        """Learn from a round, rejected nodes included. Find the accepted path by tokens: a transform may have
        renumbered the nodes."""

    def close(self) -> None:
        """Let go of what it holds: it is not used again."""


class TreePolicy(ABC):
    """Decides which guesses deserve a place. A method overrides what it needs; all but `grow` has a default.

    Attributes:
        keeps_draws: whether no draw gets its place, or loses it, because of its own token, so that sampled draws keep
            their law. Declared by the class; one that does not declare it promises nothing.
        unsuited_draws: kinds of draws for which it cannot promise this.
    """

    keeps_draws: bool = False
    unsuited_draws: Collection[DrawKind] = ()

    @property
    def taps(self) -> Collection[int]:
        """Layers of the target whose states it wants to find in the round's reading."""
        return ()

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        """Looks into the target's pass over this tree, which may drop nodes on the way."""
        return ()

    @abstractmethod
    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """A frozen tree below the root, within the budget: at most 1 + `budget.nodes` nodes; the root alone where that
        is 0 or nothing is proposed."""

    def observe(self, round: Round) -> None:
        """Learn from a round: which guesses stood, what the passes took."""


class AcceptanceRule(ABC):
    """Decides which guesses stand. A method overrides what it needs; all but `judge` has a default.

    Attributes:
        lossless: whether its text is distributed exactly as the target's.
        wanted: the kind of draws it makes best use of.
        wants_q: whether it needs the draft's distribution at points too. Drafters that know it then let points carry q.
        wants_sources: whether it needs guesses that say which token of the text they are copies of.
        wants_target: whether it is built from the target and its tokens, too.
        judges_branches: whether tokens below a draw decide about it. Then points may not stand beside draws at a node:
            see `acceptance.branches`, and `Drafter.mixes_members`.
    """

    lossless: bool = False
    wanted: DrawKind = DrawKind.POINT
    wants_q: bool = False
    wants_sources: bool = False
    wants_target: bool = False
    judges_branches: bool = False

    def __init__(self, options: object = None) -> None:
        """A rule without options."""

    @property
    def taps(self) -> Collection[int]:
        """Layers of the target whose states it wants to find in the reading."""
        return ()

    def needs(self, sampling: Sampling) -> HeadNeeds:
        """Which head outputs it needs when the target samples like this; by default logits, to weigh probabilities."""
        return LOGITS

    def judging(self, context: Context) -> Judging | None:
        """Asks the target to judge the round's tree itself; None where `judge` does it here."""
        return None

    @abstractmethod
    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """The accepted path and the bonus token."""


class Controller(ABC):
    """Decides how hard to speculate next. A method overrides what it needs; all but `plan` has a default.

    Attributes:
        wants_memory: whether it is built from what the pair's models take and the limit on that, too.
    """

    wants_memory: bool = False

    def __init__(self, options: object, budget: Budget, costs: Costs | None = None) -> None:
        """Nothing learnt yet.

        Args:
            budget: the user's own width, depth and nodes, which no plan exceeds.
            costs: what passes cost on this machine, as far as it was measured.
        """
        self._budget = budget

    @abstractmethod
    def plan(self, context: Context) -> Budget:
        """The next round's budget."""

    def observe(self, round: Round) -> None:
        """Learn from a round, its timings included."""

    def learn_with(self, other: Controller) -> None:
        """Learn from now on from the rounds of another text, too, as its controller learns from these; not by default.

        Args:
            other: of the same class, with the same options and budget, over the same models.
        """

    def save_state(self) -> bytes:
        """The state that a later engine with the same models may begin with; none by default."""
        return b""

    def restore_state(self, state: bytes) -> None:
        """Begin with what `save_state` gave; ValueError if it is something else, and nothing has changed then."""


class NestedEngine(Protocol):
    """Parts that fit together and write a text round by round. A drafter may let a smaller engine write ahead."""

    def start(self, history: Sequence[int]) -> None:
        """A text begins or changed other than by this engine's rounds."""

    def round(self, context: Context) -> Round:
        """Do one round and append what it emits to the context's history."""


class TargetElsewhere(ABC):
    """A model on another machine, which judges trees there.

    Attributes:
        at: the machine, as the setting `target_at` names it.
        kernels: what it runs through there, as `Loaded.kernels` says.
    """

    at: str
    kernels: str

    @abstractmethod
    def weights_sha256(self) -> str:
        """The checksum of the weights there."""

    @abstractmethod
    def close(self) -> None:
        """End the process there; a text would start it anew."""
