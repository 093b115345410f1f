"""Saving and loading trained networks, every tensor checked, and making a network ready to draft for its target.

Matrices are stored in 8 bits: as the compiled kernels multiply them, and half as large as in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.device_copy import to_device
from specchat.core.seams import TargetElsewhere, Weights
from specchat.errors import DamagedWeights, ModelError, WeightsError, nearest
from specchat.models.cpu_kernels.kernels import native_works
from specchat.models.cpu_kernels.linear import EmbeddedProduct, NativeHead, NativeLinear, small_network_kernels
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.packing import Arena
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.trimmed_head import HeadProduct, TorchHead, TrimmedHead
from specchat.models.draft_heads import FAMILIES, TrainedFamily
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs, TextInputs, TokenInputs
from specchat.models.draft_heads.head import (
    OWN_EMBED,
    OWN_HEAD,
    TOKENS,
    DraftHead,
    DraftNetwork,
    SharedWeights,
    TokenNetwork,
)
from specchat.models.draft_heads.sizes import NetworkSizes, Sizes
from specchat.models.weights.config_file import shown
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.safetensors_header import TensorEntry, read_entries

MOST_TOKENS = 1 << 22

STEPS = ".steps"
"""Behind a matrix's name: the tensor of its steps."""

_TOGETHER, _LARGEST, _LEAST = 32, 127, 1e-12

_FORMATS = ("F32", "F16", "BF16")

_KNOWN_TOKENS = 8192
"""For so many of the most frequent tokens the inputs of steps are computed beforehand, so that no round has to: for all
that a network of our own training can guess, also where fewer are guessed. The text has the others too."""


def family_of(method: str) -> TrainedFamily:
    """The trained family of a drafter; WeightsError if it has none."""
    if method not in FAMILIES:
        raise WeightsError(f"method {shown(method)} has no trained network{nearest(method, FAMILIES)}")
    return FAMILIES[method]


def new_network(
    method: str, sizes: NetworkSizes, shared: SharedWeights, generator: torch.Generator
) -> DraftNetwork[NetworkSizes]:
    network = family_of(method).load()(sizes, shared)
    network.begin_(generator)
    return network


# -------------------------------------------------------------------------------------------------- 8 bits


def fits(tensor: Tensor) -> bool:
    """Whether it is a matrix whose rows can be cut into groups that share a step."""
    return tensor.dim() == 2 and tensor.shape[1] % _TOGETHER == 0


