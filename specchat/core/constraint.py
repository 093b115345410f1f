"""Constraints of a reply (a JSON schema, an expression, a grammar) as masks over the target's law at every node.

llguidance compiles it and knows which tokens may follow; it is imported only where a constraint is asked for.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from specchat.core.reading import Reading, RowInMemory
from specchat.core.record import record
from specchat.core.sampling import best_token
from specchat.core.tree import TokenTree
from specchat.core.vocabulary import TokenTable
from specchat.errors import ConstraintError, InstallationError, cut
from specchat.settings import OPTIONS

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

Kind = Literal["json_schema", "json_object", "regex", "grammar", "calls"]

MOST_CHARACTERS = 1 << 16
"""Of a schema, an expression or a grammar."""

DEEPEST = 64
"""Objects and lists inside each other in a schema."""

MOST_REFUSED = 64
"""Guesses of one round that are remembered because they were forbidden."""

_LIKELIEST = 10
"""So many of the likeliest tokens of a node are compared with the mask for those who want to see it."""

_NAMES: dict[Kind, str] = {
    "json_schema": "this JSON schema",
    "json_object": "a JSON object",
    "regex": "this regular expression",
    "grammar": "this grammar",
    "calls": "calls of these tools",
}

_JSON: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is laid out. Free white space would let a small model write it without end."""


@dataclasses.dataclass(frozen=True)
class ConstraintSource:
    """The source of a constraint: a schema, an expression or a grammar (Lark) as text, empty for any JSON object."""

    kind: Kind
    text: str = ""


def compiled(source: ConstraintSource, table: TokenTable, vocab_size: int) -> Constraint:
    """The constraint at the beginning of a reply.

    Args:
        vocab_size: V, of the target.

    Raises:
        ConstraintError: it is damaged, too large, uses what is not supported, or no text satisfies it.
        InstallationError: llguidance is not installed.
    """
    ends = frozenset(token for token in table.eos_ids if token < vocab_size)
    name = _NAMES[source.kind]
    if not ends:
        raise ConstraintError(f"a reply cannot be held to {name}: this model has no token that ends a reply")
    if len(source.text) > MOST_CHARACTERS:
        raise ConstraintError(f"{name} has {len(source.text):,} characters; {MOST_CHARACTERS:,} are read")
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise InstallationError.of(error) from None
    tokenizer = _tokenizer(table, vocab_size)
    matcher = LLMatcher(tokenizer.for_matchers, _source(source, name), log_level=0)
    if matcher.is_error():
        raise ConstraintError(f"{name} cannot be used: {_first_line(matcher.get_error())}")
    constraint = Constraint(matcher, tokenizer, ends, vocab_size, name)
    constraint.refuse_without_text(())
    return constraint


def _source(source: ConstraintSource, name: str) -> str:
    """The constraint as llguidance reads it."""
    from llguidance import LLMatcher

    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    if source.kind in ("grammar", "calls"):
        return LLMatcher.grammar_from_lark(source.text)
    try:
        schema = {"type": "object"} if source.kind == "json_object" else json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"{name} is not JSON: {_first_line(str(error))}") from None
    if not isinstance(schema, dict):
        raise ConstraintError(f"{name} is not a JSON object")
    if _depth(schema) > DEEPEST:
        raise ConstraintError(f"{name} is more than {DEEPEST} levels deep")
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)
    except ValueError as error:
        raise ConstraintError(f"{name} cannot be used: {_first_line(str(error))}") from None


