"""Options of the drafters that are made of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specchat.drafters.members import Member, parse_members
from specchat.errors import UsageError, short
from specchat.registry import option


class _MadeOf:
    """Options of which `of` names drafters; those that cannot be read are refused at once."""

    method: ClassVar[str]
    of: str

    def __post_init__(self) -> None:
        _ = self.members

    @property
    def members(self) -> tuple[Member, ...]:
        """The drafters it is made of, in order; whether they exist, the drafters' table knows."""
        return parse_members(f"{self.method}.of", self.of)


@dataclass(frozen=True)
class MergeOptions(_MadeOf):
    """Options of `merge`."""

    method: ClassVar[str] = "merge"

    of: str = option(
        "suffix,token_recycling",
        "drafters whose guesses are merged, with commas or + between them; one may be named again with other options: "
        "suffix(depth=8)+suffix(depth=64)",
    )
    sure: float = option(
        0.6,
        "a draft model or a trained network is not asked where the others have a guess at least this likely",
        minimum=0.0,
        maximum=1.0,
    )


@dataclass(frozen=True)
class CascadeOptions(_MadeOf):
    """Options of `cascade`."""

    method: ClassVar[str] = "cascade"

    of: str = option(
        "suffix,token_recycling",
        "drafters in the order in which they are asked, with commas or + between them: suffix+draft_model",
    )
    least: float = option(
        0.0,
        "a drafter before the last is used if it has a guess at least this likely",
        minimum=0.0,
        maximum=1.0,
    )


@dataclass(frozen=True)
class SeveralOptions(_MadeOf):
    """Options of `several`."""

    method: ClassVar[str] = "several"

    of: str = option(
        "suffix,token_recycling",
        "drafters that grow a tree each, with commas or + between them: draft_model+draft_model(model=NAME)+suffix",
    )


@dataclass(frozen=True)
class FuseOptions:
    """Options of `fuse`."""

    draft: str = option("draft_model", "the drafter that decides what is likely: a draft model or a trained network")
    lookup: str = option("suffix", "the drafter whose guesses are pruned and grafted")
    top: int = option(
        8, "looked-up tokens stay if they are among this many of the draft's likeliest", unit="tokens", minimum=1
    )

    def __post_init__(self) -> None:
        for key in ("draft", "lookup"):
            if len(parse_members(f"fuse.{key}", getattr(self, key))) != 1:
                raise UsageError(f"fuse.{key} = {short(getattr(self, key))} must name one drafter")

    @property
    def members(self) -> tuple[Member, ...]:
        """The draft, then the lookup."""
        return (*parse_members("fuse.draft", self.draft), *parse_members("fuse.lookup", self.lookup))
