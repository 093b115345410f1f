"""A short budget of every fuzzer, with fixed seeds; and the bounds that make an attempt's failure visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.errors import ModelError
from tests.fuzz.registry import Fuzzer, TooLong, fuzzers, make_attempt


@pytest.mark.parametrize("name", fuzzers())
def test_damaged_input_is_answered_in_one_line(name: str) -> None:
    fuzzer = fuzzers()[name]
    for seed in range(fuzzer.attempts):
        try:
            make_attempt(fuzzer, seed)
        except BaseException as error:
            error.add_note(f"again: python -m tests.fuzz --only {name} --seed {seed}")
            raise


def test_a_deliberate_error_is_an_answer() -> None:
    def refuse(seed: int, folder: Path) -> None:
        raise ModelError("damaged")

    make_attempt(Fuzzer("refuse", refuse, 1, 1.0), 0)


def test_any_other_exception_is_a_finding() -> None:
    def fail(seed: int, folder: Path) -> None:
        raise IndexError(seed)

    with pytest.raises(IndexError, match="7"):
        make_attempt(Fuzzer("fail", fail, 1, 1.0), 7)


def test_an_endless_loop_is_a_finding() -> None:
    def loop(seed: int, folder: Path) -> None:
        while True:
            pass

    with pytest.raises(TooLong):
        make_attempt(Fuzzer("loop", loop, 1, 0.1), 0)


def test_a_huge_allocation_is_a_finding() -> None:
    def take(seed: int, folder: Path) -> None:
        bytearray(8 << 30)

    with pytest.raises(MemoryError):
        make_attempt(Fuzzer("take", take, 1, 10.0), 0)


def test_an_attempt_leaves_no_files_behind() -> None:
    used: list[Path] = []

    def write(seed: int, folder: Path) -> None:
        (folder / "file").write_text("text")
        used.append(folder)

    make_attempt(Fuzzer("write", write, 1, 1.0), 0)
    assert not used[0].exists()