def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (m, n) as whole numbers from −127 to 127, (m, n) int8, and the step of each 32, (m, n / 32) float16.

    Rounding what `unrounded` gives once more changes nothing, so kernels that round like this multiply what is stored.
    """
    groups = matrix.float().reshape(len(matrix), -1, _TOGETHER)
    steps = (groups.abs().amax(dim=2) / _LARGEST).half()
    numbers = (groups / steps.float().clamp_min(_LEAST)[..., None]).round().clamp(-_LARGEST, _LARGEST)
    return numbers.to(torch.int8).flatten(1), steps


def unrounded(numbers: Tensor, steps: Tensor) -> Tensor:
    """(m, n) float32 from what `rounded` gives."""
    groups = numbers.float().reshape(len(numbers), -1, _TOGETHER)
    return (groups * steps.float()[..., None]).flatten(1)


def check_steps(name: str, entries: Mapping[str, TensorEntry], where: str) -> None:
    """Refuse an int8 tensor of the file `where`.

    Raises:
        WeightsError: there are no steps, or they do not fit the matrix.
    """
    matrix, steps = entries[name], entries.get(name + STEPS)
    if steps is None:
        raise DamagedWeights(f"{where} has no tensor {name + STEPS}, the steps of {name}")
    wanted = (matrix.shape[0], matrix.shape[1] // _TOGETHER) if len(matrix.shape) == 2 else ()
    if not wanted or matrix.shape[1] % _TOGETHER:
        raise DamagedWeights(f"{where}: tensor {name} of {list(matrix.shape)} is not a matrix of groups of {_TOGETHER}")
    if steps.dtype != "F16" or steps.shape != wanted:
        raise DamagedWeights(
            f"{where}: tensor {name + STEPS} is {list(steps.shape)} in {steps.dtype}, not {list(wanted)} in F16"
        )


# -------------------------------------------------------------------------------------------------- files


def save_weights(network: DraftNetwork[NetworkSizes], file: Path) -> None:
    """Write the trained tensors, matrices in 8 bits and the rest in bfloat16, and which tokens can be guessed.

    Of what is shared with the target nothing is written.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.tensors().items():
        if fits(tensor):
            tensors[name], tensors[name + STEPS] = rounded(tensor.detach().cpu())
        else:
            tensors[name] = tensor.detach().to("cpu", torch.bfloat16)
    tensors[TOKENS] = network.shared.tokens.to("cpu", torch.int32)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def load_network(
    method: str, options: Mapping[str, Any], file: Path, share: Callable[[Tensor], SharedWeights], where: str = ""
) -> DraftNetwork[NetworkSizes]:
    """A trained network in float32.

    Args:
        options: its sizes, as `NetworkSizes.options` has them.
        share: (H,) int64 tokens that can be guessed → the target's weights for them.
        where: names the file and the table the options come from.

    Raises:
        ConfigError: the sizes are wrong.
        WeightsError: the file is damaged, or its tensors are not those of a network of these sizes.
    """
    made = family_of(method).load()
    sizes = made.sizes_type.read(options, where or f"{file.parent / 'drafter.toml'}, [options]")
    with torch.device("meta"):
        network = made(sizes, SharedWeights.none())
    wanted = {name: tuple(tensor.shape) for name, tensor in network.tensors().items()}
    tokens = read_tokens(file)
    own = made.own_shapes(sizes, {name: entry.shape for name, entry in read_entries(file).items()})
    tensors = read_tensors(file, {**wanted, **own})
    network.assign_(tensors)
    network.shared = _shared(share, tokens, tensors)
    network.take_own_({name: tensors[name] for name in own})
    return network.eval().requires_grad_(False)


def _shared(share: Callable[[Tensor], SharedWeights], tokens: Tensor, tensors: Mapping[str, Tensor]) -> SharedWeights:
    """The target's shared weights, replaced by the network's own head and embedding where it has them."""
    shared = share(tokens[:1] if OWN_HEAD in tensors else tokens)
    if OWN_HEAD in tensors:
        shared = replace(shared, tokens=tokens, head=tensors[OWN_HEAD], own_head=True)
    if OWN_EMBED in tensors:
        shared = replace(shared, embed=partial(F.embedding, weight=tensors[OWN_EMBED]), own_embed=True)
    return shared


