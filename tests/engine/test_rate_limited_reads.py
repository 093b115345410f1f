"""The engine's events are read a limited number of times a second, and none is lost."""

import os

import pytest

from specchat.engine.client.client import APART_S, rate_limited


class Clock:
    def __init__(self):
        self.now, self.slept = 10.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def pipe():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb", buffering=0) as into:
        yield stream, into


def test_what_arrives_between_two_reads_comes_with_one(pipe):
    stream, into = pipe
    clock = Clock()
    lines = rate_limited(stream, clock, clock.sleep)
    into.write(b"first\n")
    assert lines.readline() == b"first\n"
    assert clock.slept == []
    into.write(b"second\n")
    into.write(b"third\n")
    assert [lines.readline(), lines.readline()] == [b"second\n", b"third\n"]
    assert clock.slept == [pytest.approx(APART_S)]


def test_what_comes_after_a_silence_comes_at_once(pipe):
    stream, into = pipe
    clock = Clock()
    lines = rate_limited(stream, clock, clock.sleep)
    for line in (b"one\n", b"two\n"):
        into.write(line)
        assert lines.readline() == line
        clock.now += 2 * APART_S
    assert clock.slept == []


def test_long_lines_and_the_end_arrive_whole(pipe):
    stream, into = pipe
    clock = Clock()
    lines = rate_limited(stream, clock, clock.sleep)
    into.write(b"x" * 50_000 + b"\nrest")
    into.close()
    assert lines.read() == b"x" * 50_000 + b"\nrest"
