"""From files that were verified to models that run: configuration, tokenizer, weights; refuses what cannot work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specchat.compiled.build import NativeUnavailable
from specchat.config.values import ModelSpec
from specchat.core.drafting_networks import Prunable, TrainedNetwork
from specchat.core.seams import Model
from specchat.errors import ModelError, NotEnoughMemory, TokenizerMismatch, UsageError
from specchat.models.backends.llama_cpp import LLAMA, chosen_backend, load_llama, steps_in
from specchat.models.backends.transformers_model import ReferenceModel, refuse_other_states
from specchat.models.backends.transformers_network import load_network, refuse_unknown_states
from specchat.models.cpu_kernels.kernels import native_works
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.streamed_weights import WeightLimit
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.network import Network
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.recorded_network import cuda_network
from specchat.models.decoder.shape import Shape, said_by, unsupported
from specchat.models.machine import available_bytes, choose_precision, keeps_bits, multiplies
from specchat.models.weights.config_file import CONFIG, read_config
from specchat.models.weights.families import FAMILIES
from specchat.models.weights.foreign_code import first_line, library_error, one_line
from specchat.models.weights.gguf_header import read_header, rotation_scaling
from specchat.models.weights.gguf_source import GgufSource
from specchat.models.weights.model_files import describe_model, needed_bytes, refused_layers, with_working_bytes
from specchat.models.weights.tokenizer_files import end_tokens, open_tokenizer, same_tokenizer
from specchat.models.weights.transformers_cache import (
    HEADER_ALONE,
    RememberedConfig,
    converted_folder,
    is_converted,
    remember_config,
    remembered_config,
)
from specchat.models.weights.weight_source import AdjustedSource, TensorSource, WeightSource

if TYPE_CHECKING:
    from specchat.models.ranks.leading import Ranks  # not where a GPU is measured: msgspec may be missing there

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is fetched, no code is run."""


def open_config(path: Path) -> tuple[Path, Any]:
    """The configuration of a GGUF file or of a folder of safetensors, and the folder where it and the tokenizer lie.

    Raises:
        WeightsError: a file cannot be read, or holds invalid values.
        ModelError: transformers makes no configuration of it.
    """
    folder, said = _checked(path)
    return folder, _made_of(said, folder, path)


def known_config(path: Path) -> tuple[Path, Any]:
    """A configuration as remembered, where our own decoder runs the model; else as `open_config` has it, errors too."""
    folder, said = _checked(path)
    known = remembered_config(folder)
    return folder, _made_of(said, folder, path) if known is None or unsupported(known) else known


def _checked(path: Path) -> tuple[Path, dict[str, Any]]:
    folder = converted_folder(path) if path.is_file() else path
    return folder, read_config(folder / CONFIG, named=path if path.is_file() else None)


def _made_of(said: dict[str, Any], folder: Path, path: Path) -> Any:
    from transformers import AutoConfig

    if path.is_file() and said.get(HEADER_ALONE) and said["model_type"] not in FAMILIES:  # a folder is not ours
        return RememberedConfig(said, "PreTrainedTokenizerFast")
    with one_line(f"{path} cannot be used"):
        return AutoConfig.from_pretrained(folder, **_LOCAL)


STATES_NOTE = (
    "{} keeps recurrent states: they are not kept on the disk, and a text that is edited before the end of an earlier "
    "prompt is read again from the one before"
)

_WHOLE_NUMBERS = ("int8", "int4")

_CONVERTING_BYTES = 200_000_000
"""Memory that converting a tokenizer takes beside the weights: libraries, and the file's table of tokens."""


