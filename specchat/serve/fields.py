"""Reads the fields of a request's body: each value is of its kind and in its range, or the field is named."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from specchat.errors import cut, nearest, short
from specchat.registry import Option
from specchat.serve.api_error import ApiError

Kind = TypeVar("Kind")

_LONGEST_SHOWN = 80


def wrong(param: str, why: str, code: str = "invalid_value") -> ApiError:
    """A field that cannot be accepted."""
    param = cut(param)
    return ApiError(400, f"{param}: {why}", param=param, code=code)


def shown(value: Any) -> str:
    """The value as JSON, as an error shows it: on one line and never long."""
    try:
        return cut(json.dumps(value, ensure_ascii=False), _LONGEST_SHOWN)
    except ValueError:  # a number with too many digits to be written out
        return short(value)


class Fields:
    """The fields of one object, taken one by one; null counts as not given.

    Args:
        place: where the object is in the body, as a prefix of its fields' names.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._place = place

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path(self, name: str) -> str:
        return f"{self._place}{name}"

    def raw(self, name: str) -> Any:
        """The value as it came; None where it was not given."""
        return self._values.get(name)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuse fields of other names."""
        for name in self._values:
            if name not in known:
                raise wrong(self.path(name), f"there is no such field{nearest(name, known)}", "unknown_parameter")

    def text(self, name: str) -> str | None:
        return self._of(name, str, "a text")

    def truth(self, name: str) -> bool | None:
        return self._of(name, bool, "true or false")

    def table(self, name: str) -> dict[str, Any] | None:
        return self._of(name, dict, "an object")

    def items(self, name: str) -> list[Any] | None:
        return self._of(name, list, "a list")

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise wrong(self.path(name), f"{shown(value)} is not a whole number", "invalid_type")
        if value is not None and not low <= value <= high:
            raise wrong(self.path(name), f"{shown(value)} is outside its range: {low} to {high}")
        return value

    def number(self, name: str, option: Option) -> float | None:
        """A number in the range of an option, whose kind does not matter."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise wrong(self.path(name), f"{shown(value)} is not a number", "invalid_type")
        if value is not None and not option.allows(value):
            raise wrong(self.path(name), f"{shown(value)} is outside its range: {option.range_text()}")
        return value

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse any value but these."""
        value = self._values.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise wrong(self.path(name), f"{shown(value)} is not supported: {why}", "unsupported_value")

    def _of(self, name: str, kind: type[Kind], words: str) -> Kind | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, kind):
            raise wrong(self.path(name), f"{shown(value)} is not {words}", "invalid_type")
        return value
