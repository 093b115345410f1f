"""A clip shows the best rounds as they were, moves without a program, and says what it was made with."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from io import BytesIO

import pytest
from driving import driving
from fake import ready, round_at, rounds_of
from PIL import Image, ImageColor

from specchat.errors import UsageError
from specchat.tui.commands import chat_commands
from specchat.tui.text.cells import width_of
from specchat.tui.text.theme import DARK
from specchat.tui.tree import clip_files
from specchat.tui.tree.clip_files import COLOURS, COLUMNS, FORMATS, ROUNDS, Frame, as_cast, as_gif, as_svg, frames_of

ABOUT = ["SmolLM2 · cpu · 2 cores", "prompt_lookup · 18 nodes · seed 7"]
TEXT = "{http://www.w3.org/2000/svg}text"
GROUP = "{http://www.w3.org/2000/svg}g"


def shown(frame: Frame) -> str:
    return "\n".join("".join(text for text, _ in screen_line) for screen_line in frame.lines)


def test_a_clip_shows_the_question_the_best_rounds_before_and_after_their_verdict_and_the_result():
    rounds = rounds_of()
    plain = [round_at(len(rounds) + at, ["a", "b"], 0, 0, 1) for at in range(ROUNDS)]
    asked, *frames, last = frames_of([*rounds, *plain], ABOUT, "How <b>\nlong?", "160 tok · τ 2.0")
    assert "› How <b>" in shown(asked)
    assert "long?" in shown(asked)
    numbers = list(dict.fromkeys(int(shown(frame).split("\n")[0].split("round ")[1]) for frame in frames))
    assert numbers == list(range(numbers[0], numbers[0] + ROUNDS))
    kept = [len(round.verdict.path) for round in [*rounds, *plain]]
    assert sum(kept[at - 1] for at in numbers) > 2 * ROUNDS, "the last ones kept nothing"
    assert "specchat  160 tok · τ 2.0" in shown(last)
    assert shown(last).count("●") >= 3, "a tree worth seeing stays"
    assert "✕" in shown(last)
    assert "aaaa" in shown(last), "the end of the reply"
    assert all(line in shown(frame) for line in ABOUT for frame in (asked, frames[0], last))
    pending = [role for screen_line in frames[0].lines for _, role in screen_line]
    assert "pending" in pending
    assert "rejected" not in pending
    few = frames_of(rounds[:1], ABOUT)
    assert "\n".join(map(shown, few)).count("specchat") == len(few), "no question, one round"


def test_every_frame_is_of_one_size_and_no_line_is_too_wide():
    frames = frames_of(rounds_of(), ABOUT, "What? " * 90, "τ 2.0 " * 40)
    assert len({len(frame.lines) for frame in frames}) == 1
    assert all(width_of(line) <= COLUMNS for frame in frames for line in frame.lines)


def test_the_svg_is_well_formed_and_each_frame_has_its_time():
    frames = frames_of(rounds_of(), [*ABOUT, "<model> & \x1b[31m"])
    drawn = as_svg(frames).decode().replace("\x1b", "")
    root = ElementTree.fromstring(drawn)
    assert len(root.findall(GROUP)) == len(frames)
    assert drawn.count("@keyframes") == len(frames)
    assert "<model> &" in "".join(text.text or "" for text in root.iter(TEXT))


def test_the_cast_plays_the_frames_in_their_time():
    frames = frames_of(rounds_of(), ABOUT)
    header, *events = [json.loads(line) for line in as_cast(frames).splitlines()]
    assert (header["version"], header["width"]) == (2, COLUMNS)
    assert len(events) == len(frames) + 1
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    assert events[-1][0] == pytest.approx(sum(frame.seconds for frame in frames), abs=0.01)


def test_the_gif_plays_the_frames_in_their_time_and_loops():
    frames = frames_of(rounds_of(), ABOUT)
    with Image.open(BytesIO(as_gif(frames))) as picture:
        assert picture.n_frames == len(frames)
        assert picture.info["loop"] == 0
        times = []
        for number in range(picture.n_frames):
            picture.seek(number)
            times.append(picture.info["duration"] / 1000)
        last = picture.convert("RGB")
    assert times == pytest.approx([frame.seconds for frame in frames])
    colours = {colour for _, colour in last.getcolors(1 << 20)}
    assert {ImageColor.getrgb(COLOURS[role]) for role in ("accepted", "bonus", "dim")} <= colours
    assert last.getpixel((0, 0)) == ImageColor.getrgb(DARK.background)


def test_what_is_written_in_a_gif_stands_in_its_column():
    def pixels(text: str) -> bytes:
        with Image.open(BytesIO(as_gif([Frame([[(text, "text")]], 1.0)]))) as picture:
            return picture.convert("RGB").tobytes()

    assert pixels("a ★ b") != pixels("a ● b")
    assert pixels("a   b") == pixels("a" + " " * 3 + "b")
    assert pixels("\U0010fffe") == pixels("\U0010fffd"), "what no font has is drawn as such"


def test_without_pillow_or_a_font_a_gif_is_refused_and_the_message_says_what_helps(monkeypatch):
    frames = frames_of(rounds_of()[:2], ABOUT)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        with pytest.raises(UsageError, match=r"pip install -e '.\[gif\]'"):
            as_gif(frames)
    monkeypatch.setattr(clip_files, "FONTS", ("NoSuchFont.ttf",))
    with pytest.raises(UsageError, match="NoSuchFont"):
        as_gif(frames)


async def test_a_clip_of_a_reply_by_another_pair_does_not_name_the_model_that_is_loaded(tmp_path):
    async with driving() as d:
        await d.say("How does it work?")
        await d.reply()
        await d.hear(ready(pair="coder", target="Coder-1.5B", draft="", dtype="int4"))
        await d.say(f"/clip {tmp_path / 'a.cast'}")
        written = (tmp_path / "a.cast").read_text(encoding="utf-8")
        assert "pair smol" in written
        assert "prompt_lookup" in written
        assert not any(word in written for word in ("Coder", "SmolLM2", "int4"))


@pytest.mark.parametrize("format", FORMATS)
async def test_clip_writes_a_file_with_model_hardware_and_settings(tmp_path, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    about = []
    monkeypatch.setattr(
        chat_commands, "frames_of", lambda rounds, *said: about.extend([*said[0], said[1]]) or frames_of(rounds, *said)
    )
    async with driving() as d:
        await d.say("/clip")
        assert "there is no round yet" in d.screen()
        await d.say("How does it work?")
        await d.reply()
        await d.say(f"/clip {format}")
        (file,) = tmp_path.iterdir()
        assert file.name == f"clip-how-does-it-work.{format}"
        assert "SmolLM2-135M" not in " ".join(about), "loaded, and not used"
        wanted = ("SmolLM2-360M", "cpu", "prompt_lookup", "seed 7", "2.7×", "How does it work?")
        assert all(word in " ".join(about) for word in wanted)
        if format != "gif":
            assert all(word in file.read_text(encoding="utf-8") for word in wanted)
        await d.say(f"/clip {file}")
        assert "is there already" in d.screen()
        for said, missed in (("a.png", "png"), ("mp4", "mp4")):
            await d.say(f"/clip {said}")
            assert f"there is no format {missed!r}, only svg, cast, gif" in d.screen()
        assert list(tmp_path.iterdir()) == [file]