@dataclass(frozen=True)
class Loaded:
    """A model that runs, and what belongs to it. A scripted model has no tokenizer, and no `folder` where it lies.

    Args:
        prunable: its weights, where it runs in our own decoder.
        shipped: makes the drafting head of its files, see `shipped_mtp.with_shipped_head`; None without one.
        ranks: the other processes that hold parts of it.
    """

    name: str
    model: Model
    tokenizer: Any
    eos_ids: frozenset[int]
    weight_bytes: int
    precision: str
    kernels: str = "torch"
    notes: tuple[str, ...] = field(default=())
    folder: Path | None = None
    prunable: Prunable | None = None
    shipped: Callable[[], TrainedNetwork] | None = None
    ranks: Ranks | None = None


def load_model(
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    wanted: str,
    say: Callable[[str], None] = lambda s: None,
    kernels: str = "auto",
    guesses: bool = False,
    beside: Loaded | None = None,
    backend: str = "auto",
    cards: bool = True,
    limit: WeightLimit | None = None,
    ranks: Ranks | None = None,
) -> Loaded:
    """Load one model from its verified files: into our own decoder where it fits, else through transformers.

    Args:
        ranks: processes over which the weights are shared out; None where all are in this one.
        limit: how much memory the weights may take; what does not fit is read in every pass, where `can_stream`.
        backend: what is to run it, unless the model's own table says so.
        cards: whether llama.cpp may use cards.
        beside: another model, whose tokenizer serves this one too where their files are the same.
        guesses: nothing of it can change a text, so `auto` rounds all its weights to 4 bits where that is faster.
        wanted: the precision asked for; `auto` chooses.
        say: hears what is being done, for progress.
        kernels: who multiplies whole-number weights on a processor: native, torch, or whichever is faster here.

    Raises:
        ModelError: an architecture whose cache cannot be rewound, a precision that is not available for it, or
            weights that do not fit into memory.
    """
    say("configuration" if path.is_dir() or is_converted(path) else "converting tokenizer")
    backend = chosen_backend(spec, backend)
    if ranks is not None:
        refuse_ranks(spec, backend, kernels)
        cards = False
    if backend == LLAMA:
        return _through_llama(spec, path, say, beside, cards)
    if refusal := describe_model(path).refusal:
        if steps_in(backend, path, cards=cards):
            return _through_llama(spec, path, say, beside, cards)
        raise ModelError(f"{spec.name} {refusal}")

    def streams() -> bool:
        return limit is None and not guesses and can_stream(spec, path, device, wanted, kernels, backend)

    if device.type == "cpu":  # where memory runs out in a conversion, Python may no longer be able to say so
        least = "int4" if path.is_file() or guesses else "bfloat16"
        converting = 0 if path.is_dir() or is_converted(path) else _CONVERTING_BYTES
        check_memory(spec, path, device, least if wanted == "auto" else wanted, converting, limit, streams)
    try:
        folder, config = open_config(path) if backend == "transformers" else known_config(path)
        why_not = unsupported(config)
        if why_not is not None and steps_in(backend, path, cards=cards):
            return _through_llama(spec, path, say, beside, cards)
        if isinstance(config, RememberedConfig) and why_not is not None:
            raise ModelError(
                f"{spec.name} cannot be loaded: transformers reads no GGUF files of architecture {config.model_type}; "
                "nearest that works: backend = llama.cpp"
            )
        if why_not is not None and ranks is not None:
            raise ModelError(f"{spec.name} is not shared out over ranks: {why_not}; nearest that works: one device")
        if why_not is not None and backend == "own":
            raise ModelError(f"backend = own does not run {spec.name}: {why_not}; nearest that works: transformers")
        why_not = "backend = transformers" if backend == "transformers" else why_not
        context_tokens, notes = usable_context(spec, config, own=why_not is None)
        drafts, guesses = guesses, guesses and wanted == "auto"
        # torch multiplies 4 bits on a processor far slower than the native kernels, which ranks do not use
        quantised = (path.is_file() or guesses) and (ranks is None or device.type != "cpu")
        precision = choose_precision(wanted, device, quantised=quantised, own=why_not is None)
        parts = 1 if ranks is None or device.type == "cpu" else ranks.size
        check_memory(spec, path, device, precision, limit=limit, streams=streams, parts=parts)
        say("tokenizer")
        tokenizer, ends = _tokenizer(folder, config, beside)
        say("weights")
        if why_not is None:
            remember_config(folder, config, tokenizer)
            source, shape = open_weights(path, config)
            asked = wanted == "int4" and path.is_dir()  # of weights of more bits; on a processor they have 8 then
            rounds = precision == "int4" and (guesses or (asked and device.type != "cpu"))
            source = AdjustedSource(source, rounds=True) if rounds else source
            if asked:
                bits = (
                    f"rounded to 4 bits, so texts are not those of {spec.name} itself" if rounds else "taken in 8 bits"
                )
                notes += (f"the weights of {spec.name} have more than 4 bits: with dtype = 'int4' they are {bits}",)
            if ranks is None:
                network, why_slow = own_network(shape, source, precision, device, kernels, limit)
            else:
                network, shared = ranks.network(shape, source, spec.name, path, precision, rounds=rounds)
                *first, last = (f"{part / 1e6:.1f}" for part in shared)
                told = f"{', '.join(first)} and {last} MB of weights"
                why_slow = (*network.inner.notes, f"{spec.name} is shared out over {len(shared)} ranks: {told}")
            decoder = Decoder(network, context_tokens, drafts, name=spec.name)
            model: Model = decoder
            opened = partial(open_weights, path, config)
            narrower = partial(_narrower_network, precision, device, kernels)
            prunable = None if drafts or ranks is not None else PrunableFile(decoder, opened, narrower)
            weight_bytes, multiplied_by = network.nbytes, network.kernels
            notes += why_slow
        else:
            dtype = torch.float32 if precision == "float32" else torch.bfloat16
            reference = load_network(path, config, dtype).to(device)
            refuse_unknown_states(spec.name, reference)
            in_c = kernels != "torch"
            model, prunable = ReferenceModel(reference, context_tokens, recurrence_in_c=in_c), None
            if model.recurrent:
                refuse_other_states(spec.name, model)
                notes += (STATES_NOTE.format(spec.name),)
            weight_bytes = sum(weight.numel() * weight.element_size() for weight in reference.parameters())
            multiplied_by = "transformers"
            notes += (f"{spec.name} runs through transformers, which is slower: {why_not}",)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(f"{spec.name} does not fit into the memory of {device}: {first_line(error)}") from None
    except RuntimeError as error:  # of a device as well as of what is loaded
        raise ModelError(f"{spec.name} cannot be loaded: {first_line(error)}") from None
    except (ValueError, OSError, KeyError, ImportError, AttributeError) as error:
        raise library_error(f"{spec.name} cannot be loaded", error) from None
    return Loaded(
        *(spec.name, model, tokenizer, ends, weight_bytes, precision, multiplied_by, notes, folder, prunable),
        ranks=ranks,
    )


