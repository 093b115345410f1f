"""How the tour, the search, thoughts, files and a full context look."""

from __future__ import annotations

import pytest
from driving import connected
from fake import FakeLink, hello, ready, rounds_of, started, stats_of
from test_snapshots import app_of, settle

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Count, Generate
from specchat.store.prompt_history import History

SIZES = [(120, 40), (80, 24)]
THOUGHT = "<think>\nTwo and two.\nThat is easy.\n</think>\n\nThe answer is **four**.\n"


def named(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


async def begin(pilot, links: list[FakeLink], **more) -> None:
    await connected(pilot, links)
    links[0].put(hello(), ready(**more))
    await settle(pilot, links[0])


async def ask(pilot, links: list[FakeLink], text: str) -> None:
    pilot.app.chat_screen.prompt.write(text)
    await pilot.press("enter")
    await pilot.pause()


async def answer(pilot, links: list[FakeLink], text: str, upto: int | None = None) -> None:
    generate = links[0].last(Generate)
    rounds = rounds_of(text, id=generate.id)
    links[0].put(started(generate.messages, generate.id), *rounds[:upto])
    if upto is None:
        links[0].put(ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))
    await settle(pilot, links[0])


@pytest.mark.parametrize("size", [*SIZES, (40, 12)], ids=named)
def test_the_tour(snap_compare, size, tmp_path):
    links: list[FakeLink] = []
    app = app_of(links, toured=tmp_path / "toured")
    assert snap_compare(app, terminal_size=size, run_before=lambda pilot: begin(pilot, links))


@pytest.mark.parametrize("size", SIZES, ids=named)
def test_searching_what_was_sent(snap_compare, size):
    links: list[FakeLink] = []
    app = app_of(links)
    app.chat_screen.prompt.sent = History()
    for text in ("Why is the sky blue?", "def f():\n    pass\n\nWhat does it do?", "Why do cats purr?"):
        app.chat_screen.prompt.sent.add(text)

    async def before(pilot) -> None:
        await begin(pilot, links)
        await pilot.press("ctrl+r", *"why")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES, ids=named)
def test_thoughts_and_files_are_folded(snap_compare, size, tmp_path, monkeypatch):
    links: list[FakeLink] = []
    (tmp_path / "sums.txt").write_text("2 + 2\n3 + 3\n")
    monkeypatch.chdir(tmp_path)

    async def before(pilot) -> None:
        await begin(pilot, links)
        await ask(pilot, links, "What is the first of @sums.txt?")
        await answer(pilot, links, THOUGHT)
        await ask(pilot, links, "And the second?")
        await answer(pilot, links, THOUGHT, upto=3)

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", [*SIZES, (40, 12)], ids=named)
def test_a_full_context(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await begin(pilot, links, context_tokens=200)
        await ask(pilot, links, "How does it work?")
        await answer(pilot, links, "It guesses and checks.")
        await ask(pilot, links, "And then? " * 30)
        for tokens in (260, 90):
            links[0].put(ev.Counted(links[0].last(Count).id, tokens, 200))
            await settle(pilot, links[0])
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=size, run_before=before)
