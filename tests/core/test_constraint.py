"""Which tokens a constraint allows behind a path, and which schemas and grammars are refused."""

from __future__ import annotations

import itertools
import json
import re
import time

import numpy as np
import pytest
import torch
from contracts.kit import Letters, context_for, random_tree
from decoding.test_detokenize import SPECIAL, TOKENIZERS, vocabulary_of

from specchat.core.budget import Budget
from specchat.core.constraint import DEEPEST, MOST_CHARACTERS, MOST_NODES, ConstraintSource, compiled
from specchat.core.reading import HeadTensors, Reading
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters.grammar import fitted, with_forced_room
from specchat.errors import ConstraintError
from specchat.models.backends.scripted import ScriptedVocabulary

SIZE, END = 6, 5
LANGUAGE = "(A[BC]|B(A|CD?)|CC)D?E*"
LETTERS = Letters(SIZE, eos_ids=(END,))


def made(text=LANGUAGE, kind="regex", table=LETTERS, size=SIZE):
    return compiled(ConstraintSource(kind, text), table, size)


def longer_matches(beginning):
    """Whether up to three more letters make a match."""
    tails = itertools.chain.from_iterable(itertools.product("ABCDE", repeat=n) for n in range(4))
    return any(re.fullmatch(LANGUAGE, beginning + "".join(tail)) for tail in tails)


def allowed_tokens(text):
    found = [token for token in range(END) if longer_matches(text + "ABCDE"[token])]
    return {*found, *([END] if re.fullmatch(LANGUAGE, text) else [])}


def masked_tokens(constraint, path):
    return set(np.flatnonzero(constraint.mask(path)).tolist())


def every_text(length):
    beginnings = itertools.chain.from_iterable(itertools.product(range(END), repeat=n) for n in range(length + 1))
    return [path for path in beginnings if longer_matches("".join("ABCDE"[token] for token in path))]


def test_the_mask_behind_every_path_is_what_the_expression_allows_in_any_order_of_asking():
    texts = every_text(4)
    assert len(texts) > 20
    for order in (texts, texts[::-1], sorted(texts, key=lambda path: path[::-1])):
        constraint = made()
        for path in order:
            assert masked_tokens(constraint, path) == allowed_tokens("".join("ABCDE"[token] for token in path))


def test_only_advancing_moves_it():
    constraint = made()
    constraint.mask((1, 2, 3))
    constraint.advance([1])
    assert masked_tokens(constraint, ()) == {0, 2}
    assert masked_tokens(constraint, (2,)) == allowed_tokens("BC")
    with pytest.raises(ConstraintError, match="does not fit"):
        constraint.advance([1])


def test_nothing_but_the_end_follows_the_end():
    constraint = made()
    constraint.advance([2, 2])
    assert masked_tokens(constraint, (END,)) == {END}
    assert masked_tokens(constraint, (END, END)) == {END}
    constraint.advance([END])
    assert masked_tokens(constraint, ()) == {END}


def test_forbidden_paths_allow_nothing():
    assert masked_tokens(made(), (3,)) == set()
    assert masked_tokens(made(), (0, 0)) == set()


def test_forced_text_is_tokenised_as_the_tokenizer_would():
    words = ScriptedVocabulary()
    constraint = made("Type something else and I shall", table=words, size=words.size)
    path, forced = [], list(constraint.forced(()))
    assert forced == words.encode("Type something else and I shall")[: len(forced)]
    assert len(forced) >= 5
    for token in forced:
        assert constraint.forced(path)[0] == token
        path.append(token)
    constraint.advance(forced[:2])
    assert list(constraint.forced(())) == forced[2:]


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_a_special_token_named_in_a_schema_is_forced_as_text_in_ordinary_tokens(make):
    table = vocabulary_of(make())
    schema = json.dumps({"const": {"the": f"fox {SPECIAL} y"}})
    constraint = made(schema, "json_schema", table, table.size)
    tokens = constraint.forced(())
    assert b"".join(map(table.token_bytes, tokens)).decode() == f'{{"the": "fox {SPECIAL} y"}}'
    constraint.advance(tokens)
    assert masked_tokens(constraint, ()) == table.eos_ids


def test_single_tokens_are_allowed_as_the_mask_has_it():
    for path in every_text(3):
        constraint, masked = made(), masked_tokens(made(), path)
        assert {token for token in range(SIZE) if constraint.allows(path, token)} == masked
        assert len(constraint.forced(path)) == 0 or {constraint.forced(path)[0]} == masked
    words, schema = ScriptedVocabulary(), '{"properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"]}'
    constraint = made(schema, "json_schema", words, words.size)
    for _ in range(12):
        masked, forced = masked_tokens(made_at(constraint, schema, words), ()), constraint.forced(())
        assert {token for token in range(words.size) if constraint.allows((), token)} == masked
        assert not forced or {forced[0]} == masked
        constraint.advance([forced[0] if forced else min(masked)])


def made_at(constraint, schema, words):
    """Another constraint behind the same reply, which was asked nothing so far."""
    other = made(schema, "json_schema", words, words.size)
    other.advance(constraint._reply)
    return other


