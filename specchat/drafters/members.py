"""Drafters that another one is made of, as an option names them: `suffix(depth=8), suffix(depth=64)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specchat.errors import UsageError, short

_SEPARATORS = " \t\r\n,+"


@dataclass(frozen=True)
class Member:
    """A drafter that another one is made of.

    Args:
        given: options written beside the name, as (option, value); the settings' own hold for the others.
    """

    name: str
    given: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """As it is written in an option, without commas, which a list of settings takes for its own."""
        inside = " ".join(f"{option}={value}" for option, value in self.given).replace(",", " ")
        return f"{self.name}({inside})" if inside else self.name


def parse_members(key: str, text: str) -> tuple[Member, ...]:
    """The members an option names.

    Names are separated by commas, spaces or `+`. Options of one member follow its name in parentheses, separated by
    commas or spaces: `suffix(depth=8 factor=2) + draft_model`. A value may have parentheses of its own, so that a
    wrapper can be a member: `cascade(of=merge(of=suffix+token_recycling)+draft_model)`.

    Args:
        key: the option's full name, for errors.

    Raises:
        UsageError: no member, a parenthesis without its partner, or something in parentheses that sets no option.
    """
    members = tuple(_member(key, piece) for piece in _split(key, text, _SEPARATORS))
    if not members:
        raise UsageError(f"{key} = {short(text)} names no drafter; it must be written like suffix,token_recycling")
    return members


def names_in(text: str) -> set[str]:
    """Whatever could be the name of a drafter in such an option, members of members included; never refuses."""
    return set(re.findall(r"(?<![\w.])\w+(?!\w|[=.])", text))


def _member(key: str, piece: str) -> Member:
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", piece, re.DOTALL)
    if found is None:
        raise UsageError(f"{key}: {short(piece)} must be written NAME or NAME(OPTION=VALUE)")
    name, inside = found.groups()
    given: dict[str, str] = {}
    for setting in _split(key, inside or "", " \t\r\n,"):
        option, equals, value = setting.partition("=")
        if not (equals and option and value):
            raise UsageError(f"{key}: {short(setting)} in {short(piece)} must be written OPTION=VALUE")
        if option in given:
            raise UsageError(f"{key}: {short(piece)} sets {option} twice")
        given[option] = value
    return Member(name, tuple(sorted(given.items())))


def _split(key: str, text: str, separators: str) -> Iterator[str]:
    """The pieces between separators that stand outside of all parentheses."""
    depth, piece = 0, ""
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if depth == 0 and character in separators:
            if piece:
                yield piece
            piece = ""
        else:
            piece += character
    if depth:
        raise UsageError(f"{key} = {short(text)} has a parenthesis without its partner")
    if piece:
        yield piece
