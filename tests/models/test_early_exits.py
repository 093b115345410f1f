"""A nested draft model: every token gets the law of the depth that it left at, deeper layers are read for few."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from contracts.kit import context_for, drafter_for, plain_text, reply, scripted_target
from contracts.models import native_is_here
from contracts.text_laws import chi_square_p
from test_trained_draft_model import PROMPT, V, logits_after, target_of
from tiny_draft_models import draft_folder, draft_sizes

from specchat.core.request import DEFAULT_REQUEST, PassRequest
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.errors import ConfigError, UsageError
from specchat.models.decoder.early_exits import EarlyExits, NestedDecoder, confidence
from specchat.models.draft_heads.draft_language_model import DraftModelSizes
from specchat.models.trained_draft_model import load_trained_draft

DEPTHS = (1, 2, 4)
SURE = (0.14, 0.17)
"""At these probabilities about as many tokens of the random model leave at each depth."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draft_folder(tmp_path_factory.mktemp("drafters") / "mine", layers=4, depths=DEPTHS, tokens=range(V))


def nested(folder, kernels="torch") -> NestedDecoder:
    model = load_trained_draft(folder, target_of("llama", "int8" if kernels == "native" else "float32", kernels)).model
    assert isinstance(model, NestedDecoder)
    return model


def views_of(model: NestedDecoder) -> dict[int, NestedDecoder]:
    """The layers up to each depth alone, each with a cache of its own."""
    return {depth: model.view(layers=range(depth)) for depth in DEPTHS}


def cut_off(views: dict[int, NestedDecoder], text: list[int]) -> dict[int, torch.Tensor]:
    """(V,) logits after a text by the layers up to each depth alone."""
    return {depth: logits_after(view, text) for depth, view in views.items()}


def probability(logits: torch.Tensor) -> float:
    return float(logits.softmax(0).max())


def wanted_depth(laws: dict[int, torch.Tensor], sure=SURE) -> int:
    early = zip(DEPTHS, sure, strict=False)
    return next((depth for depth, enough in early if probability(laws[depth]) >= enough), DEPTHS[-1])


