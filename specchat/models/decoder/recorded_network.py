"""A decoder's layers as recorded passes, one per number of rows and length of context, where they agree with eager."""

from __future__ import annotations

import dataclasses
import logging
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specchat.core.request import Adapter
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.decoder.adapters import acting, adapters_of
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import Attention, EagerNetwork, by_products, folded_mask, fused
from specchat.models.decoder.fused_ops import PLAIN, FusedOps, best_ops
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_weights import DecoderWeights
from specchat.models.decoder.network import Network, Pass
from specchat.models.decoder.static_pass import WINDOW, CudaRecorder, Inputs, StaticPass, compute_together

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_FIRST_CONTEXT = 512
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bucket:
    """Size of the passes that share a recording: rows, padding included, cache rows that are looked at, whether
    embeddings are given, rather than tokens to look up, layers whose states are left behind, and adapters."""

    rows: int
    context: int
    embedded: bool
    taps: tuple[int, ...] = ()
    adapters: tuple[Adapter, ...] = ()


@dataclass
class _Recorded:
    """Recordings over one cache, valid as long as neither it nor the tables of rotations move.

    A recording knows addresses and keeps nothing alive, so the passes, whose buffers it reads, are kept with it.
    """

    keys: Tensor
    tables: tuple[Tensor | None, ...]
    replays: dict[Bucket, tuple[StaticPass, Callable[[], None]]] = field(default_factory=dict)


_JOINT_ROWS = 512
"""Rows of several texts that a pass reads at most, padding included."""

_JOINT_RECORDINGS = 64
"""Sets of texts, each with a number of rows, that are remembered; those that were not met for longest are forgotten."""


@dataclass
class _JointRecording:
    """The caches and tables of some texts, how often these were met, and their recording once there is one."""

    caches: tuple[weakref.ref[KVCache], ...]
    keys: tuple[Tensor, ...]
    tables: tuple[Tensor | None, ...]
    met: int = 0
    static: Sequence[StaticPass] = ()
    replay: Callable[[], None] | None = None

    @property
    def in_use(self) -> bool:
        """Whether all caches are there and none has grown since."""
        return all(
            (cache := ref()) is not None and cache.room_for(0, keys)[0] is keys
            for ref, keys in zip(self.caches, self.keys, strict=True)
        )


