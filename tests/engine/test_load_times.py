"""Loading says how long it still takes, from how long it took the last time."""

from __future__ import annotations

import pytest

from specchat.config import load_catalog
from specchat.engine.protocol.events import Loading
from specchat.engine.server.load_times import LoadTimes, ReadingProgress, load_key
from specchat.engine.server.pair_loading import Loader
from specchat.settings import Settings


def test_the_second_time_reading_says_how_long_it_still_takes(tmp_path):
    said: list[Loading] = []
    times = LoadTimes(tmp_path / "state" / "times.json")
    first = ReadingProgress(said.append, times, "k")
    first.say("m: weights")
    first.began_s -= 4.0
    first.ended()
    second = ReadingProgress(said.append, times, "k")
    second.began_s -= 1.0
    second.say("m: weights")
    assert said[0] == Loading("read", "m: weights", unit="steps")
    assert (said[1].unit, said[1].total // 100, said[1].done // 100) == ("ms", 40, 10)


@pytest.mark.parametrize("content", ["", "[]", '{"k": "soon"}', '{"k": -1}', '{"k": 1e300}', "\x00", "[" * 200_000])
def test_a_file_that_makes_no_sense_says_nothing(tmp_path, content):
    (tmp_path / "times.json").write_text(content)
    assert LoadTimes(tmp_path / "times.json").expected_s("k") is None


def test_what_was_loaded_long_ago_is_forgotten(tmp_path):
    times = LoadTimes(tmp_path / "times.json")
    for number in range(201):
        times.remember(f"k{number}", 1.0)
    assert (times.expected_s("k0"), times.expected_s("k1")) == (None, 1.0)


def test_a_pair_that_was_loaded_is_remembered(tmp_path):
    times, settings = LoadTimes(tmp_path / "times.json"), Settings().but({"pair": "scripted"})
    catalog = load_catalog()
    target, draft = (catalog.model(name) for name in catalog.pair("scripted").models)
    Loader(catalog, lambda event: None, lambda: False, times).load(settings)
    assert times.expected_s(load_key(settings, [target])) is not None
    assert times.expected_s(load_key(settings, [target, draft])) is None, "it was not read"
