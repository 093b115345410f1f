"""One tiny model for the native kernels, whole or damaged, and everything that is asked of such a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from specchat.core.request import EVERYTHING, FIRST, LIKELIEST, LOGITS, Adapter, ExtraRow, LayerHook, PassRequest
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.packing import _as_c
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.weights.families import FAMILIES, Family
from specchat.models.weights.gguf_header import Kind
from specchat.models.weights.weight_source import AdjustedSource, StoredRows, TensorSource

CONFIGS = tuple(type(transformers.AutoConfig.for_model(family)) for family in FAMILIES)
NUMBERS = (-(2**31), -1, 0, 1, 3, 15, 17, 31, 33, 63, 255, 4097, 57600, 65537, 2**20, 2**31 - 1)
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
KINDS = tuple(GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "F32"))


def run_case(seed: int) -> None:
    """Build what this seed says and use it. What is damaged is refused by a ModelError, or harmless."""
    random = Random(seed)
    damage = None if seed % 4 == 0 else random.choice((_weight, _shape, _product, _pass, _states, _rows_to_pack))
    config = _config(random)
    shape, family = Shape.of(config), FAMILIES[config.model_type]
    state = _state(shape, family, random)
    if damage is _weight:
        _weight(state, random)
    if damage is _shape:
        shape = _shape(shape, random)
    if damage is _rows_to_pack:
        _rows_to_pack(random)
    source: Any = (
        _Quantised(state, random.choice(KINDS), family) if random.random() < 0.5 else TensorSource(state, family)
    )
    source = AdjustedSource(source, rounds=True) if random.random() < 0.3 else source
    network = NativeNetwork(shape, source, random.choice(("int4", "int8")), random.choice(("native", "haswell")))
    network.threads = random.choice((1, 2, 3))
    if damage is _product:
        _product(network, random)
    if damage is _pass:
        _pass(network, random)
    _use(network, random, whole=damage is not _states)


def control() -> None:
    """Tell C of more room than there is: a sanitizer that is awake ends the process."""
    rows = StoredRows(Kind.F32, np.zeros((16, 4 * 64), dtype=np.uint8), 64)
    to = torch.zeros(64, dtype=torch.uint8)
    kernels_for().pack(_as_c(rows), 8, to.data_ptr(), 1 << 20)


class _Quantised(TensorSource):
    """Weights whose rows are long enough lie in one of a file's formats."""

    def __init__(self, state: dict[str, Any], kind: GGMLQuantizationType, family: Family) -> None:
        super().__init__(state, family)
        self._kind = kind

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        weight = self.dense(name, layer)
        if weight.shape[1] % 32 or not weight.isfinite().all():
            return super().stored(name, layer)
        data = np.ascontiguousarray(quantize(weight.numpy(), self._kind)).view(np.uint8)
        return StoredRows(int(self._kind), data, weight.shape[1])


def _config(random: Random) -> Any:
    kv_heads = random.choice((1, 2, 3))
    heads = kv_heads * random.choice((1, 2, 3, 7))
    head_dim = random.choice((2, 6, 16, 30, 32, 48, 64))
    kind = random.choice(CONFIGS)
    own = {"sliding_window": random.choice((1, 7, 16, 40, 300))} if hasattr(kind, "sliding_window") else {}
    return kind(
        vocab_size=random.choice((3, 15, 16, 61, 64, 65, 130)),
        hidden_size=heads * head_dim,
        head_dim=head_dim,
        intermediate_size=random.choice((1, 31, 32, 33, 96, 100)),
        num_hidden_layers=random.choice((1, 2)),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=random.random() < 0.5,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **own,
    )


def sizes(shape: Shape, family: Family) -> dict[str, tuple[int, ...]]:
    """The tensors of a network of this family, by their names in files. (To build one of transformers' takes longer
    under a sanitizer than to use it.)"""
    heads, hidden = (shape.head_dim,), (shape.hidden,)
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": shape.matrix(name) for name in MATRICES}
    layer |= {f"{name}.weight": hidden for name in ("input_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm")}
    if family.name in ("qwen3", "gemma3_text"):
        layer |= {"q_norm.weight": heads, "k_norm.weight": heads}
    if family.name == "qwen2":
        layer |= {f"{name}.bias": shape.matrix(name)[:1] for name in "qkv"}
    names = family.hub_names
    found = {f"{names[name]}.weight": shape.matrix(name) for name in ("embed", "head")}
    found[f"{names['norm']}.weight"] = hidden
    for number in range(shape.layers):
        for name, size in layer.items():
            ours, part = name.split(".")
            if ours in names:
                found[f"model.layers.{number}.{names[ours]}.{part}"] = size
    return found


