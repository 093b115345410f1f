"""The settings form as a screen, for windows without room beside the chat."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from specchat.tui.state.setting_effect import SettingEffect
from specchat.tui.state.settings_fields import Field
from specchat.tui.widgets.settings_form import SettingsForm


class SettingsScreen(ModalScreen[None]):
    """The same form as beside the chat."""

    DEFAULT_CSS = """
    SettingsScreen { align: center middle; background: $background 60%; }
    SettingsScreen > SettingsForm { width: 56; max-width: 100%; height: 100%; max-height: 40; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2", "dismiss(None)", "close", show=False, id="settings.close"),
    ]

    def __init__(self, fields: list[Field], pair: str, remark: str, effect: SettingEffect) -> None:
        super().__init__()
        self._contents = fields, pair, remark
        self._effect = effect

    def compose(self) -> ComposeResult:
        """Just the form."""
        yield SettingsForm()

    def on_mount(self) -> None:
        """Fill it."""
        self.form.show_effect(self._effect)
        self.form.show(*self._contents)
        self.form.focus()

    def on_settings_form_left(self, event: SettingsForm.Left) -> None:
        """Close."""
        event.stop()
        self.dismiss(None)

    @property
    def form(self) -> SettingsForm:
        """The form of this screen."""
        return self.query_one(SettingsForm)