class GraphNetwork(EagerNetwork):
    """Runs a pass in the smallest bucket that holds it; what fits none goes through the eager layers.

    Both use the same weights and the same cache, so they may take turns. Taps and adapters are recorded too; a pass
    that is interrupted by a hook is not. Buffers of recordings stay, so they count as held, not as a pass's. The states
    that `run` returns lie in a buffer that the next pass writes over. The head is not recorded: it is two kernels, and
    its results outlive the pass, so a recording would add two copies to save one launch.

    Args:
        ops: what recorded layers do between products; the eager layers keep theirs.
    """

    def __init__(self, eager: EagerNetwork, recorder: CudaRecorder, ops: FusedOps = PLAIN) -> None:
        super().__init__(eager.weights)
        self._eager = eager
        self.kernels = "torch, CUDA graphs"
        self.trouble = ""  # why no more is recorded, or no longer with compiled operations
        self.records = True
        self.replayed = 0  # passes that were replays of a recording
        self._layers = EagerNetwork(eager.weights, ops)
        self._recorder = recorder
        self._inputs: dict[int, list[Inputs]] = {}
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._tapped: dict[tuple[int, int], Tensor] = {}
        self._joint: OrderedDict[object, _JointRecording] = OrderedDict()
        self._recorded: WeakKeyDictionary[KVCache, _Recorded] = WeakKeyDictionary()
        self._attention: dict[tuple[int, int], Attention] = {}

    def new_cache(self, layers: Collection[int], max_rows: int, beside: KVCache | None = None) -> KVCache:
        """One allocation for the network's first text.

        Those beside it grow, and what was recorded over one that grew is recorded anew: memory for the longest text in
        each of them is rarely there.
        """
        return KVCache(layers, max_rows, beside=beside, in_one=beside is None)

    @property
    def unrecorded(self) -> EagerNetwork:
        return self._eager

    def run(self, running: Pass) -> Tensor:
        plan = running.plan
        rows, end = plan.mask.shape
        width = self._width(running)
        self._forget_unused()
        if width is None or self._is_special(running):
            return super().run(running)
        # One row more than are used: padding is written to the cache's last one.
        keys, values = running.cache.room_for(end + 1, self.like)
        given = bool(running.extra_rows) or self.weights.table is None
        taps = () if running.watch is None else running.watch.tapped(range(self.shape.layers))
        bucket = Bucket(width, _context(end, keys.shape[2]), given, taps, adapters_of(running.extra_rows))
        embedded, out = self._room(_ROWS[-1])
        if given:
            embedded[:rows] = running.hidden
        self._inputs_of(width)[0].fill_(plan, keys.shape[2] - 1, acting(running.extra_rows, bucket.adapters))
        if not self._replay(bucket, running, keys, values):
            return super().run(running)
        self.replayed += 1
        running.counters.node_layers += rows * running.parts.computed(range(self.shape.layers))
        for layer in taps:
            assert running.watch is not None, "hooks were asked for"
            running.watch.after_layer(layer, self._tapped[_ROWS[-1], layer][:rows])
        return out[:rows]

    def joint_groups(self, passes: Sequence[Pass]) -> list[list[int]]:
        """Texts of about as many rows, which are padded to the same number."""
        groups: list[list[int]] = []
        for place in sorted(range(len(passes)), key=lambda place: passes[place].plan.rows):
            running = passes[place]
            width = self._width(running)
            if width is None or self._is_special(running) or not running.parts.complete:
                continue
            if groups and (len(groups[-1]) + 1) * width <= _JOINT_ROWS:
                groups[-1].append(place)
            else:
                groups.append([place])
        return groups

    @torch.inference_mode()
    def run_together(self, passes: Sequence[Pass]) -> list[Tensor]:
        """(nodes, d) for each text.

        One recording serves a set of texts, whatever their order; it is made when the set is met again.
        """
        order = sorted(range(len(passes)), key=lambda place: id(passes[place].cache))
        ordered = [passes[place] for place in order]
        bucket = self._joint_bucket(ordered)
        if not self._replay_together(bucket, ordered):
            return super().run_together(passes)
        self.replayed += 1
        out = self._room(_JOINT_ROWS)[1]
        states: list[Tensor] = [out] * len(passes)
        for text, (place, running) in enumerate(zip(order, ordered, strict=True)):
            first, rows = text * bucket.rows, running.plan.rows
            running.counters.node_layers += rows * self.shape.layers
            if running.watch is not None:
                for layer in running.watch.tapped(range(self.shape.layers)):
                    running.watch.after_layer(layer, self._tapped[_JOINT_ROWS, layer][first : first + rows])
            states[place] = out[first + running.plan.missing : first + rows]
        return states

    def _joint_bucket(self, passes: Sequence[Pass]) -> Bucket:
        layers = range(self.shape.layers)
        taps = {layer for running in passes if running.watch is not None for layer in running.watch.tapped(layers)}
        widest = next(width for width in _ROWS if width >= max(running.plan.rows for running in passes))
        end = max(running.plan.mask.shape[1] for running in passes)
        return Bucket(widest, _context(end, 1 << 40), self.weights.table is None, tuple(sorted(taps)))

    def _replay_together(self, bucket: Bucket, passes: Sequence[Pass]) -> bool:
        """Do these passes at once, the states one text after another; False where they are not recorded (yet)."""
        held = [running.cache.room_for(running.plan.mask.shape[1] + 1, self.like) for running in passes]
        caches = tuple(weakref.ref(running.cache) for running in passes)
        known = _JointRecording(caches, tuple(keys for keys, _ in held), passes[0].tables)
        self._forget_unused()
        key = bucket, tuple(id(keys) for keys in known.keys), id(known.tables)
        made = self._joint.setdefault(key, known)
        self._joint.move_to_end(key)
        if len(self._joint) > _JOINT_RECORDINGS:
            self._joint.popitem(last=False)
        self._fill_together(bucket, passes, [keys.shape[2] for keys, _ in held])
        if made.replay is not None:
            made.replay()
            return True
        made.met += 1
        if made.met == 1 or not self.records:
            return False
        try:
            made.static = [
                self._static_pass(
                    dataclasses.replace(bucket, context=min(bucket.context, keys.shape[2])), running, keys, values,
                    self._inputs[bucket.rows][text], _JOINT_ROWS, text * bucket.rows,
                )
                for text, (running, (keys, values)) in enumerate(zip(passes, held, strict=True))
            ]  # fmt: skip
            made.replay = self._recorder.record(partial(compute_together, made.static))
        except Exception as error:  # as for one text
            made.static = ()
            self._do_without(error)
            return False
        return True

    def _forget_unused(self) -> None:
        """Let go of the memory of caches that are gone or have grown."""
        for stale in [key for key, made in self._joint.items() if not made.in_use]:
            del self._joint[stale]

    def _fill_together(self, bucket: Bucket, passes: Sequence[Pass], capacities: Sequence[int]) -> None:
        inputs, embedded = self._inputs_of(bucket.rows, len(passes)), self._room(_JOINT_ROWS)[0]
        for text, (running, capacity) in enumerate(zip(passes, capacities, strict=True)):
            inputs[text].fill_(running.plan, capacity - 1)
            if bucket.embedded:
                first = text * bucket.rows
                embedded[first : first + running.plan.rows] = running.hidden

    def _width(self, running: Pass) -> int | None:
        """The rows of the bucket that a pass fits in; None where there is none."""
        rows, end = running.plan.mask.shape
        if end - running.plan.common >= WINDOW:
            return None
        return next((width for width in _ROWS if width >= rows), None)

    def _is_special(self, running: Pass) -> bool:
        """Whether a pass cannot be replayed: it is interrupted, or a window hides part of a text."""
        windows = any(kind.window is not None for kind in self.shape.attention_kinds)
        part_seen = windows and bool(running.plan.copied)
        return running.interrupted(self.shape.layers) or part_seen

    def _replay(self, bucket: Bucket, running: Pass, keys: Tensor, values: Tensor) -> bool:
        """Do the pass that the buffers describe; False where it cannot be recorded."""
        recorded = self._recorded.get(running.cache)
        if recorded is None or recorded.keys is not keys or recorded.tables is not running.tables:
            recorded = self._recorded[running.cache] = _Recorded(keys, running.tables)
        if bucket in recorded.replays:
            _, replay = recorded.replays[bucket]
            replay()
            return True
        while self.records:
            try:
                static = self._static_pass(bucket, running, keys, values, self._inputs[bucket.rows][0])
                recorded.replays[bucket] = static, self._recorder.record(static.compute)
            except Exception as error:  # compilers and devices fail in ways of their own; the eager layers do without
                self._do_without(error)
            else:
                return True
        return False

    def _do_without(self, error: Exception) -> None:
        """Record with plain operations from now on, or nothing any more where they are in use already."""
        why = str(error).strip().split("\n")[0] or type(error).__name__
        if self._layers.ops is PLAIN:
            self.records = False
            self.trouble = f"passes are launched kernel by kernel: {why}"
        else:
            self._layers = EagerNetwork(self.weights, PLAIN)
            self.trouble = f"norms and rotations are not compiled: {why}"
        _log.warning("slower than it could be: %s", self.trouble)

    def _static_pass(
        self, bucket: Bucket, running: Pass, keys: Tensor, values: Tensor, inputs: Inputs,
        room: int = _ROWS[-1], first: int = 0,
    ) -> StaticPass:  # fmt: skip
        """A pass over one text; `first`: its first row among those of all that it is computed with."""
        embedded, out = self._room(room)
        for layer in bucket.taps:
            self._tapped.setdefault((room, layer), torch.zeros_like(out))
        return StaticPass(
            network=self._layers,
            inputs=inputs,
            context=bucket.context,
            tables=running.tables,
            keys=keys,
            values=values,
            embedded=embedded[first:] if bucket.embedded else None,
            out=out,
            tapped={layer: self._tapped[room, layer] for layer in bucket.taps},
            attend=self._attention_for(bucket, keys, values),
            parts=running.parts,
            place_of=running.cache.place_of,
            adapters=[self._layers.prepared(adapter) for adapter in bucket.adapters],
        )

    def _attention_for(self, bucket: Bucket, keys: Tensor, values: Tensor) -> Attention:
        """Whichever way of computing attention is the faster for this size, found by timing all layers' of both."""
        size = (bucket.rows, bucket.context)
        if size not in self._attention:
            shape, like = self.shape, self.like
            queries = torch.zeros(bucket.rows, shape.heads, shape.head_dim, dtype=like.dtype, device=self.device)
            seen = torch.ones(bucket.rows, bucket.context, dtype=torch.bool, device=self.device)
            mask = folded_mask(seen, shape.heads // shape.kv_heads, like.dtype)

            def seconds(attend: Attention) -> float:
                def all_layers() -> None:
                    for place in range(len(keys)):
                        attend(queries, keys[place, :, : bucket.context], values[place, :, : bucket.context], mask)

                try:
                    all_layers()
                except (RuntimeError, TypeError):  # not every device has every product
                    return math.inf
                return self._recorder.seconds(self._recorder.record(all_layers))

            self._attention[size] = min((fused, by_products), key=seconds)
        return self._attention[size]

    def _inputs_of(self, rows: int, texts: int = 1) -> list[Inputs]:
        """Buffers for at least so many texts; every pass fills those that it uses anew."""
        inputs = self._inputs.setdefault(rows, [])
        inputs += [Inputs(rows, self.device) for _ in range(texts - len(inputs))]
        return inputs

    def _room(self, rows: int) -> tuple[Tensor, Tensor]:
        """(rows, d) twice: embeddings that are given, and the states after the last layer."""
        if rows not in self._buffers:
            like = self.like
            made = torch.zeros(2, rows, self.shape.hidden, dtype=like.dtype, device=like.device)
            self._buffers[rows] = made[0], made[1]
        return self._buffers[rows]


def _context(end: int, capacity: int) -> int:
    """Cache rows to look at: the next power of two, so that few recordings serve any length."""
    context = _FIRST_CONTEXT
    while context < end:
        context *= 2
    return min(context, capacity)


_APART = {torch.float32: 0.01, torch.bfloat16: 0.5}
"""How far logits may lie apart, as a share of their spread. Rounding takes 0.00001 in float32 and 0.07 to 0.11 in
bfloat16 (SmolLM2-135M and Qwen2.5-Coder-0.5B, on a processor); a row seen or turned wrongly, 1.5 to 2.3."""


def cuda_network(weights: DecoderWeights, compiles: bool = True) -> tuple[Network, tuple[str, ...]]:
    """Recorded passes, with compiled ops if wanted and possible; what is not available is named."""
    ops, why = best_ops(weights.device) if compiles else (PLAIN, "")
    network, why_slow = recorded_network(weights, lambda: CudaRecorder(weights.device), ops)
    if why_slow and ops is not PLAIN:
        why = f"compiled ops are not used: {why_slow}"
        network, why_slow = recorded_network(weights, lambda: CudaRecorder(weights.device), PLAIN)
    return network, tuple(f"slower than it could be: {note}" for note in (why, why_slow) if note)


def recorded_network(
    weights: DecoderWeights, recorder: Callable[[], CudaRecorder], ops: FusedOps
) -> tuple[Network, str]:
    """Recorded passes where they agree with the eager layers; else the eager layers, and why."""
    eager = EagerNetwork(weights)
    try:
        recorded = GraphNetwork(eager, recorder(), ops)
        apart = disagreement(eager, recorded)
    except Exception as error:  # whatever went wrong in recording, the eager layers do without
        return eager, f"passes are launched kernel by kernel: {str(error).strip().split(chr(10))[0]}"
    if not recorded.records:
        return eager, recorded.trouble
    if not apart < _APART[weights.activations]:  # written so that NaN is refused
        return eager, f"passes are launched kernel by kernel: recorded ones were off by {apart:.2g}"
    return recorded, recorded.trouble


def recording_notes(device: torch.device) -> tuple[str, ...]:
    """What of recorded and compiled passes this device lacks, each with its reason."""
    _, why = best_ops(device)
    try:
        numbers = torch.zeros(1, device=device)

        def compute() -> None:
            numbers.add_(1)

        CudaRecorder(device).record(compute)()
        why_slow = ""
    except Exception as error:  # whatever it was, passes do without recordings
        why_slow = f"passes are launched kernel by kernel: {str(error).strip().split(chr(10))[0]}"
    return tuple(note for note in (why, why_slow) if note)


def disagreement(one: Network, other: Network) -> float:
    """How far the logits of two networks lie apart over some rounds, as a share of their spread: the worst row's."""
    first, second = rounds(one), rounds(other)
    spread = (first - first.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float(((first - second).norm(dim=-1) / spread).max())


def rounds(network: Network) -> Tensor:
    """(rows, V) float32 logits of two rounds of trees, so that what was recorded in one is replayed in the next."""
    model = Decoder(network, context_tokens=1024)
    vocab_size = model.vocab_size

    def token(i: int) -> int:
        return (7919 * i + 1) % vocab_size

    said: list[Tensor] = []
    model.prefill([token(i) for i in range(20)])
    for round in (1, 2):
        tree = TokenTree(token(100 * round), vocab_size)
        for branch in range(3):
            child = tree.add(ROOT, Guess(token(100 * round + 10 * branch + 1)))
            tree.add(child, Guess(token(100 * round + 10 * branch + 2)))
        said.append(model.read(tree.freeze()).logits.float())
        model.keep([tip := len(tree) - 2, tip + 1])  # the last branch: its rows have to be moved
    return torch.cat(said)