def refuse_ranks(spec: ModelSpec, backend: str, kernels: str) -> None:
    """Refuse to share out over ranks what runs in one process only.

    Raises:
        UsageError: says what would work.
    """
    if backend in (LLAMA, "transformers"):
        nearest = "tensor_split or rpc_servers in models.toml" if backend == LLAMA else "backend = own, or one device"
        raise UsageError(
            f"backend = {backend} does not share {spec.name} out over ranks; nearest that works: {nearest}"
        )
    if kernels == "native":
        raise UsageError("kernels = native multiplies in one process alone; nearest that works over ranks: torch")


def _through_llama(
    spec: ModelSpec, path: Path, say: Callable[[str], None], beside: Loaded | None, cards: bool
) -> Loaded:
    model, notes = load_llama(spec, path, cards=cards)
    say("tokenizer")
    folder, config = known_config(path)
    tokenizer, ends = _tokenizer(folder, config, beside)
    weights = model.weights
    return Loaded(spec.name, model, tokenizer, ends, weights.nbytes, weights.format, LLAMA, notes, folder)


def open_weights(path: Path, config: Any) -> tuple[WeightSource, Shape]:
    """The weights of a GGUF file or a folder, and the shape with what only a GGUF file says of its rotation.

    Raises:
        WeightsError: a file cannot be read.
        ModelError: numbers of the configuration, or the file's rotation, do not go together.
    """
    with said_by(path):
        shape = Shape.of(config)
    if not path.is_file():
        return TensorSource.of_folder(path, FAMILIES[config.model_type]), shape
    source = GgufSource(path)
    with said_by(path):
        slower = shape.rotated_slower(rotation_scaling(read_header(path)).linear, source.rotation_factors())
    return source, slower


