"""The same text with some terms exchanged, and what the target says after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.seams import Model
from specchat.core.tree import Guess, TokenTree
from specchat.core.vocabulary import TokenTable

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
        """What the target says after every node, had the prompt been the other one; None where that is the same."""
        prompt, reply = context.history[: context.prompt_tokens], context.history[context.prompt_tokens :]
        other = self.exchanged(prompt)
        if other == prompt:
            return None
        text = [*other, *reply]
        self._twin.prefill(text[:-1])
        return self._twin.read(_rooted(tree, text[-1], context.vocab_size))

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
