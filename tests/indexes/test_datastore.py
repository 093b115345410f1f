"""A datastore finds what a search through all its texts finds, and refuses files that are not what they say."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from contracts.tiny_datastore import write_tiny_datastore
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.config.datastore_files import HEADER_BYTES, read_header
from specchat.errors import StoreError
from specchat.indexes.datastore import Datastore

V = 6


def write(file, texts, vocab_size=V):
    return write_tiny_datastore(file, texts, vocab_size)


def brute_longest(texts, text, most):
    """The length of the longest end of the text that occurs in a text, how often it does, and what followed."""
    for size in range(min(most, len(text)), 0, -1):
        run = list(text[len(text) - size :])
        places = [(t, i) for t in texts for i in range(len(t) - size + 1) if list(t[i : i + size]) == run]
        if places:
            return size, len(places), Counter(t[i + size] for t, i in places if i + size < len(t))
    return 0, sum(len(t) + 1 for t in texts), Counter(token for t in texts for token in t)


TEXTS = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=30), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, text=st.lists(st.integers(0, V - 1), max_size=12), most=st.integers(1, 9))
def test_matches_counts_and_followers_are_those_of_a_search_through_all_texts(tmp_path_factory, texts, text, most):
    store = Datastore(write(tmp_path_factory.mktemp("store") / "a.datastore", texts))
    match = store.longest(text, most)
    assert (match.length, match.occurrences, store.followers(match)) == brute_longest(texts, text, most)
    for token in range(V):
        longer = store.extended(match, token)
        run = [*text[len(text) - match.length :], token]
        count = sum(list(t[i : i + len(run)]) == run for t in texts for i in range(len(t)))
        assert (longer.occurrences if longer else 0) == count
        assert longer is None or longer.length == match.length + 1


@pytest.mark.parametrize("vocab_size", [300, 70_000])
def test_tokens_of_two_and_of_four_bytes_are_found(tmp_path, vocab_size):
    generator = random.Random(1)
    text = [generator.randrange(vocab_size) for _ in range(2000)]
    store = Datastore(write(tmp_path / "a.datastore", [text], vocab_size))
    assert store.header.token_bytes == (2 if vocab_size == 300 else 4)
    for place in range(20, 1900, 97):
        match = store.longest(text[place - 9 : place], 8)
        assert match.length == 8
        assert text[place] in store.followers(match)


def test_what_follows_a_frequent_run_is_counted_in_proportion(tmp_path):
    text = [token for _ in range(900) for token in (1, 2)] + [token for _ in range(300) for token in (1, 3)]
    store = Datastore(write(tmp_path / "a.datastore", [text]))
    found = store.followers(store.longest([1], 4))
    assert set(found) == {2, 3}
    assert sum(found.values()) <= 256
    assert found[2] / sum(found.values()) == pytest.approx(0.75, abs=0.02)


def test_a_run_does_not_go_on_into_the_next_text(tmp_path):
    store = Datastore(write(tmp_path / "a.datastore", [[1, 2], [3, 4]]))
    assert store.followers(store.longest([1, 2], 4)) == {}


def damaged(file, at, data):
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def with_header(file, **changes):
    """The file with another header, as far as that fits."""
    said = {**msgspec.to_builtins(read_header(file)), **changes}
    damaged(file, 0, (b"specchat datastore 1\n" + msgspec.json.encode(said)).ljust(HEADER_BYTES)[:HEADER_BYTES])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda file: damaged(file, 0, b"something"), "is not a datastore"),
        (lambda file: file.write_bytes(b""), "is not a datastore"),
        (lambda file: damaged(file, 21, b"{nonsense}"), "invalid header"),
        (lambda file: damaged(file, 21, b"\xff\xfe"), "invalid header"),
        (lambda file: damaged(file, 21, b"[" * 3000), "invalid header"),
        (lambda file: with_header(file, tokens=2**40), "invalid header"),
        (lambda file: with_header(file, tokens=-1), "invalid header"),
        (lambda file: with_header(file, tokens=7), "bytes, and its header says"),
        (lambda file: with_header(file, surprise=1), "invalid header"),
        (lambda file: with_header(file, vocab_size=70_000), "do not hold 70000 tokens"),
        (lambda file: with_header(file, token_bytes=3), "do not hold"),
        (lambda file: with_header(file, byteorder="big"), "another byte order"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes, and its header says"),
        (lambda file: damaged(file, HEADER_BYTES, b"\xff\xff\xff\xff"), "is damaged: suffix"),
        (lambda file: damaged(file, HEADER_BYTES + 8 * 4, b"\x10\x10"), "is damaged: token 4112"),
        (lambda file: damaged(file, HEADER_BYTES + 8 * 4 + 14, b"\x00\x01"), "its last text has no end"),
        (lambda file: damaged(file, HEADER_BYTES + 8 * 6, b'[[0,"a",]]'), "names of files cannot be read"),
        (lambda file: damaged(file, HEADER_BYTES + 8 * 6, b'[[8,"abc"]]'), "its files do not follow"),
        (lambda file: damaged(file, HEADER_BYTES + 8 * 6, b'[[-1,"ab"]]'), "its files do not follow"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused_in_one_line(tmp_path, spoil, words):
    file = write_tiny_datastore(tmp_path / "a.datastore", [[1, 2, 3], [4, 5, 0]], V, names=[(0, "abc")])
    assert len(Datastore(file)._suffixes) == 8
    spoil(file)
    with pytest.raises(StoreError, match=words) as refused:
        Datastore(file)
    assert "\n" not in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path):
    with pytest.raises(StoreError, match="cannot be read"):
        Datastore(tmp_path / "none.datastore")


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.integers(0, 12), min_size=13, max_size=13),
    text=st.lists(st.integers(0, V - 1), min_size=1, max_size=6),
    token=st.integers(0, V - 1),
)
def test_suffixes_in_the_wrong_order_make_wrong_guesses_and_no_error(tmp_path_factory, rows, text, token):
    file = write(tmp_path_factory.mktemp("store") / "a.datastore", [[1, 2, 3, 1, 2, 4], [1, 1, 1, 1, 1]])
    damaged(file, HEADER_BYTES, np.array(rows, np.uint32).tobytes())
    store = Datastore(file)
    match = store.longest(text, 6)
    for found in (match, store.extended(match, token)):
        assert found is None or all(0 <= following < V for following in store.followers(found))
    store.text_before(store.source(match, token), 3)
