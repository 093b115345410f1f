"""Methods by name, each imported only when it is asked for; and the options every method declares.

A family of methods is a `Table`. Listing one reads names and sentences only, so `specchat methods`,
`--help` and the settings panel never import torch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from specchat.errors import UsageError, nearest, short


def option(default: Any, help: str, **about: Any) -> Any:
    """One field of an options dataclass: its default, what it means, and what else an `Option` says about it."""
    return field(default=default, metadata={"help": help, **about})


fraction = functools.partial(option, minimum=0.0, maximum=1.0)
"""An option from 0 to 1, such as a share or a probability."""


@dataclass(frozen=True)
class Option:
    """One option as flags, panel, `--help` and docs see it.

    `live` says whether a change acts between two rounds (True) or needs the models loaded again. `check` refuses a
    text that it cannot parse. Where the minimum is 0, `least_above_zero` is the smallest other number that is allowed.
    """

    name: str
    kind: str  # "int" | "float" | "str" | "bool"
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    least_above_zero: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = True
    check: Callable[[str], object] | None = None

    def parse(self, value: Any, owner: str) -> Any:
        """The value as this option's kind and within its range, or a UsageError that says what is allowed."""
        name = f"{owner}.{self.name}" if owner else self.name
        converted = self._converted(value, name)
        if self.choices and converted not in self.choices:
            raise UsageError(f"{name} = {short(value)} is not one of its values{nearest(str(value), self.choices)}")
        if self.check is not None:
            self.check(converted)
        number = isinstance(converted, int | float) and not isinstance(converted, bool)
        if number and not self.allows(converted):
            raise UsageError(f"{name} = {short(converted)} is outside its range: {self.range_text()}")
        return converted

    def allows(self, number: float) -> bool:
        """Whether a number is within the range; what is not a number is not."""
        low, high, least = self.minimum, self.maximum, self.least_above_zero
        outside = (low is not None and number < low) or (high is not None and number > high)
        too_near_zero = least is not None and 0 < number < least
        return not outside and not too_near_zero and number == number

    def range_text(self) -> str:
        """Which values are allowed, in words: `1 to 64`, `0 or more`, `0, or 1e-06 to 10`, `follow, multi_step`."""
        if self.choices:
            return ", ".join(self.choices)
        low, high, apart = self.minimum, self.maximum, ""
        if self.least_above_zero is not None:
            low, apart = self.least_above_zero, "0, or "
        if low is not None and high is not None:
            return f"{apart}{low:g} to {high:g}"
        if low is not None:
            return f"{apart}{low:g} or more"
        return f"{high:g} or less" if high is not None else ""

    def _converted(self, value: Any, name: str) -> Any:
        try:
            match self.kind:
                case "bool":
                    words = {"true": True, "yes": True, "on": True, "1": True}
                    words |= {"false": False, "no": False, "off": False, "0": False}
                    return value if isinstance(value, bool) else words[str(value).lower()]
                case "int":
                    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                        raise ValueError
                    return _storable(int(value), name)
                case "float":
                    if isinstance(value, bool):
                        raise ValueError
                    return float(value)
                case _:
                    if not isinstance(value, str):
                        raise ValueError
                    return value
        except (ValueError, KeyError, TypeError, OverflowError):
            article = {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(self.kind, "a text")
            allowed = f" ({self.range_text()})" if self.range_text() else ""
            raise UsageError(f"{name} = {short(value)} is not {article}{allowed}") from None


def _storable(number: int, name: str) -> int:
    """The number, if it fits into the 64 bits that files and tensors give it."""
    if not -(2**63) <= number < 2**63:
        raise UsageError(f"{name} = {short(number)} does not fit into 64 bits")
    return number


@functools.cache
def options_of(dataclass_type: type) -> tuple[Option, ...]:
    """The options an options dataclass declares, in order."""
    types = get_type_hints(dataclass_type)
    declared = [f for f in dataclasses.fields(dataclass_type) if "help" in f.metadata]
    for f in declared:
        assert types[f.name] in (bool, int, float, str), f"option {f.name} has type {types[f.name]}"
    return tuple(Option(name=f.name, kind=types[f.name].__name__, default=f.default, **f.metadata) for f in declared)


DRAFT_MODEL = "draft_model"
"""What a method requires that uses the pair's draft model, whose tokens must be the target's."""

ANY_DRAFT_MODEL = "any_draft_model"
"""The same of a method that goes over from one model's tokens to the other's."""

TRAINED_WEIGHTS = "trained_weights"
"""What a method requires that is built from a drafter trained for the target."""

SHIPPED_HEAD = "shipped_head"
"""What a method requires that is built from a drafting head in the target's own files."""

DATASTORE = "datastore"
"""What a method requires that looks into a datastore with the target's tokens."""


@dataclass(frozen=True)
class NoOptions:
    """A method without options."""


@dataclass(frozen=True)
class Method:
    """One line of a family's table: a method's name, where its code is, and what to say about it.

    `lossless` is the table's promise to readers ("yes", "no", or the condition); whether a *combination*
    is lossless is computed by `decoding.combinations` from what the draws carry, never read from here.

    Args:
        requires: what a pair must have for it besides a target, with its default options: `DRAFT_MODEL` or
            `ANY_DRAFT_MODEL`; `TRAINED_WEIGHTS`, of which the method's option `weights` names the drafter to use;
            `DATASTORE`, which the option `store` names; or `SHIPPED_HEAD`.
        runs_the_target: whether it drafts with the target's own weights, or some of them.
        makes_a_network: whether it makes a network of its own in memory. Its class then says what that takes
            (`network_memory`).
        trainable: whether the draft model that it uses can be one that was trained for the target. Its option `model`
            names that one then.
        in_target_pass: whether its guesses come out of rows of the target's own pass alone.
        drafts_ahead: whether it may draft, while the target reads, for a text that the target has not confirmed.
    """

    name: str
    target: str  # "package.module:Class"
    summary: str
    source: str
    lossless: str = "yes"
    options: type = NoOptions
    requires: tuple[str, ...] = ()
    runs_the_target: bool = False
    makes_a_network: bool = False
    trainable: bool = False
    in_target_pass: bool = False
    drafts_ahead: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.requires) - {DRAFT_MODEL, ANY_DRAFT_MODEL, TRAINED_WEIGHTS, SHIPPED_HEAD, DATASTORE}
        assert not unknown, f"{self.name} requires what no pair has: {unknown}"

    @property
    def needs_draft_model(self) -> bool:
        """Whether only a pair with a draft model can use it."""
        return self.needs_same_tokens or ANY_DRAFT_MODEL in self.requires

    @property
    def needs_same_tokens(self) -> bool:
        """Whether only a pair can use it whose draft model has the target's tokens."""
        return DRAFT_MODEL in self.requires

    @property
    def needs_weights(self) -> bool:
        """Whether it is built from a drafter that was trained for the target."""
        return TRAINED_WEIGHTS in self.requires

    @property
    def needs_shipped_head(self) -> bool:
        return SHIPPED_HEAD in self.requires

    @property
    def weights_option(self) -> str:
        """The option that names the trained drafter to use; empty where none can be trained for it."""
        return "weights" if self.needs_weights else "model" if self.trainable else ""

    @property
    def needs_datastore(self) -> bool:
        return DATASTORE in self.requires

    @property
    def runs_a_network(self) -> bool:
        """Whether guesses cost passes of a network."""
        trained = self.needs_shipped_head or (self.needs_weights and not self.in_target_pass)
        return self.needs_draft_model or self.runs_the_target or trained

    def load(self) -> Any:
        """The method's class, imported now."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def make_options(self, given: Mapping[str, Any]) -> Any:
        """This method's options with the given values; unknown keys and values out of range are refused."""
        known = {o.name: o for o in options_of(self.options)}
        for key in given:
            if key not in known:
                raise UsageError(f"{self.name} has no option {short(key)}{nearest(key, known)}")
        return self.options(**{key: known[key].parse(value, self.name) for key, value in given.items()})


def not_called(name: str, family: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"no {family} is called {short(name)}{nearest(name, known)}")


class Table(Mapping[str, Method]):
    """One family's methods, by name."""

    def __init__(self, family: str, *methods: Method) -> None:
        self.family = family
        self._methods = {m.name: m for m in methods}
        assert len(self._methods) == len(methods), f"two methods of {family} share a name"

    def __getitem__(self, name: str) -> Method:
        try:
            return self._methods[name]
        except KeyError:
            raise not_called(name, self.family, self._methods) from None

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)
