"""Choose what to talk to: load a pair, fetch it while the chat goes on, add one, forget one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from specchat.errors import SpecchatError
from specchat.tui.draw.pair_rows import Shelf
from specchat.tui.screens.add_pair import AddPairScreen
from specchat.tui.services.pair_library import PairLibrary
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.widgets.pair_list import PairList


class PairsScreen(ModalScreen[str | None]):
    """Every pair with its state; gives back the one that is to be loaded now."""

    DEFAULT_CSS = """
    PairsScreen { align: center middle; background: $background 60%; }
    PairsScreen > Vertical {
        width: 84; max-width: 96%; height: 24; max-height: 92%; padding: 0 1;
        border: round $primary; border-title-color: $primary; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f4", "dismiss(None)", "close", show=False, id="pairs.close"),
        Binding("a", "add", "add a pair of your own", show=False, id="pairs.add"),
    ]

    def __init__(self, choosing: PairLibrary, in_use: str, held_bytes: int) -> None:
        super().__init__()
        self._choosing = choosing
        self._list = PairList()
        self._list.shelf = Shelf(in_use=in_use, held_bytes=held_bytes)

    def compose(self) -> ComposeResult:
        """Just the list."""
        with Vertical() as box:
            box.border_title = "pairs"
            yield self._list

    def on_mount(self) -> None:
        """Show what is known at once, then what has to be looked up."""
        self._choosing.watch(self._look)
        self._list.focus()
        self._read()

    def on_unmount(self) -> None:
        """Nobody looks any more; what is being fetched goes on."""
        self._choosing.watch(None)

    def on_pair_list_asked(self, event: PairList.Asked) -> None:
        """Load, fetch, stop or forget."""
        name = event.pair.name
        match event.what:
            case "choose" if event.pair.refusal:
                self._say(f"{name} cannot work, see above")
            case "choose" if name in self._choosing.fetching:
                self._say(f"{name} is being fetched; x stops that")
            case "choose" if self._choosing.waits(event.pair):
                self._choosing.fetch(name)
            case "choose":
                self.dismiss(name)
            case "stop" if not self._choosing.call_off(name):
                self._say(f"{name} is not being fetched")
            case "start":
                self._do(self._choosing.begin_with, name)
            case "forget":
                self._do(self._choosing.forget, name)

    async def action_add(self) -> None:
        """Ask for a new pair, and show it."""
        if self._choosing.here:
            await self.app.push_screen(AddPairScreen(self._choosing.command), self._added)
        else:
            self._say("the engine runs elsewhere: use `specchat models add` there")

    def _added(self, name: str | None) -> None:
        self._list.focus()
        if name is not None:
            self._read()
            self._list.action_edge(-1)

    def _do(self, deed: Callable[[str], str], name: str) -> None:
        try:
            said = deed(name)
        except SpecchatError as error:
            said = str(error)
        self._read()
        self._say(said)

    def _read(self) -> None:
        """Take the pairs anew; what their files say follows."""
        try:
            pairs = self._choosing.known()
        except SpecchatError as error:
            self._say(str(error))
            return
        before = {pair.name: pair for pair in self._list.shelf.pairs}
        self.query_one(Vertical).styles.height = max(14, len(pairs) + 9)
        self._look()
        self._list.show(
            replace(
                self._list.shelf,
                first=self._choosing.first,
                pairs=[_with_verdict(p, before.get(p.name)) for p in pairs],
            )
        )
        self.run_worker(self._judge(), exclusive=True)

    async def _judge(self) -> None:
        for pair in list(self._list.shelf.pairs):
            judged = await self._choosing.judged(pair)
            shelf = self._list.shelf
            self._list.show(replace(shelf, pairs=[judged if p.name == judged.name else p for p in shelf.pairs]))

    def _look(self) -> None:
        """Something was fetched, or a little more of it."""
        fetching, shelf = dict(self._choosing.fetching), self._list.shelf
        ended = shelf.fetching.keys() - fetching.keys()
        self._list.show(replace(shelf, fetching=fetching, failed=dict(self._choosing.failed)))
        if ended:
            self._say("")
            self._read()

    def _say(self, text: str) -> None:
        self._list.show(replace(self._list.shelf, said=text))


def _with_verdict(pair: PairInfo, before: PairInfo | None) -> PairInfo:
    """The pair as it stands now, with what was found out about it before until that is looked up again."""
    if before is None:
        return pair
    return replace(pair, needed_bytes=before.needed_bytes, free_bytes=before.free_bytes, trouble=before.trouble,
                   refusal=before.refusal, remark=before.remark)  # fmt: skip
