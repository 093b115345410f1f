"""Under macOS the same C is compiled, with the options that its compilers know, and loaded by its name."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specchat.compiled import build
from specchat.compiled import machine as host
from specchat.compiled.build import NativeUnavailable
from specchat.models import machine
from specchat.models.cpu_kernels import build as kernels

M1 = {"hw.optional.arm.FEAT_DotProd": 1, "hw.optional.arm.FEAT_I8MM": 0, "hw.perflevel0.physicalcpu": 4}
M2 = {**M1, "hw.optional.arm.FEAT_I8MM": 1}


@pytest.fixture
def apple(monkeypatch, tmp_path):
    """Makes this machine look like one of Apple's, with the developer tools."""

    def become(says):
        tools = tmp_path / "Xcode"
        tools.mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(host.platform, "machine", lambda: "arm64")
        monkeypatch.setattr(host, "_DEVELOPER_TOOLS", (str(tools),))
        monkeypatch.setattr(build, "_DESCRIPTORS", tmp_path / "nowhere")
        monkeypatch.setattr(host, "system_number", lambda name: says.get(name, 0))
        host.cpu_flags.cache_clear()
        return tools

    yield become
    host.cpu_flags.cache_clear()


@pytest.mark.parametrize(("says", "option"), [(M1, "+fp16+dotprod"), (M2, "+fp16+dotprod+i8mm")])
def test_kernels_are_compiled_for_what_the_processor_can_do(apple, monkeypatch, says, option):
    apple(says)
    monkeypatch.setattr(kernels, "find_compiler", lambda: ("/usr/bin/cc",))
    assert f"-march=armv8.2-a{option}" in kernels.compile_command()
    monkeypatch.setattr(kernels, "find_compiler", lambda: (sys.executable, "-m", "ziglang", "cc"))
    assert "-mcpu=native" in kernels.compile_command()


def test_a_processor_without_dot_products_is_refused(apple):
    apple({})
    with pytest.raises(NativeUnavailable, match=r"Linux and macOS.*without asimddp"):
        kernels.compile_command()


def test_compilers_that_only_ask_for_their_installation_are_passed_over(apple, monkeypatch):
    tools = apple(M1)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    assert build.find_compiler() == ("/usr/bin/cc",)
    tools.rmdir()
    with pytest.raises(NativeUnavailable, match="no C compiler"):
        build.find_compiler()
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/opt/homebrew/bin/{name}")
    assert build.find_compiler() == ("/opt/homebrew/bin/cc",)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here")
def test_libraries_are_opened_by_name_where_the_system_names_no_descriptors(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_DESCRIPTORS", tmp_path / "nowhere")
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.c").write_text("int one(void) { return 1; }\n")
    sources = build.Sources(folder, "one", ("cc", "-shared", "-fPIC"))
    for _ in range(2):  # compiled, and found
        assert build.load(sources).library.one() == 1
    assert build.is_compiled(sources)


def test_the_quick_cores_compute_and_the_slow_ones_draw(apple):
    apple(M1)
    assert machine.default_threads() == 4


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS answers")
def test_another_system_says_nothing_under_apples_names():
    assert host.system_value("hw.ncpu") is None
    assert host.system_number("hw.ncpu") == 0
    assert host.system_text("machdep.cpu.brand_string") == ""


def test_nothing_is_compiled_under_windows(monkeypatch):
    monkeypatch.setattr(build.os, "name", "nt")
    try:
        with pytest.raises(NativeUnavailable, match="Windows"):
            build.find_compiler()
    finally:
        monkeypatch.undo()


@pytest.mark.skipif(find_spec("ziglang") is None, reason="the package ziglang, which compiles for macOS, is not here")
@pytest.mark.parametrize(
    ("folder", "processor"),
    [
        ("core/native", "apple_m1"),
        ("models/cpu_kernels", "apple_m1"),
        ("models/cpu_kernels", "apple_m2"),
        ("indexes/native", "apple_m1"),
    ],
)
def test_a_compiler_for_macos_takes_the_same_sources(folder, processor, tmp_path, tmp_path_factory):
    package = Path(build.__file__).parents[1]
    sources = sorted(map(str, (package / folder).glob("*.c")))
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos", f"-mcpu={processor}"]
    told = ["-O0", *(flag for flag in kernels._FLAGS if not flag.startswith("-O")), f"-I{package / 'core' / 'native'}"]
    # Without libraries of its own, which it would compile for each processor: macOS has all that the sources use.
    told += ["-fno-sanitize=undefined", "-nostdlib", "-lSystem"]
    shared = tmp_path_factory.getbasetemp() / "zig"
    cache = {name: str(shared) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    made = tmp_path / "out.dylib"
    done = subprocess.run(
        [*command, *told, *sources, "-o", str(made), "-lm"], env=os.environ | cache, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:2000]
    assert made.read_bytes()[:4] == b"\xcf\xfa\xed\xfe", "a library as macOS loads it"
