"""With an empty cache the C is compiled while files are read, and the line of progress says so."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from specchat.compiled import build
from specchat.compiled.build import NativeUnavailable, Sources, find_compiler, load
from specchat.config import load_catalog
from specchat.engine.protocol.events import Loading
from specchat.engine.server import pair_loading
from specchat.engine.server.load_times import COMPILING, CompileAhead, LoadTimes, ReadingProgress, load_key
from specchat.engine.server.pair_loading import Loader
from specchat.settings import Settings


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """One line of C."""
    try:
        compiler = find_compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "one.c").write_text("int one(void) { return 1; }\n")
    return Sources(tmp_path / "c", "one", (*compiler, "-shared", "-fPIC"))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[Path]]:
    """Compiling waits for this event; what was compiled."""
    go, files, compile_ = threading.Event(), [], build._compile

    def compile_late(sources: Sources, file: Path) -> None:
        assert go.wait(120), "compiling is let go"
        files.append(file)
        compile_(sources, file)

    monkeypatch.setattr(build, "_compile", compile_late)
    return go, files


def test_what_is_missing_is_compiled_in_the_background_and_once(sources, held):
    go, files = held
    ahead = CompileAhead(lambda: [sources])
    assert ahead.doing == COMPILING
    threading.Timer(0.1, go.set).start()
    assert load(sources).library.one() == 1
    assert len(files) == 1, "who needs it waits and does not compile too"
    until_done(ahead)
    assert CompileAhead(lambda: [sources]).doing == "", "the next time it is there"


def test_a_machine_without_a_compiler_is_left_to_those_that_load(sources):
    def no_compiler() -> list[Sources]:
        raise NativeUnavailable("no C compiler is here")

    assert CompileAhead(no_compiler).doing == ""
    (sources.folder / "one.c").write_text("this is no C")
    until_done(CompileAhead(lambda: [sources]))
    with pytest.raises(NativeUnavailable, match="could not compile"):
        load(sources)


def test_the_line_of_progress_says_what_is_compiled_meanwhile():
    said: list[Loading] = []
    doing = [COMPILING, ""]
    progress = ReadingProgress(said.append, None, "k", lambda: doing.pop(0))
    progress.say("m: configuration")
    progress.say("m: weights")
    assert [event.item for event in said] == [f"m: configuration · {COMPILING}", "m: weights"]


def test_a_load_that_compiles_is_not_taken_for_how_long_loading_takes(tmp_path, monkeypatch, sources, held):
    go, _ = held
    ahead = CompileAhead(lambda: [sources])
    monkeypatch.setattr(pair_loading, "_compile_ahead", lambda *_: ahead)
    times, settings = LoadTimes(tmp_path / "times.json"), Settings().but({"pair": "scripted"})
    Loader(load_catalog(), lambda event: None, lambda: False, times).load(settings)
    assert times.expected_s(load_key(settings, [load_catalog().model("scripted")])) is None
    go.set()
    until_done(ahead)


def test_nothing_is_compiled_for_a_pair_without_weights(monkeypatch):
    begun: list[tuple[object, ...]] = []

    def begin(*wanted: object) -> CompileAhead:
        begun.append(wanted)
        return CompileAhead(list)

    monkeypatch.setattr(pair_loading, "CompileAhead", begin)
    Loader(load_catalog(), lambda event: None, lambda: False).load(Settings().but({"pair": "scripted"}))
    assert begun == [(list,)], "an empty list of sources"


def until_done(ahead: CompileAhead) -> None:
    end = time.monotonic() + 20
    while ahead.doing:
        assert time.monotonic() < end, "it ends"
        time.sleep(0.01)
