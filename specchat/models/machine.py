"""The machine as the engine uses it: devices, number formats that they compute natively, memory, threads."""

from __future__ import annotations

import os
import shutil

import torch

from specchat.compiled import machine as host
from specchat.errors import UsageError, nearest
from specchat.models.weights.model_files import processor_precision

MOST_PROCESSES = 64
"""Over which a target is shared out at most; its heads of keys and values may allow fewer."""


def choose_device(wanted: str) -> torch.device:
    """The first of `choose_devices`, on which everything runs that is not shared out."""
    return choose_devices(wanted)[0]


def choose_devices(wanted: str) -> tuple[torch.device, ...]:
    """The devices a setting names, several where a target is shared out; `auto` is CUDA if there, else the CPU.

    An address behind them, as in cpu:2@host:port, says where all but the first join, from other machines.

    Raises:
        UsageError: there is none such here.
    """
    if wanted == "auto":
        return (torch.device("cuda" if torch.cuda.is_available() else "cpu"),)
    named, _, at = wanted.partition("@")
    kind, _, index = named.partition(":")
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in here:
        raise UsageError(f"device = {wanted!r} is not one of its values{nearest(wanted, ['auto', *here])}")
    if not here[kind]:
        available = ", ".join(name for name, there in here.items() if there)
        raise UsageError(f"device = {wanted!r} is not on this machine; available: {available}")
    if not index and not at:
        return (torch.device(kind),)
    numbers = index.split(",")
    twice = not at and len({*numbers}) < len(numbers)
    if not all(number.isdecimal() and len(number) < 4 for number in numbers) or twice:
        raise UsageError(f"device = {wanted!r} must name each {kind} device once, as in cuda:0,1, or say cpu:2")
    if kind == "cpu" and len(numbers) == 1 and 0 < int(index) <= MOST_PROCESSES:
        return (torch.device("cpu"),) * int(index)
    if len(numbers) > MOST_PROCESSES:
        raise UsageError(f"device = {wanted!r}: a target is shared out over {MOST_PROCESSES} processes at most")
    if kind == "cuda" and max(map(int, numbers[:1] if at else numbers)) < torch.cuda.device_count():
        return tuple(torch.device("cuda", int(number)) for number in numbers)
    processes = f": 1 to {MOST_PROCESSES} processes" if kind == "cpu" else ""
    raise UsageError(f"device = {wanted!r}: there is no such {kind} device here{processes}")


def launched_ranks() -> int:
    """How many processes torchrun started, this one included; 1 where it started none."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def choose_precision(wanted: str, device: torch.device, quantised: bool, own: bool) -> str:
    """The precision a setting names; `auto` takes the fastest that keeps what the file holds.

    On a processor that is int4 for files of 4-bit weights: they are the file's own, and nothing is faster up to some
    ten rows. On CUDA it is int4 for the same files where a kernel for it works on the device. Elsewhere it is bfloat16
    where the device computes it natively, else float32.

    Args:
        quantised: whether the weights come in about 4 bits.
        own: whether our own decoder runs the model; transformers' networks take float32 and bfloat16 only.

    Raises:
        UsageError: a precision that this machine does not support.
    """
    if wanted == "auto" and device.type == "cpu":
        quantised = quantised and own and multiplies("int4", device)
        return processor_precision(wanted, quantised=quantised, own=own)
    if wanted == "auto":
        # By the bytes a token takes to read, a quarter of bfloat16's; not yet measured on a device.
        if own and quantised and multiplies("int4", device):
            return "int4"
        return "bfloat16" if native_bfloat16(device) else "float32"
    if wanted in ("int8", "int4") and not own:
        raise UsageError(
            f"dtype = {wanted!r} works only for architectures of specchat's own decoder; nearest that works: bfloat16"
        )
    if wanted in ("int8", "int4") and not multiplies(wanted, device):
        raise UsageError(f"dtype = {wanted!r} does not work on {device} here; nearest that works: bfloat16")
    return wanted


def multiplies(precision: str, device: torch.device) -> bool:
    """Whether our own decoder multiplies int8 or int4 weights on a device: it is tried out, once."""
    if device.type == "cuda":
        from specchat.models.decoder.cuda_linear import int4_works, int8_works

        return int8_works(device) if precision == "int8" else keeps_bits(device) or int4_works(device)
    if device.type != "cpu":
        return False
    from specchat.models.cpu_kernels.kernels import native_works
    from specchat.models.decoder.linear_layers import int4_works, int8_works

    return (int4_works() if precision == "int4" else int8_works()) or native_works()


def keeps_bits(device: torch.device) -> bool:
    """Whether a device multiplies weights in a GGUF file's own bits, so that they take the file's bytes there."""
    if device.type != "cuda":
        return False
    from specchat.models.decoder.cuda_linear import grouped_product

    return not isinstance(grouped_product(device), str)


def native_bfloat16(device: torch.device) -> bool:
    """Whether products in bfloat16 are done by the hardware rather than emulated."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return host.native_bfloat16()
    return False


def fastest_float(device: torch.device) -> torch.dtype:
    """For products of many rows: bfloat16 where the hardware multiplies it, else float32, up to 40 times as fast."""
    return torch.bfloat16 if native_bfloat16(device) else torch.float32


def unused_card() -> str:
    """That there is an NVIDIA card which this build of torch cannot use; empty where there is none, or it can.

    The index's torch for Windows is a build for processors.
    """
    if torch.version.cuda or torch.version.hip or shutil.which("nvidia-smi") is None:
        return ""
    return (
        f"this machine has an NVIDIA card, and torch {torch.__version__} is a build for processors: the card is not "
        "used; https://pytorch.org/get-started/locally names the command that installs a build with CUDA"
    )


def processor_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else host.cpu_name()


def available_bytes(device: torch.device) -> int | None:
    """Memory that could be taken now, or None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host.free_bytes()


def threads_for(wanted: int) -> int:
    """How many threads the engine gets: as wanted, or chosen for 0; UsageError: more than cores, which would wait."""
    cores = os.cpu_count() or 1
    if wanted > cores:
        raise UsageError(f"threads = {wanted} is more than the {cores} cores of this machine: 1 to {cores}, 0 chooses")
    return wanted or default_threads()


def threads_of_rank(wanted: int, device: torch.device, ranks: int) -> int:
    """How many threads each of so many processes gets: on a processor they share them."""
    threads = threads_for(wanted)
    return max(1, threads // ranks) if device.type == "cpu" else threads


def default_threads() -> int:
    """All cores that may be used up to two, else one less: one is left for drawing the screen.

    Where there are quick cores and slow ones, as in Apple's processors, all the quick ones: a pass takes as long as its
    slowest thread, and the slow ones draw.
    """
    if quick := host.system_number("hw.perflevel0.physicalcpu"):
        return quick
    cores = host.usable_cores()
    cores = min(cores, host.cores_allowed() or cores)
    return cores if cores <= 2 else cores - 1