def test_text_that_must_follow_is_guessed_beyond_the_last_certain_token():
    constraint = made("ABC[DE]", size=SIZE)
    assert constraint.text_after(()) == b"ABC"
    assert constraint.following(()) == (0, 1, 2)
    assert constraint.as_written((0,), 1) == (1, 2)
    assert constraint.as_written((0, 1, 2), 3) == (3,)
    assert not constraint.following((0, 1, 2))
    endless = made("A{5000}[BC]")
    assert endless.following(()) == endless.forced(())
    assert endless.as_written((), 0) == (0,)
    assert len(fitted(TokenTree(0, SIZE).freeze(), endless, context_for(vocab_size=SIZE), Budget(99))) <= 25


def test_no_tree_with_forced_text_is_larger_than_the_largest_tree():
    """Many guesses with long forced text behind each."""
    constraint, tree, node = made("(A|BC{20})*"), TokenTree(0, SIZE), ROOT
    for _ in range(100):
        tree.add(node, Guess(1, logprob=-0.1))
        node = tree.add(node, Guess(0, logprob=0.0))
    budget = Budget(MOST_NODES, 100, 2)
    assert fitted(tree.freeze(), constraint, context_for(vocab_size=SIZE), budget).drafted == MOST_NODES
    assert with_forced_room(budget, made("AB")) == Budget(MOST_NODES, 102, 2)


def test_nodes_that_are_forbidden_lose_their_places_and_what_is_below():
    for seed in range(5):
        tree, context = random_tree(SIZE, 40, seed, root=0), context_for(vocab_size=SIZE)
        left = fitted(tree, made(), context, Budget(1))
        expected = {tuple(tree.path_tokens(node)) for node in range(1, len(tree)) if allowed_path(tree, node)}
        assert {tuple(left.path_tokens(node)) for node in range(1, len(left))} == expected


def allowed_path(tree, node):
    text = "".join("ABCDEF"[token] for token in tree.path_tokens(node))
    if "F" in text:
        return re.fullmatch("F+", text.lstrip("ABCDE")) and re.fullmatch(LANGUAGE, text.rstrip("F"))
    return longer_matches(text)


def test_a_reading_is_masked_row_by_row():
    tree = TokenTree(0, SIZE)
    node = tree.add(ROOT, Guess(1))
    logits = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(1))
    said = HeadTensors(logits, first=logits.argmax(1).tolist())
    masked = made().reading(tree.freeze(), Reading((0, 1), said, frozenset({0, 1})))
    for place, tokens in ((ROOT, {0, 1, 2}), (node, {0, 2})):
        row = masked.after(place)
        assert set(torch.nonzero(row > -torch.inf).flatten().tolist()) == tokens
        assert torch.equal(row[sorted(tokens)], logits[place][sorted(tokens)])
        assert masked.said.first[place] == int(row.argmax())
        assert torch.equal(masked.logits[place], row)
    assert masked.said.likeliest is None


SCHEMA_TOO_DEEP = json.loads('{"properties":{"a":' * (DEEPEST // 2) + '{"properties":{}}' + "}}" * (DEEPEST // 2))


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("regex", "(", "regex"),
        ("regex", "(?!A)B", "look-around"),
        ("regex", r"[^\s\S]", "no text satisfies it"),
        ("regex", "A" * (MOST_CHARACTERS + 1), "characters"),
        ("grammar", "start: x", "unknown name"),
        ("grammar", "", "Empty grammar"),
        ("grammar", "start: start", "no text satisfies it"),
        ("grammar", "start: " + " ".join(["x?"] * 3000) + '\nx: "A" | "B"', ""),
        ("json_schema", "{", "not JSON"),
        ("json_schema", "[" * 100_000, "not JSON|characters"),
        ("json_schema", "[" * 50_000, "not JSON"),
        ("json_schema", "[]", "not a JSON object"),
        ("json_schema", json.dumps(SCHEMA_TOO_DEEP), "levels deep"),
        ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "Unsatisfiable"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 2}', "Unsatisfiable"),
        ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable"),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("json_schema", '{"$ref": "#"}', "no text satisfies it"),
        ("json_schema", '{"$ref": "#/x"}', "does not exist"),
        ("json_schema", '{"type": "foo"}', "Invalid type"),
        ("json_schema", '{"not": {}}', "Unimplemented"),
        ("json_schema", '{"type": "string", "pattern": "["}', "regex parse error"),
        ("json_schema", json.dumps({"anyOf": [{"anyOf": [{"const": i} for i in range(90)]}] * 40}), ""),
        ("json_schema", json.dumps({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(8)]}
                                              for i in range(8)]}), "too large"),
        ("json_schema", json.dumps({"allOf": [{"pattern": f"^(.*a.{{{i}}}b)*$"} for i in range(1, 12)],
                                    "type": "string"}), ""),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line_and_soon(kind, text, why):
    words = ScriptedVocabulary()
    began = time.process_time()
    if why:
        with pytest.raises(ConstraintError, match=why) as refused:
            made(text, kind, words, words.size)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400
    else:
        made(text, kind, words, words.size)
    assert time.process_time() - began < 10.0


def test_a_model_without_an_end_is_refused():
    with pytest.raises(ConstraintError, match="no token that ends"):
        made(table=Letters(SIZE))