def _depth(value: object) -> int:
    """Levels of objects and lists."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def _first_line(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or ["no reason is given"]
    return cut(" ".join([lines[0], *(line for line in lines[1:] if line.startswith("error: "))]))


class _Spelled:
    """The tokens as llguidance asks for them. A name of a special token in forced text is text, not that token."""

    def __init__(self, table: TokenTable, vocab_size: int, end: int) -> None:
        tokens = range(min(table.size, vocab_size))
        self.eos_token_id = end
        self.bos_token_id = None
        self.tokens = [table.token_spelling(token) for token in tokens]
        self.special_token_ids = [token for token in tokens if not table.token_bytes(token)]
        self._not_text = {*self.special_token_ids, *table.eos_ids, *range(len(tokens), table.size)}
        self._table = table

    def __call__(self, text: str) -> list[int]:
        """Ordinary tokens that write this text, or a beginning of it where none write more."""
        found = self._table.encode(text)
        if self._written(found, text) < len(found):
            cuts = [match.start() + 1 for match in self._name.finditer(text)]
            found = [t for start, end in pairwise([0, *cuts, len(text)]) for t in self._within(text[start:end])]
        return found[: self._written(found, text)]

    @cached_property
    def _name(self) -> re.Pattern[str]:
        """Where the name of a special token begins."""
        names = (self.tokens[token].decode(errors="ignore") for token in self.special_token_ids)
        known = "|".join(map(re.escape, filter(None, names)))
        return re.compile(f"(?={known})" if known else "$^")

    def _written(self, tokens: Sequence[int], text: str) -> int:
        """How many of these tokens write a beginning of the text."""
        data, at = text.encode(), 0
        for count, token in enumerate(tokens):
            if token in self._not_text or not data.startswith(self.tokens[token], at):
                return count
            at += len(self.tokens[token])
        return len(tokens)

    def _within(self, piece: str) -> list[int]:
        """A piece of a text as tokens, without the space that SentencePiece adds at the beginning of every text."""
        found, size = self._table.encode(_NO_WORD + piece), len(piece.encode())
        while found and sum(len(self._table.token_spelling(token)) for token in found) > size:
            del found[0]
        return found


_NO_WORD = "\x02"
"""A character that hardly any vocabulary joins with others to one token; where one does, less text is forced."""


class Tokenizer:
    """The target's tokenizer as llguidance has it."""

    def __init__(self, table: TokenTable, vocab_size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        ends = sorted(token for token in table.eos_ids if token < vocab_size)
        spelled = TokenizerWrapper(_Spelled(table, vocab_size, ends[0]))
        self.table, self.vocab_size = table, vocab_size
        self.for_matchers = LLTokenizer(spelled, n_vocab=vocab_size, eos_token=ends)
        self._tokens: dict[bytes, tuple[int, ...]] = {}

    def tokens_of(self, text: bytes) -> tuple[int, ...]:
        """The tokens in which the tokenizer writes a text; a schema forces the same few again and again."""
        found = self._tokens.get(text)
        if found is None:
            if len(self._tokens) >= _MOST_TEXTS:
                self._tokens.clear()
            found = self._tokens[text] = tuple(self.for_matchers.tokenize_bytes(text))
        return found


_MOST_TEXTS, _LONGEST_TEXT = 4096, 1024
"""Forced texts whose tokens are kept, and their bytes: a grammar may force a million."""


_made: list[Tokenizer] = []


def _tokenizer(table: TokenTable, vocab_size: int) -> Tokenizer:
    """Takes some tenths of a second: the one that was made last is kept."""
    if not _made or _made[0].table is not table or _made[0].vocab_size != vocab_size:
        _made[:] = [Tokenizer(table, vocab_size)]
    return _made[0]


MOST_FORCED = 24
"""Forced tokens after the root that a round reads at most."""

MOST_NODES = int(OPTIONS["nodes"].maximum or 0)
"""Nodes of the largest tree, with forced text too: models and their memory have room for so many."""


def most_drafted(nodes: int) -> int:
    """The most nodes of a tree under a constraint, where the budget has so many; see `drafters.grammar.fitted`."""
    return min(2 * (nodes + MOST_FORCED) - 1, MOST_NODES) if nodes else 0


class Refused(NamedTuple):
    """A guess that may not follow this node of the tree and got no place; or a likely token that nobody guessed."""

    parent: int
    token: int
    proposer: str


class Constraint:
    """Which tokens may follow the reply so far, and every path of drafted tokens behind it.

    The matcher walks along the paths that are asked for and back again; only `advance` moves it for good. The mask
    depends on the path alone, as the law does, so whatever is exact without a mask is exact with it.

    Attributes:
        spelled: control tokens that a reply under it writes as text.
    """

    def __init__(
        self, matcher: LLMatcher, tokenizer: Tokenizer, ends: frozenset[int], vocab_size: int, name: str
    ) -> None:
        self._matcher, self._tokenizer, self._ends = matcher, tokenizer, ends
        self._vocab_size, self._name = vocab_size, name
        self.spelled: frozenset[int] = frozenset()
        self._fresh = matcher.deep_copy()
        self._reply: list[int] = []
        self._ended = False
        self._why = ""  # no token may follow the path that was asked for last
        self._at: list[int] = []  # the path at which the matcher stands
        self._masks: dict[tuple[int, ...], np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self._forced: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._refused: dict[tuple[tuple[int, ...], int], str] = {}

    def advance(self, tokens: Sequence[int]) -> None:
        """The reply has these tokens now.

        Raises:
            ConstraintError: it may not have them.
        """
        self._refused.clear()
        for token in tokens:
            if not self.allows((), token):
                raise ConstraintError(f"the reply so far does not fit {self._name}")
            forced = self._forced.get((), ())
            self._ended = self._ended or token in self._ends
            if not self._ended:
                self._go(())
                self._matcher.consume_token(token)
                self._reply.append(token)
            self._masks.clear()
            self._forced = {(): forced[1:]} if forced[1:] and forced[0] == token else {}

    def mask(self, path: Sequence[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """(V,) which tokens may follow the reply and this path; behind an end token, end tokens."""
        key = tuple(path)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = self._mask(key)
        return found

    def refuse_without_text(self, path: Sequence[int]) -> None:
        """Check that some token may follow the reply and this path.

        Raises:
            ConstraintError: no text can go on here, or to say which became too much work.
        """
        if not self.mask(path).any():
            raise ConstraintError(f"{self._name} cannot be used: {self._why or 'no text satisfies it'}")

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Whether this token may follow the reply and this path: as `mask` has it, which takes far longer."""
        key = tuple(path)
        found = self._masks.get(key)
        if found is None and not self._is_over(key) and token not in self._ends:
            if forced := self.forced(key):
                return token == forced[0]
            return self._go(key) and self._matcher.validate_tokens([token]) == 1
        return bool((self.mask(key) if found is None else found)[token])

    def forced(self, path: Sequence[int]) -> tuple[int, ...]:
        """Tokens that must follow the reply and this path: the mask leaves each of them alone.

        They are text that must follow, as the target's tokenizer writes it, up to the last token that is certain
        whatever follows.
        """
        key = tuple(path)
        found = self._forced.get(key)
        if found is None:
            before = self._forced.get(key[:-1], ()) if key else ()
            if len(before) > 1 and before[0] == key[-1]:
                found = before[1:]
            else:
                found = tuple(self._matcher.compute_ff_tokens()) if self.text_after(key) else ()
            self._forced[key] = found
        return found

    def text_after(self, path: Sequence[int]) -> bytes:
        """The text that must follow the reply and this path, whichever tokens write it."""
        return b"" if self._is_over(path) or not self._go(path) else self._matcher.compute_ff_bytes()

    def following(self, path: Sequence[int]) -> tuple[int, ...]:
        """All tokens of the text that must follow the reply and this path; the last may come out otherwise.

        `": "` is forced before a string, but only once the string has begun is it certain that ` "` is one token.
        """
        certain, text = self.forced(path), self.text_after(path)
        if len(text) > _LONGEST_TEXT:
            return certain
        spelling = self._tokenizer.table.token_spelling
        written = certain + self._tokenizer.tokens_of(text[sum(len(spelling(token)) for token in certain) :])
        return written if self._fits(path, written) else certain

    def as_written(self, path: Sequence[int], token: int) -> tuple[int, ...]:
        """A token and the text that must follow it, as the target's tokenizer writes them.

        It may begin with another token: `",` where after `"` nothing but a comma may follow. The last is a guess.
        """
        if token in self._ends or not 0 < len(text := self.text_after((*path, token))) <= _LONGEST_TEXT:
            return (token,)
        written = self._tokenizer.tokens_of(self._tokenizer.table.token_spelling(token) + text)
        return written if self._fits(path, written) and self.allows(path, written[0]) else (token,)

    def _fits(self, path: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether these tokens may follow: special ones stand in forced text, but are not read from it."""
        return bool(tokens) and self._go(path) and self._matcher.validate_tokens([*tokens]) == len(tokens)

    def note_refused(self, path: Sequence[int], token: int, proposer: str) -> None:
        """Remember that this was guessed behind the reply and this path, and was forbidden."""
        if len(self._refused) < MOST_REFUSED:
            self._refused.setdefault((tuple(path), token), proposer)

    def note_likeliest(self, tree: TokenTree, reading: Reading, nodes: Sequence[int]) -> None:
        """Remember which of the likeliest tokens after these nodes are forbidden, though nobody guessed them."""
        for node, likeliest in zip(nodes, reading.best_after(nodes, _LIKELIEST), strict=True):
            path = tree.path_tokens(node)
            for token in likeliest:
                if not self.allows(path, token):
                    self.note_refused(path, token, "")

    def refused(self, tree: TokenTree) -> tuple[Refused, ...]:
        """The forbidden guesses since the last `advance` whose paths stand in the tree."""
        if not self._refused:
            return ()
        node_of = {tuple(tree.path_tokens(node)): node for node in range(len(tree))}
        return tuple(
            Refused(node_of[path], token, proposer)
            for (path, token), proposer in self._refused.items()
            if path in node_of
        )

    def reading(self, tree: TokenTree, reading: Reading) -> Reading:
        """The same reading of this tree with the logits of forbidden tokens at −inf."""
        head = _MaskedHead(self, tree, reading)
        return _Masked(reading.nodes, head, reading.alive, reading.pruned, reading.taps)

    def _is_over(self, path: Sequence[int]) -> bool:
        return self._ended or not self._ends.isdisjoint(path)

    def _mask(self, path: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        if self._is_over(path):
            only = np.zeros(self._vocab_size, dtype=np.bool_)
            only[list(self._ends)] = True
            return only
        if not self._go(path):
            return np.zeros(self._vocab_size, dtype=np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._recovered():
            return np.zeros(self._vocab_size, dtype=np.bool_)
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").astype(np.bool_)

    def _recovered(self) -> bool:
        """Whether the matcher had failed, as it would for good: at a path that nobody may follow."""
        if not self._matcher.is_error():
            return False
        said = _first_line(self._matcher.get_error())
        self._why = "no text satisfies it" if said.startswith("NoExtension") else f"it is too complex: {said}"
        self._matcher, self._at = self._fresh.deep_copy(), []
        self._matcher.consume_tokens(self._reply)
        return True

    def _go(self, path: Sequence[int]) -> bool:
        """Stand behind these tokens; whether they are allowed."""
        self._recovered()
        at, same = self._at, 0
        while same < min(len(at), len(path)) and at[same] == path[same]:
            same += 1
        if same < len(at):
            self._matcher.rollback(len(at) - same)
            del at[same:]
        rest = list(path[same:])
        at += rest[: self._matcher.try_consume_tokens(rest)] if rest else []
        return len(at) == len(path)


@record
class _Masked(Reading):
    """A reading whose rows are masked one by one, where they are asked for."""

    def after(self, node: int) -> Tensor:
        assert node in self.alive, f"node {node} was not read to the end"
        assert isinstance(self.said, _MaskedHead), "made so"
        return self.said.row(self.row(node))


class _MaskedHead:
    """A head's output under the masks of a tree's nodes. A `HeadOutput`, which names what the mask leaves alone."""

    likeliest: None = None
    logsumexp: None = None
    highest: None = None
    in_memory: None = None
    log_probabilities: None = None
    tokens: None = None

    def __init__(self, constraint: Constraint, tree: TokenTree, reading: Reading) -> None:
        self._constraint, self._tree, self._nodes, self._said = constraint, tree, reading.nodes, reading.said
        self._rows: dict[int, Tensor] = {}
        assert reading.said.tokens is None, "a target's head has a row for every token"

    @cached_property
    def logits(self) -> Tensor:
        """(n, V) of all rows."""
        return torch.stack([self.row(row) for row in range(len(self._nodes))])

    @property
    def first(self) -> Sequence[int] | None:
        first = self._said.first
        return None if first is None else _First(self, first)

    @property
    def row_in_memory(self) -> Callable[[int], RowInMemory] | None:
        return self._masked_in_memory if self._said.row_in_memory is not None else None

    def row(self, row: int) -> Tensor:
        """(V,) the logits of a row."""
        found = self._rows.get(row)
        if found is None:
            in_memory = self._said.row_in_memory
            logits = self._said.logits[row] if in_memory is None else in_memory(row).tensor()
            path = self._tree.path_tokens(self._nodes[row])
            self._constraint.refuse_without_text(path)
            forbidden = torch.from_numpy(~self._constraint.mask(path)).to(logits.device)
            found = self._rows[row] = logits.masked_fill(forbidden, -torch.inf)
        return found

    def likeliest_of(self, row: int, first: int) -> int:
        """The likeliest token of a row, where `first` is it without the mask."""
        path = self._tree.path_tokens(self._nodes[row])
        if self._constraint.allows(path, first):
            return first
        # of one token alone no logit is asked: to compute a row that was not takes as long as a third of a small pass
        if forced := self._constraint.forced(path):
            return forced[0]
        mask = self._constraint.mask(path)
        return int(mask.argmax()) if np.count_nonzero(mask) == 1 else best_token(self.row(row))

    def _masked_in_memory(self, row: int) -> RowInMemory:
        """Where the masked logits of a row are, for compiled code."""
        logits = self.row(row).float().contiguous()
        return RowInMemory(logits.data_ptr(), logits.numel(), lambda: logits)


class _First(Sequence[int]):
    """The likeliest token of every row, found where it is asked for."""

    def __init__(self, head: _MaskedHead, first: Sequence[int]) -> None:
        self._head, self._first = head, first

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, row: int) -> int: ...

    @overload
    def __getitem__(self, row: slice) -> list[int]: ...

    def __getitem__(self, row: int | slice) -> int | list[int]:
        if isinstance(row, slice):
            return [self[at] for at in range(len(self))[row]]
        return self._head.likeliest_of(row, self._first[row])