def own_weights(name: str, path: Path) -> tuple[WeightSource, Shape]:
    """The weights and the shape of a model that our own decoder runs; none of them are in memory yet.

    Raises:
        WeightsError: a file cannot be read.
        ModelError: our own decoder does not run it.
    """
    _, config = known_config(path)
    if why_not := unsupported(config):
        raise ModelError(f"{name} is not run by our own decoder: {why_not}")
    return open_weights(path, config)


def can_stream(spec: ModelSpec, path: Path, device: torch.device, wanted: str, kernels: str, backend: str) -> bool:
    """Whether layers that do not fit into memory can stay on the disk: where our own kernels multiply."""
    seen = describe_model(path)
    ours = seen.own and not seen.refusal and chosen_backend(spec, backend) in ("auto", "own")
    if not ours or device.type != "cpu" or kernels == "torch":
        return False
    return choose_precision(wanted, device, quantised=path.is_file(), own=True) in _WHOLE_NUMBERS and native_works()


def streaming_network(model: Model) -> NativeNetwork | None:
    """The network of a model whose layers are read from the disk in every pass; None where all are in memory."""
    network = model.network if isinstance(model, Decoder) else None
    return network if isinstance(network, NativeNetwork) and network.streamed is not None else None


def streaming_line(model: Model) -> str:
    """Says what of such a network stays in memory and what is read in every pass; empty for any other."""
    network = streaming_network(model)
    return "" if network is None else str(network.streamed)


def own_network(
    shape: Shape,
    source: WeightSource,
    precision: str,
    device: torch.device,
    kernels: str,
    limit: WeightLimit | None = None,
) -> tuple[Network, tuple[str, ...]]:
    """The layers by the fastest kernels there are for the precision, and why where those are not the fastest known."""
    notes: tuple[str, ...] = ()
    if device.type == "cpu" and precision in _WHOLE_NUMBERS and kernels != "torch":
        try:
            return NativeNetwork(shape, source, precision, limit=limit), notes
        except NativeUnavailable as error:
            if kernels == "native":
                raise
            notes = (f"slower than it could be: the native kernels are not in use, since {error}",)
    builder = Builder(shape, source, precision, device)
    weights = builder.build()
    notes += builder.notes
    if device.type == "cuda":
        network, why_slow = cuda_network(weights)
        return network, (*notes, *why_slow)
    return EagerNetwork(weights), notes


def _narrower_network(
    precision: str, device: torch.device, kernels: str, shape: Shape, source: WeightSource
) -> Network:
    """A network that only guesses: in 4 bits, all its weights are."""
    return own_network(
        shape, AdjustedSource(source, rounds=True) if precision == "int4" else source, precision, device, kernels
    )[0]


def load_tokenizer(name: str, path: Path) -> tuple[Any, frozenset[int]]:
    """The tokenizer of a model and the tokens that end a reply, no weights read; ModelError if it cannot be used."""
    with one_line(f"the tokenizer of {name} cannot be used"):
        return _tokenizer(*known_config(path))


