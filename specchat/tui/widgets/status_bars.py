"""The lines around the prompt: engine state, progress, remarks, queued message, other programs, replay controls."""

from __future__ import annotations

from textual.geometry import Size

from specchat.engine.client.replay import Player
from specchat.engine.protocol.text import visible
from specchat.tui.state import attachments
from specchat.tui.state.training import short_text
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, width_of, wrap
from specchat.tui.text.key_names import hint, label_of
from specchat.tui.text.numbers import count, loading_line, percent
from specchat.tui.tree.panel_lines import summary_of
from specchat.tui.widgets.painted_lines import PaintedChat, PaintedLines

WIDE = 100
"""From so many cells on there is room for more than figures."""

NEARLY_FULL = 0.8
"""The share of the context from which on the status line warns."""


class StatusBar(PaintedChat):
    """The pair, the speculation settings, and the use of the context."""

    DEFAULT_CSS = """
    StatusBar { height: 1; padding: 0 2; }
    """

    _hint = ""

    def hint(self, text: str) -> None:
        if text != self._hint:
            self._hint = text
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The state at the left, the context at the right; the ends of what does not fit are left out."""
        if self._hint:
            return [[(cut(self._hint, width), "dim")]]
        right = self._right(width)
        left = clip(self._left(), max(1, width - width_of(right) - 1))
        return [[*left, (" " * (width - width_of(left) - width_of(right)), ""), *right]]

    def _left(self) -> ScreenLine:
        chat = self._chat
        settings = chat.engine.settings
        match chat.engine.phase:
            case "starting":
                return [("◌ ", "dim"), ("starting the engine", "dim")]
            case "loading":
                return [("◌ ", "bonus"), (f"loading {chat.engine.loading_pair}".strip(), "text")]
            case "failed":
                return [("✕ ", "bad"), ("no pair is loaded", "text")]
            case "dead":
                return [("✕ ", "bad"), (f"no engine · {label_of(self, 'restart') or '/restart'} restarts it", "text")]
        line: ScreenLine = [("● ", "good"), (chat.engine.pair, "strong")]
        if chat.engine.refused not in ("", chat.engine.pair):
            line.append((f" · ✕ {chat.engine.refused} was not loaded", "bad"))
        if settings.get("nodes") == 0 or settings.get("controller") == "off":
            line.append((" · plain decoding", "dim"))
        else:
            line.append((f" · {settings.get('drafter', '')} · {settings.get('policy', '')}", "dim"))
        if chat.constraint is not None:
            line.append((f" · held to {chat.constraint_name}", "forced"))
        if chat.engine.loss is not None and not chat.engine.loss.lossless:
            line.append((" · lossy", "warn"))
        if chat.unsaved:
            line.append((" · not being saved", "warn"))
        return line

    def _right(self, width: int) -> ScreenLine:
        chat = self._chat
        if chat.engine.ready is None or width < 36:
            return []
        limit = chat.engine.ready.context_tokens
        tokens = chat.context_tokens
        used = f"{tokens:,} / {limit:,}" if limit and tokens is not None else ""
        full = limit > 0 and tokens is not None and tokens >= NEARLY_FULL * limit
        keys = f"{label_of(self, 'help') or '/help'} help" if width >= 60 else ""
        line: ScreenLine = [("  ".join(part for part in (used, keys) if part), "dim")]
        if full:
            line = [(f"▲ {used} · {percent((tokens or 0) / limit)}", "warn"), (f"  {keys}", "dim")]
        background = chat.background
        if background.fetching:
            line.insert(0, (background.fetching + "  ", "bonus"))
        elif background.fetched:
            line.insert(0, (f"✓ {background.fetched} is here  ", "good"))
        if background.training is not None:
            text, role = short_text(background.training, wide=width >= WIDE)
            line.insert(0, (text + "  ", role))
        return line


class ChatLine(PaintedChat):
    """A line about the chat, hidden where there is nothing to say."""

    DEFAULT_CSS = """
    ChatLine { height: 1; padding: 0 2; display: none; }
    """

    _shown = ""

    def show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.display = bool(text)
            self.repaint()


class SystemLine(ChatLine):
    """The beginning of the system message, visible only while there is one."""

    def update(self) -> None:
        self.show(self._chat.system)

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        lead = "system: "
        said = visible(" ".join(self._shown[:4000].split()))
        return [[(lead, "bonus"), (cut(said, max(1, width - len(lead))), "dim")]]


class RemarkLine(ChatLine):
    """A line for progress, or a few for a remark; hidden when there is neither."""

    DEFAULT_CSS = """
    RemarkLine { height: auto; max-height: 5; }
    """
    _remark = ("", "")
    _welcomed = False
    _laid_out = (0, 0)  # the width that was laid out last, and how many lines it took

    def say(self, text: str, role: str = "dim") -> None:
        self._remark = (text, role)
        self.update(welcomed=self._welcomed)

    def update(self, *, welcomed: bool = False) -> None:
        """Show the current state of the chat; `welcomed`: the welcome page already shows the progress."""
        self._welcomed = welcomed
        width, height = self._laid_out
        lines = len(self._all_lines(width or 80))
        self.display = lines > 0
        if lines != height:
            self._laid_out = (width, lines)
            self.refresh(layout=True)
        self.repaint()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._laid_out = (width, len(self._all_lines(width)))
        return self._laid_out[1]

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """Progress first, then the last remark; of one that is too long the end is cut."""
        lines = self._all_lines(width)
        if len(lines) > height > 0:
            text = " ".join(text for line in lines[height - 1 :] for text, _ in line)
            lines[height - 1 :] = [[(cut(text, width), self._remark[1])]]
        return lines

    def _all_lines(self, width: int) -> list[ScreenLine]:
        engine = self._chat.engine
        progress: list[ScreenLine] = []
        if engine.reading and not (self._welcomed and engine.phase == "loading"):
            assert engine.loading is not None, "it is reading something"
            cancels = hint(self, "stop", "cancels") if engine.phase == "loading" else ""
            progress = [loading_line(engine.loading, width, cancels)]
        if self._remark[0]:
            text, role = self._remark
            return [*progress, *([(text[start:end].rstrip(), role)] for start, end in wrap(text, width))]
        if progress:
            return progress
        if self._chat.editing is not None:
            keeps = "keeps the reply so" if self._chat.editing.reply else "sends it"
            ways = hint(self, "prompt.send", keeps), hint(self, "stop", "leaves the chat as it is")
            said = f"another branch: {', '.join(filter(None, ways))}"
            return [[("✎ ", "bonus"), (cut(said, width - 2), "text")]]
        return []


class ReplayBar(PaintedLines):
    """The position in a recording, and the keys that control it."""

    DEFAULT_CSS = """
    ReplayBar { height: 3; padding: 0 1; border: round $border; display: none; }
    """

    _player: Player | None = None

    def show(self, player: Player | None) -> None:
        self._player = player
        self.display = player is not None
        self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        if self._player is None:
            return []
        player = self._player
        done, total = player.progress
        state = "■ at the end" if player.ended else "‖ held" if player.paused else "▶ playing"
        line: ScreenLine = [(state, "bonus"), (f"  round {done} of {total}", "text"), (f"  {player.speed:g}×", "text")]
        room = min(20, width - width_of(line) - 54)
        if room >= 6 and total:
            line += [("  ", ""), (bar(done / total, room), "bar")]
        for keys in (self._keys(named=True), self._keys(named=False)):
            gap = width - width_of(line) - len(keys)
            if gap > 0:
                return [[*line, (" " * gap, ""), (keys, "dim")]]
        return [line]

    def _keys(self, *, named: bool) -> str:
        known = (("pace.hold", "hold"), ("pace.step", "step"), ("pace.slower", ""), ("pace.faster", "speed"),
                 ("pace.rewind", "again"), ("stop", "leave"))  # fmt: skip
        keys = [(key, word) for id, word in known if (key := label_of(self, id))]
        if not named:
            return " ".join(key for key, _ in keys)
        return " · ".join(f"{key} {word}".strip() for key, word in keys).replace("< · >", "< >")


class QueuedMessage(ChatLine):
    """One line, visible only while a message is queued."""

    def update(self) -> None:
        self.show(self._chat.queued or "")

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        line: ScreenLine = [("⧗ waits: ", "bonus")]
        keys = " or ".join(key for id in ("stop", "prompt.earlier") if (key := label_of(self, id)))
        ways = f"  {keys} takes it back" if width >= 60 and keys else ""
        room = max(1, width - width_of(line) - len(ways))
        line.append((cut(" ".join(attachments.split(self._shown)[0][:400].split()), room), "text"))
        return [[*line, (" " * (width - width_of(line) - len(ways)), ""), (ways, "dim")]]


class ServedLine(ChatLine):
    """One line, visible only while other programs may use the engine."""

    def update(self) -> None:
        self.display = bool(self._chat.background.serving)
        if self.display:
            self.repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """Who waits for the engine; else who asks what and how long the reply is; at first the address."""
        if waits := self._chat.background.waiting_client:
            return [[("⇄ ", "warn"), (cut(f"{waits} waits until the engine is free", width - 2), "text")]]
        served = self._chat.served
        if served is None:
            address = f"other programs may ask at {self._chat.background.serving}"
            return [[("⇄ ", "good"), (cut(address, width - 2), "dim")]]
        known = served.reply.figures
        figures = "  " + " · ".join(filter(None, (f"{count(known.tokens)} tok", summary_of(known))))
        line: ScreenLine = [("⇄ ", "good"), (f"{served.client} {'asks' if served.running else 'asked'}: ", "strong")]
        room = max(0, width - width_of(line) - len(figures))
        return [[*line, (cut(served.question, room), "text"), (figures, "dim")]]
