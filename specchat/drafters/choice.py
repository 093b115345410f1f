"""The drafter that settings ask for, with its options and members: enough to compare and check without building it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specchat.drafters import DRAFTERS
from specchat.drafters.members import Member
from specchat.errors import UsageError
from specchat.registry import Method
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.core.tree import DrawKind


@dataclass(frozen=True)
class DrafterChoice:
    """The identity of a drafter: while it stays the same, a change of settings keeps what the drafter has learnt.

    Args:
        number: 1, 2, … where drafters of this name are used more than once, at whatever level; else 0.
    """

    name: str
    options: Any
    members: tuple[DrafterChoice, ...] = ()
    number: int = 0

    @property
    def method(self) -> Method:
        return DRAFTERS[self.name]

    def all(self) -> Iterator[DrafterChoice]:
        yield self
        for member in self.members:
            yield from member.all()

    def leaves(self) -> Iterator[DrafterChoice]:
        """Those of them that are made of no others."""
        return (choice for choice in self.all() if not choice.members)

    @property
    def draw_kinds(self) -> Collection[DrawKind]:
        """The kinds of draws that it promises to make with these options, from what its class declares."""
        from specchat.core.tree import DrawKind

        members = [member.draw_kinds for member in self.members]
        kinds = frozenset(self.method.load().draw_kinds(self.options, members))
        assert kinds <= set(DrawKind), f"drafter {self.name!r} declares kinds of draws that do not exist: {kinds}"
        return kinds

    def mixes(self, kind: DrawKind) -> bool:
        """Whether points may stand beside draws of this kind at a node."""
        mixing = (choice for choice in self.all() if choice.method.load().mixes_members)
        return any(kind not in leaf.draw_kinds for choice in mixing for leaf in choice.leaves())

    @property
    def names_sources(self) -> bool:
        """Whether guesses of it say which token of the text they are copies of, with these options and members."""
        return bool(self.method.load().names_sources(self.options, [member.names_sources for member in self.members]))

    @property
    def needs_draft_model(self) -> bool:
        """Whether it uses the pair's draft model; a drafter made of others does if one of those does."""
        return any(choice.method.needs_draft_model for choice in self.leaves())

    @property
    def needs_same_tokens(self) -> bool:
        """Whether it, or a member, uses a draft model that must have the target's tokens."""
        return any(choice.method.needs_same_tokens for choice in self.leaves())

    def draft_models(self, first: str, *, same_tokens: bool = False) -> frozenset[str]:
        """Names of the draft models that it and its members use.

        Args:
            first: the name of the one that is used where options name none.
            same_tokens: only those whose tokens must be the target's.
        """
        users = (
            c for c in self.leaves() if (c.method.needs_same_tokens if same_tokens else c.method.needs_draft_model)
        )
        return frozenset(choice.options.model or first for choice in users)

    @property
    def makers(self) -> list[DrafterChoice]:
        """Those of it that make a network of the target's weights."""
        return [choice for choice in self.all() if choice.method.makes_a_network]

    @property
    def runs_a_network(self) -> bool:
        """Whether guesses of it, or of a member, cost passes of a network."""
        return any(choice.method.runs_a_network for choice in self.leaves())


def choose_drafter(settings: Settings) -> DrafterChoice:
    """The drafter these settings ask for. A controller that never speculates needs none."""
    return choose("none" if settings.controller == "off" else settings.drafter, settings)


def drafts_used(settings: Settings, drafts: Sequence[str]) -> tuple[str, ...]:
    """Those of a pair's draft models that its drafter and the members of it use with these settings, in order.

    These are fetched, loaded and counted, and no others. Names that the pair lacks are left out: `check_settings`
    refuses them.
    """
    used = choose_drafter(settings).draft_models(drafts[0]) if drafts else frozenset()
    return tuple(name for name in dict.fromkeys(drafts) if name in used)


def choose(
    name: str, settings: Settings, given: tuple[tuple[str, str], ...] = (), above: tuple[str, ...] = ()
) -> DrafterChoice:
    """A drafter with the options of the settings.

    Args:
        given: (option, value) that come before those of the settings.
        above: the drafters it is a member of, the outermost first.

    Raises:
        UsageError: a drafter or an option that does not exist, a drafter that is a member of itself, or two members
            that are the same in all.
    """
    if name in above:
        circle = " → ".join([*above[above.index(name) :], name])
        raise UsageError(f"a drafter cannot be made of itself: {circle}")
    options = DRAFTERS[name].make_options({**settings.options_for(name), **dict(given)})
    named: tuple[Member, ...] = getattr(options, "members", ())
    members = tuple(choose(member.name, settings, member.given, (*above, name)) for member in named)
    for place, member in enumerate(members):
        if member in members[:place]:
            raise UsageError(
                f"{name} names {member.name} twice with the same options; a drafter may be named again with others, "
                f"such as {member.name}(OPTION=VALUE)"
            )
    choice = DrafterChoice(name, options, members)
    return choice if above else _numbered(choice, Counter(part.name for part in choice.all()), Counter())


def _numbered(choice: DrafterChoice, uses: Counter[str], before: Counter[str]) -> DrafterChoice:
    """The same with a number for every drafter whose name is used more than once: guesses must tell who made them.

    Args:
        uses: how often each name is used in all.
        before: how often it was so far; counted on.
    """
    before[choice.name] += 1
    number = before[choice.name] if uses[choice.name] > 1 else 0
    return replace(choice, number=number, members=tuple(_numbered(part, uses, before) for part in choice.members))