def _tokenizer(folder: Path, config: Any, beside: Loaded | None = None) -> tuple[Any, frozenset[int]]:
    if beside is not None and beside.folder is not None and same_tokenizer(folder, beside.folder):
        tokenizer = beside.tokenizer
    else:
        tokenizer = open_tokenizer(folder, config.tokenizer_made_by if isinstance(config, RememberedConfig) else "")
    return tokenizer, end_tokens(folder, config, tokenizer)


def compare_tokenizers(target: Loaded, draft: Loaded) -> None:
    """Refuse a draft model whose tokens differ from the target's; TokenizerMismatch says how many, and one of them."""
    if differing := differing_tokens(target, draft):
        raise TokenizerMismatch(
            f"{draft.name} cannot draft for {target.name}: {differing}; choose a draft model of the same family"
        )


def differing_tokens(target: Loaded, draft: Loaded) -> str:
    """How many tokens of two models' tables differ, and one of them; empty where they are the same.

    Equal vocabulary sizes prove nothing; the tables decide.
    """
    if target.tokenizer is draft.tokenizer:
        return ""
    if target.tokenizer is None or draft.tokenizer is None:
        table, other = {"": 0}, {"": 1}
    else:
        table, other = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    differing = [word for word in table.keys() | other.keys() if table.get(word) != other.get(word)]
    if not differing:
        return ""
    word = min(differing)
    return f"{len(differing)} tokens of their tables differ, such as {word!r} ({table.get(word)} and {other.get(word)})"


def usable_context(spec: ModelSpec, config: Any, own: bool) -> tuple[int, tuple[str, ...]]:
    """How many tokens of context can be used, and what to say about it.

    Args:
        own: whether our own decoder runs it, whose cache keeps what a sliding window leaves behind.

    Raises:
        ModelError: layers that overwrite what they have read (recurrent state, ring buffers): a rejected draft
            could not be taken back.
    """
    text = config.get_text_config()
    limit = spec.context_tokens or int(getattr(text, "max_position_embeddings", 4096))
    said = {
        key: getattr(text, key)
        for key in ("model_type", "layer_types", "sliding_window", "use_sliding_window")
        if hasattr(text, key)
    }
    if refusal := refused_layers({**said, "max_position_embeddings": limit}, own):
        raise ModelError(f"{spec.name} {refusal}")
    window = said.get("sliding_window")
    if window and not own and said.get("use_sliding_window", True) and window < limit:
        return int(window), (f"context limited to {window} tokens, the model's sliding window",)
    return limit, ()


def check_memory(
    spec: ModelSpec,
    path: Path,
    device: torch.device,
    precision: str,
    besides: int = 0,
    limit: WeightLimit | None = None,
    streams: Callable[[], bool] = lambda: False,
    parts: int = 1,
) -> None:
    """Raise NotEnoughMemory, before anything is taken, where a model and `besides` will not fit; says what is free.

    Where weights have a limit they take no more; `streams`: whether they could have one. On this device there is one of
    so many parts of them.
    """
    seen = describe_model(path)
    if seen.quantised and precision == "int4" and keeps_bits(device):
        weights = with_working_bytes(seen.kept_bytes)
    else:  # on CUDA perhaps 8 bits, and a table of embeddings
        others = "int8" if device.type == "cpu" and multiplies("int8", device) else "bfloat16"
        weights = needed_bytes(seen.parameters, precision, seen.four_bit if seen.quantised else None, others)
    needed = besides + weights // parts
    needed = needed if limit is None else min(needed, max(0, limit.left()))
    available = available_bytes(device)
    if available is not None and needed > available:
        hint = ", or state a limit, such as --memory 4GB: what is beyond it stays on the disk" if streams() else ""
        raise NotEnoughMemory(
            f"{spec.name} needs about {needed / 1e9:.1f} GB in {precision} and {available / 1e9:.1f} GB are free on "
            f"{device}; choose a smaller model or close other programs{hint}"
        )
