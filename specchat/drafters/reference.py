"""A text that the reply is expected to follow, proposed before what any drafter guesses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import DrawKind, Guess, TokenTree
from specchat.drafters import REFERENCE
from specchat.drafters.combine import MemberGroup

LONGEST_RUN = 16
"""The longest run of agreeing tokens that is counted; a longer one tells no more."""

_WINDOW = 16
"""So far behind the last agreement a single token is looked for; anywhere else it takes two in a row."""

_HABIT = 4.0
"""How many trials of experience the first guess at a rate counts for."""

_SURE = 0.6
"""A drafter is not asked at a node where the reference is right at least so often."""


class WithReference(MemberGroup):
    """A drafter whose guesses stand behind those of a reference.

    The reference has one guess for a node: the token that follows where the node's path stands in it. Where it is
    mostly right the drafter is not asked, which saves a draft model's pass; elsewhere the likelier guess comes first.
    Sampled draws of the drafter keep their order and their distribution: whether it is asked never depends on what it
    would draw.

    Reference: Yang et al., Inference with Reference, arXiv:2304.04487. Differs: the reference is followed by an
    alignment that survives changes, not found anew by matching in every round; how far to trust it is learnt.
    """

    def __init__(self, drafter: Drafter, expected: ExpectedReply, apart: bool) -> None:
        """`apart`: no guess of the reference stands beside sampled draws, as rules that judge branches want it."""
        super().__init__([drafter])
        self._drafter = drafter
        self._expected = expected
        self._apart = apart

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """(F,) guesses: the reference's among those of the drafter, which is asked where the reference is not sure."""
        expected = {node: self._expected.after(tree.path_tokens(node)) for node in frontier}
        unsure = [node for node, guess in expected.items() if guess is None or guess[1] < _SURE]
        asked = self._drafter.propose(tree, unsure, width, context) if unsure else ()
        said = dict(zip(unsure, asked, strict=True))
        return [_joined(expected[node], said.get(node, ()), width, self._apart) for node in frontier]

    def observe(self, round: Round) -> None:
        """Follow the reference with what was emitted, then let the drafter learn."""
        self._expected.emit(round.emitted)
        super().observe(round)

    def close(self) -> None:
        """Nothing: the drafter outlives the reply."""


@dataclass(frozen=True)
class Alignment:
    """Where the other text stands.

    Args:
        place: index of the reference's token that should come next.
        run: how many tokens in a row agreed before it.
        lost: the last token was not the expected one, and it is not known where to go on.
    """

    place: int = 0
    run: int = 0
    lost: bool = False


class AlignedText:
    """Finds in a reference what should follow: the token after the last agreement, also behind a small change.

    After a token that was not expected, the alignment goes on where the last two tokens stand in the reference, nearest
    to where it was; or, where only the last one is found, a little behind that place.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._after: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for place, pair in enumerate(zip(self.tokens, self.tokens[1:], strict=False), 2):
            self._after[pair].append(place)

    def next_token(self, at: Alignment) -> int | None:
        """The token that is expected next; None where the text is lost or at its end."""
        return None if at.lost or at.place >= len(self.tokens) else self.tokens[at.place]

    def advance(self, at: Alignment, before: int | None, token: int) -> Alignment:
        """Where the other text stands one token later; `before` is the token before that, if there is one."""
        if self.next_token(at) == token:
            return Alignment(at.place + 1, min(LONGEST_RUN, at.run + 1))
        places = self._after.get((before, token), ()) if before is not None else ()
        if places:
            return Alignment(min(places, key=lambda place: (abs(place - at.place), place)), 2)
        window = self.tokens[at.place : at.place + _WINDOW]
        if token in window:
            return Alignment(at.place + window.index(token) + 1, 1)
        return Alignment(at.place, 0, lost=True)


class ExpectedReply:
    """The reference of one reply: how far the reply has followed it, and how often it was right."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._text = AlignedText(tokens)
        self._at = Alignment()
        self._last: int | None = None
        self._seen: dict[int, tuple[int, int]] = {}  # length of the run → hits, trials

    def after(self, path: Sequence[int]) -> tuple[int, float] | None:
        """The token expected after these further tokens, and how often such a guess is right."""
        at, last = self._at, self._last
        for token in path:
            at, last = self._text.advance(at, last, token), token
        expected = self._text.next_token(at)
        return None if expected is None else (expected, self._rate(at.run))

    def emit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            expected = self._text.next_token(self._at)
            if expected is not None:
                hits, trials = self._seen.get(self._at.run, (0, 0))
                self._seen[self._at.run] = hits + (token == expected), trials + 1
            self._at, self._last = self._text.advance(self._at, self._last, token), token

    def _rate(self, run: int) -> float:
        hits, trials = self._seen.get(run, (0, 0))
        return (hits + _HABIT * (run + 2) / (run + 3)) / (trials + _HABIT)


def _joined(
    expected: tuple[int, float] | None, said: Sequence[Guess], width: int, apart: bool = False
) -> Sequence[Guess]:
    """The reference's guess among the drafter's: after sampled draws if not apart, else where its rate puts it."""
    if expected is None:
        return said
    token, rate = expected
    sureness = math.log(rate)
    own = Guess(token, logprob=sureness, proposer=REFERENCE)
    if any(guess.kind is not DrawKind.POINT for guess in said):
        return said if apart else [*said[: max(1, width - 1)], own][:width]
    others = [guess for guess in said if guess.token != token]
    less_sure = (at for at, guess in enumerate(others) if guess.logprob is None or guess.logprob <= sureness)
    place = next(less_sure, len(others))
    return [*others[:place], own, *others[place:]][:width]
