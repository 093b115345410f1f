"""The text and tokens of the scripted pair: a few passages, continued by counts of which words follow which.

A machine without a language model. The target looks back far enough to recite, the draft model only a word or two,
so drafts are sometimes right and sometimes wrong, which is what the interface and its tests need.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from specchat.models.backends.scripted import Says

PASSAGES = (
    """I have no language model behind me: I recite, so that you can watch the machinery at work.

A *draft* guesses several tokens ahead, and the *target* reads all the guesses in one pass. What the target agrees \
with is kept; the first guess it disagrees with is dropped, and the target's own token takes its place. So the text \
is the target's own text, and only the waiting gets shorter.

1. The draft guesses a tree of tokens.
2. The target reads the tree in one pass.
3. The guesses that the target agrees with are kept.
4. The target adds one token of its own, and the next round begins.

Type something else and I shall recite another passage.
""",
    """Here is the heart of it, in a few lines of Python:

```python
def accept(tree, drawn):
    path, node = [], ROOT
    while (child := tree.child(node, drawn[node])) is not None:
        path.append(child)
        node = child
    return path, drawn[node]
```

The loop walks down the tree for as long as the token that the target draws is one of the guesses. The token that \
ends the loop is not lost: it is the bonus token, and the next round grows from it.

- A long path means the draft guessed well.
- A short path costs little: the target would have read that token anyway.
- An empty tree is plain decoding.
""",
    """A tree is wide where the draft is unsure and deep where the draft is sure. A wide tree catches the token that \
was only the second guess; a deep tree saves more passes when the guesses are right.

| shape | good for | costs |
|---|---|---|
| chain | sure drafts | little |
| wide tree | unsure drafts | more rows to read |
| plain | no drafts at all | nothing |

Change the width, the depth or the drafter while I am speaking, and watch the tree change from one round to the next.
""",
)

_SPECIALS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_END, _ROLES = 256, {"system": 257, "user": 258, "assistant": 259}
_PIECES = re.compile(r" +(?= )| ?\w+|\n+| ?[^\w\s]+|\s", re.UNICODE)
"""Indentation is one piece: if every space were its own piece, the last few pieces would not tell where it ends."""


class ScriptedVocabulary:
    """Bytes 0 to 255, four special tokens, then every word of the passages. A `Vocabulary`."""

    def __init__(self) -> None:
        words = dict.fromkeys(piece for passage in PASSAGES for piece in _PIECES.findall(passage))
        self._words = list(words)
        self._ids = {word: 256 + len(_SPECIALS) + i for i, word in enumerate(self._words)}
        self.eos_ids = frozenset({_END})

    @property
    def size(self) -> int:
        return 256 + len(_SPECIALS) + len(self._words)

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        word = token - 256 - len(_SPECIALS)
        return self._words[word].encode() if word >= 0 else b""

    def token_spelling(self, token: int) -> bytes:
        return self.token_bytes(token) or self.token_label(token).encode()

    def token_label(self, token: int) -> str:
        if 256 <= token < 256 + len(_SPECIALS):
            return _SPECIALS[token - 256]
        data = self.token_bytes(token)
        return data.decode() if token >= 256 or token < 128 else f"⟨{token:02x}⟩"

    def starts_with_space(self) -> bool:
        return False

    def encode(self, text: str) -> list[int]:
        """Words where the passages have them, bytes elsewhere."""
        pieces = _PIECES.findall(text)
        return [t for piece in pieces for t in ([self._ids[piece]] if piece in self._ids else piece.encode())]

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            tokens += [_ROLES[message["role"]], *self.encode(message["content"]), _END]
        return [*tokens, _ROLES["assistant"]]

    def encode_text(self, text: str) -> list[int]:
        return self.encode(text)


def scripted_says(vocabulary: ScriptedVocabulary, memory: int) -> Says:
    """Logits from counting what followed the longest known run of at most `memory` last tokens.

    After the prompt, the prompt's own bytes choose the passage.
    """
    follows: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    openings: list[int] = []
    for passage in PASSAGES:
        text = [_ROLES["assistant"], *vocabulary.encode(passage), _END]
        openings.append(text[1])
        for here in range(1, len(text)):
            for size in range(min(memory, here) + 1):
                follows[tuple(text[here - size : here])][text[here]] += 1

    @cache
    def after(run: tuple[int, ...]) -> Tensor:
        logits = torch.full((vocabulary.size,), -12.0)
        for token, count in follows[run].items():
            logits[token] = torch.tensor(float(count)).log()
        return logits

    def says(text: Sequence[int]) -> Tensor:
        runs = (tuple(text[len(text) - size :]) for size in range(memory, -1, -1))
        logits = after(next(run for run in runs if run in follows)).clone()  # the empty run is always known
        if text[-1] == _ROLES["assistant"]:
            chosen = zlib.crc32(bytes(str(list(text)), "ascii")) % len(openings)
            logits[openings[chosen]] += 4.0
        return logits

    return says
