"""A draft model's guesses translated in C: what Python translates, also after nodes that nobody here guessed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contracts.kit import make_policy
from test_cross_vocabulary import context_of, drafter_of
from two_vocabularies import COARSE, FINE, LETTERS, PAIRS, TEXT, writer

from specchat.core.budget import Budget
from specchat.core.tree import TokenTree, point
from specchat.indexes.called_network import READ_ROWS
from specchat.indexes.guess_search import MOST_WIDTH
from specchat.indexes.token_translation import UNKNOWN, TokenTranslation
from specchat.models.backends.scripted import ScriptedModel
from specchat.trees import TREE_POLICIES

WIDTH = 5
NODES = 64


def drafts(table):
    """A model that finds no two tokens equally likely: their order would be anyone's."""
    writes, order = writer(table, sharpness=2.0, other="the fox ran to the hen; "), 0.01 * torch.arange(table.size)
    return ScriptedModel(table.size, lambda tokens: writes._script(tokens) - order)


def drafter_in_c(own, other):
    _, drafter = drafter_of(own, other, drafts(other))
    if drafter._search is None:
        pytest.skip("there is no compiler")
    return drafter


def read(network, behind, tokens):
    """Of each row the guesses and their log-probabilities."""
    count = len(tokens)
    said, logits = (np.empty((count, MOST_WIDTH), dtype=kind) for kind in (np.int32, np.float32))
    logsumexp = np.empty(count, dtype=np.float32)
    rows = [np.array(each, dtype=np.int32) for each in (behind, tokens)]
    with network.turn:
        places = [each.ctypes.data for each in (*rows, said, logits, logsumexp)]
        outcome = READ_ROWS(network.read)(network.network, count, *places[:2], WIDTH, *places[2:])
    assert outcome == 0
    ends = [row.tolist().index(-1) for row in said]
    return [
        dict(zip(said[row, :end].tolist(), (logits[row, :end] - logsumexp[row]).tolist(), strict=True))
        for row, end in enumerate(ends)
    ]


def compare(own, other, drafter, alike, paths):
    """Rows along these paths, level by level: C says what `propose` says."""
    context = context_of(own)
    for each in (drafter, alike):
        each.start(context.history)
    network = drafter.compiled(context, [context.root], NODES)
    tree = TokenTree(context.root, own.size)
    row_of, frontier, guessed = {}, [(0, -1, context.root)], 0
    while frontier:
        nodes, behind, tokens = (list(each) for each in zip(*frontier, strict=True))
        found = read(network, behind, tokens)
        row_of |= {node: row for row, node in enumerate(nodes, len(row_of))}
        for node, said, guesses in zip(nodes, found, alike.propose(tree, nodes, WIDTH, context), strict=True):
            best = list(said.items())[:WIDTH]
            assert [token for token, _ in best] == [guess.token for guess in guesses], own.pieces[tree.tokens[node]]
            assert [value for _, value in best] == pytest.approx([guess.logprob for guess in guesses], abs=1e-5)
            guessed += len(best)
        level = {tuple(tree.path_tokens(node)) for node in nodes}
        frontier = []
        for path in dict.fromkeys(path[: len(next(iter(level))) + 1] for path in paths):
            if len(path) > len(next(iter(level))):
                above = next(node for node in nodes if tuple(tree.path_tokens(node)) == path[:-1])
                frontier.append((tree.add(above, point(path[-1], None, "")), row_of[above], path[-1]))
    return guessed


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_c_says_after_any_tokens_what_python_says(own, other):
    """Guesses and tokens that are none, such as another member of a merge guesses."""
    drafter, alike = drafter_in_c(own, other), drafter_in_c(own, other)
    texts = ["the cat sat", " hen ran", "the fox; ", "xé tt", "and the hen ran to the mat"]
    assert compare(own, other, drafter, alike, [tuple(own.encode(text)) for text in texts]) > 50


@pytest.mark.parametrize("room", [0, 1, 3])
def test_nothing_is_guessed_beyond_the_draft_models_context(room):
    context, replies = context_of(COARSE), []
    for at_once in (True, False):
        drafter = drafter_in_c(COARSE, FINE)
        drafter._model.context_tokens = len(FINE.encode(TEXT)) + room
        if not at_once:
            drafter._search = None
        drafter.start(context.history)
        tree = make_policy(TREE_POLICIES["best_first"]).grow(drafter, context, Budget(20, 9, 2))
        replies.append((tree.tokens, tree.parents))
    assert replies[0] == replies[1]
    assert (max(TokenTree.of_points(0, COARSE.size, replies[0][1][1:], replies[0][0][1:], ()).depths) < 9) or room == 3


@pytest.mark.parametrize("failing", ["own_tokens", "draft_tokens"])
def test_what_fails_while_c_asks_is_raised_where_the_tree_was_asked_for(failing, monkeypatch):
    drafter = drafter_in_c(LETTERS, COARSE)
    context = context_of(LETTERS, TEXT[: TEXT.index(" sat")])
    drafter.start(context.history)
    network = drafter.compiled(context, [context.root], NODES)

    def fail(tokens):
        raise LookupError("no such spelling")

    monkeypatch.setattr(drafter._translation, failing, fail)
    with pytest.raises(LookupError, match="no such spelling"):
        read(network, [-1, 0], [context.root, LETTERS.encode("é")[0]])


@pytest.mark.parametrize(("own", "other"), PAIRS)
def test_tokens_that_both_models_have_are_known_from_the_beginning(own, other):
    translation = TokenTranslation((own, other))
    first = translation.known_first(other.size + 2).tolist()
    for token, piece in enumerate(other.pieces):
        assert first[token] == (own.pieces.index(piece) if piece in own.pieces else UNKNOWN)
    assert first[other.size :] == [-1, -1]


def test_c_asks_once_about_a_draft_token_that_is_several_of_the_targets():
    drafter, asked = drafter_in_c(LETTERS, COARSE), []
    own_tokens = drafter._translation.own_tokens
    drafter._translation.own_tokens = lambda token: asked.append(token) or own_tokens(token)
    context = context_of(LETTERS, TEXT[: TEXT.index(" sat")])
    drafter.start(context.history)
    for _ in range(3):
        read(drafter.compiled(context, [context.root], NODES), [-1], [context.root])
    assert len(asked) == len(set(asked)) > 0
    assert all(len(COARSE.pieces[token].decode()) > 1 for token in asked)
