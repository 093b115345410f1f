"""Every implementation of `Model`, each with an independent way to know what it should have said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.covering import covering, named
from contracts.llama_files import written
from cuda_graph_stand_in import FrozenRecorder
from hybrid_networks import HYBRIDS, hybrid
from llama_stand_in import WIDTH, LlamaStandIn
from rows import each_row
from torch import Tensor

from specchat.compiled.build import NativeUnavailable
from specchat.config.values import LlamaOptions
from specchat.core.reading import Counters
from specchat.core.request import PassRequest
from specchat.core.seams import Model
from specchat.core.tree import TokenTree
from specchat.models.backends.llama_cpp import LlamaCppModel
from specchat.models.backends.llama_library import LlamaWeights, is_installed
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.cache_rows import Rows
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.network import Pass, SubLayers
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape
from specchat.models.weights.families import FAMILIES
from specchat.models.weights.weight_source import TensorSource

V = 61
HIDDEN = 32
LAYERS = {"llama": 3, "qwen2": 2, "mistral": 2, "qwen3": 2, "smollm3": 2, "gemma3_text": 3}
"""For each family that our decoder runs, how many layers its tiny network has."""

RECURRENT = ("qwen3_next", "granitemoehybrid")
"""A gated delta net and a Mamba-2; the other architectures with states are in `tests/models/test_hybrids.py`."""


@dataclass
class Subject:
    """A model under test, and the truth about it from plain passes without cache or tree.

    Args:
        truth: tokens → (V,) logits of the next one.
        states: tokens → per layer the (d,) state of the last token after that layer.
        embed: token → (d,) its embedding, or None for a model that has none.
        by_borders: whether it goes back to the ends of prompts alone, as one with recurrent layers.
        truth_embedded: (n, d) embeddings → (V,) logits after the last, or None.
    """

    model: Model
    truth: Callable[[Sequence[int]], Tensor]
    states: Callable[[Sequence[int]], list[Tensor]]
    embed: Callable[[int], Tensor] | None = None
    truth_embedded: Callable[[Tensor], Tensor] | None = None
    layers: int = 1
    by_borders: bool = False
    fresh: Callable[[], Model] = field(default=lambda: pytest.fail("not set"))


Factory = Callable[[str, int], Subject]
"""(family, context tokens) → a model that has read nothing yet."""


def tiny_network(family: str, seed: int = 0, scale: float = 0.25, **changed: Any) -> Any:
    """A random transformers network, small and sharp: its laws are far from flat, so near-ties are rare.

    `changed`: values of its configuration.
    """
    import transformers

    shape = {
        "vocab_size": V,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS[family],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": family == "qwen2",
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    own = {
        "mistral": {"sliding_window": None},
        "qwen3": {"head_dim": 16},
        "smollm3": {"no_rope_layers": [1, 0]},
        "gemma3_text": {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 12,  # shorter than the texts here
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    }
    config = transformers.AutoConfig.for_model(family, **{**shape, **own.get(family, {}), **changed})
    config._attn_implementation = "sdpa"
    network = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm = "norm" in name
            parameter.copy_(1 - FAMILIES[family].norm_offset + 0.2 * noise if norm else scale * noise)
    return network


def perturbed(network: Any, amount: float, seed: int = 1) -> Any:
    """A network that mostly agrees with another one: a draft model."""
    import copy

    other = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(amount * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return other


@lru_cache
def shared_network(family: str) -> Any:
    """One network per family for all tests; no test may change it."""
    return hybrid(family) if family in HYBRIDS else tiny_network(family)


class PlainPasses:
    """What a network says after texts, from passes without cache or tree; each text is read once in all tests.

    A pass says what it says after every beginning of its text too. No test may change what it gets.

    Args:
        read: tokens → (n, V) logits and per layer the (n, d) states, of every position.
    """

    def __init__(self, read: Callable[[Sequence[int]], tuple[Tensor, list[Tensor]]]) -> None:
        self._read = read
        self._said: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """(V,) logits of the next token."""
        return self._after(tuple(tokens))[0]

    def states(self, tokens: Sequence[int]) -> list[Tensor]:
        """Per layer the (d,) state of the last token after that layer."""
        return self._after(tuple(tokens))[1]

    def _after(self, tokens: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        if tokens not in self._said:
            logits, states = self._read(tokens)
            for end in range(1, len(tokens) + 1):
                self._said[tokens[:end]] = logits[end - 1], [layer[end - 1] for layer in states]
        return self._said[tokens]


@lru_cache
def plain_passes(family: str) -> PlainPasses:
    """Passes of a family's shared network."""
    network = shared_network(family)

    @torch.no_grad()
    def read(tokens: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        # The last entry of `hidden_states` has the final norm applied, so every layer is watched itself.
        seen: list[Tensor] = []
        hooks = [
            layer.register_forward_hook(
                lambda _m, _a, out: seen.append((out if isinstance(out, Tensor) else out[0])[0].clone())
            )
            for layer in network.get_decoder().layers
        ]
        outputs = network(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
        for hook in hooks:
            hook.remove()
        for layer in range(len(seen) - 1):
            torch.testing.assert_close(seen[layer], outputs.hidden_states[layer + 1][0])
        return outputs.logits[0], seen

    return PlainPasses(read)


def over_network(model_class: Callable[[Any, int], Model], families: Sequence[str] = tuple(FAMILIES)) -> Factory:
    """Models that run a transformers network: the truth is the network itself, without any cache."""

    def factory(family: str, context_tokens: int) -> Subject:
        network, plain = shared_network(family), plain_passes(family)

        @torch.no_grad()
        def embedded(rows: Tensor) -> Tensor:
            return network(inputs_embeds=rows.unsqueeze(0), use_cache=False).logits[0, -1]

        return Subject(
            model=model_class(network, context_tokens),
            truth=plain.logits,
            states=plain.states,
            embed=lambda token: network.get_input_embeddings()(torch.tensor(token)).detach(),
            truth_embedded=embedded,
            layers=len(network.get_decoder().layers),
            by_borders=family in RECURRENT,
            fresh=lambda: model_class(network, context_tokens),
        )

    factory.families = families  # type: ignore[attr-defined]
    return factory


def scripted(family: str, context_tokens: int) -> Subject:
    """The model without weights: the truth is its script."""
    says = random_says(V, seed=5)
    make = lambda: ScriptedModel(V, says, context_tokens)  # noqa: E731
    return Subject(model=make(), truth=says, states=lambda tokens: [says(tokens)], fresh=make)


def llama_cpp(family: str, context_tokens: int) -> Subject:
    """llama.cpp's cache and sequences without its arithmetic: the truth is a script."""
    says = random_says(V, seed=5)

    def make() -> Model:
        weights = LlamaWeights("m", Path("m.gguf"), LlamaOptions(), functions=LlamaStandIn(says, V))
        return LlamaCppModel(weights, context_tokens)

    return Subject(model=make(), truth=says, states=lambda tokens: [says(tokens)[:WIDTH]], fresh=make)


def llama_cpp_itself(family: str) -> Factory:
    """The library, where it is installed, over a file of the family's tiny network: the truth is that network."""

    def factory(_: str, context_tokens: int) -> Subject:
        network = shared_network(family)
        weights = LlamaWeights("m", written(network), LlamaOptions(cache_type="f32", flash_attn=False))
        plain = plain_passes(family)

        def make() -> Model:
            return LlamaCppModel(weights, context_tokens)

        return Subject(model=make(), truth=plain.logits, states=plain.states, fresh=make, layers=LAYERS[family])

    return factory


def native_is_here() -> bool:
    """Whether this machine has the native kernels: a processor they are written for, and a C compiler."""
    try:
        kernels_for()
    except NativeUnavailable:
        return False
    return True


def source_of(network: Any) -> TensorSource:
    """A network's own state, under the names of its family."""
    return TensorSource(network.state_dict(), FAMILIES[network.config.model_type])


def own_decoder(network: Any, context_tokens: int) -> Decoder:
    """Our own decoder with a network's weights, in float32."""
    weights = Builder(Shape.of(network.config), source_of(network), "float32", torch.device("cpu"))
    return Decoder(EagerNetwork(weights.build()), context_tokens)


def recorded_decoder(network: Any, context_tokens: int) -> Decoder:
    """The same with recorded passes, as a CUDA device would replay them."""
    own = own_decoder(network, context_tokens)
    assert isinstance(own.network, EagerNetwork)
    return Decoder(GraphNetwork(own.network, FrozenRecorder()), context_tokens)


def native_decoder(network: Any, context_tokens: int) -> Decoder:
    """The layers in C with a network's weights."""
    return Decoder(NativeNetwork(Shape.of(network.config), source_of(network), "int8"), context_tokens)


@lru_cache
def native_network(family: str) -> NativeNetwork:
    """The packed weights of a family's shared network, for all tests."""
    network = shared_network(family)
    return NativeNetwork(Shape.of(network.config), source_of(network), "int8")


@lru_cache
def native_plain_passes(family: str) -> PlainPasses:
    """The layers in C, reading text token by token, without any tree, from nothing."""

    def read(tokens: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        model, layers = Decoder(native_network(family), 512), range(LAYERS[family])
        said = []
        for token in tokens:
            said.append(model.read(TokenTree(token, V).freeze(), request=PassRequest(frozenset(layers))))
            model.keep([])
        logits = torch.cat([reading.logits.clone() for reading in said])
        return logits, [torch.cat([reading.taps[layer].clone() for reading in said]) for layer in layers]

    return PlainPasses(read)


def native(family: str, context_tokens: int) -> Subject:
    """The layers in C. Its numbers are rounded, so the truth is itself, reading text without any tree from nothing."""
    network, plain = shared_network(family), native_plain_passes(family)

    def make() -> Decoder:
        return Decoder(native_network(family), context_tokens)

    def embedded(rows: Tensor) -> Tensor:
        one = make().network
        plan = Rows().plan_prefix(list(range(len(rows))))
        table = tuple(kind.rotations(len(rows)) for kind in one.shape.attention_kinds)
        cache, parts = KVCache(range(layers), 64, one.key_interleave), SubLayers.of_all(layers)
        running = Pass(plan, lambda tokens: rows.clone(), table, cache, Counters(), parts)
        return one.head(one.run(running)).logits[-1]

    layers = LAYERS[family]
    return Subject(
        model=make(),
        truth=plain.logits,
        truth_embedded=embedded,
        states=plain.states,
        embed=lambda token: network.get_input_embeddings()(torch.tensor(token)).detach(),
        layers=layers,
        fresh=make,
    )


native.families = tuple(FAMILIES)  # type: ignore[attr-defined]

MODELS: dict[str, Factory] = {
    "reference": over_network(ReferenceModel),
    "decoder": over_network(own_decoder),
    "graphs": over_network(recorded_decoder),
    "states": over_network(ReferenceModel, RECURRENT),
    "scripted": scripted,
    "llama.cpp": llama_cpp,
}
if native_is_here():
    MODELS["native"] = native
if is_installed():
    MODELS |= {f"llama.cpp-{family}": llama_cpp_itself(family) for family in ("llama", "qwen2", "qwen3")}
"""A new implementation joins by one line, and every model test runs on it."""

BUILDERS: dict[str, Callable[[Any, int], Model]] = {
    "reference": ReferenceModel,
    "decoder": own_decoder,
    "graphs": recorded_decoder,
}
if native_is_here():
    BUILDERS["native"] = native_decoder
"""(network, context tokens) → a model with that network's weights, on every path that runs one."""


def every_model() -> Iterator[Any]:
    """One parameter per implementation and family: (factory, family)."""
    for name, factory in MODELS.items():
        for family in getattr(factory, "families", ("",)):
            yield pytest.param((factory, family), id="-".join(filter(None, (name, family))))


def network_models() -> Iterator[Any]:
    """Those that run a network."""
    for name, factory in MODELS.items():
        for family in getattr(factory, "families", ()):
            yield pytest.param((factory, family), id=f"{name}-{family}")


def on_models(
    rows: Iterable[Any], *names: str, flexible: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test that takes `subject` on each of these models, made anew, as one test.

    Args:
        rows: (factory, family), and values of the names if there are any.
        flexible: leave out models that compute whole passes alone.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def with_model(subject: tuple[Factory, str], **others: Any) -> None:
            factory, family = subject
            made = factory(family, 256)
            if flexible and not made.model.flexible_passes:
                pytest.skip("it computes whole passes alone")
            function(subject=made, **others)

        return each_row(("subject", *names), rows)(with_model)

    return decorated


each_model = on_models(tuple(every_model()))
each_flexible_model = on_models(tuple(every_model()), flexible=True)
each_network = on_models(tuple(network_models()))


def models_with(name: str, values: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test that takes `subject` with these values too: each path and each family meets each value."""
    column = [pytest.param(value, id=str(value)) for value in values]
    networks = [path for path, factory in MODELS.items() if getattr(factory, "families", ()) == tuple(FAMILIES)]
    rows = covering(named(networks), named(FAMILIES), column) + covering(named(["states"]), named(RECURRENT), column)
    rows += covering(named(path for path in MODELS if path not in (*networks, "states")), named([""]), column)
    made = [((MODELS[path], family), value) for path, family, value in (row.values for row in rows)]
    return on_models([pytest.param(*values, id=row.id) for values, row in zip(made, rows, strict=True)], name)
