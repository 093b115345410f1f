"""The fields of a request's body, checked one by one: each error names the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.errors import cut, nearest, short
from specchat.registry import Option
from specchat.serve.api_error import ApiError

Kind = TypeVar("Kind")

Only = Mapping[str, tuple[tuple[Any, ...], str]]
"""A field → its possible values, and why it has no others."""

_LONGEST_SHOWN = 80

LONGEST_NAME = 4096
"""Of a function or a call. Some clients put much into ids."""


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

    @classmethod
    def of_body(cls, body: bytes, known: Collection[str], only: Only, texts: Collection[str] = ()) -> Fields:
        """The fields of a request's body, where those of `only` have no other value, and those of `texts` are texts.

        Raises:
            ApiError: it is not a JSON object, or a field is not among the known ones, or has another value.
        """
        try:
            value = msgspec.json.decode(body)
        except UNREADABLE as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
        if not isinstance(value, dict):
            raise ApiError(400, f"the body is not a JSON object: {shown(value)}", code="invalid_json")
        fields = cls(value)
        fields.refuse_unknown(known)
        for name, (allowed, why) in only.items():
            fields.only(name, *allowed, why=why)
        for name in texts:
            fields.text(name)
        return fields

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path(self, name: str) -> str:
        return f"{self._place}{name}"

    def raw(self, name: str) -> Any:
        """The value as it came; None where it was not given."""
        return self._values.get(name)

    def refuse_unknown(self, known: Collection[str]) -> None:
        for name in self._values:
            if name not in known:
                raise wrong(self.path(name), f"there is no such field{nearest(name, known)}", "unknown_parameter")

    def text(self, name: str) -> str | None:
        return self._of(name, str, "a text")

    def name(self, name: str) -> str:
        """A text that is no longer than names are; empty where it was not given."""
        text = self.text(name) or ""
        if len(text) > LONGEST_NAME:
            raise wrong(self.path(name), f"it has {len(text):,} characters; {LONGEST_NAME:,} are read")
        return text

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

    def texts(self, name: str, part: Callable[[Fields], str]) -> str:
        """A text, or the texts of its parts one after the other."""
        content = self._values.get(name)
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise wrong(self.path(name), f"{shown(content)} is neither a text nor a list of text parts", "invalid_type")
        return "".join(map(part, self.each(name)))

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse any value but these."""
        value = self._values.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise wrong(self.path(name), f"{shown(value)} is not supported: {why}", "unsupported_value")

    def needed(self, name: str) -> str:
        """A name that must be there, and is not empty."""
        text = self.name(name)
        if not text:
            raise wrong(self.path(name), "it is missing", "missing_required_parameter")
        return text

    def inner(self, name: str) -> Fields | None:
        table = self.table(name)
        return None if table is None else Fields(table, f"{self.path(name)}.")

    def each(self, name: str) -> Iterator[Fields]:
        """The fields of each object in a list; none where the list was not given."""
        for number, value in enumerate(self.items(name) or []):
            place = f"{self.path(name)}[{number}]"
            if not isinstance(value, dict):
                raise wrong(place, f"{shown(value)} is not an object", "invalid_type")
            yield Fields(value, f"{place}.")

    def _of(self, name: str, kind: type[Kind], words: str) -> Kind | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, kind):
            raise wrong(self.path(name), f"{shown(value)} is not {words}", "invalid_type")
        return value
