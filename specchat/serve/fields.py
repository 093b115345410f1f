"""Reads the fields of a request's body: each value is of its kind and in its range, or the field is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from specchat.errors import nearest, short
from specchat.registry import Option
from specchat.serve.api_error import ApiError


def wrong(param: str, why: str, code: str = "invalid_value") -> ApiError:
    """A field that cannot be accepted."""
    return ApiError(400, f"{param}: {why}", param=param, code=code)


class Fields:
    """The fields of one object, taken one by one; null counts as not given.

    Args:
        place: where the object stands in the body, as a prefix of its fields' names.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._place = place
        self._given = list(values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path(self, name: str) -> str:
        """The field's name as errors say it."""
        return f"{self._place}{name}"

    def raw(self, name: str) -> Any:
        """The value as it came; None where it was not given."""
        return self._values.get(name)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuse fields of other names."""
        for name in self._given:
            if name not in known:
                raise wrong(self.path(name), f"there is no such field{nearest(name, known)}", "unknown_parameter")

    def text(self, name: str) -> str | None:
        return self._of(name, str, "a text")  # type: ignore[no-any-return]

    def truth(self, name: str) -> bool | None:
        return self._of(name, bool, "true or false")  # type: ignore[no-any-return]

    def table(self, name: str) -> dict[str, Any] | None:
        return self._of(name, dict, "an object")  # type: ignore[no-any-return]

    def items(self, name: str) -> list[Any] | None:
        return self._of(name, list, "a list")  # type: ignore[no-any-return]

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise wrong(self.path(name), f"{short(value)} is no whole number", "invalid_type")
        if value is not None and not low <= value <= high:
            raise wrong(self.path(name), f"{short(value)} is outside its range: {low:g} to {high:g}")
        return value

    def number(self, name: str, option: Option) -> float | None:
        """A number in the range of an option, whose kind does not matter."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise wrong(self.path(name), f"{short(value)} is no number", "invalid_type")
        if value is not None and not option.allows(value):
            raise wrong(self.path(name), f"{short(value)} is outside its range: {option.range_text()}")
        return value

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse any value but these."""
        value = self._values.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise wrong(self.path(name), f"{short(value)} is not supported: {why}", "unsupported_value")

    def _of(self, name: str, kind: type, words: str) -> Any:
        value = self._values.get(name)
        if value is not None and not isinstance(value, kind):
            raise wrong(self.path(name), f"{short(value)} is not {words}", "invalid_type")
        return value
