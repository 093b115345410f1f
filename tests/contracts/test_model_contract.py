"""What every `Model` promises: a tree pass says what plain passes over each path would say, and `keep` forgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from contracts.kit import random_tree, requested
from contracts.models import HIDDEN, Subject, V, every_model, network_models

from specchat.core.reading import Reading
from specchat.core.request import LayerHook, PassRequest, Rider
from specchat.core.seams import Model
from specchat.core.states import StateTap, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.base.cache_rows import LAZY_TOKENS

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


@pytest.fixture(params=list(every_model()))
def subject(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)


@pytest.fixture(params=list(network_models()))
def network(request) -> Subject:
    factory, family = request.param
    return factory(family, 256)


def check(subject: Subject, reading: Reading, prefix: Sequence[int], tree: TokenTree, nodes: Iterable[int]) -> None:
    """Every node says what a plain pass over prefix, root and path says."""
    for node in nodes:
        text = [*prefix, tree.tokens[ROOT], *tree.path_tokens(node)]
        torch.testing.assert_close(reading.after(node).float(), subject.truth(text), **CLOSE)


def check_next(subject: Subject, model: Model, text: Sequence[int]) -> None:
    """The model, going on after `text`, says what a plain pass says: its cache holds what it should."""
    model.prefill(text[:-1])
    tree = TokenTree(text[-1], V).freeze()
    torch.testing.assert_close(model.read(tree).after(ROOT).float(), subject.truth(text), **CLOSE)
    model.keep(())


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_pass_says_what_a_plain_pass_over_each_path_says(subject, seed):
    tree = random_tree(V, 14, seed)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree)
    assert reading.nodes == tuple(range(len(tree)))
    assert reading.alive == frozenset(range(len(tree)))
    assert reading.logits.shape == (len(tree), V)
    check(subject, reading, PREFIX, tree, range(len(tree)))


def test_whom_a_model_names_likeliest_has_the_highest_logits(subject):
    tree = random_tree(V, 9, 2)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree)
    if reading.likeliest is not None:
        best = reading.logits.gather(1, reading.likeliest.long())
        assert torch.equal(best, reading.logits.topk(best.shape[1]).values)
        assert reading.likeliest[:, 0].tolist() == reading.logits.argmax(dim=1).tolist()
    expected = reading.logits[[3, 1]].topk(3).indices.tolist()
    assert reading.best_after([3, 1], 3) == expected


def test_the_first_token_of_all_can_be_the_root(subject):
    tree = random_tree(V, 6, 1)
    subject.model.prefill([])
    check(subject, subject.model.read(tree), [], tree, range(len(tree)))


def test_level_by_level_says_the_same_as_the_whole_tree_at_once(subject):
    tree = random_tree(V, 14, 4)
    subject.model.prefill(PREFIX)
    whole = subject.model.read(tree)
    subject.model.keep(())
    stepwise = subject.fresh()
    stepwise.prefill(PREFIX)
    for depth in range(max(tree.depths) + 1):
        level = [node for node in range(len(tree)) if tree.depths[node] == depth]
        reading = stepwise.read(tree, level)
        assert reading.nodes == tuple(level)
        for node in level:
            torch.testing.assert_close(reading.after(node), whole.after(node), **CLOSE)


def test_nodes_may_be_read_in_any_order_that_reads_parents_first(subject):
    tree = TokenTree(3, V)
    left = tree.add(ROOT, Guess(4))
    right = tree.add(ROOT, Guess(5))
    below_right = tree.add(right, Guess(6))
    below_left = tree.add(left, Guess(7))
    subject.model.prefill(PREFIX)
    for nodes in ([ROOT], [right, below_right], [left], [below_left]):
        check(subject, subject.model.read(tree, nodes), PREFIX, tree, nodes)
    subject.model.keep((left, below_left))
    check_next(subject, subject.model, [*PREFIX, 3, 4, 7, 9])


def test_a_tree_may_grow_between_two_reads(subject):
    tree = TokenTree(3, V)
    subject.model.prefill(PREFIX)
    nodes, last = [ROOT], ROOT
    for token in (8, 13, 21):
        reading = subject.model.read(tree, nodes)
        check(subject, reading, PREFIX, tree, nodes)
        last = tree.add(last, Guess(token))
        nodes = [last]


def deepest(tree: TokenTree) -> tuple[int, ...]:
    """The last of the longest paths: its rows lie scattered."""
    return tree.path(max(range(len(tree)), key=lambda node: (tree.depths[node], node)))


@pytest.mark.parametrize("length", [0, 1, 3, 4])
def test_after_keep_it_is_as_if_the_rest_had_never_been_read(subject, length):
    tree = random_tree(V, 16, 3)
    path = deepest(tree)[:length]
    assert len(path) == length
    assert length < 3 or path != tuple(range(1, length + 1)), "rejected nodes lie between"
    subject.model.prefill(PREFIX)
    subject.model.read(tree)
    subject.model.keep(path)
    kept = [*PREFIX, tree.tokens[ROOT], *(tree.tokens[node] for node in path)]
    assert subject.model.cached([*kept, 0, 0]) == len(kept)
    again, untouched = random_tree(V, 8, 3), subject.fresh()
    untouched.prefill(kept)
    ours, theirs = subject.model.read(again), untouched.read(again)
    torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
    check(subject, ours, kept, again, range(len(again)))


def test_many_rounds_in_a_row_keep_the_cache_right(subject):
    text, model = list(PREFIX), subject.model
    for turn in range(8):
        model.prefill(text[:-1])
        tree = random_tree(V, 9, 10 + turn, root=text[-1])
        reading = model.read(tree)
        check(subject, reading, text[:-1], tree, range(len(tree)))
        path = deepest(tree)[: turn % 4]
        model.keep(path)
        text += [*(tree.tokens[node] for node in path), (5 * turn) % V]
        assert model.cached(text) == len(text) - 1
    check_next(subject, model, text)


def test_a_path_may_end_in_nodes_that_were_never_read(subject):
    tree = TokenTree(3, V)
    a = tree.add(ROOT, Guess(4))
    b = tree.add(a, Guess(5))
    c = tree.add(b, Guess(6))
    subject.model.prefill(PREFIX)
    subject.model.read(tree, [ROOT])
    subject.model.read(tree, [a])
    subject.model.keep((a, b, c))
    assert subject.model.cached([*PREFIX, 3, 4, 5, 6]) == len(PREFIX) + 2
    check_next(subject, subject.model, [*PREFIX, 3, 4, 5, 6, 7])


def test_a_round_of_which_nothing_was_read_keeps_nothing(subject):
    subject.model.prefill(PREFIX)
    subject.model.keep((1, 2))
    check_next(subject, subject.model, [*PREFIX, 3])


def test_prefill_ends_a_round_that_was_not_kept(subject):
    subject.model.prefill(PREFIX)
    subject.model.read(random_tree(V, 9, 1))
    subject.model.prefill(PREFIX)
    tree = random_tree(V, 9, 2)
    check(subject, subject.model.read(tree), PREFIX, tree, range(len(tree)))


@pytest.mark.parametrize("prompt_tokens", [1, LAZY_TOKENS, LAZY_TOKENS + 1, 100])
def test_every_token_is_read_once(subject, prompt_tokens):
    text = [(7 * i) % V for i in range(prompt_tokens + 1)]
    subject.model.prefill(text[:-1])
    subject.model.read(random_tree(V, 5, 0, root=text[-1]))
    assert subject.model.counters.rows == prompt_tokens + 6
    assert subject.model.counters.node_layers == subject.layers * (prompt_tokens + 6)


def test_a_prefix_that_is_there_is_not_read_again(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    before = subject.model.counters.rows
    longer = [*first, *range(20)]
    assert subject.model.cached(longer) == 60
    check_next(subject, subject.model, longer)
    assert subject.model.counters.rows == before + 20


def test_an_edited_prefix_is_read_from_the_edit_on(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    before = subject.model.counters.rows
    edited = [*first[:33], 60, *first[34:]]
    assert subject.model.cached(edited) == 33
    check_next(subject, subject.model, edited)
    assert subject.model.counters.rows == before + 27


def test_a_shorter_prefix_forgets_what_lies_behind_it(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    subject.model.prefill(first[:20])
    assert subject.model.cached(first) == 20
    check_next(subject, subject.model, [*first[:20], 9])


@pytest.mark.parametrize("count", range(LAZY_TOKENS + 2))
def test_a_few_missing_tokens_may_be_put_off_and_are_never_lost(subject, count):
    check_next(subject, subject.model, PREFIX)
    longer = [*PREFIX, *range(20, 20 + count)]
    subject.model.prefill(longer)
    tree = random_tree(V, 7, 5)
    check(subject, subject.model.read(tree), longer, tree, range(len(tree)))
    path = deepest(tree)[:2]
    subject.model.keep(path)
    assert subject.model.cached([*longer, 3, *(tree.tokens[n] for n in path)]) == len(longer) + 3
    check_next(subject, subject.model, [*longer, 3, *(tree.tokens[n] for n in path), 17])


def test_tokens_put_off_twice_are_read_once(subject):
    check_next(subject, subject.model, PREFIX)
    before = subject.model.counters.rows
    subject.model.prefill([*PREFIX, 21, 22])
    subject.model.prefill([*PREFIX, 21, 23, 24])
    check_next(subject, subject.model, [*PREFIX, 21, 23, 24, 25])
    assert subject.model.counters.rows == before + 4


def test_a_short_text_may_come_before_a_long_one(subject):
    check_next(subject, subject.model, [5, 6, 7])
    check_next(subject, subject.model, [(3 * i) % V for i in range(90)])
    check_next(subject, subject.model, [5, 6, 7, 8])


def test_reading_leaves_no_trace_for_training(network):
    network.model.prefill(list(range(30)))
    reading = network.model.read(random_tree(V, 4, 0))
    assert not reading.logits.requires_grad


def test_progress_is_told_and_may_stop_the_reading(subject):
    text = [(7 * i) % V for i in range(200)]
    heard: list[tuple[int, int]] = []
    subject.model.prefill(text, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (200, 200)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    other = [(11 * i + 1) % V for i in range(200)]
    with pytest.raises(Enough):
        subject.model.prefill(other, stop)
    check_next(subject, subject.model, other)


@pytest.mark.parametrize("choice", list(every_model()))
def test_the_cache_grows_past_its_first_capacity(choice):
    factory, family = choice
    subject = factory(family, 2048)
    text = [(7 * i + i // 13) % V for i in range(1020)]
    check_next(subject, subject.model, text)
    tree = random_tree(V, 20, 6)  # reaches over the 1024th row in the middle of a round
    subject.model.prefill(text)
    check(subject, subject.model.read(tree), text, tree, range(0, len(tree), 4))
    path = deepest(tree)
    subject.model.keep(path)
    check_next(subject, subject.model, [*text, 3, *(tree.tokens[n] for n in path), 8])


def test_a_tree_may_reach_past_the_end_of_the_context(subject):
    text = [(7 * i) % V for i in range(subject.model.context_tokens - 2)]
    subject.model.prefill(text)
    assert len(subject.model.read(random_tree(V, 30, 0)).alive) == 31


def test_pretending_costs_like_reading_and_is_forgotten(subject):
    subject.model.pretend(40)
    before = subject.model.counters.rows
    subject.model.read(TokenTree(3, V).freeze())
    subject.model.keep(())
    assert subject.model.counters.rows == before + 1
    assert subject.model.cached(PREFIX) == 0
    check_next(subject, subject.model, PREFIX)


def test_positions_are_those_of_the_text_and_not_of_the_rows(network):
    """In a wide tree the last node's row lies far behind its position; with the row's number it would say otherwise."""
    tree = TokenTree(3, V)
    nodes = [tree.add(ROOT, Guess(token)) for token in range(20)]
    network.model.prefill(PREFIX)
    reading = network.model.read(tree)
    check(network, reading, PREFIX, tree, [nodes[-1]])


# ------------------------------------------------------------------------------------------------- taps


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


def test_taps_not_asked_for_are_not_there(subject):
    subject.model.prefill(PREFIX)
    reading = subject.model.read(random_tree(V, 3, 0))
    assert not reading.taps
    assert reading.rider_logits is None


@pytest.mark.parametrize("count", [1, LAZY_TOKENS, LAZY_TOKENS + 1, 300])
def test_states_of_the_text_come_while_it_is_read_and_once(subject, count):
    text, layers = [(7 * i + i // 9) % V for i in range(count)], frozenset(range(subject.layers))
    taken: list[TextStates] = []
    subject.model.prefill(text, tap=StateTap(layers, taken.append))
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


def test_nobody_is_given_states_that_were_not_asked_for(subject):
    subject.model.prefill(PREFIX[:3])
    assert subject.model.read(random_tree(V, 3, 0)).text_states is None


# ------------------------------------------------------------------------------------------------ riders


def stand_in(subject: Subject, token: int) -> torch.Tensor:
    return subject.embed(token) if subject.embed is not None else torch.zeros(HIDDEN)


def test_a_rider_says_what_its_embedding_would_say_at_the_end_of_the_path(subject):
    tree = random_tree(V, 8, 8)
    texts = [[*PREFIX, 3, *tree.path_tokens(node)] for node in range(len(tree))]
    follows = [int(subject.truth(text).argmax()) for text in texts]
    riders = [Rider(node, stand_in(subject, follows[node])) for node in range(len(tree))]
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(riders, taps=[0]))
    assert reading.rider_logits.shape == (len(riders), V)
    for node, text in enumerate(texts):
        torch.testing.assert_close(reading.rider_logits[node], subject.truth([*text, follows[node]]), **CLOSE)
        tapped = reading.rider_states[0][node]
        torch.testing.assert_close(tapped, subject.states([*text, follows[node]])[0], **CLOSE)
    check(subject, reading, PREFIX, tree, range(len(tree)))  # and nobody noticed them


def test_riders_may_follow_each_other(subject):
    tree = random_tree(V, 4, 8)
    text = [*PREFIX, 3, *tree.path_tokens(2)]
    chain = list(text)
    riders: list[Rider] = []
    for place in range(3):
        token = int(subject.truth(chain).argmax())
        riders.append(Rider(2, stand_in(subject, token), after=place - 1 if place else None))
        chain.append(token)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(riders))
    for place in range(3):
        truth = subject.truth(chain[: len(text) + place + 1])
        torch.testing.assert_close(reading.rider_logits[place], truth, **CLOSE)


def test_a_rider_may_be_no_token_at_all(network):
    tree = random_tree(V, 5, 8)
    mask = torch.linspace(-1, 1, HIDDEN)
    network.model.prefill(PREFIX)
    reading = network.model.read(tree, request=requested([Rider(ROOT, mask), Rider(4, mask), Rider(4, -mask, after=1)]))
    root_text, text = [*PREFIX, 3], [*PREFIX, 3, *tree.path_tokens(4)]
    below_root = torch.stack([*map(network.embed, root_text), mask])
    below = torch.stack([*map(network.embed, text), mask])
    after = torch.stack([*map(network.embed, text), mask, -mask])
    for place, rows in enumerate((below_root, below, after)):
        torch.testing.assert_close(reading.rider_logits[place], network.truth_embedded(rows), **CLOSE)


def test_whom_a_model_names_likeliest_after_a_rider_has_the_highest_logits(subject):
    subject.model.prefill(PREFIX)
    riders = [Rider(node, stand_in(subject, node)) for node in (0, 2, 3)]
    reading = subject.model.read(random_tree(V, 5, 0), request=requested(riders))
    if reading.rider_likeliest is not None:
        best = reading.rider_logits.gather(1, reading.rider_likeliest.long())
        assert torch.equal(best, reading.rider_logits.topk(best.shape[1]).values)
    assert reading.best_after_riders([2, 0], 3) == reading.rider_logits[[2, 0]].topk(3).indices.tolist()


def test_riders_leave_nothing_in_the_cache(subject):
    tree = random_tree(V, 6, 9)
    path = deepest(tree)
    subject.model.prefill(PREFIX)
    subject.model.read(tree, request=requested([Rider(node, stand_in(subject, 1)) for node in (0, 2, 4)]))
    subject.model.keep(path)
    kept = [*PREFIX, 3, *(tree.tokens[n] for n in path)]
    assert subject.model.cached([*kept, 1, 1, 1, 1]) == len(kept)
    check_next(subject, subject.model, [*kept, 12])


# ---------------------------------------------------------------------------------------------- on_layer


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


def test_only_named_layers_are_looked_at(subject):
    seen: list[int] = []
    named = LayerHook(frozenset({subject.layers - 1}), lambda layer, hidden, nodes: seen.append(layer))
    subject.model.prefill(PREFIX)
    subject.model.read(random_tree(V, 5, 0), request=PassRequest(hooks=(named,)))
    assert seen == [subject.layers - 1]


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


def test_the_root_stays_even_if_nobody_wants_it(subject):
    tree, _ = pruning_tree()
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree, request=requested(look=lambda layer, hidden, nodes: ()))
    assert reading.alive == {ROOT}
    check(subject, reading, PREFIX, tree, [ROOT])
    subject.model.keep(())
    check_next(subject, subject.model, [*PREFIX, 3, 7])


def test_nodes_read_before_count_as_staying(subject):
    tree, (a, b, a1, b1, _) = pruning_tree()
    subject.model.prefill(PREFIX)
    subject.model.read(tree, [ROOT, a, b])
    reading = subject.model.read(tree, [a1, b1], request=requested(look=lambda layer, hidden, nodes: {b1}))
    assert reading.alive == {b1}
    assert reading.pruned == {a1: 0}
    check(subject, reading, PREFIX, tree, [b1])
