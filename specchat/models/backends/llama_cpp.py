"""A GGUF file through llama.cpp, as a `Model`: a token tree is one decode call over the sequences of its leaves.

A cell of llama.cpp's cache belongs to any number of sequences, and a row attends to the cells of its sequence that lie
before it. So each leaf of a tree is a sequence, and a node belongs to those of the leaves below it. The sequence of the
accepted path is kept, and becomes the text's.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from specchat.compiled import machine as host
from specchat.config.values import ModelSpec, gguf_parts
from specchat.core.reading import Counters, HeadOutput, HeadTensors, Reading
from specchat.core.request import DEFAULT_REQUEST, PassRequest
from specchat.core.seams import OnChunk
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import NotEnoughMemory, UsageError
from specchat.models.backends.llama_library import SEQUENCES, LlamaCache, LlamaWeights, library, offloads
from specchat.models.decoder.cache_rows import Rows, common_prefix
from specchat.models.decoder.cached_model import FixedPasses
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.weights.families import GGUF_FAMILIES
from specchat.models.weights.gguf_header import read_header
from specchat.models.weights.weight_source import AdjustedSource, WeightSource, head_rows

LLAMA = "llama.cpp"

_TREE_ROWS = 640
"""Room behind a text: the largest tree, and tokens that were put off."""

_FIRST_ROWS = 2048
_ROUND_ROWS = 256
_ALIKE_ROWS = (2, 8, 32)
_TEXT = -1
"""Stands for the end of the text where a node could stand."""


class LlamaCppModel(FixedPasses):
    """Runs a GGUF file in llama.cpp. It shows states after layers, and rows of embedding and head, which it reads from
    the file; it takes no extra rows, leaves out no layers, and its cache copies no single rows.

    The rows of a pass are numbers of the same file whatever their number, but llama.cpp's kernels may add them up in
    another order for one row than for many (`rows_alike`). Then a text may part from plain decoding's at a near-tie.
    """

    runs_in = "llama.cpp"
    instead = "backend = own"

    def __init__(self, weights: LlamaWeights, context_tokens: int, threads: int = 1) -> None:
        """Nothing read yet; memory for the cache is taken when the first text comes, and grows with it."""
        self.weights = weights
        self.vocab_size, self.hidden_size, self.layers = weights.vocab_size, weights.hidden_size, weights.layers
        self.context_tokens = context_tokens
        self.device = torch.device("cpu")
        self.counters = Counters()
        self.rows = Rows()
        self._threads = threads
        self._twins: weakref.WeakSet[LlamaCppModel] = weakref.WeakSet([self])
        self._cache: LlamaCache | None = None
        self._base = 0  # the sequence of the text
        self._held = 0  # so many of its rows are in it
        self._tree: TokenTree | None = None
        self._of: dict[int, int] = {}  # node → a sequence that holds it
        self._tips: dict[int, int] = {}  # sequence → its last node
        self._tapped = False  # whether states were ever wanted: showing them slows all passes of a cache

    @property
    def threads(self) -> int:
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._threads = threads
        if self._cache is not None:
            self._cache.use_threads(threads)

    @cached_property
    def rows_alike(self) -> bool:
        """Whether the last row of a short text says the same to the bit alone and among 2, 8 and 32 rows.

        llama.cpp may take other kernels for other numbers of rows. With weights that stay in the file each pass may
        take long, so nothing is tried, and rows count as different.
        """
        if self.weights.options.mmap:
            return False
        twin, text = self.with_new_cache(), [(7 * at + 1) % self.vocab_size for at in range(12)]
        said = []
        for rows in (1, *_ALIKE_ROWS):
            tree, node = TokenTree(0, self.vocab_size), ROOT
            for token in range(1, rows):
                node = tree.add(node, Guess(token % self.vocab_size))
            twin.prefill(text)
            said.append(twin.read(tree.freeze()).after(ROOT).clone())
        return all(torch.equal(said[0], row) for row in said[1:])

    # ------------------------------------------------------------------------------------------ text

    def cached(self, tokens: Sequence[int]) -> int:
        return common_prefix(self.rows.prefix, tokens)

    def recall(self, tokens: Sequence[int]) -> None:
        """llama.cpp has a cache of its own, whose rows are not kept."""

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk = None, tap: HiddenStateSink | None = None) -> None:
        self._tree = None
        self.rows.read_prefix(tokens, lambda plan: self._read_text(plan.tokens, tap), on_chunk)

    def _read_text(self, tokens: Sequence[int], tap: HiddenStateSink | None) -> None:
        start, layers = len(self.rows.prefix), tap.layers if tap else frozenset()
        self._show_states(layers)
        self._settle(start, len(tokens))
        last = self.layers - 1 in layers  # llama.cpp computes those states of the rows whose logits are wanted
        states = self._decode([(token, start + at, (self._base,), last) for at, token in enumerate(tokens)], layers)
        self._held = start + len(tokens)
        if tap is not None:
            tap.take(TextStates(start, tuple(tokens), states))

    def _show_states(self, layers: Collection[int]) -> None:
        """Have a cache whose passes can show states, from when they are wanted first."""
        if layers and not self._tapped:
            self._tapped = True
            if self._cache is not None:
                self._replace_cache(self._cache.rows)

    def keep(self, path: Sequence[int]) -> None:
        held = 0
        while held < len(path) and path[held] in self._of:
            held += 1
        first = len(self.rows.prefix)
        kept = self.rows.keep(path[:held])
        if self._of:
            end = path[len(kept) - 2] if len(kept) > 1 else 0
            self._keep_sequence(self._of[end], first + len(kept))
        self._forget_tree()

    def fill_for_benchmark(self, tokens: int) -> None:
        """Act as if so many tokens had been read. The first time they are, since attention must have them to read."""
        counters, self.counters = self.counters, Counters()
        try:
            self.rows.rewind([])
            self._tree = None
            self._settle(min(self._held, tokens), max(0, tokens - self._held))
            while self._held < tokens:
                some = min(256, tokens - self._held)
                self._decode([(0, self._held + at, (self._base,), False) for at in range(some)])
                self._held += some
            self.rows.fill_for_benchmark(tokens)
        finally:
            self.counters = counters

    # ------------------------------------------------------------------------------------------ tree

    @torch.inference_mode()
    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """Read nodes of a tree in one pass, or in several where it has more leaves than the cache has sequences."""
        self.check_request(request)
        self._show_states(request.taps)
        plan = self.rows.plan_tree(tree, new_nodes, ())
        begin = len(self.rows.prefix)
        missing, nodes = list(plan.tokens[: plan.missing]), plan.nodes
        if self._tree is not tree:
            self._settle(begin, 0)
            self._tree, self._tips = tree, {self._base: _TEXT}
        root = begin + len(missing)
        logits = torch.empty(len(nodes), self.vocab_size)
        watch = LayerWatch(plan, request, tree)
        states = {layer: torch.empty(len(nodes), self.hidden_size) for layer in request.taps}
        text: dict[int, Tensor] = {}
        last = self.layers - 1 in request.taps
        row_of = {node: row for row, node in enumerate(nodes)}
        inner = {tree.parents[node] for node in nodes}
        leaves = [node for node in nodes if node not in inner]
        while leaves:
            group = self._sequences(tree, leaves, root)
            if not group:  # none is free: what was read of the tree is given up, and read again where it is needed
                self._drop_tree(root)
                continue
            leaves = leaves[len(group) :]
            below = self._below(tree, group)
            everyone = tuple(group.values())
            passed = [(token, begin + at, everyone, last) for at, token in enumerate(missing)]
            passed += [
                (tree.tokens[node], root + tree.depths[node], sequences, last or node in row_of)
                for node, sequences in below.items()
            ]
            shown = self._decode(passed, request.taps)
            assert self._cache is not None, "it was decoded with"
            for place, node in enumerate(below, len(missing)):
                if (row := row_of.pop(node, None)) is not None:
                    self._cache.copy_logits(place, logits[row])
                    for layer, rows in shown.items():
                        states[layer][row] = rows[place]
            if missing:
                text = {layer: rows[: len(missing)] for layer, rows in shown.items()}
            missing, self._held = [], root
            self._of |= {node: sequences[0] for node, sequences in below.items()}
            self._tips |= {sequence: leaf for leaf, sequence in group.items()}
        self.rows.tree_read(plan)
        said: HeadOutput = HeadTensors(logits) if request.head is None else request.head.after(logits)
        if states:
            watch.keep({layer: torch.cat([text[layer], rows]) if text else rows for layer, rows in states.items()})
        return watch.reading(said)

    def _sequences(self, tree: TokenTree, leaves: Sequence[int], root: int) -> dict[int, int]:
        """A sequence for each of the first leaves, as many as there are, holding what is read above the leaf.

        One that ends above a leaf is continued by it; the others are new and share its rows.
        """
        assert self._cache is not None, "room was made"
        free = [sequence for sequence in range(SEQUENCES) if sequence not in self._tips]
        given: dict[int, int] = {}
        continued: set[int] = set()
        for leaf in leaves:
            above = leaf
            while above != _TEXT and above not in self._of:
                above = tree.parents[above] if above else _TEXT
            holds = self._base if above == _TEXT else self._of[above]
            if self._tips[holds] == above and holds not in continued:
                continued.add(holds)
                given[leaf] = holds
            elif free:
                given[leaf] = new = free.pop()
                end = self._held if above == _TEXT else root + tree.depths[above] + 1
                self._cache.share(holds, new, end)
            else:
                break
        return given

    def _below(self, tree: TokenTree, group: dict[int, int]) -> dict[int, tuple[int, ...]]:
        """For each node that must be read for these leaves, parents first, the sequences of the leaves below it."""
        below: dict[int, list[int]] = {}
        for leaf, sequence in group.items():
            node = leaf
            while node not in self._of:
                below.setdefault(node, []).append(sequence)
                if not node:
                    break
                node = tree.parents[node]
        return {node: tuple(below[node]) for node in sorted(below)}

    # ------------------------------------------------------------------------------------------ cache

    def _settle(self, start: int, more: int) -> None:
        """Let the cache hold the first `start` rows of the text alone, and have room for more."""
        self._drop_tree(start)
        self._make_room(start + more + _TREE_ROWS)

    def _drop_tree(self, root: int) -> None:
        """Remove all rows behind the text's first so many."""
        if self._cache is not None and (self._of or self._held > root):
            self._keep_sequence(self._base, root)
        self._held = min(self._held, root)
        self._of = {}
        self._tips = {self._base: _TEXT}

    def _keep_sequence(self, sequence: int, rows: int) -> None:
        """Keep the first so many rows of this sequence alone."""
        assert self._cache is not None, "rows are held"
        if len(self._tips) > 1 or sequence != self._base:
            self._cache.keep_sequence(sequence)
        self._cache.cut(sequence, rows)
        self._base, self._held = sequence, rows

    def _forget_tree(self) -> None:
        self._tree, self._of, self._tips = None, {}, {self._base: _TEXT}

    def _make_room(self, rows: int) -> None:
        """Have a cache with so many rows, which holds what was held."""
        needed, old = _rounded(rows), self._cache
        if old is not None and needed <= old.rows:
            return
        longest = _rounded(self.context_tokens + 2 * _TREE_ROWS)
        self._replace_cache(max(needed, min(longest, 2 * old.rows if old else _FIRST_ROWS)))

    def _replace_cache(self, rows: int) -> None:
        """Have another cache, with so many rows, which holds what was held of the text."""
        self._drop_tree(self._held)
        old, new = self._cache, LlamaCache(self.weights, rows, self._threads, tapped=self._tapped)
        if old is not None:
            if self._held:
                old.copy_to(new, self._base)
            old.close()
        self._cache, self._base, self._tips = new, 0, {0: _TEXT}

    def _decode(
        self, passed: Sequence[tuple[int, int, Sequence[int], bool]], layers: Collection[int] = ()
    ) -> dict[int, Tensor]:
        """One pass, and the states after these layers. Where it fails nothing is held any more, and the text can be
        read anew.
        """
        assert self._cache is not None, "room was made"
        taps = self._cache.taps
        try:
            if taps is not None:
                taps.begin(layers)
            self._cache.decode(passed)
        except Exception:
            self.rows = Rows()
            self._forget_tree()
            self._cache.keep_sequence(self._base)
            self._cache.cut(self._base, 0)
            self._held = 0
            raise
        self.counters.count(len(passed), self.layers)
        return taps.taken() if taps is not None else {}

    # ------------------------------------------------------------------------------------------ weights

    def with_new_cache(self) -> LlamaCppModel:
        twin = LlamaCppModel(self.weights, self.context_tokens, self._threads)
        self._twins.add(twin)
        twin._twins = self._twins
        return twin

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self._embedding_source.embed(list(tokens))

    @cached_property
    def _embedding_source(self) -> WeightSource:
        family = GGUF_FAMILIES.get(read_header(self.weights.path).architecture)
        scales = family is not None and family.scales_embedding
        return AdjustedSource(self.weights.file, embedding_scale=self.hidden_size**0.5 if scales else 1.0)

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        source = self.weights.file
        return head_rows(source, source.about("head").sizes is None, tokens)

    # ------------------------------------------------------------------------------------------ memory

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """The most memory that its cache, and those of its twins, take until each holds so many tokens."""
        rows = _rounded(tokens + 2 * _TREE_ROWS)
        grown = max(_FIRST_ROWS, rows + rows // 2)  # the old one and the new one, while it grows
        return len(self._twins) * grown * self.weights.row_bytes

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        """The most memory that such a pass takes: llama.cpp's own states, and logits, its and ours."""
        states = rows * (16 * self.hidden_size + 4 * tokens)
        return 4 * states + (8 * rows * self.vocab_size if logits else 0)

    def limit_context_(self, tokens: int) -> None:
        self.context_tokens = tokens


def _rounded(rows: int) -> int:
    return -(-rows // _ROUND_ROWS) * _ROUND_ROWS


def chosen_backend(spec: ModelSpec, wanted: str) -> str:
    """The backend that was asked for now, else the one that models.toml names for the model."""
    return spec.backend if wanted == "auto" else wanted


def steps_in(backend: str, path: Path, *, cards: bool) -> bool:
    """Whether llama.cpp runs a file that our own decoder does not, unasked: it has a card to run it on."""
    return backend == "auto" and cards and path.is_file() and path.suffix == ".gguf" and offloads()


def load_llama(spec: ModelSpec, path: Path, *, cards: bool) -> tuple[LlamaCppModel, tuple[str, ...]]:
    """A model over the file's weights, which has read nothing, and what to say about it; its layers may go to `cards`.

    Raises:
        InstallationError: llama-cpp-python is not installed.
        UsageError: the model is no GGUF file, or an option needs what the library was built without.
        ModelError: llama.cpp does not load it.
    """
    library()
    if not path.is_file():
        raise UsageError(f"backend = llama.cpp reads GGUF files, and {spec.name} is none; nearest that works: own")
    _check_memory(spec, path, cards=cards)
    weights = LlamaWeights(spec.name, path, spec.llama, processor_only=not cards)
    limit = spec.context_tokens or weights.trained_tokens
    notes: tuple[str, ...] = ()
    if cards and spec.llama.gpu_layers and not offloads():
        notes = (f"{spec.name}: gpu_layers has no effect, as this llama-cpp-python was built without a card",)
    return LlamaCppModel(weights, limit), notes


def _check_memory(spec: ModelSpec, path: Path, *, cards: bool) -> None:
    """Refuse weights that will not fit, where they stay on the processor and are not to be left in the file."""
    options = spec.llama
    if options.mmap or options.rpc_servers or (cards and offloads()):
        return
    needed = sum(part.stat().st_size for part in map(Path, gguf_parts(str(path))) if part.is_file())
    available = host.free_bytes()
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"{spec.name} needs about {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free; choose a smaller "
            f"model, or set mmap = true for it in models.toml, which reads weights from the file again and again"
        )
