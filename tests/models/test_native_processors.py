"""On every kind of processor the kernels compute the same bits; where there is none of them, torch computes."""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from test_decoder import network

from specchat.compiled.build import NativeUnavailable, find_compiler
from specchat.compiled.machine import cpu_flags
from specchat.models import model_loading
from specchat.models.cpu_kernels import build, kernels
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import TensorSource

DRIVER = Path(__file__).with_name("native_driver.c")
FLAGS = ("-O1", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-pthread")
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"

LOOKUPS = Path(__file__).with_name("draft_and_draw_driver.c")
HEADERS, SUFFIX = (build._FOLDER.parents[1] / folder / "native" for folder in ("core", "indexes"))

X86 = {
    "haswell": ("avx2", "f16c", "fma"),
    "alderlake": ("avx_vnni",),
    "skylake-avx512": ("avx512f", "avx512dq"),
    "cascadelake": ("avx512_vnni",),
}
ARM = ("armv8.2-a+dotprod", "armv8.6-a+i8mm")


def checksums(compiler, option, folder, *, static=False, run=()):
    program = folder / "driver"
    command = [*compiler, option, *FLAGS, *(["-static"] if static else []), str(DRIVER), "-o", str(program), "-lm"]
    subprocess.run(command, check=True)
    return subprocess.run([*run, str(program)], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What this machine's own processor computes."""
    try:
        *compiler, option = build.compile_command("native")[: -len(build._FLAGS)]
    except NativeUnavailable as error:
        pytest.skip(str(error))
    return checksums(compiler, option, tmp_path_factory.mktemp("own"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
@pytest.mark.parametrize("processor", X86)
def test_every_x86_processor_computes_the_same_bits(processor, tmp_path, expected):
    if lacking := set(X86[processor]) - cpu_flags():
        pytest.skip(f"this processor lacks {', '.join(sorted(lacking))}")
    assert checksums(find_compiler(), f"-march={processor}", tmp_path) == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86")
@pytest.mark.parametrize("processor", X86)
def test_every_product_of_the_arithmetic_floor_is_computed(processor, tmp_path):
    """A compiler may see that they are all the same: the floor of additions alone is less than half as high."""
    source, made = tmp_path / "floor.c", tmp_path / "floor.s"
    source.write_text(f'#include "{build._FOLDER / "floor.h"}"\n')
    command = [*find_compiler(), f"-march={processor}", *build._FLAGS, "-Wno-unused-function", str(source)]
    subprocess.run([*command, "-S", "-o", str(made)], check=True)
    [body] = re.findall(r"^multiply_registers:\n(.*?)^\s*\.size\s+multiply_registers", made.read_text(), re.M | re.S)
    products = max(len(re.findall("vpmaddubsw|vpdpbusd", loop)) for loop in loops_of(body))
    assert products >= 12


def loops_of(assembly):
    """What stands between a label and a jump back to it."""
    for jump in re.finditer(r"^\s+j\w+\s+(\.L\w+)$", assembly, re.M):
        if (label := assembly.find(f"{jump[1]}:\n")) in range(jump.start()):
            yield assembly[label : jump.start()]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="only gcc says which vectors it keeps in memory")
@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("source", ["pass.c", "pack.c"])
def test_no_vector_is_wider_than_a_register(processor, source, tmp_path):
    told = ("-O0", "-Wvector-operation-performance", "-Werror", "-c")
    command = ["gcc", f"-march={processor}", *FLAGS, *told, str(build._FOLDER / source), "-o", str(tmp_path / "out.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not here")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not here")
@pytest.mark.parametrize("processor", ARM)
def test_64_bit_arm_computes_the_same_bits(processor, tmp_path, expected):
    assert checksums([CROSS], f"-march={processor}", tmp_path, static=True, run=[EMULATOR]) == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 processor")
@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not here")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not here")
def test_64_bit_arm_draws_and_drafts_the_same_tokens(tmp_path):
    sources = [str(file) for file in (LOOKUPS, SUFFIX / "suffix_tree.c", SUFFIX / "draft.c")]

    def printed(compiler, *run):
        program = str(tmp_path / "driver")
        subprocess.run([*compiler, *FLAGS, "-static", f"-I{HEADERS}", *sources, "-o", program, "-lm"], check=True)
        return subprocess.run([*run, program], check=True, capture_output=True, text=True, timeout=120).stdout

    assert printed([CROSS, f"-march={ARM[0]}"], EMULATOR) == printed(find_compiler())


@pytest.mark.parametrize(
    ("machine", "flags", "said"),
    [
        ("x86_64", {"sse2"}, "without avx2"),
        ("aarch64", {"asimd"}, "on aarch64 without asimddp"),
        ("riscv64", {"v"}, "on riscv64"),
    ],
)
def test_a_processor_without_any_is_told_so_in_one_line_and_torch_computes(monkeypatch, machine, flags, said):
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset(flags))
    kernels.loaded_kernels.cache_clear()
    net = network("llama")
    shape, source = Shape.of(net.config), TensorSource(net.state_dict())
    chosen, notes = model_loading.own_network(shape, source, "int8", torch.device("cpu"), "auto")
    kernels.loaded_kernels.cache_clear()
    assert chosen.kernels == "torch"
    (note,) = (note for note in notes if "native kernels" in note)  # another may say what torch lacks here
    assert said in note
    assert "\n" not in note


def test_64_bit_arm_is_among_the_processors_they_are_compiled_for(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(build, "cpu_flags", lambda: frozenset({"asimd", "asimddp"}))
    assert "-mcpu=native" in build.compile_command()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("folder", ["core/native", "models/cpu_kernels", "indexes/native"])
def test_no_source_holds_what_newer_compilers_refuse(folder):
    """GCC 14 and clang 16 do not compile what older ones warn of."""
    package = build._FOLDER.parents[1]
    refused = ("implicit-function-declaration", "implicit-int", "int-conversion", "incompatible-pointer-types")
    for source in sorted((package / folder).glob("*.c")):
        told = ("-fsyntax-only", *(f"-Werror={what}" for what in refused), f"-I{package / 'core' / 'native'}")
        done = subprocess.run(["gcc", "-march=haswell", *FLAGS, *told, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:2000]
