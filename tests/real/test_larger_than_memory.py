"""qwen-coder with 100, 75 and 50 % of its weights in memory, in a control group that has no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.config import load_catalog
from specchat.models.hub import model_state

TOOL = Path(__file__).parents[2] / "tools" / "larger_than_memory.py"
TARGET = "qwen2.5-coder-1.5b-instruct"


def why_not() -> str:
    if os.environ.get("SPECCHAT_SLOW") != "1":
        return "slow: set SPECCHAT_SLOW=1"
    if not any(os.access(group, os.W_OK) for group in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))):
        return "control groups cannot be written here"
    here = model_state.state(load_catalog().model(TARGET)).kind
    return "" if here not in ("missing", "partial") else f"the weights of {TARGET} are not here"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_whatever_share_of_the_weights_fits_the_text_is_the_same_and_the_limit_holds(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, str(TOOL), "--tokens", "24", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    texts = [found[share][how]["text"] for share in ("100", "75", "50") for how in ("plain", "trees")]
    assert all(text[:24] == texts[0][:24] for text in texts)
    for share in ("75", "50"):
        said = found[share]
        layers = said["weight_bytes"] * (1 - int(share) / 100)
        assert said["pass_bytes"] == pytest.approx(layers, rel=0.2), "what does not stay, to a layer or two"
        for how in ("plain", "trees"):
            assert said[how]["read_a_round_bytes"] == pytest.approx(said["pass_bytes"], rel=0.15), "and the buffers"
        assert max(said["peak_bytes"], said["group_peak_bytes"]) <= said["memory"]
        assert said["group_peak_bytes"] > 0.3 * said["memory"], "it was in the group"
    assert found["100"]["pass_bytes"] == 0
