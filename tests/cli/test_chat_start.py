"""What the app is told when it is opened from the command line."""

from __future__ import annotations

import importlib

import pytest

from specchat.cli import main
from specchat.config import users_config
from specchat.config.user_config import save_system_message

chat = importlib.import_module("specchat.cli.chat")  # the package has a command of this name


class _OpenedError(Exception):
    """In place of a screen."""


@pytest.mark.parametrize(
    ("words", "asked", "pair"),
    [
        (["Why is the sky blue?"], "Why is the sky blue?", None),
        (["--model", "gemma", "--ascii", "Why is the sky blue?"], "Why is the sky blue?", "gemma"),
        (["--system", "Be very brief.", "-c"], "", None),
    ],
)
def test_a_question_in_the_place_of_a_command_is_asked_at_once(monkeypatch, words, asked, pair):
    opened = []

    def open_chat(settings, engine, **more):
        opened.append((settings, more))
        return 0

    monkeypatch.setattr(chat, "open_chat", open_chat)
    monkeypatch.setattr("specchat.cli._chosen_chat", lambda resume, last: None)
    monkeypatch.setattr("sys.argv", ["specchat", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    ((settings, more),) = opened
    assert (more["question"], settings.get("pair")) == (asked, pair)


@pytest.mark.parametrize(
    ("config", "given", "loads"),
    [
        ("", {}, {"pair": "smol"}),
        ('[settings]\npair = "gemma"\n', {"width": 3}, {"pair": "gemma", "width": 3}),
        ('[settings]\npair = "gemma"\n', {"pair": "scripted"}, {"pair": "scripted"}),
    ],
    ids=["shipped", "configured", "given"],
)
def test_the_app_knows_which_pair_it_loads_before_the_engine_says_so(monkeypatch, config, given, loads):
    opened = []

    def run(app, **_):
        opened.append(app)
        raise _OpenedError

    users_config().parent.mkdir(parents=True, exist_ok=True)
    users_config().write_text(config)
    monkeypatch.setattr(chat, "take_terminal", lambda: None)
    monkeypatch.setattr(chat, "run_app", run)
    with pytest.raises(_OpenedError):
        chat.open_chat(given, "")
    assert opened[0].chat.engine.wanted == loads
    with pytest.raises(_OpenedError):
        chat.open_chat(given, "ssh box specchat engine")
    assert opened[1].chat.engine.wanted == given, "an engine elsewhere chooses among pairs of its own"
    save_system_message("pirate", "Talk like a pirate.")
    for said in ("pirate", "Talk like a pirate."):
        with pytest.raises(_OpenedError):
            chat.open_chat(given, "", system=said)
        assert opened[-1].chat.system == "Talk like a pirate."
