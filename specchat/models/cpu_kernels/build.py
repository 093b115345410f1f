"""Compiles the kernels for this processor, once, and loads them; says why where that cannot be done."""

from __future__ import annotations

import platform
from pathlib import Path

from specchat.compiled.build import Compiled, NativeUnavailable, Sources, find_compiler
from specchat.compiled.build import load as load_library
from specchat.compiled.machine import cpu_flags, machine, processor_option

_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC", "-pthread")
_NEEDED = {"x86_64": ("avx2", "f16c", "fma"), "aarch64": ("asimddp",)}
_WRITTEN_FOR = "x86 processors with AVX2 and 64-bit ARM processors with dot products, under Linux and macOS"


def load(processor: str = "native") -> Compiled:
    """The compiled kernels for this processor, or an older one by name.

    Raises:
        NativeUnavailable: another processor, no compiler, or one that fails.
    """
    return load_library(kernel_sources(processor))


def kernel_sources(processor: str = "native") -> Sources:
    """The kernels' C, and how it is compiled; NativeUnavailable for another processor or without a compiler."""
    return Sources(_FOLDER, "kernels", compile_command(processor), tuple(sorted(cpu_flags())))


def compile_command(processor: str = "native") -> tuple[str, ...]:
    """The compiler's command line, without files; NativeUnavailable for another processor or without a compiler."""
    needed = _NEEDED.get(machine())
    if needed is None or not cpu_flags().issuperset(needed):
        lacks = "".join(f" without {flag}" for flag in needed or () if flag not in cpu_flags())
        here = f"this is {platform.system()} on {platform.machine()}{lacks}"
        raise NativeUnavailable(f"they are written for {_WRITTEN_FOR}, and {here}")
    compiler = find_compiler()
    return (*compiler, processor_option(compiler, processor), *_FLAGS)
