"""Style sheets that are parsed once for all apps of a run: parsing was a tenth of the time of a test of the app."""

from __future__ import annotations

from typing import Any

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parse = Stylesheet._parse_rules
_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}
_variables: dict[tuple[tuple[str, str], ...], int] = {}
"""A number for each set of variables: there are few, and each is long."""


def parse_once(self: Stylesheet, *source: Any, **about: Any) -> list[RuleSet]:
    """Instead of `Stylesheet._parse_rules`: the rules depend on its arguments and on the variables alone.

    Nothing changes a rule once it is parsed; Textual itself hands the same ones out again within an app.
    """
    seen, number = self.__dict__.get("_numbered", (None, 0))
    if seen is not self._variables:
        number = _variables.setdefault(tuple(self._variables.items()), len(_variables))
        self.__dict__["_numbered"] = self._variables, number
    key = (*source, *about.items(), number)
    if key not in _parsed:
        _parsed[key] = _parse(self, *source, **about)
    return _parsed[key]
