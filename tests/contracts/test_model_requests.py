"""What every `Model` promises of taps, extra rows and layer hooks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from contracts.kit import random_tree
from contracts.model_checks import CLOSE, PREFIX, check, check_next, deepest
from contracts.models import HIDDEN, MODELS, Subject, V, each_flexible_model, each_model, each_network, models_with
from contracts.pass_requests import requested

from specchat.core.request import ExtraRow, LayerHook, PassRequest
from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import CombinationError
from specchat.models.decoder.cache_rows import LAZY_TOKENS


@pytest.mark.parametrize("asked", [{"extra_rows": [ExtraRow(ROOT, torch.zeros(HIDDEN))]}, {"look": print}])
def test_a_model_of_whole_passes_alone_refuses_what_asks_for_more(asked):
    model = MODELS["llama.cpp"]("", 256).model
    model.prefill(PREFIX)
    with pytest.raises(CombinationError, match=r"no extra rows .* backend = own"):
        model.read(random_tree(V, 3, 0), request=requested(**asked))


# ------------------------------------------------------------------------------------------------- taps


@each_model
def test_taps_are_the_states_of_a_plain_pass_after_those_layers(subject):
    tree = random_tree(V, 8, 7)
    layers = range(subject.layers)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(taps=layers))
    assert set(reading.taps) == set(layers)
    for node in range(len(tree)):
        truth = subject.states([*PREFIX, 3, *tree.path_tokens(node)])
        for layer in layers:
            torch.testing.assert_close(reading.taps[layer][reading.row(node)], truth[layer], **CLOSE)


@each_model
def test_taps_not_asked_for_are_not_there(subject):
    subject.model.prefill(PREFIX)
    reading = subject.model.read(random_tree(V, 3, 0))
    assert not reading.taps
    assert reading.extra_row_logits is None


@models_with("count", [1, LAZY_TOKENS, LAZY_TOKENS + 1, 300])
def test_states_of_the_text_come_while_it_is_read_and_once(subject, count):
    text, layers = [(7 * i + i // 9) % V for i in range(count)], frozenset(range(subject.layers))
    taken: list[TextStates] = []
    subject.model.prefill(text, tap=HiddenStateSink(layers, taken.append))
    reading = subject.model.read(random_tree(V, 4, 0), request=requested(taps=layers))
    late = reading.text_states
    assert (late is None) == (count > LAZY_TOKENS)
    every = [*taken, *([] if late is None else [late])]
    assert [token for states in every for token in states.tokens] == text
    assert [states.first for states in every] == [0, *(states.end for states in every[:-1])]
    for position in {0, count // 2, count - 1}:
        states = next(states for states in every if states.first <= position < states.end)
        truth = subject.states(text[: position + 1])
        for layer in layers:
            torch.testing.assert_close(states.layers[layer][position - states.first], truth[layer], **CLOSE)


@each_model
def test_states_that_were_not_asked_for_are_not_given(subject):
    subject.model.prefill(PREFIX[:3])
    assert subject.model.read(random_tree(V, 3, 0)).text_states is None


# ------------------------------------------------------------------------------------------------ extra rows


def stand_in(subject: Subject, token: int) -> torch.Tensor:
    return subject.embed(token) if subject.embed is not None else torch.zeros(HIDDEN)


@each_flexible_model
def test_a_rider_says_what_its_embedding_would_say_at_the_end_of_the_path(subject):
    tree = random_tree(V, 8, 8)
    texts = [[*PREFIX, 3, *tree.path_tokens(node)] for node in range(len(tree))]
    follows = [int(subject.truth(text).argmax()) for text in texts]
    extra_rows = [ExtraRow(node, stand_in(subject, follows[node])) for node in range(len(tree))]
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(extra_rows, taps=[0]))
    assert reading.extra_row_logits.shape == (len(extra_rows), V)
    for node, text in enumerate(texts):
        torch.testing.assert_close(reading.extra_row_logits[node], subject.truth([*text, follows[node]]), **CLOSE)
        tapped = reading.extra_row_states[0][node]
        torch.testing.assert_close(tapped, subject.states([*text, follows[node]])[0], **CLOSE)
    check(subject, reading, PREFIX, tree, range(len(tree)))  # the nodes are not changed by them


@each_flexible_model
def test_riders_may_follow_each_other(subject):
    tree = random_tree(V, 4, 8)
    text = [*PREFIX, 3, *tree.path_tokens(2)]
    chain = list(text)
    extra_rows: list[ExtraRow] = []
    for place in range(3):
        token = int(subject.truth(chain).argmax())
        extra_rows.append(ExtraRow(2, stand_in(subject, token), after=place - 1 if place else None))
        chain.append(token)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(extra_rows))
    for place in range(3):
        truth = subject.truth(chain[: len(text) + place + 1])
        torch.testing.assert_close(reading.extra_row_logits[place], truth, **CLOSE)


@each_network
def test_a_rider_may_be_no_token_at_all(subject):
    tree = random_tree(V, 5, 8)
    mask = torch.linspace(-1, 1, HIDDEN)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(
        tree, request=requested([ExtraRow(ROOT, mask), ExtraRow(4, mask), ExtraRow(4, -mask, after=1)])
    )
    root_text, text = [*PREFIX, 3], [*PREFIX, 3, *tree.path_tokens(4)]
    below_root = torch.stack([*map(subject.embed, root_text), mask])
    below = torch.stack([*map(subject.embed, text), mask])
    after = torch.stack([*map(subject.embed, text), mask, -mask])
    for place, rows in enumerate((below_root, below, after)):
        torch.testing.assert_close(reading.extra_row_logits[place], subject.truth_embedded(rows), **CLOSE)


@each_flexible_model
def test_whom_a_model_names_likeliest_after_a_rider_has_the_highest_logits(subject):
    subject.model.prefill(PREFIX)
    extra_rows = [ExtraRow(node, stand_in(subject, node)) for node in (0, 2, 3)]
    reading = subject.model.read(random_tree(V, 5, 0), request=requested(extra_rows))
    if reading.extra_row_likeliest is not None:
        best = reading.extra_row_logits.gather(1, reading.extra_row_likeliest.long())
        assert torch.equal(best, reading.extra_row_logits.topk(best.shape[1]).values)
    assert reading.best_after_extra_rows([2, 0], 3) == reading.extra_row_logits[[2, 0]].topk(3).indices.tolist()


@each_flexible_model
def test_riders_leave_nothing_in_the_cache(subject):
    tree = random_tree(V, 6, 9)
    path = deepest(tree)
    subject.model.prefill(PREFIX)
    subject.model.read(tree, request=requested([ExtraRow(node, stand_in(subject, 1)) for node in (0, 2, 4)]))
    subject.model.keep(path)
    kept = [*PREFIX, 3, *(tree.tokens[n] for n in path)]
    assert subject.model.cached([*kept, 1, 1, 1, 1]) == len(kept)
    check_next(subject, subject.model, [*kept, 12])


# ---------------------------------------------------------------------------------------------- on_layer


@each_flexible_model
def test_looking_after_each_layer_changes_nothing(subject):
    tree = random_tree(V, 9, 3)
    seen: list[tuple[int, int, tuple[int, ...]]] = []

    def look(layer: int, hidden: torch.Tensor, nodes: Sequence[int]) -> None:
        seen.append((layer, hidden.shape[0], tuple(nodes)))

    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(look=look))
    everyone = tuple(range(len(tree)))
    assert seen == [(layer, len(tree), everyone) for layer in range(subject.layers)]
    assert reading.alive == frozenset(everyone)
    assert not reading.pruned
    check(subject, reading, PREFIX, tree, everyone)


@each_flexible_model
def test_only_named_layers_are_looked_at(subject):
    seen: list[int] = []
    named = LayerHook(frozenset({subject.layers - 1}), lambda layer, hidden, nodes: seen.append(layer))
    subject.model.prefill(PREFIX)
    subject.model.read(random_tree(V, 5, 0), request=PassRequest(hooks=(named,)))
    assert seen == [subject.layers - 1]


@each_flexible_model
def test_of_two_looks_after_one_layer_the_second_sees_what_the_first_left(subject):
    tree, (a, b, a1, b1, a2) = pruning_tree()
    seen: list[tuple[int, ...]] = []

    def drop(gone: int) -> LayerHook:
        def look(layer: int, hidden: torch.Tensor, nodes: Sequence[int]) -> set[int]:
            assert len(hidden) == len(nodes)
            seen.append(tuple(nodes))
            return set(nodes) - {gone}

        return LayerHook(frozenset({0}), look)

    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=PassRequest(frozenset({0}), hooks=(drop(a1), drop(b))))
    assert seen == [tuple(range(6)), (ROOT, a, b, b1)]
    assert reading.alive == {ROOT, a}
    assert reading.pruned == {a1: 0, a2: 0, b: 0, b1: 0}
    check(subject, reading, PREFIX, tree, reading.alive)
    subject.model.keep((a,))
    check_next(subject, subject.model, [*PREFIX, 3, 4, 9])


def pruning_tree() -> tuple[TokenTree, list[int]]:
    tree = TokenTree(3, V)
    a = tree.add(ROOT, Guess(4))
    b = tree.add(ROOT, Guess(5))
    a1 = tree.add(a, Guess(6))
    b1 = tree.add(b, Guess(6))
    a2 = tree.add(a1, Guess(8))
    return tree.freeze(), [a, b, a1, b1, a2]


@each_flexible_model
def test_a_dropped_node_takes_its_descendants_with_it_and_the_others_say_the_same(subject):
    tree, (a, b, a1, b1, a2) = pruning_tree()
    asked: list[tuple[int, ...]] = []

    def drop_a(layer: int, hidden: torch.Tensor, nodes: Sequence[int]) -> set[int]:
        asked.append(tuple(nodes))
        return set(nodes) - {a}  # the descendants are offered to stay, and must not

    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(look=drop_a))
    assert reading.alive == {ROOT, b, b1}
    assert reading.pruned == {a: 0, a1: 0, a2: 0}
    assert all(nodes == (ROOT, b, b1) for nodes in asked[1:])
    check(subject, reading, PREFIX, tree, reading.alive)
    subject.model.keep((b, b1))
    check_next(subject, subject.model, [*PREFIX, 3, 5, 6, 7])


@each_flexible_model
def test_the_root_stays_even_if_a_hook_drops_it(subject):
    tree, _ = pruning_tree()
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(look=lambda layer, hidden, nodes: ()))
    assert reading.alive == {ROOT}
    check(subject, reading, PREFIX, tree, [ROOT])
    subject.model.keep(())
    check_next(subject, subject.model, [*PREFIX, 3, 7])


@each_flexible_model
def test_nodes_read_before_count_as_staying(subject):
    tree, (a, b, a1, b1, _) = pruning_tree()
    subject.model.prefill(PREFIX)
    subject.model.read(tree, [ROOT, a, b])
    reading = subject.model.read(tree, [a1, b1], request=requested(look=lambda layer, hidden, nodes: {b1}))
    assert reading.alive == {b1}
    assert reading.pruned == {a1: 0}
    check(subject, reading, PREFIX, tree, [b1])


# ------------------------------------------------------------------------------------------- some of the head


@each_model
def test_a_trimmed_head_gives_its_tokens_the_logits_of_the_whole_one(subject):
    tree = random_tree(V, 8, 7)
    subject.model.prefill(PREFIX)
    whole = subject.model.read(tree).logits.clone()
    head = subject.model.trimmed_head([5, 3, 60, 17])
    for added in ([], [3, 8], [*range(20, 40), 8]):
        head.add(added)
        subject.model.prefill(PREFIX)
        some = subject.model.read(tree, request=PassRequest(head=head))
        tokens = head.tokens.tolist()
        assert tokens == list(dict.fromkeys([5, 3, 60, 17, *([8] if added else []), *added]))[: len(tokens)]
        assert some.said.tokens is not None
        assert some.said.tokens.tolist() == tokens
        torch.testing.assert_close(some.logits, whole[:, tokens].float(), **CLOSE)
        best = some.best_after([0], 3)[0]
        assert best == [tokens[place] for place in some.logits[0].topk(3).indices.tolist()]
        assert some.said.likeliest is not None
        assert some.said.highest is not None
        torch.testing.assert_close(some.said.highest[0], some.logits[0].topk(some.said.highest.shape[1]).values)
        torch.testing.assert_close(some.logsumexp_after([0, 1]), some.logits[:2].logsumexp(dim=-1), **CLOSE)


@each_model
def test_a_trimmed_head_of_too_many_words_forgets_those_of_old_texts(subject, monkeypatch):
    monkeypatch.setattr("specchat.models.decoder.trimmed_head._MOST_ADDED", 4)
    head = subject.model.trimmed_head([5, 3])
    head.add([10, 11, 12])
    head.add([13, 14])
    assert head.tokens.tolist() == [5, 3, 13, 14]
    subject.model.prefill(PREFIX)
    whole = subject.model.read(random_tree(V, 3, 0)).logits.clone()
    subject.model.prefill(PREFIX)
    some = subject.model.read(random_tree(V, 3, 0), request=PassRequest(head=head))
    torch.testing.assert_close(some.logits, whole[:, [5, 3, 13, 14]].float(), **CLOSE)


@each_model
def test_the_next_pass_may_have_the_whole_head_again(subject):
    tree, head = random_tree(V, 5, 1), subject.model.trimmed_head([1, 2])
    subject.model.prefill(PREFIX)
    assert subject.model.read(tree, request=PassRequest(head=head)).logits.shape[1] == 2
    subject.model.prefill(PREFIX)
    check(subject, subject.model.read(tree), PREFIX, tree, range(len(tree)))