@pytest.mark.parametrize(
    "kernels", ["torch", pytest.param("native", marks=pytest.mark.skipif(not native_is_here(), reason="no compiler"))]
)
@pytest.mark.parametrize("request_", ["whole head", "trimmed head"])
def test_each_token_gets_the_law_of_the_layers_up_to_where_it_leaves_whoever_left_before(folder, kernels, request_):
    """Texts grow by accepted paths, are edited, cut and begun anew; of trees, levels are read one by one."""
    model, chance = nested(folder, kernels), random.Random(4)
    exits, text, seen, views = model.leaving_early(SURE), [3, 5, 7], Counter(), views_of(model)
    head = None if request_ == "whole head" else model.trimmed_head(list(range(V)))
    request = DEFAULT_REQUEST if head is None else PassRequest(taps=frozenset({3}), head=head)
    for step in range(14):
        if step == 5:
            text[len(text) // 2] = 11
        elif step == 8:
            text = [chance.randrange(V) for _ in range(290)]  # more than is read in one pass
        elif step == 11:
            del text[270:]
        exits.prefill(text[:-1])
        tree, level, path = TokenTree(text[-1], V), [ROOT], []
        for _ in range(3):
            reading = exits.read(tree, level, request)
            for node in level:
                laws = cut_off(views, [*text, *(tree.tokens[one] for one in tree.path(node) if node != ROOT)])
                depth = wanted_depth(laws)
                seen[depth] += 1
                torch.testing.assert_close(reading.after(node), laws[depth], atol=2e-4, rtol=2e-4)
            if head is not None:
                said = model.trimmed_head(list(range(V))).after(reading.taps[3])
                torch.testing.assert_close(said.logits, reading.logits, atol=1e-4, rtol=1e-4)
            path.append(chance.choice(level))
            parent = path[-1]
            level = list(tree.extend([parent, parent], chance.sample(range(V), 2)))
        kept = path[1 : chance.randrange(1, 4)]
        exits.keep(kept)
        text += [*(tree.tokens[node] for node in kept), chance.randrange(V)]
    assert seen == exits.left_at
    assert min(seen[depth] for depth in DEPTHS) > 5, "tokens leave at every depth"


def test_what_left_early_is_read_by_deeper_layers_in_the_pass_of_the_token_that_goes_there(folder, monkeypatch):
    """Two layers run over all that waits at once: once for a chain of five of which the last one goes on."""
    exits = nested(folder).leaving_early([0.5])
    passes = []
    run = exits.network.run
    monkeypatch.setattr(
        exits.network, "run", lambda one: passes.append((sorted(one.parts.mlp), one.plan.rows)) or run(one)
    )
    answers = iter([1.0] * 5 + [0.0, 1.0])
    monkeypatch.setattr(
        "specchat.models.decoder.early_exits.confidence", lambda said: torch.tensor([next(answers)] * len(said.logits))
    )
    exits.prefill([3, 5, 7])
    tree = TokenTree(9, V)
    node = ROOT
    for token in (4, 8, 15, 16, 23):
        exits.read(tree, [node])
        (node,) = tree.extend([node], [token])
    exits.read(tree, [node])
    assert passes == [([0], 4), *[([0], 1)] * 5, ([1], 9)]
    assert exits.counters.node_layers == 9 + 9
    assert exits.counters.passes == 6, "a read is one pass, however deep it goes"


def drafted(folder, sure: str, **settings):
    """A reply that is drafted with exits: the reply, and the model with its counters."""
    draft, made = nested(folder), []
    leaving = draft.leaving_early
    draft.leaving_early = lambda sure: made.append(leaving(sure)) or made[-1]
    known = {
        "temperature": 0.9,
        "top_p": 1.0,
        "max_tokens": 40,
        "controller": "fixed",
        "depth": 3,
        "nodes": 6,
        "width": 2,
    }
    options = {"draft_model.leave_at": sure, "draft_model.trim": 0}
    said = reply(
        target_of("llama").model,
        draft,
        PROMPT,
        drafter="draft_model",
        **{**known, "method_options": options, **settings},
    )
    return said, made[0] if made else None


def test_exits_move_down_and_fewer_layers_are_computed_as_the_probability_asked_for_falls(folder):
    found = [drafted(folder, sure, max_tokens=30)[1] for sure in ("0.9", "0.2", "0.15", "0.1", "0")]
    mean = [sum(depth * count for depth, count in one.left_at.items()) / one.left_at.total() for one in found]
    assert mean[0] == 4.0 > mean[1] > mean[2] > mean[3] > mean[4] == 1.0
    layers = [one.counters.node_layers / one.counters.rows for one in found]
    assert layers[0] >= layers[1] > layers[2] > layers[3] > layers[4] == 1.0
    assert drafted(folder, "1")[1] is None, "at 1 the model runs whole, as any other"


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"policy": "chain"}, {"policy": "best_first"}])
def test_the_text_stays_the_targets_own_with_exits(folder, settings):
    said, exits = drafted(folder, "/".join(map(str, SURE)), **settings)
    sampling = Sampling(temperature=settings.get("temperature", 0.9))
    assert said.tokens == plain_text(target_of("llama").model, 40, sampling, prompt=PROMPT)
    assert min(exits.left_at[depth] for depth in DEPTHS) > 0


