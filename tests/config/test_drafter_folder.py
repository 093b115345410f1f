"""The folder of a trained drafter: what is written can be read, and what cannot be so is refused by file and key."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from specchat.config.trained_drafters import (
    DESCRIPTION,
    NO_TRAINED,
    WEIGHTS,
    RefusedDrafter,
    TrainedDrafters,
    read_drafter,
    write_drafter,
)
from specchat.errors import CombinationError, ConfigError

SHA = "ab" * 32
SAID = f"""format = 1
method = "hydra"
target = "smollm2"
target_sha256 = "{SHA}"
size = 7
sha256 = "{SHA}"
licence = "Apache-2.0"
made = 2026-11-22
"""


def folder_with(place, text, name="mine"):
    folder = place / name
    folder.mkdir(exist_ok=True)
    (folder / DESCRIPTION).write_text(text)
    return folder


def made(place, name="mine", method="hydra", **more):
    folder = place / name
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(b"weights")
    about = {
        "target": "smollm2",
        "target_sha256": SHA,
        "licence": "Apache-2.0",
        "options": {},
        "data": {},
        "figures": {},
    }
    return write_drafter(folder, method=method, **(about | more))


def test_what_is_written_is_what_is_read(tmp_path):
    options = {"hidden": 384, "scale": 0.5, "layers": [3, 15, 27], "kind": "narrow", "tied": True}
    data, figures = {"tokens": 400_000, "from": {"name": "self"}}, {"tau": [1.2, 1.7]}
    written = made(tmp_path, options=options, data=data, figures=figures)
    assert read_drafter(tmp_path / "mine", ["hydra"]) == written
    assert (dict(written.options), dict(written.data), dict(written.figures)) == (options, data, figures)
    assert written.size == 7
    assert written.weights.read_bytes() == b"weights"


def test_a_date_and_a_moment_are_both_read_as_moments(tmp_path):
    assert read_drafter(folder_with(tmp_path, SAID), ["hydra"]).made == datetime(2026, 11, 22, tzinfo=UTC)
    moment = SAID.replace("2026-11-22", "2026-11-22T05:00:00+01:00")
    assert read_drafter(folder_with(tmp_path, moment), ["hydra"]).made == datetime(2026, 11, 22, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("format = 1", "format = 2", "line 1: format = 2 is not read"),
        ("format = 1", "format = true", "line 1: format = True is not a whole number"),
        ('"hydra"', '"hydrra"', "line 2: method = 'hydrra' is not a drafter with weights; did you mean 'hydra'?"),
        (f'target_sha256 = "{SHA}"', 'target_sha256 = "ab"', "target_sha256 = 'ab' is not 64"),
        (f'\nsha256 = "{SHA}"', f'\nsha256 = "{SHA.upper()}"', "is not 64 hexadecimal digits in lower case"),
        ("size = 7", "size = 0", "line 5: size = 0 must be above 0"),
        ("size = 7", "size = 9000000000000", "is more than 8 GiB"),
        ("size = 7\n", "", "size is missing"),
        ("2026-11-22", '"soon"', "made = 'soon' is not a date"),
        ("licence", "license", "is not known here; did you mean 'licence'?"),
        ("made", "[options]\nhidden = { a = 1 }\n#", "made is missing"),
        ("2026-11-22", "2026-11-22\n[options]\nhidden = { a = 1 }", "[options] hidden = {'a': 1} is not a number"),
        ("2026-11-22", "2026-11-22\n[options]\nhidden = nan", "[options] hidden = nan is not a number"),
        ("2026-11-22", f"2026-11-22\n[options]\nhidden = {2**60}", "is not a number"),
        ("2026-11-22", f"2026-11-22\n[options]\nhidden = {[1] * 1025}", "is not a number"),
        ("2026-11-22", "2026-11-22\n[options]\n" + "".join(f"a{i} = 1\n" for i in range(65)), "more than 64"),
        ("format = 1", "format = ", "is not TOML"),
        ("format", "#" + "x" * (64 << 10) + "\nformat", "is larger than 64 KiB"),
    ],
)
def test_what_cannot_be_so_is_refused_in_one_line_that_names_the_file(tmp_path, before, after, says):
    folder = folder_with(tmp_path, SAID.replace(before, after, 1))
    with pytest.raises(ConfigError) as refused:
        read_drafter(folder, ["hydra"])
    assert says in str(refused.value)
    assert str(folder / DESCRIPTION) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="hidden"):
        made(tmp_path, options={"hidden": {"a": 1}})
    assert not (tmp_path / "mine" / DESCRIPTION).exists()


def test_the_newest_is_chosen_or_the_one_that_is_named(tmp_path):
    newer, older = made(tmp_path, "newer"), made(tmp_path, "older")
    here = TrainedDrafters("smollm2", (newer, older))
    assert here.choose("hydra") is newer
    assert here.choose("hydra", "older") is older


@pytest.mark.parametrize(
    ("method", "wanted", "says"),
    [
        ("hydra", "mime", "hydra.weights = 'mime' names no trained drafter for smollm2; did you mean 'mine'?"),
        ("hydra", "torn", "hydra.weights = 'torn' cannot be used: it is damaged"),
        ("eagle", "mine", "eagle.weights = 'mine' are weights of 'hydra'"),
        ("eagle", "", "`specchat models pull smol-eagle` fetches some"),
        ("eagle", "smol-eagle", "drafter 'eagle' needs weights trained for smollm2, and none are here"),
        ("medusa", "", "nearest that works: drafter 'suffix'"),
    ],
)
def test_weights_that_are_not_to_be_had_are_refused_with_a_way_out(tmp_path, method, wanted, says):
    here = TrainedDrafters(
        "smollm2", (made(tmp_path),), {"torn": RefusedDrafter("hydra", "it is damaged")}, {"eagle": ("smol-eagle",)}
    )
    with pytest.raises(CombinationError) as refused:
        here.choose(method, wanted)
    assert says in str(refused.value)
    assert "nearest that works: " in str(refused.value)


def test_without_any_a_method_is_refused_by_name():
    with pytest.raises(CombinationError, match="drafter 'hydra' needs weights trained for this target"):
        NO_TRAINED.choose("hydra")
