"""AMBEDKAR's re-ranking: of the likely guesses the one that depends least on who the prompt is about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from specchat.acceptance.options import FairOptions
from specchat.acceptance.walk import own_token, soft_law, walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule, Model, Weights
from specchat.core.tree import Guess, TokenTree
from specchat.core.vocabulary import TokenTable


class Fair(AcceptanceRule):
    """Of a node's children and the target's own token, the one whose probability changes least under another prompt.

    The other prompt is the same text with the identity terms of `swap` exchanged. The target reads every tree twice,
    once after each prompt. Of the tokens with at least `share` of the likeliest one's probability that one is taken
    whose divergence between both laws is least, of equals the likelier. Where the prompts are the same, that is the
    likeliest. It costs a second pass in every round: it is meant for another text, not for a faster one.

    Reference: AMBEDKAR, arXiv:2509.02133. Differs: the target itself is the verifier, without a constitution in its
    prompt, and a candidate is one token; its divergence is Jensen and Shannon's between p(x) and p'(x), each against
    all else.
    """

    wants_target = True

    def __init__(
        self, options: FairOptions, target: Weights | None = None, vocabulary: TokenTable | None = None
    ) -> None:
        """The rule for one target.

        Args:
            target: its weights, read through a twin. Without a target or a vocabulary no term is exchanged.
        """
        self._share = options.share
        self._other = (
            Counterfactual(target.with_new_cache(), vocabulary, options.pairs())
            if target is not None and vocabulary is not None
            else None
        )

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        other = self._other.read(tree, context) if self._other is not None and tree.drafted else None

        def token_after(node: int) -> int:
            own = own_token(tree, node, reading, context)
            if not tree.children(node):
                return own
            tokens = list(dict.fromkeys([*(tree.tokens[child] for child in tree.children(node)), own]))
            p = soft_law(tree, node, reading, context)
            changed = p if other is None else soft_law(tree, node, other, context)
            return least_changed(tokens, p, changed, self._share)

        return walk(tree, reading, token_after)


def least_changed(tokens: Sequence[int], p: Tensor, changed: Tensor, share: float) -> int:
    """Of the tokens that are likely enough the one of least divergence, of equals the likelier.

    Args:
        p: (V,) probabilities after the prompt.
        changed: (V,) probabilities after the other prompt.
        share: of the likeliest token's probability, what a token must have to be considered.
    """
    chances = p[list(tokens)].tolist()
    least = share * max(chances)
    found = [
        (divergence(chance, other), -chance, place)
        for place, (chance, other) in enumerate(zip(chances, changed[list(tokens)].tolist(), strict=True))
        if chance >= least
    ]
    return tokens[min(found)[2]]


def divergence(p: float, q: float) -> float:
    """Jensen and Shannon's divergence, in nats, between two laws of whether a token follows."""
    total = 0.0
    for a, b in ((p, q), (1.0 - p, 1.0 - q)):
        middle = 0.5 * (a + b)
        total += sum(0.5 * x * math.log(x / middle) for x in (a, b) if x > 0.0)
    return max(0.0, total)


Tokens = tuple[int, ...]


class Counterfactual:
    """A twin of the target that reads every tree after the other prompt; the reply so far stays as it is.

    Args:
        twin: the target with a cache of its own.
        pairs: terms that take each other's place, as whole words in their common spellings.
    """

    def __init__(self, twin: Model, vocabulary: TokenTable, pairs: Sequence[tuple[str, str]]) -> None:
        self._twin = twin
        self._swaps = _swaps(vocabulary, pairs)

    def read(self, tree: TokenTree, context: Context) -> Reading | None:
        """The target's reading of the tree, had the prompt been the other one; None where that is the same."""
        prompt, reply = context.history[: context.prompt_tokens], context.history[context.prompt_tokens :]
        other = self.exchanged(prompt)
        if other == prompt:
            return None
        text = [*other, *reply]
        self._twin.prefill(text[:-1])
        return context.constrained(tree, self._twin.read(_rooted(tree, text[-1], context.vocab_size)))

    def exchanged(self, tokens: Sequence[int]) -> list[int]:
        """The tokens with every term exchanged; of terms that begin alike the longest."""
        found: list[int] = []
        at = 0
        while at < len(tokens):
            match = next((term for term in self._swaps if tuple(tokens[at : at + len(term)]) == term), None)
            found += self._swaps[match] if match else (tokens[at],)
            at += len(match) if match else 1
        return found


def _rooted(tree: TokenTree, root: int, vocab_size: int) -> TokenTree:
    """The same tree below another root token, its nodes numbered alike."""
    if tree.tokens[0] == root:
        return tree
    copy = TokenTree(root, vocab_size)
    for node in range(1, len(tree)):
        copy.add(tree.parents[node], Guess(tree.tokens[node]))
    return copy.freeze()


def _swaps(vocabulary: TokenTable, pairs: Sequence[tuple[str, str]]) -> dict[Tokens, Tokens]:
    """Tokens of a term → those of the other, both ways, the longest first."""
    found: dict[Tokens, Tokens] = {}
    for a, b in (*pairs, *((b, a) for a, b in pairs)):
        for one, other in _spellings(a, b):
            found.setdefault(tuple(vocabulary.encode(one)), tuple(vocabulary.encode(other)))
    return dict(sorted(((k, v) for k, v in found.items() if k), key=lambda item: -len(item[0])))


def _spellings(a: str, b: str) -> Iterator[tuple[str, str]]:
    """Both words after a space and at the beginning of a text, as given and with a capital letter."""
    for space in (" ", ""):
        yield space + a, space + b
        yield space + a.capitalize(), space + b.capitalize()
