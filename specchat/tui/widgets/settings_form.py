"""The form of all settings, beside the chat or over it: arrows change, Enter types a value, live ones act at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen

from specchat.errors import UsageError
from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.state.settings_editor import Form, Line, form_lines
from specchat.tui.state.settings_fields import Field
from specchat.tui.text.cells import ScreenLine
from specchat.tui.text.key_names import bind, hint, keys_of, run_bound, typed_by
from specchat.tui.widgets.painted_lines import PaintedLines


class SettingsForm(PaintedLines, can_focus=True):
    """The fields, one chosen; live ones act at once, the others when applied."""

    DEFAULT_CSS = """
    SettingsForm { height: 1fr; padding: 0 1; border: round $border; border-title-color: $foreground 80%;
        border-subtitle-color: $warning; }
    SettingsForm:focus { border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("up,k", "move(-1)", "the setting above", "settings.up"),
        bind("down,j,tab", "move(1)", "the setting below", "settings.down"),
        bind("left,minus", "step(-1)", "less, or the choice before", "settings.less"),
        bind("right,plus,space", "step(1)", "more, or the next choice", "settings.more"),
        bind("home", "move(-9999)", "the first setting", "settings.first"),
        bind("end", "move(9999)", "the last setting", "settings.last"),
        bind("enter", "edit", "type a value", "settings.edit"),
        bind("delete,backspace", "reset", "back to its default", "settings.reset"),
        bind("slash", "find", "show only what fits", "settings.find"),
        bind("ctrl+s", "save(False)", "save as default", "settings.save"),
        bind("alt+s", "save(True)", "save for this pair only", "settings.save_pair"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.editor = Form()
        self._effect: SettingEffect | None = None
        self._effect_version: object = None
        self._visible_lines: list[Line] = []
        self._top = 0
        self._remark = ""
        self.border_title = "settings"

    @dataclass
    class Chosen(Message):
        name: str  # of a live setting
        value: Any

    @dataclass
    class ReloadAsked(Message):
        changes: dict[str, Any]  # which need the models loaded again

    @dataclass
    class SaveAsked(Message):
        """The user wants to keep the settings in force: for this pair alone, or as the default."""

        into_pair: bool

    class Left(Message):
        """The user is done with the form."""

    async def on_key(self, event: events.Key) -> None:
        """Handle typing of a value or a search, which letters begin; Escape ends typing, the search, then the form."""
        form = self.editor
        if form.typed is None and (not form.searching or event.key in keys_of(self, "settings.save")):
            if not await run_bound(self, event):
                self._form_key(event)
        else:
            event.stop()
            event.prevent_default()
            (self._search_key if form.searching else self._value_key)(event)
        self.repaint()

    def _form_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.editor.query:
            self.editor.search("")
        elif event.key == "escape":
            self.post_message(self.Left())
        elif event.character and (event.character.isdigit() or event.character == ".") and self.editor.current:
            self.editor.begin_typing(event.character)
        elif (letter := typed_by(event)).isalpha() and event.key not in keys_of(self, "settings."):
            self.editor.searching = True  # words meant for the prompt change nothing here
            self.editor.search(letter)
        else:
            return
        event.stop()

    def _value_key(self, event: events.Key) -> None:
        form = self.editor
        assert form.typed is not None, "a value is being typed"
        if event.key == "enter":
            self._accept_typed(form.typed)
        elif event.key == "escape":
            form.typed = None
        elif event.key == "backspace":
            form.typed = form.typed[:-1]
        elif letter := typed_by(event):
            form.typed += letter

    def _search_key(self, event: events.Key) -> None:
        form = self.editor
        if event.key == "escape":
            form.searching = False
            form.search("")
        elif event.key in ("enter", "down", "up", "tab"):
            form.searching = False
            form.move({"down": 1, "up": -1}.get(event.key, 0))
        elif event.key == "backspace":
            form.search(form.query[:-1])
        elif letter := typed_by(event):
            form.search(form.query + letter)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a value is typed, every key belongs to it; a search leaves the keys that save."""
        return self.editor.typed is None and (not self.editor.searching or action == "save")

    def action_move(self, step: int) -> None:
        self.editor.move(step)
        self.repaint()

    def action_step(self, direction: int) -> None:
        if self.editor.current:
            self._choose(self.editor.stepped(direction))

    def action_reset(self) -> None:
        if field := self.editor.current:
            self._choose(field.default)

    def action_find(self) -> None:
        self.editor.searching = True
        self.repaint()

    def action_save(self, into_pair: bool) -> None:
        self.post_message(self.SaveAsked(into_pair))

    def action_edit(self) -> None:
        line, field = self.editor.line, self.editor.current
        if field is not None and not field.typed:
            self.action_step(1)
        elif field is not None:
            self.editor.begin_typing()
        elif line is not None and line.kind == "reload":
            staged, self.editor.staged = self.editor.staged, {}
            self.post_message(self.ReloadAsked(staged))
        elif line is not None:
            self.action_save(line.kind == "save_pair")
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        y = event.y - 1
        lines = self.editor.selectable_lines
        if 0 <= y < len(self._visible_lines) and self._visible_lines[y] in lines:
            self.editor.at = lines.index(self._visible_lines[y])
            self.repaint()

    def show(self, fields: list[Field], pair: str = "", remark: str = "") -> None:
        self.editor.show(fields, pair)
        self._remark = remark
        self.repaint()

    def show_effect(self, effect: SettingEffect) -> None:
        """Show the effect of the last change; drawn only where it has new figures."""
        if effect.version != self._effect_version:
            self.repaint()
        self._effect, self._effect_version = effect, effect.version

    def show_preview(self, name: str, words: str) -> None:
        """Say under a changed setting what it would have meant for the last reply; no words: nothing."""
        if (name, words) != self.editor.preview:
            self.editor.preview = name, words
            self.repaint()

    def fail(self, name: str, message: str) -> None:
        """Say beside a field why its change was refused; the value in force is shown again."""
        self.editor.fail(name, message)
        self.repaint()

    def show_remark(self, text: str) -> None:
        """Show it on the border until the form is filled again."""
        self._remark = text
        self.repaint()

    def repaint(self) -> None:
        form = self.editor
        looked = form.query + ("▏" if form.searching else "")
        self.border_title = Content(f"settings /{looked}" if looked else "settings")
        todo = f"{len(form.staged)} to apply · End Enter" if form.staged else ""
        unsaved = f"{len(form.unsaved)} unsaved · {hint(self, 'settings.save', 'saves')}" if form.unsaved else ""
        self.border_subtitle = Content(self._remark or todo or unsaved)
        super().repaint()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        lines, self._visible_lines, self._top = form_lines(self.editor, self._effect, width, height, self._top)
        return lines

    def _choose(self, value: Any) -> None:
        field = self.editor.current
        assert field is not None, "only a field takes a value"
        if self.editor.set_value(value):
            self.post_message(self.Chosen(field.name, value))
        self.repaint()

    def _accept_typed(self, typed: str) -> None:
        field, self.editor.typed = self.editor.current, None
        if field is None:
            return
        try:
            self._choose(field.parse(typed))
        except UsageError as error:
            self.editor.fail(field.name, str(error))


class SettingsScreen(ModalScreen[None]):
    """The same form as beside the chat."""

    DEFAULT_CSS = """
    SettingsScreen { align: center middle; background: $background 60%; }
    SettingsScreen > SettingsForm { width: 56; max-width: 100%; height: 100%; max-height: 40; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [bind("f2", "dismiss(None)", "close", "settings.close")]

    def __init__(self, fields: list[Field], pair: str, remark: str, effect: SettingEffect) -> None:
        super().__init__()
        self.form = SettingsForm()
        self._contents = fields, pair, remark
        self._effect = effect

    def compose(self) -> ComposeResult:
        yield self.form

    def on_mount(self) -> None:
        self.form.show_effect(self._effect)
        self.form.show(*self._contents)
        self.form.focus()

    def on_settings_form_left(self, event: SettingsForm.Left) -> None:
        event.stop()
        self.dismiss(None)
