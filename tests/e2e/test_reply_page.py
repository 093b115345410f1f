"""The page of a reply in a real browser: it plays, keys walk, nothing is loaded, what a model wrote does not run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specchat.reply_page import PageTurn, page
from tests.e2e.browser import CHROMIUM, Page, chromium
from tests.test_reply_page import HOSTILE, looked_into, reply, round_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here (Debian: apt install chromium)"),
]

_KEYS = {"PageDown": 34, "PageUp": 33, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
         "ArrowDown": 40, "Tab": 9, " ": 32}  # fmt: skip

LOADED = "document.readyState === 'complete' || new Promise(done => addEventListener('load', done, {once: true}))"
STRIP = "[...document.querySelectorAll('.strip i')].map(cell => Number(cell.className === 'on')).join('')"
PLAYED = """new Promise(done => {
  const look = () => document.body.classList.contains("playing") ? setTimeout(look, 50) : done();
  look();
})"""
INJECTED = """
const injected = document.createElement("script");
injected.textContent = "window.ran = 1";
document.body.append(injected);
window.ran
"""


async def press(page: Page, *keys: str) -> None:
    for key in keys:
        for kind in ("keyDown", "keyUp"):
            text = " " if key == " " and kind == "keyDown" else ""
            await page.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=_KEYS[key], text=text)


async def chosen(page: Page) -> Any:
    return await page.script("document.querySelector('[aria-selected=true]').getAttribute('aria-label')")


async def look(page: Page, scheme: str, motion: str) -> Any:
    """The colour of the page, and how a verdict is shown while it plays."""
    wanted = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
    await page.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in wanted])
    await page.script("document.getElementById('tree').className = 'told'")
    return [
        await page.script("getComputedStyle(document.body).backgroundColor"),
        await page.script("getComputedStyle(document.querySelector('.node')).animationName"),
    ]


async def test_a_page_plays_is_walked_by_keys_and_loads_nothing(tmp_path: Path):
    rounds = [
        looked_into(round_of("Once", " upon", " a", " hill", kept=2, bonus=" time")),
        round_of(" time", " there", " was", kept=0, bonus=", long", index=1),
        round_of(", long", HOSTILE, " ago", kept=0, bonus=HOSTILE, index=2),
    ]
    file = tmp_path / "reply.html"
    file.write_text(page(HOSTILE, "about", [PageTurn("You", HOSTILE), reply(*rounds)]))
    async with chromium(tmp_path / "profile") as browser:
        await browser.call("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => window.alerted = true")
        await browser.open(file.as_uri())
        await browser.script(LOADED)
        assert await browser.script("document.getElementById('told').textContent") == (
            "round 1 of 3: 3 guessed, 2 kept, 3 written"
        )
        await browser.script("document.getElementById('pace').focus()")
        await press(browser, "Tab")
        assert await chosen(browser) == "Once, the last token before this round; the tree grows from it"
        await press(browser, "ArrowRight", "ArrowRight")
        assert await chosen(browser) == "·a, kept, target 91 %, drafter 61 %, ·a decided at layer 21 of 30, ·so before"
        await press(browser, "ArrowRight", "ArrowDown")
        instead = "·likelier decided at layer 30 of 30, ·so before; likeliest, but another was drawn"
        assert await chosen(browser) == f"·hill, rejected, target 91 %, drafter 61 %, {instead}"
        assert await browser.script(STRIP) == "0001" + "0" * 25 + "1"
        assert await browser.script("document.activeElement.getAttribute('role')") == "treeitem"
        shown = await browser.script("document.getElementById('node').textContent")
        assert shown.startswith("·hill rejected: the target wrote ·time (82 %); ·hill had 91 %")
        await press(browser, "ArrowUp", "ArrowLeft", "ArrowLeft", "End")
        assert (await chosen(browser)).startswith("·time, the target's own token")
        await press(browser, "PageDown", "PageDown", "Home", "ArrowRight")
        assert "</script>" in await chosen(browser)
        assert await browser.script("document.getElementById('at').value") == "2"
        await browser.script("document.getElementById('pace').value = '250'")
        await press(browser, " ")
        assert await browser.script("document.querySelectorAll('.playing .ahead').length") == 2
        await browser.script(PLAYED)
        assert await browser.script("document.querySelector('.now').textContent") == await browser.script(
            "document.querySelectorAll('.round')[2].textContent"
        )
        assert await browser.script("window.alerted === undefined && document.images.length === 0")
        assert await browser.script(INJECTED) is None
        spoken = [
            (node["role"]["value"], node.get("name", {}).get("value"))
            for node in (await browser.call("Accessibility.getFullAXTree"))["nodes"]
            if not node["ignored"]
        ]
        assert ("tree", "Token tree") in spoken
        assert ("treeitem", "·ago, rejected, target 91 %, drafter 61 %") in spoken
        assert ("status", "") in spoken
        assert ("slider", "Round") in spoken
        looks = [await look(browser, scheme, motion) for scheme, motion in (("light", ""), ("dark", "reduce"))]
        assert looks[0] == ["rgb(250, 251, 252)", "told"]
        assert looks[1] == ["rgb(16, 20, 27)", "none"]
        for width in (1400, 800, 400):
            await browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=850, deviceScaleFactor=1, mobile=False
            )
            assert await browser.script("document.documentElement.scrollWidth <= innerWidth"), width
            picture = await browser.picture()
            assert len(set(picture)) > 200
            if keep := os.environ.get("SPECCHAT_PICTURES"):
                (Path(keep) / f"reply-page-{width}.png").write_bytes(picture)
        assert browser.requested == [file.as_uri()]