def _state(shape: Shape, family: Family, random: Random) -> dict[str, Any]:
    made = torch.Generator().manual_seed(random.randrange(2**31))
    dtype = random.choice((torch.float32, torch.bfloat16, torch.float64))
    return {name: torch.randn(size, generator=made).to(dtype) for name, size in sizes(shape, family).items()}


def _weight(state: dict[str, Any], random: Random) -> None:
    """One or two weights of other sizes, or with numbers that are none."""
    for _ in range(random.randint(1, 2)):
        name = random.choice(sorted(name for name in state if "embed" not in name))  # rows of which C never sees
        part = state[name]
        if random.random() < 0.2:
            state[name] = torch.full_like(part, random.choice((float("nan"), float("inf"), 1e38)))
            continue
        sizes = [random.choice((size, 1, size + 1, size * 2, size // 2 + 1, max(1, size - 1))) for size in part.shape]
        state[name] = torch.ones(sizes, dtype=part.dtype)


def _shape(shape: Shape, random: Random) -> Shape:
    """One or two of the numbers of a shape replaced."""
    for _ in range(random.randint(1, 2)):
        field = random.choice(("hidden", "heads", "kv_heads", "head_dim", "vocab_size", "epsilon"))
        value = random.choice((float("nan"), 0.0, -1.0, 1e30)) if field == "epsilon" else random.choice(NUMBERS)
        if field == "head_dim":
            value = max(2, value + value % 2)  # where rows are put in pairs, before C hears of it, others make no sense
        shape = replace(shape, **{field: value})
    return shape


def _product(network: NativeNetwork, random: Random) -> None:
    """Numbers of a product replaced after C was told of it; C is asked again whether they fit."""
    layer = network._c_layers[random.randrange(network.shape.layers)]
    product = random.choice((*layer.qkv, layer.o, *layer.gate_up, layer.down, network._c.head))
    for _ in range(random.randint(1, 2)):
        field = random.choice(("in", "out", "bits", "minima", "bytes"))
        setattr(product, field, random.choice((*NUMBERS, getattr(product, field))))
    network._kernels.check("decoder_check", network._c)


def _pass(network: NativeNetwork, random: Random) -> None:
    """Numbers of every pass replaced by others that C can judge."""
    kernels = network._kernels
    field, value = random.choice(("common", "end", "capacity", "first", "last")), random.choice(NUMBERS)

    class Changed:
        def layers(self, threads: int, decoder: Any, rows: Any, layers: range) -> None:
            if field == "first":
                layers = range(value, layers.stop)
            elif field == "last":
                layers = range(layers.start, value)
            elif field == "common":
                rows.kind[0].common = value if value > rows.end else min(value, rows.kind[0].common)
            else:  # buffers are as long as Python says: less may be said, not more
                setattr(rows, field, value if value < getattr(rows, field) else rows.capacity + 1)
            kernels.layers(threads, decoder, rows, layers)

        def read(self, threads: int, decoder: Any, cache: Any, whole: Any) -> None:
            about = cache if field == "capacity" else whole
            name = {"first": "missing", "last": "rows", "end": "start"}.get(field, field)
            if name in ("common", "missing") or value < getattr(about, name):
                setattr(about, name, value)
            kernels.read(threads, decoder, cache, whole)

        def __getattr__(self, name: str) -> Any:
            return getattr(kernels, name)

    network._kernels = Changed()  # type: ignore[assignment]


def _states(states: torch.Tensor, random: Random) -> torch.Tensor:
    """States of another format, order or size."""
    changes: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda states: states.bfloat16(),
        lambda states: states.double(),
        lambda states: states.t().contiguous().t(),
        lambda states: states[:, :-1],
        lambda states: states.repeat(1, 2)[:, ::2],
        lambda states: states[:0],
        lambda states: states.flatten(),
        lambda states: torch.full_like(states, float("nan")),
    )
    return random.choice(changes)(states)


def _rows_to_pack(random: Random) -> None:
    """Rows as C is told of them, with any number of kind, length and order."""
    rows, row_bytes = random.randint(1, 40), random.choice((1, 4, 18, 36, 64, 144, 210, 512))
    data = np.frombuffer(random.randbytes(rows * row_bytes), dtype=np.uint8).reshape(rows, row_bytes)
    order = np.array([random.randint(-1, rows) for _ in range(rows)], dtype=np.int32) if random.random() < 0.5 else None
    kind, length = random.choice((*map(int, KINDS), 12, 13, 14, 30, random.choice(NUMBERS))), random.choice(NUMBERS)
    length = random.choice((length, 32, 64, 128, 256))
    bits = random.choice((4, 8, random.choice(NUMBERS)))
    room = torch.zeros(random.choice((0, 1, 576, 1 << 16)), dtype=torch.uint8)
    stored = StoredRows(kind, data, length, order)
    kernels_for().pack(_as_c(stored), bits, room.data_ptr(), len(room))


def _adapter(network: NativeNetwork, random: Random) -> Adapter:
    """Factors of any small rank for some of the products."""
    products = {"q": 0, "k": 1, "v": 2, "o": 3, "gate": 4, "up": 5, "down": 6}
    factors = {}
    for layer, name in ((layer, name) for layer in range(network.shape.layers) for name in products):
        product, rank = network._layers[layer].products[products[name]], random.randint(1, 5)
        if random.random() < 0.5:
            factors[layer, name] = torch.randn(rank, product.inputs), torch.randn(product.out, rank)
    return Adapter(factors)


def _hold_part(model: Decoder, text: list[int], random: Random, whole: bool) -> None:
    """A twin that asks which chunks of the text matter, holds some rows of it, and reads behind them."""
    view = model.with_new_cache()
    found = view.chunk_scores(text, random.randint(1, 40))
    assert not whole or found.scores.isfinite().all()
    some = torch.tensor(sorted(random.sample(range(found.tokens), random.randint(1, found.tokens))))
    view.copy_rows_by_layer(text, some.expand(model.layers, -1))
    view.read(TokenTree(text[-1], model.vocab_size).freeze())


def _use(network: NativeNetwork, random: Random, whole: bool) -> None:
    """A prompt, trees with extra rows, taps and rows that drop out, and what remains of the path."""

    def change(states: torch.Tensor) -> torch.Tensor:
        return states if whole else _states(states, random)

    model = Decoder(network, 512, drafts=random.random() < 0.5)
    vocab_size, layers = network.shape.vocab_size, range(network.shape.layers)
    if random.random() < 0.3:
        some = [[layer for layer in layers if random.random() < 0.5] for _ in range(2)]
        model = model.view(skip_attention=some[0], skip_mlp=some[1])
    embed = network.embed
    network.embed = lambda tokens: change(embed(tokens))  # type: ignore[method-assign]
    token = partial(random.randrange, vocab_size)
    model.prefill([token() for _ in range(random.choice((1, 9, 40, 270)))])
    for _ in range(2):
        tree = TokenTree(token(), vocab_size)
        for _ in range(random.randint(0, 20)):
            guess = token()
            parent = random.randrange(len(tree))
            if tree.child(parent, guess) is None:
                tree.add(parent, Guess(guess))
        mask, adapters = torch.ones(network.shape.hidden), [None, _adapter(network, random)]
        extra_rows = (
            [ExtraRow(ROOT, mask, adapter=given) for given in adapters] if whole and random.random() < 0.5 else []
        )
        hooks = (LayerHook(frozenset(layers), lambda layer, hidden, nodes: nodes[::2]),)
        request = PassRequest(frozenset({0}), tuple(extra_rows), hooks if random.random() < 0.3 else ())
        needs = random.choice((FIRST, LIKELIEST, LOGITS, EVERYTHING))
        reading = model.read(tree.freeze(), request=replace(request, needs=needs))
        assert len(reading.logits) == len(tree)
        model.head(change(reading.taps[0]))
        path = [node for node in range(1, len(tree)) if tree.parents[node] == ROOT][:1]
        model.keep([node for node in path if node in reading.alive])
        _hold_part(model, [*model.rows.prefix, token()], random, whole)
