"""A model without weights: its logits are a function of the text so far. For tests and for trying the interface.

The scripted pair continues a few passages by counts of which words follow which. Its target looks back far enough to
recite, its draft model only a word or two, so drafts are sometimes right and sometimes wrong.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specchat.core.noise import Noise, Stream
from specchat.core.reading import Counters, HeadTensors, Reading
from specchat.core.request import DEFAULT_REQUEST, ExtraRow, HeadOfSome, PassRequest
from specchat.core.tree import TokenTree
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.network import SubLayers
from specchat.models.decoder.trimmed_head import PickedLogits, TrimmedHead

Says = Callable[[Sequence[int]], Tensor]
"""(tokens so far) → (V,) logits of the next one."""


class ScriptedModel(CachedModel["ScriptedModel"]):
    """Computes logits from the tokens themselves, with the same bookkeeping of rows as a real model.

    Its single layer's state of a node is the node's logits, so taps, pruning and extra rows can be tried on it. An
    extra row answers for the text in which the greedy continuation stands where the extra rows stand. Without its
    attention the layer knows the last token alone, and without its MLP it says nothing: all logits are 0.
    """

    layers = 1

    def __init__(
        self,
        vocab_size: int,
        says: Says,
        context_tokens: int = 4096,
        pace_s: float = 0.0,
        parts: SubLayers | None = None,
        source: ScriptedModel | None = None,
    ) -> None:
        self.vocab_size = self.hidden_size = vocab_size
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = torch.device("cpu")
        self._script = says
        self._pace_s = pace_s
        self._parts = parts or SubLayers.of_all(self.layers)
        super().__init__(None, source)

    def _of_parts(self, parts: SubLayers) -> ScriptedModel:
        return ScriptedModel(self.vocab_size, self._script, self.context_tokens, self._pace_s, parts, self)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, V) nothing but zeros: the script knows tokens by their numbers."""
        return torch.zeros(len(tokens), self.hidden_size)

    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        plan = self.rows.plan_tree(tree, new_nodes, request.extra_rows)
        if self._pace_s > 0:  # sleeping for no time at all still gives the processor away
            time.sleep(self._pace_s)
        self.counters.count(plan.rows, self._parts.computed_in_all)
        watch = LayerWatch(plan, request, tree)
        text = self._text_states(plan) if request.taps and plan.missing else None
        self.rows.tree_read(plan)
        nodes = [self._says(self._text_to(tree, node)) for node in plan.nodes]
        extra_rows = [self._extra_row(tree, request.extra_rows, index) for index in range(len(request.extra_rows))]
        states = torch.stack([*nodes, *extra_rows])
        if plan.missing:
            states = torch.cat([torch.zeros(plan.missing, self.vocab_size) if text is None else text, states])
        if watch.entries:
            for layer in watch.entries:
                watch.enter(layer, states[watch.rows()])  # what enters says what the script says, whatever its state
            states = states[watch.rows()]
        stay = watch.after_layer(0, states)
        said = watch.saying(states if stay is None else states[stay])
        return watch.reading(HeadTensors(said) if request.head is None else request.head.after(said))

    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits: a scripted state is the logits themselves."""
        return hidden

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, V) rows that pick these tokens' logits out of a scripted state."""
        return torch.eye(self.vocab_size)[list(tokens)]

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        return TrimmedHead(PickedLogits, torch.tensor(tokens), tokens, list)

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """Nothing: what it has read it knows as numbers of tokens."""
        return 0

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        """Logits, once as they are made and once together."""
        return 8 * rows * self.vocab_size if logits else 0

    def limit_context_(self, tokens: int) -> None:
        self.context_tokens = tokens

    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> None:
        self.counters.count(plan.rows, self._parts.computed_in_all)
        if watch is not None:
            watch.after_layer(0, self._text_states(plan))

    def _says(self, text: Sequence[int]) -> Tensor:
        """(V,) the layer's state after a text, which is also what the model says next."""
        if not self._parts.mlp:
            return torch.zeros(self.vocab_size)
        return self._script(text if self._parts.attention else text[-1:])

    def _text_states(self, plan: PassPlan) -> Tensor:
        """(missing, V) the states of the tokens of the text that a pass reads."""
        known, tokens = self.rows.known(), plan.tokens[: plan.missing]
        return torch.stack([self._says([*known, *tokens[: end + 1]]) for end in range(plan.missing)])

    def _text_to(self, tree: TokenTree, node: int) -> list[int]:
        return [*self.rows.known(), tree.tokens[0], *tree.path_tokens(node)]

    def _extra_row(self, tree: TokenTree, extra_rows: Sequence[ExtraRow], index: int) -> Tensor:
        text = self._text_to(tree, extra_rows[index].parent)
        link: int | None = index
        while link is not None:
            text.append(int(self._says(text).argmax()))
            link = extra_rows[link].after
        return self._says(text)


def random_says(vocab_size: int, seed: int = 0, memory: int = 3, sharpness: float = 2.0) -> Says:
    """A fixed random law: Gumbel-distributed logits that depend on the last `memory` tokens."""
    noise, ids = Noise(seed), torch.arange(vocab_size)

    def says(text: Sequence[int]) -> Tensor:
        return (sharpness * noise.gumbel(Stream.TARGET, 0, ids, salt=tuple(text[-memory:]))).float()

    return says


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

    def encode_chat_with_tools(self, messages: Sequence[Mapping[str, Any]], tools: list[Any]) -> list[int] | None:
        return None

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