def test_draws_are_distributed_as_their_q_which_is_the_law_of_the_depth_that_the_node_left_at(folder):
    views, counts = views_of(nested(folder)), {}
    settings = {"draft_model.leave_at": "/".join(map(str, SURE)), "draft_model.trim": 0}
    texts = {depth: [] for depth in DEPTHS}
    for first in range(V):
        laws = cut_off(views, [*PROMPT, first])
        texts[wanted_depth(laws)].append((first, laws))
    for depth, some in texts.items():
        first, laws = some[0]
        drafter = drafter_for(scripted_target(V), nested(folder), "draft_model", settings)
        seen = counts[depth] = Counter()
        for seed in range(400):
            context = context_for(Sampling(temperature=1.0), seed, V, [*PROMPT, first])
            context.wanted = DrawKind.IID
            tree = TokenTree(first, V)
            [[guess]] = drafter.propose(tree, [ROOT], 1, context)
            torch.testing.assert_close(guess.q.float(), laws[depth].softmax(0), atol=1e-4, rtol=1e-3)
            seen[guess.token] += 1
        for other in DEPTHS:
            expected = (laws[other].softmax(0).double() * 400).tolist()
            p = chi_square_p([seen[token] for token in range(V)], [one * 400 / sum(expected) for one in expected])
            assert p > 1e-3 if other == depth else p < 1e-6, (depth, other)


def test_a_p_q_rule_accepts_one_draw_as_often_as_the_laws_overlap_with_exits(folder):
    sure = "/".join(map(str, SURE))
    said, exits = drafted(
        folder, sure, policy="chain", rule="multi_step", temperature=1.0, max_tokens=400, depth=1, nodes=1
    )
    target, views, text, accepted, overlaps = target_of("llama").model, views_of(nested(folder)), list(PROMPT), [], []
    for round in said.rounds:
        laws = cut_off(views, text)
        p, q = logits_after(target, text).softmax(0), laws[wanted_depth(laws)].softmax(0)
        overlaps.append(float(torch.minimum(p, q).sum()))
        accepted.append(len(round.verdict.path))
        text += round.emitted
    count = len(accepted)
    error = (sum(one * (1 - one) for one in overlaps) ** 0.5) / count
    assert abs(sum(accepted) / count - sum(overlaps) / count) < 3 * error
    assert min(exits.left_at[depth] for depth in DEPTHS) > 10


def test_other_heads_and_heads_of_stopping_work_on_the_state_that_a_token_leaves_with(folder):
    said, exits = drafted(
        folder, "0.16", method_options={"draft_model.leave_at": "0.16", "draft_model.stop": 0.9}, max_tokens=30
    )
    assert len(said.tokens) == 30
    assert exits.left_at.total() > 30


def test_wrong_probabilities_and_depths_are_refused_in_one_line(folder):
    with pytest.raises(
        UsageError, match=r"leave_at has 3 probabilities; mine was trained at 3 depths: give one .* or 2,"
    ):
        drafted(folder, "0.5/0.4/0.3")
    for wrong in ("", "x", "1.5", "0.5/", "nan", "0.5,0.4"):
        with pytest.raises(UsageError, match=r"draft_model.leave_at = .* is not a number from 0 to 1"):
            drafted(folder, wrong)
    for wrong, said in (
        ({"depths": [1, 3]}, r"depths = \[1, 3\] does not end with layers = 4"),
        ({"depths": [2, 1, 4]}, "are not ascending"),
        ({"depths": [0, 4]}, "is not a list of whole numbers from 1 to 64"),
        ({"depths": 4}, "is not a list of whole numbers"),
        ({"deptsh": [4]}, "unknown key 'deptsh'; did you mean 'depths'"),
    ):
        with pytest.raises(ConfigError, match=said):
            DraftModelSizes.read(draft_sizes(layers=4).options() | wrong, "drafter.toml, [options]")


def test_a_new_cache_of_either_kind_goes_on_leaving_early(folder):
    model = nested(folder)
    copy = model.with_new_cache()
    assert isinstance(copy, NestedDecoder)
    assert isinstance(model.leaving_early([0.5]).with_new_cache(), EarlyExits)
    torch.testing.assert_close(logits_after(copy, PROMPT), logits_after(model, PROMPT))


def test_confidence_is_the_largest_probability(folder):
    logits = logits_after(nested(folder), PROMPT)
    model = nested(folder)
    said = model.trimmed_head(list(range(V))).after(torch.randn(3, 32))
    torch.testing.assert_close(confidence(said), said.logits.softmax(1).amax(1))
    assert probability(logits) < 1
