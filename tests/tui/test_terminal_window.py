"""The terminal around the app: title, bell, clipboard, colours, what is printed on leaving."""

from __future__ import annotations

import os
import sys

import pytest
from driving import driving
from fake import rounds_of, stats_of
from textual import events
from textual.app import App
from textual.color import Color
from textual.geometry import Size

from specchat import config
from specchat.config import AppOptions
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.errors import ConfigError
from specchat.tui.app import SpecchatApp
from specchat.tui.services import terminal_app
from specchat.tui.services.terminal_app import title_of
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.stored_chat import conversation
from specchat.tui.state.turn import Reply, Turn
from specchat.tui.system import desktop
from specchat.tui.system.browser import BrowserDriver
from specchat.tui.system.terminal import bound_environment, bounded
from specchat.tui.text import theme

FENCED = "Two ways:\n\n```python\na = 1\n```\n\nor\n\n```\nb\nc\n```\n"


@pytest.fixture
def written(monkeypatch) -> list[str]:
    """What the app tells the terminal beside the picture."""
    sequences: list[str] = []
    monkeypatch.setattr(SpecchatApp, "write_to_terminal", lambda self, sequence: sequences.append(sequence))
    monkeypatch.setenv("TERM", "xterm-256color")
    return sequences


# --------------------------------------------------------------------------------------------------- title


async def test_the_title_names_the_chat_and_marks_a_reply_being_written(written):
    async with driving() as d:
        await d.say("why is\nthe \x1b]2;evil\x07 sky blue?")
        await d.reply(upto=3, finish=False)
        assert title_of(d.app.chat) == "✎ specchat · why is the ␛]2;evil␇ sky blue?"
        await d.hear(ev.Finished(1, "end", "", stats_of(rounds_of()), 1.0))
        assert written[-1] == "\x1b]2;specchat · why is the ␛]2;evil␇ sky blue?\x07"
        assert written[0].startswith(terminal_app.SAVE_TITLE)
        assert len(written) == len(set(written)) == 3


async def test_the_title_can_be_left_alone(written):
    async with driving(options=AppOptions(title=False)) as d:
        await d.say("hi")
        await d.reply()
        assert written == []


# ---------------------------------------------------------------------------------------------------- bell


async def end_of_reply(d, *, focused: bool, seconds: float = 9.0, stop: str = "end", then: str = "") -> int:
    """How often the bell rang when a reply ended."""
    rang = []
    d.app.bell = lambda: rang.append(1)
    d.app.post_message(events.AppFocus())
    await d.say("hi")
    id = d.link.last(Generate).id
    rounds = await d.reply(upto=3, finish=False)
    if then:
        await d.say(then)
    if not focused:
        d.app.post_message(events.AppBlur())
        await d.pilot.pause()
    await d.hear(ev.Finished(id, stop, "", stats_of(rounds), seconds))
    return len(rang)


ENDS = [
    ({"focused": False}, 1),
    ({"focused": True}, 0),
    ({"focused": False, "seconds": 1.0}, 0),
    ({"focused": False, "stop": "cancelled"}, 0),
    ({"focused": False, "then": "and this"}, 0),
]
"""Ends of replies, and how often the bell rings for each."""


@pytest.mark.parametrize(
    ("options", "ends"),
    [({}, ENDS), ({"notify": "off"}, [({"focused": False}, 0)]), ({"notify": "desktop"}, [({"focused": False}, 1)])],
)
async def test_the_bell_rings_for_a_long_reply_that_ends_while_one_looks_elsewhere(options, ends, written):
    async with driving(options=AppOptions(**options)) as d:
        for end, rings in ends:
            assert await end_of_reply(d, **end) == rings, end
            await d.begin_again()
        told = [sequence for sequence in written if sequence.startswith("\x1b]9;")]
        assert len(told) == (options.get("notify") == "desktop")


# ------------------------------------------------------------------------------------------------ clipboard


@pytest.mark.parametrize(
    ("environment", "installed", "platform", "tool"),
    [
        ({}, {"xclip", "wl-copy", "xsel"}, "linux", None),
        ({"WAYLAND_DISPLAY": "w", "DISPLAY": ":0"}, {"xclip", "wl-copy"}, "linux", "wl-copy"),
        ({"DISPLAY": ":0"}, {"xclip", "xsel"}, "linux", "xclip"),
        ({"DISPLAY": ":0"}, {"xsel"}, "linux", "xsel"),
        ({}, {"pbcopy"}, "darwin", "pbcopy"),
        ({"WSL_DISTRO_NAME": "Debian"}, {"clip.exe"}, "linux", "clip.exe"),
        ({"DISPLAY": ":0"}, set(), "linux", None),
    ],
)
def test_the_tool_of_the_desktop_is_found(environment, installed, platform, tool):
    found = desktop.clipboard_command(environment, lambda name: name if name in installed else None, platform)
    assert (found[0] if found else None) == tool


def test_the_tool_gets_the_text_and_a_failing_one_is_said(tmp_path):
    target = tmp_path / "clipboard"
    tool = [sys.executable, "-c", f"import sys; open({str(target)!r}, 'wb').write(sys.stdin.buffer.read())"]
    assert desktop.copy_with("grün 🎉", tool) == ""
    assert target.read_text(encoding="utf-8") == "grün 🎉"
    assert "failed" in desktop.copy_with("x", [sys.executable, "-c", "raise SystemExit(1)"])
    assert "failed" in desktop.copy_with("x", ["no-such-tool"])


