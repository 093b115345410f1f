"""What a container allows bounds the threads and the memory that are counted on."""

import pytest

from specchat.compiled import machine as host
from specchat.models import machine

GB = 1_000_000_000


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Writes control groups and says in which this process is."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    root.mkdir()
    monkeypatch.setattr(host, "_GROUPS", root)
    monkeypatch.setattr(host, "_OWN", own)

    def write(says, files):
        own.write_text(says)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    return write


def test_without_groups_there_is_no_limit(groups):
    assert host.cores_allowed() is None
    assert host.memory_left() is None


def test_version_2_with_the_strictest_of_nested_groups(groups):
    files = {
        "cpu.max": "400000 100000\n",
        "user/cpu.max": "max 100000\n",
        "user/chat/cpu.max": "150000 100000\n",
        "user/memory.max": "3000000000\n",
        "user/memory.current": "2000000000\n",
        "user/memory.stat": "anon 1\ninactive_file 500000000\n",
        "user/chat/memory.max": "max\n",
        "user/chat/memory.current": "1\n",
    }
    groups("0::/user/chat\n", files)
    assert host.cores_allowed() == 2
    assert host.memory_left() == 3 * GB - 2 * GB + GB // 2


def test_version_1_under_the_names_of_the_machine_around_the_container(groups):
    files = {
        "cpu/cpu.cfs_quota_us": "50000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": "2000000000\n",
        "memory/memory.usage_in_bytes": "2100000000\n",
    }
    groups("4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n", files)
    assert host.cores_allowed() == 1
    assert host.memory_left() == 0


@pytest.mark.parametrize("cpu", ["", "max", "-1 100000", "100000 0", "many 100000", "1 2 3"])
def test_what_is_no_limit_is_none(groups, cpu):
    groups("0::/\nno colon\n", {"cpu.max": cpu, "memory.max": "much", "memory.current": "1", "memory.stat": "anon"})
    assert host.cores_allowed() is None
    assert host.memory_left() is None


def test_threads_and_free_memory_follow(groups, monkeypatch):
    files = {"cpu.max": "300000 100000", "memory.max": "70000", "memory.current": "20000"}
    groups("0::/\n", files)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(host, "system_number", lambda name: 0)
    assert machine.default_threads() == 2
    assert host.free_bytes() == 50_000
