"""The engine's first event: methods, options and settings. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from specchat import __version__
from specchat.decoding.families import methods
from specchat.engine.protocol import events
from specchat.engine.protocol.events import MethodInfo, OptionInfo
from specchat.registry import Option, options_of
from specchat.settings import OPTIONS, Settings


def hello() -> events.Hello:
    """The first event of every engine."""
    return events.Hello(
        events.PROTOCOL, __version__, method_list(), [option_info(o) for o in OPTIONS.values()], os.getpid()
    )


def settings_message(settings: Settings) -> dict[str, Any]:
    """Settings as plain JSON values, by name."""
    return {**dataclasses.asdict(settings), "stop": list(settings.stop)}


def method_list() -> list[MethodInfo]:
    """Every method of every family, as `specchat methods` and the settings panel show them."""
    return [
        MethodInfo(
            *(family, method.name, method.summary, method.source, method.lossless),
            [option_info(o) for o in options_of(method.options)],
            method.needs_draft_model,
        )
        for family, method in methods()
    ]


def option_info(option: Option) -> OptionInfo:
    told = {name: getattr(option, name) for name in OptionInfo.__struct_fields__}
    return OptionInfo(**{**told, "choices": list(option.choices)})
