"""The list of pairs as lines: every state in words, and the chosen pair explained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from specchat.engine.protocol.events import Loading
from specchat.tui.services import key_bindings
from specchat.tui.state.pair_list import PairInfo, PairListState, pair_lines
from specchat.tui.text.cells import width_of
from specchat.tui.text.key_names import names_of

SMOL = PairInfo("smol", "SmolLM2-360M", "SmolLM2-135M", summary="small and quick", disk_bytes=98_000_000)
BIG = replace(SMOL, name="big", needed_bytes=6_000_000_000, free_bytes=2_000_000_000)
FETCHING = Loading("fetch", "model.safetensors", 143_000_000, 230_000_000, 12_300_000.0)


def hint(id: str, does: str) -> str:
    return f"{names_of(key_bindings.keys_of(id, {})).split(', ')[0]} {does}"


def drawn(shelf: PairListState, at: int = 0, width: int = 72, height: int = 12) -> str:
    lines, _ = pair_lines(shelf, at, 0, width, height, hint)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (SMOL, "● smol  ready · 98.0 MB"),
        (replace(SMOL, state="missing", download_bytes=3_400_000_000), "○ smol  3.4 GB to fetch"),
        (replace(SMOL, state="missing", download_bytes=None), "○ smol  to fetch"),
        (replace(SMOL, state="partial", download_bytes=58_000_000), "◐ smol  partly here · 58.0 MB to fetch"),
        (replace(SMOL, state="unverified"), "◐ smol  here · verified when loaded"),
        (replace(SMOL, state="elsewhere"), "on the engine's machine"),
        (replace(SMOL, trouble="tokens", refusal="3 tokens differ"), "✕ smol  tokenizers differ"),
        (replace(SMOL, trouble="shape", refusal="has layers"), "✕ smol  unsupported shape"),
        (replace(SMOL, trouble="files", refusal="no header"), "✕ smol  cannot be read"),
        (BIG, "! big  does not fit in memory"),
    ],
)
def test_every_state_is_said_by_a_mark_and_in_words(pair, words):
    assert words in drawn(PairListState([pair]))


def test_the_chosen_pair_names_the_draft_models_in_use_and_apart_from_them_those_that_are_not():
    def models(**of):
        return drawn(PairListState([replace(SMOL, **of)])).splitlines()[-5]

    assert models() == "SmolLM2-360M ← SmolLM2-135M"
    assert models(draft=None) == "SmolLM2-360M · no draft model"
    assert models(draft=None, unused="SmolLM2-135M unused, 98 MB") == "SmolLM2-360M · SmolLM2-135M unused, 98 MB"
    assert models(unused="b unused") == "SmolLM2-360M ← SmolLM2-135M · b unused"


def test_memory_that_the_pair_in_use_holds_counts_as_free():
    assert "does not fit" in drawn(PairListState([BIG], "smol", held_bytes=3_000_000_000))
    assert "does not fit" not in drawn(PairListState([BIG], "smol", held_bytes=5_000_000_000))
    assert "about 6.0 GB of memory · 2.0 GB free · 5.0 GB held by smol" in drawn(
        PairListState([BIG], "smol", held_bytes=5_000_000_000)
    )


def test_the_reason_is_told_in_full_below():
    reason = "the-draft cannot draft for the-target: 3 tokens of their tables differ, such as 'b'"
    assert reason in drawn(PairListState([replace(SMOL, trouble="tokens", refusal=reason)]), 0, 100).replace("\n", " ")


def test_what_is_being_fetched_shows_how_far_it_is():
    shelf = PairListState([SMOL], fetching={"smol": FETCHING})
    assert "62 % 143 MB of 230 MB · 12.3 MB/s · 7 s left" in drawn(shelf, width=90)
    assert "x stops fetching" in drawn(shelf)
    assert "beginning" in drawn(PairListState([SMOL], fetching={"smol": None}))


def test_why_fetching_failed_stays_to_be_read():
    said = drawn(PairListState([replace(SMOL, state="missing")], failed={"smol": "the model hub cannot be reached"}))
    assert "✕ smol  not fetched" in said
    assert "the model hub cannot be reached" in said


def test_only_pairs_of_ones_own_can_be_forgotten():
    assert "d forgets" not in drawn(PairListState([SMOL]))
    assert "d forgets" in drawn(PairListState([replace(SMOL, yours=True)]))
    assert "forget smol? its weights stay · y yes · n no" in drawn(PairListState([SMOL], asking="smol"))


@given(st.integers(20, 120), st.integers(2, 30), st.integers(0, 20))
def test_lines_fit_and_the_chosen_pair_is_always_among_them(width, height, at):
    pairs = [replace(SMOL, name=f"pair-{number}", notes="你好 " * 30) for number in range(21)]
    lines, _ = pair_lines(PairListState(pairs, "pair-3", fetching={"pair-4": FETCHING}), at, 0, width, height, hint)
    assert len(lines) == height
    assert all(width_of(line) <= width for line in lines)
    assert any(role == "selected" for line in lines for _, role in line)


LONG = "qwen2.5-coder-1.5b-instruct-q4"
STATES = [
    SMOL, replace(SMOL, state="unverified"), replace(SMOL, state="partial", download_bytes=58_000_000),
    replace(SMOL, state="missing", download_bytes=41_000_000_000), replace(SMOL, state="found"),
]  # fmt: skip


@each_row("width", [53, 72, 80])  # of the list in windows of 60, 80 and 120 columns
@each_row("pair", STATES, ids=lambda pair: pair.state)
@each_row("used", [{}, {"in_use": LONG}, {"in_use": LONG, "first": LONG}], ids=len)
def test_a_long_name_cuts_nothing_but_itself_and_is_whole_below(width, pair, used):
    pair = replace(pair, name=LONG, needed_bytes=2_000_000_000, free_bytes=9_000_000_000)
    lines = drawn(PairListState([SMOL, pair], **used), at=1, width=width, height=14).splitlines()
    row = lines[1].replace("…", "", 1)
    assert "…" not in row
    assert "· fits" in row
    assert ("in use" in row) == ("in_use" in used)
    assert ("at start" in row) == ("first" in used) or width == 53
    assert LONG in "\n".join(lines[2:]) or "…" not in lines[1]
    assert not any("…" in line for line in lines[2:])


def test_what_is_being_fetched_says_in_little_room_when_it_is_here():
    assert "62 % 7 s left" in drawn(
        PairListState([SMOL, replace(SMOL, name=LONG)], fetching={"smol": FETCHING}), width=53
    )


def test_the_models_and_the_memory_are_whole_in_a_narrow_window():
    pair = replace(
        SMOL, target="Qwen2.5-Coder-1.5B-Instruct", draft="Qwen2.5-Coder-0.5B-Instruct", summary="long words " * 20
    )
    pair = replace(pair, needed_bytes=6_000_000_000, free_bytes=2_000_000_000)
    said = drawn(PairListState([pair], "other", held_bytes=5_000_000_000), width=53, height=16).split("─\n")[1]
    assert "Qwen2.5-Coder-1.5B-Instruct ← Qwen2.5-Coder-0.5B-Instruct" in " ".join(said.split())
    assert "about 6.0 GB of memory · 2.0 GB free · 5.0 GB held by other" in " ".join(said.split())


def test_trained_drafters_are_named_whole_in_a_narrow_window():
    summary = "98 MB, fetched in seconds; guesses come from a small trained network and from the text so far"
    pair = replace(SMOL, summary=summary, trained=("smol-hydra (hydra)",), needed_bytes=1, free_bytes=2)
    said = drawn(PairListState([pair]), width=53, height=16)
    assert "trained drafters: smol-hydra (hydra)" in " ".join(said.split())
    assert "…" in drawn(PairListState([pair]), width=53, height=10), "in little height they are cut"


CATALOGUE = PairListState(
    [
        replace(SMOL, parameters=135_000_000, licence="Apache-2.0", read_bytes=100_000_000),
        replace(SMOL, name="coder", parameters=1_540_000_000, summary="a coder", needed_bytes=10**9, read_bytes=10**9),
        replace(SMOL, name="served", parameters=20_900_000_000, needed_bytes=10**9),
    ],
    in_use="smol",
)


@pytest.mark.parametrize(("query", "names"), [
    ("", ["smol", "coder", "served"]),
    ("COD", ["coder"]),
    ("apache small", ["smol"]),
    ("1.5b", ["coder"]),
    ("small coder", []),
])  # fmt: skip
def test_a_search_shows_the_pairs_with_all_its_words(query, names):
    state = replace(CATALOGUE, query=query)
    assert [pair.name for pair in state.shown] == names
    said = drawn(state)
    assert f"search: {query}▏" in said
    assert ("no pair has all of these words" in said) == (not names)


def test_sizes_stand_in_a_column_and_speeds_go_as_the_bytes_that_a_token_reads():
    lines = drawn(CATALOGUE, width=80).splitlines()
    assert [line[10:16].strip() for line in lines[:3]] == ["135M", "1.5B", "21B"]
    fast = replace(CATALOGUE, plain_tokens_per_s=250.0)
    assert "about 25 tok/s without guesses" in drawn(fast, at=1)
    assert "tok/s" not in drawn(CATALOGUE, at=1), "nothing is known of this machine yet"
    assert "tok/s" not in drawn(fast, at=2), "another engine runs it"


def test_before_the_first_reply_speeds_are_those_of_passes_that_were_timed_here():
    pairs = [replace(CATALOGUE.pairs[0], plain_tokens_per_s=250.0, needed_bytes=10**8), *CATALOGUE.pairs[1:]]
    timed = replace(CATALOGUE, pairs=pairs)
    assert "about 250 tok/s without guesses" in drawn(timed, at=0)
    assert "about 25 tok/s without guesses" in drawn(timed, at=1), "as its bytes"
    pairs[1] = replace(pairs[1], plain_tokens_per_s=31.0)
    assert "about 31 tok/s without guesses" in drawn(replace(timed, plain_tokens_per_s=300.0), at=1), "its own"
    assert "about 300 tok/s without guesses" in drawn(replace(timed, plain_tokens_per_s=300.0), at=0), "in the chat"
