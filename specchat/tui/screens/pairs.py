"""The screen of pairs, where one is loaded, fetched or forgotten, and the screen that adds one after it was checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from specchat.errors import SpecchatError
from specchat.tui.screens.page import FormPage, Page
from specchat.tui.services.pair_library import PairLibrary
from specchat.tui.state.pair_list import PairInfo, PairListState, pair_lines
from specchat.tui.system.processes import OwnProcess
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import bind, hint, run_bound
from specchat.tui.widgets.painted_lines import PaintedLines
from specchat.tui.widgets.prompt import LineInput
from specchat.tui.widgets.tinted_text import TintedText

_HELP = "A .gguf file, a folder of safetensors, owner/name of the hub, owner/name:Q4_K_M, or a known model."


class AddPairScreen(FormPage[str | None]):
    """Three inputs; its result is the name of the pair that was added."""

    DEFAULT_CSS = """
    AddPairScreen > Vertical { width: 72; }
    AddPairScreen Input { margin: 0 0 1 0; }
    AddPairScreen TintedText { height: auto; max-height: 8; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape", "leave", "stop looking, or close", "add_pair.close"),
        bind("down", "app.focus_next", "the next line", "add_pair.next"),
        bind("up", "app.focus_previous", "the line above", "add_pair.previous"),
    ]

    def __init__(self, command: Callable[..., list[str]]) -> None:
        super().__init__()
        self._command = command
        self._process: OwnProcess | None = None

    def compose(self) -> ComposeResult:
        self.entitle("add a pair", "Enter adds it" + hint(self, "add_pair.close", "closes", " · "))
        with self.box:
            drafts = "draft model, or nothing; several with ; between them"
            for id, label in (("target", "target"), ("draft", drafts), ("name", "name")):
                yield TintedText([(label, "dim")])
                yield LineInput(id=id, select_on_focus=False)
            yield TintedText([(_HELP, "dim")], id="said")

    def on_mount(self) -> None:
        self.query_one("#target").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self.text_of("target") and not self.text_of("name"):
            self.query_one("#name", Input).value = _name_for(self.text_of("target"))
            self.query_one("#name").focus()
        elif not self.text_of("target"):
            self.query_one("#target").focus()
        elif self._process is None:
            self.run_worker(self._add(), exclusive=True)

    def action_leave(self) -> None:
        if self._process is not None:
            self._process.cancel()
        else:
            self.dismiss(None)

    async def on_unmount(self) -> None:
        if self._process is not None:
            await self._process.end()

    async def _add(self) -> None:
        drafts = [draft.strip() for draft in self.text_of("draft").split(";") if draft.strip()]
        words = ["models", "add", self.text_of("name"), "--target", self.text_of("target")]
        words += [word for draft in drafts for word in ("--draft", draft)]
        self._process = process = OwnProcess(self._command(*words))
        self.tell([(f"looking at it … {hint(self, 'add_pair.close', 'stops')}", "bonus")])
        try:
            added = await process.run()
        finally:
            self._process = None
        if added:
            self.dismiss(self.text_of("name"))
        elif process.cancelled:
            self.tell([("stopped; nothing was written", "dim")])
        else:
            self.query_one("#target").focus()
            lines = [line for line in process.words if line.startswith("specchat: ")] or [process.last_words]
            self.tell([("\n".join("✕ " + line.removeprefix("specchat: ") for line in lines), "bad")])


def _name_for(target: str) -> str:
    """A name that a pair with this target could have: `~/weights/My Model.gguf` → `my-model`."""
    last = target.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._")


_LONGEST_QUERY = 60


