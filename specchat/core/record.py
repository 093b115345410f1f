"""Records of which a round makes many: frozen for type checkers, as quick to make as any object."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[_Class]) -> type[_Class]:
    """A dataclass that is frozen for type checkers and not at run time.

    Python writes each field of a frozen one through a function that takes eight times as long. Type checkers refuse
    to change one as they do with any frozen dataclass.
    """
    return dataclasses.dataclass(unsafe_hash=True)(cls)
