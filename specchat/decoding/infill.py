"""Fills the blanks of a text by speculation: tokens are guessed in parallel, and one pass judges them in order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specchat.acceptance.recursion import MultiStep
from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Verdict
from specchat.core.sampling import BAN, Sampling
from specchat.core.tree import DrawKind, TokenTree
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.drafters.draft_model import drawn_below
from specchat.errors import UsageError, cut

if TYPE_CHECKING:
    from specchat.models.any_order import AnyOrderModel

MOST_TOKENS = 1024
"""Of a text and its blanks together: attention takes memory by the square."""

_BLANK = re.compile(r"__(?P<count>[0-9]+)__|_{3,}")
NOTATION = "three or more underscores are a blank of as many tokens, and __12__ is one of twelve"


class Infilling:
    """A text whose blanks are filled from left to right, several in a round.

    A round draws tokens for the next places, each from its law given the known text and what was filled before. A
    second pass gives the law of each place given those before it too, and the rule `multi_step` judges the chain. The
    first draw's two laws are one, so it always stands; the round ends with a token of the network's own. So a round of
    two passes fills two places or more, the last place takes one pass, and there are never more passes than tokens.

    Reference: Guo and Ermon, Reviving Any-Subset Autoregressive Models with Principled Parallel Sampling and
    Speculative Decoding, arXiv:2504.20456. Differs: the law of the first place is read off the first pass; where all
    draws stand, the second pass gives the token behind them; at the beginning of a text pairs of tokens guess by single
    tokens.

    Attributes:
        tokens: the text; at places that are still blank any token.
        places: the blank places, in the order in which they are filled.
        context: how the network samples; its history is the known text and what was filled, in that order.
    """

    def __init__(
        self,
        network: AnyOrderModel,
        text: Sequence[int | None],
        sampling: Sampling,
        noise: Noise,
        draft: int = 10,
        by_pairs: bool = False,
    ) -> None:
        """Nothing filled yet.

        Args:
            text: None where a token is to be filled in. At least one is known: a query that sees nothing has no law.
            draft: the most places guessed in a round; 0 fills one after the other.
            by_pairs: guesses by pairs of tokens counted in the text, not by a pass of the network.
        """
        known = [token for token in text if token is not None]
        assert known, "a text without known tokens is refused where it is read"
        self._network, self._draft, self._by_pairs, self._rule = network, draft, by_pairs, MultiStep()
        self.tokens = [token or 0 for token in text]
        self.places = [place for place, token in enumerate(text) if token is None]
        self._ranks = [0] * len(text)
        for rank, place in enumerate(self.places, 1):
            self._ranks[place] = rank
        self.context = Context(known, len(known), network.vocab_size, sampling, noise, wanted=DrawKind.IID)
        self.rounds = self.drafted = self.accepted = 0

    @property
    def filled(self) -> int:
        """How many places are filled."""
        return len(self.context.history) - self.context.prompt_tokens

    def round(self) -> Verdict:
        """Fill the next places. There must be one."""
        network, done = self._network, self.filled
        draft = min(self._draft, len(self.places) - done - 1)
        next_places = self.places[done : done + draft + 1]
        tree = TokenTree(self.context.history[-1], self.context.vocab_size)
        if self._by_pairs:
            first = torch.empty(0, self.context.vocab_size)
            self._guess_by_pairs(tree, next_places[:draft])
        else:
            drafting = network.logits(self.tokens, self._ranks, next_places[: max(draft, 1)], done + 1)
            first = drafting[:1]
            for row in drafting[:draft]:
                if not self._guess(tree, row, "network"):
                    break
        judged = next_places[: tree.drafted + 1]
        for place, token in zip(judged, tree.tokens[1:], strict=False):
            self.tokens[place] = token
        asked = judged[len(first) :]
        logits = first
        if asked:
            logits = torch.cat([first, network.logits(self.tokens, self._ranks, asked, len(self.tokens))])
        nodes = tuple(range(len(tree)))
        verdict = self._rule.judge(tree.freeze(), Reading(nodes, HeadTensors(logits), frozenset(nodes)), self.context)
        for place, token in zip(judged, verdict.emitted, strict=False):
            self.tokens[place] = token
        self.context.emit(verdict.emitted)
        self.rounds += 1
        self.drafted += tree.drafted
        self.accepted += len(verdict.path)
        return verdict

    def _guess(self, tree: TokenTree, logits: Tensor, proposer: str) -> bool:
        """Draw a token behind the last node of a chain; whether there is one."""
        last = len(tree) - 1
        drawn = drawn_below(tree, last, 1, self.context, logits, self.context.noise, proposer)
        for guess in drawn:
            tree.add(last, guess)
        return bool(drawn)

    def _guess_by_pairs(self, tree: TokenTree, places: Sequence[int]) -> None:
        """Guess each place by what follows the token before it elsewhere in the text, or else by all its tokens."""
        known = [self._ranks[place] <= self.filled for place in range(len(self.tokens))]
        guessed: dict[int, int] = {}
        for place in places:
            before = guessed.get(place - 1, self.tokens[place - 1]) if place else None
            counts = Counter(
                token
                for at, token in enumerate(self.tokens)
                if at and known[at] and known[at - 1] and self.tokens[at - 1] == before
            ) or Counter(token for token, is_known in zip(self.tokens, known, strict=True) if is_known)
            logits = torch.full((self.context.vocab_size,), -torch.inf)
            logits[list(counts)] = torch.tensor(list(counts.values())).log()
            if not self._guess(tree, logits, "pairs"):
                break
            guessed[place] = tree.tokens[-1]


@dataclass(frozen=True)
class Blanks:
    """A text with blanks, as it was written.

    Args:
        counts: tokens of each blank.
    """

    pieces: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Blanks:
        """Find the blanks of a text; UsageError where there are none, or one has no tokens or too many."""
        found = list(_BLANK.finditer(text))
        if not found:
            raise UsageError(f"the text has no blank: {NOTATION}")
        counts = []
        for blank in found:
            digits = blank["count"]
            count = len(blank[0]) if digits is None else int(digits) if len(digits) < 10 else MOST_TOKENS + 1
            if not 1 <= count <= MOST_TOKENS:
                raise UsageError(f"the blank {cut(blank[0])} is not of 1 to {MOST_TOKENS} tokens; {NOTATION}")
            counts.append(count)
        ends = [0, *(blank.end() for blank in found)]
        starts = [*(blank.start() for blank in found), len(text)]
        return cls(tuple(text[end:start] for end, start in zip(ends, starts, strict=True)), tuple(counts))

    def tokens(self, vocabulary: TransformersVocabulary) -> list[int | None]:
        """The text as tokens, None for each that is to be filled in.

        Spaces before a blank are left to what is filled in: most tokens begin with their space.

        Raises:
            UsageError: nothing but blanks, or more tokens than MOST_TOKENS.
        """
        found: list[int | None] = []
        for number, (piece, count) in enumerate(zip(self.pieces, (*self.counts, 0), strict=True)):
            tokens = vocabulary.encode(piece.rstrip(" ") if count else piece) if piece.strip() else []
            if number and tokens and vocabulary.starts_with_space() and not piece[0].isspace():
                tokens = _without_space(tokens, vocabulary)
            found += tokens
            found += [None] * count
        if len(found) > MOST_TOKENS:
            raise UsageError(f"the text has {len(found)} tokens with its blanks; at most {MOST_TOKENS} are filled in")
        if all(token is None for token in found):
            raise UsageError("the text is nothing but blanks: at least one word must be known")
        return found

    def filled(self, tokens: Sequence[int], vocabulary: TransformersVocabulary) -> list[tuple[str, bool]]:
        """The text in parts, each with whether it was filled in, from the tokens of all blanks in their order."""
        parts, at = [], 0
        for number, (piece, count) in enumerate(zip(self.pieces, (*self.counts, 0), strict=True)):
            parts.append((piece.rstrip(" ") if count else piece, False))
            data = b"".join(vocabulary.token_bytes(token) for token in tokens[at : at + count])
            text = data.decode("utf-8", errors="replace")
            parts.append((text.removeprefix(" ") if not number and not piece.strip() else text, True))
            at += count
        return [part for part in parts if part[0]]


def _without_space(tokens: list[int], vocabulary: TransformersVocabulary) -> list[int]:
    """The tokens of a text that goes on in a word, without the space that SentencePiece puts before every text."""
    first = vocabulary.token_bytes(tokens[0]).decode("utf-8", errors="replace")
    if first == " ":
        return tokens[1:]
    joined = vocabulary.tokenizer.get_vocab().get(first.removeprefix(" "))
    return tokens if joined is None else [joined, *tokens[1:]]


def sampling_of_text(temperature: float, vocabulary: TransformersVocabulary, vocab_size: int) -> Sampling:
    """Samples from all tokens that add to a text: special tokens and rows that no token has are banned."""
    silent = (token for token in range(vocab_size) if not vocabulary.token_bytes(token))
    return Sampling(temperature, bias=tuple((token, BAN) for token in silent))
