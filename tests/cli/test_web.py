"""`specchat web` as a user meets it before anything is served."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.cli.flags import as_flags
from specchat.settings import Settings

pytestmark = pytest.mark.usefixtures("preloaded")


def web(*words: str, hidden: str = "") -> subprocess.CompletedProcess[str]:
    program = "sys.argv[:1] = ['specchat', 'web']; from specchat.cli import main; main()"
    start = f"import sys; {hidden or 0}; {program}"
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7"])
def test_other_machines_are_kept_out_unless_asked_for_and_told_why(host):
    ended = web("--host", host)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "read the chats" in ended.stderr
    assert "--allow-remote" in ended.stderr


def test_without_the_extra_it_says_how_to_get_it():
    ended = web(hidden="sys.modules['textual_serve'] = None")
    assert ended.returncode == 2
    told = (
        "specchat: the browser needs one more package: pip install -e '.[web]' in the folder of specchat's repository\n"
    )
    assert ended.stderr == told


def test_a_wrong_pair_is_told_before_anything_is_served():
    ended = web("--pair", "scirpted")
    assert ended.returncode == 2
    assert "scripted" in ended.stderr


def test_an_address_that_is_not_ours_is_told_in_one_line():
    ended = web("--host", "no.such.host.invalid", "--allow-remote")
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


def test_settings_survive_being_written_as_flags():
    chosen = {"width": 3, "temperature": 0.5, "stop": ["--x", "a b"], "method_options": {"suffix.factor": "2"}}
    assert as_flags(chosen) == [
        "--width=3", "--temperature=0.5", "--stop=--x", "--stop=a b", "--set=suffix.factor=2",
    ]  # fmt: skip
    assert Settings().but(chosen).stop == ("--x", "a b")


def test_the_page_loads_nothing_from_elsewhere():
    page = Path(__file__).parents[2] / "specchat" / "cli" / "page"
    for file in page.iterdir():
        assert not re.findall(r"""["'(]\s*(?:https?:)?//""", file.read_text()), file


async def test_what_a_client_sends_costs_one_line_at_most(capsys):
    aiohttp = pytest.importorskip("aiohttp", reason="the browser needs the extra `web`")
    from specchat.cli.listening import listening
    from specchat.cli.web_site import OneLine, Site

    OneLine.take_over()
    with listening("127.0.0.1", 8000) as door:
        site = Site("sleep 0.5", door, guarded=True)
        runner = aiohttp.web.AppRunner(site.application())
        await runner.setup()
        await aiohttp.web.SockSite(runner, door).start()
        where, key = site.address.split("/?key=")
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            async with session.get(f"{where}/{'x' * 20_000}") as refused:
                assert refused.status == 400
            said = capsys.readouterr().err
            assert "Traceback" not in said
            assert len(said.splitlines()) <= 1
            assert len(said) < 400
            async with session.ws_connect(f"{where}/ws?key={key}") as socket:
                await socket.send_str("[]")
                await socket.receive(timeout=60)
        await runner.cleanup()
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "specchat: a request ended with IndexError: list index out of range"
    assert all(line.startswith("specchat: ") for line in said)
