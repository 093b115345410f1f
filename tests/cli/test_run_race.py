"""`specchat run --race` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from specchat.config import config_dir, private_dir, users_config
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event

pytestmark = pytest.mark.usefixtures("preloaded")

RACE = [sys.executable, "-m", "specchat", "run", "--race", "--pair", "scripted", "--seed", "7", "--max-tokens", "30"]
DRAFTING = ["--drafter", "draft_model", "--controller", "fixed"]


def race(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RACE, *words, "Hello"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_same_seed_gives_the_same_tokens_and_both_times_are_told(temperature):
    ended = race(*DRAFTING, "--temperature", temperature, "--output", "json")
    assert (ended.returncode, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    plain, speculative = result["plain"], result["speculative"]
    assert plain["tokens"] == speculative["tokens"]
    assert (len(plain["tokens"]), plain["text"]) == (30, speculative["text"])
    assert (plain["stats"]["drafted"], plain["acceptance_length"]) == (0, 1.0)
    assert speculative["acceptance_length"] > 1
    assert result["ratio"] == pytest.approx(speculative["tokens_per_s"] / plain["tokens_per_s"])
    same = result["same_text"]
    assert (same["equal"], same["promised"], same["kind"], same["parting"]) == (True, True, "same", None)
    assert (result["seed"], result["order"], result["dtype"]) == (7, ["plain", "speculative"], "float32")


def test_a_race_is_greedy_unless_a_flag_says_otherwise():
    private_dir(config_dir())
    users_config().write_text("[settings]\ntemperature = 0.7\nrepetition_penalty = 1.1\n")
    settings = json.loads(race(*DRAFTING, "--output", "json").stdout)["settings"]
    assert (settings["temperature"], settings["repetition_penalty"]) == (0.0, 1.0)
    settings = json.loads(race(*DRAFTING, "--temperature", "0.5", "--output", "json").stdout)["settings"]
    assert settings["temperature"] == 0.5


def test_both_sides_begin_with_the_prompt_read():
    ended = race(*DRAFTING, "--output", "json")
    stats = [json.loads(ended.stdout)[side]["stats"] for side in ("plain", "speculative")]
    assert [s["reused_tokens"] for s in stats] == [s["prompt_tokens"] - 1 for s in stats]


def test_text_shows_both_replies_both_times_and_the_proof():
    ended = race(*DRAFTING)
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0] == "── plain decoding"
    assert any(line.startswith("── speculative · scripted · draft_model · chain") for line in lines)
    assert any(line.startswith("plain decoding ") and "tok/s" in line for line in lines)
    assert any(line.startswith("speculative ") and "× plain" in line and "τ" in line for line in lines)
    assert "✓ identical: all 30 tokens are the same, one by one" in lines


def test_two_models_race_on_engines_of_their_own():
    ended = race(*DRAFTING, "--against", "scripted", "--output", "json")
    assert (ended.returncode, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    own, other = result["own"], result["other"]
    assert (own["pair"], other["pair"], result["seed"]) == ("scripted", "scripted again", 7)
    assert len(own["tokens"]) == len(other["tokens"]) == 30
    assert own["acceptance_length"] > 1
    assert other["acceptance_length"] != own["acceptance_length"], "it guesses as its pair does, not as flags say"
    ended = race(*DRAFTING, "--against", "scripted")
    heads = [line for line in ended.stdout.splitlines() if line.startswith("── ")]
    assert [head.split(" · ")[0] for head in heads] == ["── scripted", "── scripted again"]
    last = [line for line in ended.stdout.splitlines() if line][-3:]
    assert all("tok/s" in line and "τ" in line for line in last[:2])
    assert "×" not in ended.stdout
    refused = race("--against", "qwem")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_a_rule_of_the_law_says_so_and_is_no_failure():
    ended = race(*DRAFTING, "--temperature", "1.5", "--rule", "multi_step", "--output", "json")
    assert ended.returncode == 0
    same = json.loads(ended.stdout)["same_text"]
    assert (same["promised"], same["lossless"]) == (False, True)
    assert "distributed exactly as the target's" in same["line"]


def test_the_stream_and_the_recording_hold_both_heats_and_no_warm_up(tmp_path):
    file = tmp_path / "race.jsonl"
    ended = race(*DRAFTING, "--output", "jsonl", "--record", str(file))
    assert ended.returncode == 0
    events = [decode_event(line) for line in file.read_bytes().splitlines()]
    begun = [event.settings["controller"] for event in events if isinstance(event, ev.Started)]
    assert begun == ["off", "fixed"]
    assert ended.stdout.encode() == file.read_bytes()


def test_plain_decoding_does_not_race_against_itself():
    ended = race("--controller", "off")
    assert ended.returncode == 2
    assert ended.stderr.startswith("specchat: controller = 'off' is plain decoding already")
    assert len(ended.stderr.splitlines()) == 1


def test_a_combination_that_does_not_fit_is_one_line_and_exit_code_2():
    ended = race("--rule", "recursive", "--temperature", "0.8", "--drafter", "prompt_lookup")
    assert ended.returncode == 2
    assert "nearest that works" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