async def test_copying_uses_the_tool_and_says_so_or_says_what_would_help(tmp_path):
    async with driving() as d:
        await d.say("hi")
        await d.reply("fine")
        d.app.clipboard_tool = None
        await d.say("/copy")
        assert d.app.clipboard == "fine"
        assert "OSC 52" in d.drawn(d.view.notice)
        target = tmp_path / "clipboard"
        code = f"import sys; open({str(target)!r}, 'wb').write(sys.stdin.buffer.read())"
        d.app.clipboard_tool = [sys.executable, "-c", code]
        await d.say("/copy")
        await d.app.workers.wait_for_complete()
        assert target.read_text() == "fine"
        assert d.drawn(d.view.notice).strip() == "reply copied"


def test_a_text_too_long_for_a_terminal_is_said():
    assert "too long" in desktop.clipboard_advice("x" * 60_000)


async def test_the_last_code_block_is_copied_by_key_and_by_command():
    async with driving() as d:
        await d.say("how?")
        await d.reply(FENCED)
        await d.say("and?")
        await d.reply("no code here")
        await d.say("/copy code")
        await d.pilot.pause()
        assert d.app.clipboard == "b\nc\n"
        d.view.transcript.focus()
        await d.pilot.press("k", "y")
        await d.pilot.pause()
        assert "there is no code block to copy" in d.drawn(d.view.notice)
        await d.pilot.press("k", "k", "y")
        await d.pilot.pause()
        assert "code block 2 of 2" in d.drawn(d.view.notice)


# --------------------------------------------------------------------------------------------------- colours


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [part / 255 for part in Color.parse(colour).rgb]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("one", "least"), [(theme.DARK, 4.5), (theme.LIGHT, 4.5), (theme.CONTRAST, 7), (theme.MONO, 7)]
)
def test_text_can_be_read_on_its_background(one, least):
    for colour in (one.primary, one.accent, one.warning, one.error, one.success, one.foreground,
                   one.variables["quiet-color"]):  # fmt: skip
        for behind in (one.background, one.surface):
            assert contrast(colour, behind) >= least, (one.name, colour, behind)


async def test_a_chosen_theme_is_the_one_of_the_next_start():
    async with driving() as d:
        await d.say("/theme specchat-contrast")
        await d.pilot.pause()
        assert config.user_app().theme == "specchat-contrast"
    async with driving(options=config.user_app()) as d:
        assert d.app.theme == "specchat-contrast"


def test_a_theme_that_does_not_exist_is_refused_by_line():
    file = config.private_dir(config.config_dir()) / "config.toml"
    file.write_text('[app]\ntheme = "specchat-contrst"\n')
    with pytest.raises(
        ConfigError, match=r"line 2: \[app\] theme = 'specchat-contrst'.*did you mean 'specchat-contrast'"
    ):
        config.user_app(theme.unknown_theme)


async def test_no_color_means_no_colours_and_what_is_chosen_still_shows(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with driving() as d:
        await d.say("hi")
        await d.reply(upto=12, finish=False)
        await d.pilot.press("f4")
        await d.pilot.pause()
        strips = [strip.apply_filter(one, Color.parse("black"))
                  for one in d.app._filters if type(one).__name__ == "NoColor"
                  for strip in d.app.screen._compositor.render_strips()]  # fmt: skip
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        assert styles
        assert all(style.color is None or style.color.is_default for style in styles)
        assert all(style.bgcolor is None or style.bgcolor.is_default for style in styles)
        assert any(style.reverse for style in styles)
        assert d.app.theme == "specchat-mono"


# --------------------------------------------------------------------------------------------------- leaving


def test_the_conversation_is_printed_as_text_that_cannot_steer_the_terminal():
    reply = Reply(1, Figures(), stop="end")
    reply.add("Fine \x1b[31mred\n", "target")
    turns = [
        Turn("user", 'read @a\nplease\n\n<file path="a" lines="2">\n1\n2\n</file>'),
        Turn("assistant", reply=reply),
    ]
    assert conversation(turns) == "› read @a\n  please\n  @a (2 lines)\n\nFine ␛[31mred"


@pytest.mark.parametrize(
    ("said", "kept"), [("80", True), ("999999999", False), ("0", False), ("-3", False), ("x", False)]
)
def test_a_size_in_the_environment_that_is_none_is_not_read(said: str, kept: bool) -> None:
    environment = {"COLUMNS": said, "LINES": said, "ROWS": said, "HOME": said}
    bound_environment(environment)
    assert set(environment) == ({"COLUMNS", "LINES", "ROWS", "HOME"} if kept else {"HOME"})


def test_a_window_of_any_size_is_drawn_within_bounds() -> None:
    assert bounded(Size(10**9, -3)) == Size(2000, 1)
    assert bounded(Size(120, 40)) == Size(120, 40)


async def test_a_packet_for_the_browser_is_written_whole_where_signals_interrupt_writes(monkeypatch):
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda file, data: written.append(bytes(data[:5])) or len(data[:5]))
    monkeypatch.setattr("textual.drivers.web_driver.InputReader", object)  # standard input is no pipe here
    BrowserDriver(App()).write("a frame of some size")
    assert b"".join(written) == b"D\0\0\0\x14a frame of some size"