class PairList(PaintedLines, can_focus=True):
    """Lets the user choose a pair and an action; the screen carries it out."""

    DEFAULT_CSS = """
    PairList { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("up,k", "move(-1)", "the pair above", "pairs.up"),
        bind("down,j", "move(1)", "the pair below", "pairs.down"),
        bind("home", "move(-9999)", "the first pair", "pairs.first"),
        bind("end", "move(9999)", "the last pair", "pairs.last"),
        bind("enter", "ask('choose')", "load it, or fetch it first", "pairs.choose"),
        bind("x", "ask('stop')", "stop fetching it", "pairs.stop"),
        bind("s", "ask('start')", "begin with it from now on", "pairs.start"),
        bind("d", "forget", "forget a pair of your own", "pairs.forget"),
        bind("slash", "search", "search for a pair", "pairs.search"),
    ]

    @dataclass
    class Requested(Message):
        """The user requests an action on the chosen pair: `choose`, `stop`, `start` or `forget`."""

        what: str
        pair: PairInfo

    def __init__(self, list_state: PairListState) -> None:
        super().__init__()
        self.list_state = list_state
        self._at = self._top = 0

    @property
    def chosen(self) -> PairInfo | None:
        return self.list_state.shown[self._at] if self.list_state.shown else None

    def show(self, list_state: PairListState) -> None:
        """Show these pairs; the chosen one stays chosen by its name."""
        before = self.chosen
        self.list_state = list_state
        names = [pair.name for pair in list_state.shown]
        name = before.name if before else list_state.chosen if list_state.chosen in names else list_state.in_use
        self._at = names.index(name) if name in names else max(0, min(self._at, len(names) - 1))
        self.repaint()

    def choose(self, name: str) -> None:
        self.list_state = replace(self.list_state, query=None)
        names = [pair.name for pair in self.list_state.pairs]
        if name in names:
            self._choose(names.index(name))

    async def on_key(self, event: events.Key) -> None:
        """While a confirmation is open, every key answers it; while searching, what is typed is searched for."""
        query = self.list_state.query
        if query is not None and (event.is_printable or event.key in ("backspace", "escape")):
            event.stop()
            event.prevent_default()
            typed = query[:-1] if event.key == "backspace" else query + (event.character or "")
            searched = None if event.key == "escape" else typed[:_LONGEST_QUERY]
            self.show(replace(self.list_state, query=searched, said=""))
        elif await run_bound(self, event):
            return
        if self.list_state.asking:
            event.stop()
            event.prevent_default()
            if event.key == "y" and (pair := self.chosen):
                self.post_message(self.Requested("forget", pair))
            self.show(replace(self.list_state, asking=""))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.list_state.asking

    def action_move(self, step: int) -> None:
        self._choose(self._at + step)

    def action_search(self) -> None:
        self.show(replace(self.list_state, query="", said=""))

    def action_ask(self, what: str) -> None:
        if pair := self.chosen:
            self.post_message(self.Requested(what, pair))

    def action_forget(self) -> None:
        if pair := self.chosen:
            why = "was not added" if pair.state == "found" else "came with specchat and stays"
            said = "" if pair.yours else f"{pair.name} {why}"
            self.show(replace(self.list_state, asking=pair.name if pair.yours else "", said=said))

    def on_click(self, event: events.Click) -> None:
        """Choose the pair that was clicked; twice: as Enter does."""
        index = event.y + self._top
        if index < len(self.list_state.shown):
            again = index == self._at and event.chain > 1
            self._choose(index)
            if again:
                self.action_ask("choose")

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        lines, self._top = pair_lines(self.list_state, self._at, self._top, width, height, partial(hint, self))
        return lines

    def _choose(self, index: int) -> None:
        self._at = max(0, min(len(self.list_state.shown) - 1, index))
        self.list_state = replace(self.list_state, said="")
        self.repaint()


class PairsScreen(Page[str | None]):
    """All pairs with their states; its result is the pair to load."""

    DEFAULT_CSS = """
    PairsScreen > Vertical { width: 84; height: 24; max-height: 92%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("escape,f4", "dismiss(None)", "close", "pairs.close"),
        bind("a", "add", "add a pair of your own", "pairs.add"),
    ]

    def __init__(
        self, library: PairLibrary, in_use: str, held_bytes: int, chosen: str = "", plain_tokens_per_s: float = 0.0
    ) -> None:
        """The list with `chosen` selected first: the pair that wrote the chat, if it did.

        `plain_tokens_per_s` is what the pair in use reached without guesses, 0 where that is not known.
        """
        self._library = library
        self._list = PairList(
            PairListState(in_use=in_use, held_bytes=held_bytes, chosen=chosen, plain_tokens_per_s=plain_tokens_per_s)
        )
        super().__init__(self._list)

    def on_mount(self) -> None:
        self.entitle("pairs")
        self._library.set_listener(self._update_progress)
        self._list.focus()
        self._read()
        self.run_worker(self._find(), group="find")

    def on_unmount(self) -> None:
        """Stop listening; downloads go on."""
        self._library.set_listener(None)

    def on_pair_list_requested(self, event: PairList.Requested) -> None:
        name = event.pair.name
        match event.what:
            case "choose" if event.pair.refusal:
                self._say(f"{name} cannot work, see above")
            case "choose" if name in self._library.fetching:
                self._say(f"{name} is being fetched; x stops that")
            case "choose" if self._library.fetches_first(event.pair):
                self._library.fetch(name)
            case "choose":
                self.dismiss(name)
            case "stop" if not self._library.cancel(name):
                self._say(f"{name} is not being fetched")
            case "start":
                self._run(self._library.set_start_pair, name)
            case "forget":
                self._run(self._library.forget, name)

    async def action_add(self) -> None:
        if self._library.here:
            await self.app.push_screen(AddPairScreen(self._library.command), self._added)
        else:
            self._say("the engine runs elsewhere: `specchat models add` there")

    def _added(self, name: str | None) -> None:
        self._list.focus()
        if name is not None:
            self._read()
            self._list.choose(name)

    def _run(self, action: Callable[[str], str], name: str) -> None:
        try:
            said = action(name)
        except SpecchatError as error:
            said = str(error)
        self._read()
        self._say(said)

    def _read(self) -> None:
        """Read the list of pairs again; the results of the files follow."""
        try:
            pairs = self._library.known()
        except SpecchatError as error:
            self._say(str(error))
            return
        before = {pair.name: pair for pair in self._list.list_state.pairs}
        self.box.styles.height = max(14, len(pairs) + 9)
        self._update_progress()
        pairs = [_with_verdict(pair, before.get(pair.name)) for pair in pairs]
        self._list.show(replace(self._list.list_state, first=self._library.start_pair, pairs=pairs))
        self.run_worker(self._judge(), exclusive=True)

    async def _find(self) -> None:
        if await self._library.find():
            self._read()

    async def _judge(self) -> None:
        """Show what the files of each pair say, then how much the hub would send of those that are not here."""
        for pair in list(self._list.list_state.pairs):
            self._replace(await self._library.judged(pair))
        for pair in list(self._list.list_state.pairs):
            if (sized := await self._library.sized(pair)) is None:
                return  # the hub cannot be reached: it is not asked again for each pair
            self._replace(sized)

    def _replace(self, pair: PairInfo) -> None:
        list_state = self._list.list_state
        self._list.show(replace(list_state, pairs=[pair if p.name == pair.name else p for p in list_state.pairs]))

    def _update_progress(self) -> None:
        fetching, list_state = dict(self._library.fetching), self._list.list_state
        ended = list_state.fetching.keys() - fetching.keys()
        self._list.show(replace(list_state, fetching=fetching, failed=dict(self._library.failed)))
        if ended:
            self._say("")
            self._read()

    def _say(self, text: str) -> None:
        self._list.show(replace(self._list.list_state, said=text))


def _with_verdict(pair: PairInfo, before: PairInfo | None) -> PairInfo:
    """The pair as it is now, with the earlier results of its files until they are read again."""
    if before is None:
        return pair
    return replace(
        pair,
        download_bytes=before.download_bytes if pair.download_bytes is None else pair.download_bytes,
        needed_bytes=pair.needed_bytes or before.needed_bytes,
        free_bytes=pair.free_bytes or before.free_bytes,
        trouble=before.trouble,
        refusal=before.refusal,
        remark=before.remark,
    )