def read_tensors(file: Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Exactly these tensors of a file, in float32.

    Raises:
        WeightsError: one is missing, of another shape, of another format, not finite, or not asked for.
    """
    entries = read_entries(file)
    steps = {name: name + STEPS for name in wanted if name in entries and entries[name].dtype == "I8"}
    for name in entries:
        if name not in wanted and name != TOKENS and name not in steps.values():
            raise DamagedWeights(f"{file}: tensor {shown(name)} is not asked for{nearest(name, wanted)}")
    for name, shape in wanted.items():
        if name not in entries:
            raise DamagedWeights(f"{file} has no tensor {name}")
        if entries[name].shape != shape:
            raise DamagedWeights(f"{file}: tensor {name} is {shown(entries[name].shape)}, not {shape}")
        if name in steps:
            check_steps(name, entries, str(file))
        elif entries[name].dtype not in _FORMATS:
            raise DamagedWeights(f"{file}: tensor {name} is in {entries[name].dtype}, not {', '.join(_FORMATS)}")
    with one_line(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
        tensors = {
            name: unrounded(opened.get_tensor(name), opened.get_tensor(steps[name]))
            if name in steps
            else opened.get_tensor(name).float()
            for name in wanted
        }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise DamagedWeights(f"{file}: tensor {name} has numbers that are not finite")
    return tensors


def read_tokens(file: Path) -> Tensor:
    """(H,) int64 the tokens that a file says can be guessed, all different.

    Raises:
        WeightsError: it does not say so, or names a token twice or below 0.
    """
    entry = read_entries(file).get(TOKENS)
    if entry is None or entry.dtype != "I32" or len(entry.shape) != 1 or not 0 < entry.shape[0] <= MOST_TOKENS:
        raise DamagedWeights(f"{file} has no list of tokens, a tensor {TOKENS!r} of numbers of 32 bits")
    with one_line(f"{file} cannot be read"), safe_open(file, framework="pt") as opened:
        tokens: Tensor = opened.get_tensor(TOKENS).long()
    if int(tokens.min()) < 0 or len(torch.unique(tokens)) < len(tokens):
        raise DamagedWeights(f"{file}: tensor {TOKENS!r} names a token twice, or one below 0")
    return tokens


# -------------------------------------------------------------------------------------------------- drafting


@dataclass(frozen=True, eq=False)
class DraftingWeights:
    """A network that drafts and what it has of every text alike: inputs by token, and the head of the frequent tokens.

    Args:
        network: it is not changed any more.
        trained, target: the weights and the target that they were read from.
    """

    network: TokenNetwork[NetworkSizes]
    tokens: TokenInputs
    head: TrimmedHead[Tensor]
    trained: TrainedDrafter
    target: Weights

    def inputs(self, text: TextInputs | None, threads: int) -> DraftingInputs:
        """The inputs of drafting in one text."""
        text = text or TextInputs((), lambda states: states)
        return DraftingInputs(text, self.tokens, self.head.for_another_text(), threads, self)


_IN_USE: WeakValueDictionary[tuple[int, Path, int], DraftingWeights] = WeakValueDictionary()
"""Weights as they were trained, by target, file and frequent tokens, as long as a drafter uses them."""


class HeadOfTarget:
    """A trained drafter's head for one target. It drafts on the target's device and in its format; on the processor in
    float32, through the compiled kernels where the target does."""

    def __init__(self, target: Weights, trained: TrainedDrafter, tokens: int) -> None:
        """Nothing is loaded yet.

        Args:
            tokens: so many of the tokens that it can guess are kept, those that texts use most.

        Raises:
            WeightsError: the list of these tokens is damaged.
        """
        self._target: Weights = target.whole if isinstance(target, CachedModel) else target
        self._trained, self._tokens = trained, tokens
        known = read_tokens(trained.weights)[:_KNOWN_TOKENS]
        self._known = known[known < target.vocab_size].tolist()
        network = target.network if isinstance(target, Decoder) else None
        self._compiled = network if isinstance(network, NativeNetwork) else None
        there = isinstance(target, TargetElsewhere) and target.kernels == "native"  # it would be compiled beside it
        self._native = self._compiled is not None or (there and native_works())

    def load(self) -> DraftHead[Sizes]:
        """As `load_any`, a head that reads states."""
        head = self.load_any()
        assert isinstance(head, DraftHead), "its drafter asks for a network that reads states"
        return head

    def load_any(self) -> TokenNetwork[NetworkSizes]:
        """A network on the processor in float32, each time a new one.

        Raises:
            ConfigError: the sizes that its folder names are wrong.
            WeightsError: its file is damaged, or holds another network.
            ModelError: it was trained for a target of other sizes.
        """
        trained, target = self._trained, self._target
        network = load_network(
            trained.method, trained.options, trained.weights, lambda ids: SharedWeights.of(target, ids[: self._tokens])
        )
        assert isinstance(network, TokenNetwork), "its drafter asks for a network that reads embeddings"
        sizes = network.sizes
        deepest = sizes.taps[-1] if isinstance(sizes, Sizes) else 0
        if sizes.hidden != target.hidden_size or deepest >= target.layers:
            read = f"states of {sizes.hidden} numbers after layers up to {deepest}"
            if not isinstance(sizes, Sizes):
                read = f"embeddings of {sizes.hidden} numbers"
            raise ModelError(
                f"trained drafter {trained.name!r} reads {read}; the target has {target.hidden_size} and "
                f"{target.layers} layers"
            )
        return network

    def ready(self, learnt: DraftHead[Sizes] | None = None, text: TextInputs | None = None) -> Drafting:
        """The head ready to draft in one text.

        Args:
            learnt: a network of this drafter's own, which is changed; None for the weights as they were trained, which
                are loaded once for all drafters of targets with the same weights.
            text: holds rows that are known already.
        """
        weights = self.weights() if learnt is None else self._drafting(learnt)
        head = weights.network
        assert isinstance(head, DraftHead), "its drafter asks for a network that reads states"
        return head.drafting(weights.inputs(text or TextInputs(head.sizes.taps, head.fused_here), self.threads))

    def weights(self) -> DraftingWeights:
        """The weights as they were trained, loaded where no drafter has them in use. Errors are those of `load_any`."""
        key = id(self._target), self._trained.weights, self._tokens
        found = _IN_USE.get(key)
        if found is None or found.trained != self._trained:
            found = _IN_USE[key] = self._drafting(self.load_any())
        return found

    @property
    def threads(self) -> int:
        """With how many the compiled kernels may draft, if they belong to the target's own team."""
        return 1 if self._compiled is None else self._compiled.threads

    def _drafting(self, network: TokenNetwork[NetworkSizes]) -> DraftingWeights:
        shared, like = network.shared, self._like()
        network.to(like)
        product = partial(TorchHead, network.normed, like) if not self._native else _native(network)
        head = TrimmedHead(product, shared.tokens, shared.head, None if shared.own_head else self._target.head_rows)
        return DraftingWeights(network, self._token_inputs(network, like), head, self._trained, self._target)

    def _like(self) -> Tensor:
        """A tensor on the device and in the format that it drafts in."""
        device = self._target.device
        dtype = torch.float32 if device.type == "cpu" else self._target.embed([0]).dtype
        return torch.empty(0, dtype=dtype, device=device)

    def _token_inputs(self, head: TokenNetwork[NetworkSizes], like: Tensor) -> TokenInputs:
        """The inputs of its steps by token, through the compiled kernels where they have the target's embeddings."""
        shared, target = head.shared, self._target

        @torch.inference_mode()
        def write(some: Sequence[int], to: Tensor) -> None:
            embedded = (
                to_device(shared.embed(torch.tensor(some)), like.device) if shared.own_embed else target.embed(some)
            )
            to.copy_(head.of_tokens(embedded.to(like)))

        product = head.token
        compiled = self._compiled
        scaled = compiled is None or compiled.shape.embedding_scale != 1.0
        embedding = None if compiled is None or scaled else compiled.embedding
        writing: Callable[[Sequence[int], Tensor], None] = write
        if isinstance(product, NativeLinear) and embedding is not None:
            writing = EmbeddedProduct(product, embedding, head.sizes.epsilon).write
        return TokenInputs(writing, target.vocab_size, head.token_width, self._known, like)


def _native(head: TokenNetwork[NetworkSizes]) -> Callable[[], HeadProduct[Tensor]]:
    """Let the compiled kernels multiply for a head; returns the constructor of its output head."""
    kernels, arena = small_network_kernels(), Arena()
    for part in list(head.modules()):
        for name, module in list(part.named_children()):
            if isinstance(module, nn.Linear):
                setattr(part, name, NativeLinear(kernels, module.weight, arena))
    return partial(NativeHead, kernels, head.norm, head.sizes.epsilon)
