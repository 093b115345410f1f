"""Drafting by diffusion: passes, the law of texts under every rule, and what each order of filling may claim."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from contracts.enumerated import Enumerated, chain, levels
from contracts.kit import (
    Always,
    collect,
    context_for,
    converse,
    make_policy,
    make_rule,
    plain_text,
    speak,
    target_says,
)
from contracts.random_networks import random_network
from contracts.tiny_networks import tiny_trained, trained_resources

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.bench.rule_table import ENDS
from specchat.config.trained_drafters import WEIGHTS, TrainedDrafters, write_drafter
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling, law
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.combinations import check_settings, losslessness
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.drafters.specdiff import surest
from specchat.errors import CombinationError, ModelError, UsageError
from specchat.models.backends.scripted import ScriptedModel
from specchat.models.draft_heads.head import Batch, SharedWeights
from specchat.models.draft_heads.loading import new_network, save_weights
from specchat.models.draft_heads.specdiff import Denoising, SpecDiffSizes
from specchat.settings import Settings
from specchat.training.distillation import DenoisingLoss
from specchat.trees import TREE_POLICIES

PROMPT = [1, 0, 2, 1]
WARM = Sampling(temperature=0.8)
ORDERS = ("left_to_right", "confidence")


class Embedding(ScriptedModel):
    """A scripted target whose embeddings tell its tokens apart."""

    def embed(self, tokens):
        return torch.eye(self.vocab_size)[list(tokens)]


def target(vocab_size):
    return Embedding(vocab_size, target_says(vocab_size))


def sizes(vocab_size, masks, width=32):
    return SpecDiffSizes(
        hidden=vocab_size, width=width, layers=2, masks=masks, inner=2 * width, heads=4, kv_heads=4, head_dim=width // 4
    )


def saved(network, folder):
    """The network in a trained drafter's folder."""
    save_weights(network, folder / WEIGHTS)
    return write_drafter(
        folder, method="specdiff", target="tiny", target_sha256="ab" * 32, licence="Apache-2.0",
        options=network.sizes.options(), data={}, figures={},
    )  # fmt: skip


@pytest.fixture(scope="module")
def resources(tmp_path_factory):
    """Of pairs with so many tokens: a random network whose attention counts, with windows of 8 tokens."""

    @cache
    def made(vocab_size):
        shared = SharedWeights.of(target(vocab_size), torch.arange(vocab_size))
        network = random_network("specdiff", sizes(vocab_size, 8), shared, torch.Generator().manual_seed(9))
        with torch.no_grad():
            for matrix in network.added:
                matrix *= 20.0
        trained = saved(network, tmp_path_factory.mktemp("specdiff"))
        return trained_resources(trained=TrainedDrafters("tiny", (trained,)))

    return made


def drafter(resources, vocab_size, **options):
    settings = Settings().but({"method_options": {f"specdiff.{key}": value for key, value in options.items()}})
    return Parts(target(vocab_size), resources=resources).build(choose("specdiff", settings))


def rounds(resources, vocab_size=23, prompt=(3, 5, 7, 3, 5, 9, 3, 5), **changes):
    """The rounds of a reply over chains of the window's length, or as deep as is said."""
    options = {f"specdiff.{key}": changes.pop(key) for key in ("order", "steps", "window") if key in changes}
    depth = changes.pop("depth", options.get("specdiff.window", 8))
    chosen = {"policy": "chain", "nodes": depth, "depth": depth, "width": 1, "max_tokens": 20, **changes}
    conversation = converse(
        target(vocab_size),
        resources=resources,
        drafter="specdiff",
        controller="fixed",
        method_options=options,
        **chosen,
    )
    return collect(conversation.reply([*prompt], 7))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("window", [4, 6, 8])
def test_a_round_takes_as_many_passes_as_steps_however_long_the_window_is(resources, order, window):
    for steps in (1, 2, 3):
        said = rounds(resources(23), order=order, steps=steps, window=window, max_tokens=16)
        deep = [round for round in said.rounds if max(round.tree.depths) == window]
        assert len(deep) > 2
        assert {round.draft_passes for round in deep} == {steps}


def test_branches_share_the_passes_of_their_depths(resources):
    said = rounds(resources(3), 3, PROMPT, steps=2, depth=4, policy="best_first", nodes=60, width=3, window=4)
    wide = [round for round in said.rounds if round.tree.depths.count(4) > 4]
    assert wide
    assert {round.draft_passes for round in wide} == {2}


# ---------------------------------------------------------------------------------------- what a text is


V, LENGTH, WINDOW = 3, 4, 3


@cache
def p(path):
    return law(target_says(V)([*PROMPT, *path]), WARM).dense(V)


def laws_of(resources, **options):
    """The target's law and that of the drafter's draws, path by path."""
    made = drafter(resources, V, window=WINDOW, **options)

    @cache
    def q(name, path):
        context = context_for(WARM, 7, V, PROMPT)
        context.wanted, context.budget = DrawKind.IID, Budget(8, WINDOW, V)
        tree, node = TokenTree(context.root, V), ROOT
        for token in path:
            node = tree.add(node, Guess(token))
        [said] = made.propose(tree, [node], 1, context)
        assert said[0].kind is DrawKind.IID
        return said[0].q

    return Enumerated(V, LENGTH, p, q)


@pytest.mark.parametrize("rule", ENDS)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_texts_are_distributed_as_the_targets_from_left_to_right(resources, rule, steps):
    kind, laws = make_rule(ACCEPTANCE_RULES[rule]).wanted, laws_of(resources(V), steps=steps)
    for grows in (chain(WINDOW, kind), levels(kind, 2, 1)):
        assert laws.error(grows, ENDS[rule]) < 1e-12
    blocks = [step * WINDOW // steps for step in range(steps)]
    for depth in (1, 2):
        apart = (laws.q("q", (0,) * depth) - laws.q("q", (2,) * depth)).abs().max()
        assert (apart > 1e-3) == (depth in blocks or any(0 < begin <= depth for begin in blocks)), "blocks before count"


def filled(denoiser, steps, order):
    """Every way in which a window is filled with draws: its probability, its tokens, and the law each was drawn by."""

    def fill(window, drawn, weight, step):
        masked = [place for place, token in enumerate(window) if token is None]
        if not masked:
            yield weight, window, drawn
            return
        said = denoiser.guesses(window).of(masked)
        count = WINDOW * (step + 1) // steps - WINDOW * step // steps
        rows = surest(said, count) if order == "confidence" else list(range(count))
        q = [law(said.logits[row].float(), WARM).dense(V) for row in rows]
        for tokens in itertools.product(range(V), repeat=count):
            held, laws, chance = [*window], [*drawn], weight
            for row, token, one in zip(rows, tokens, q, strict=True):
                held[masked[row]], laws[masked[row]], chance = token, one, chance * float(one[token])
            yield from fill(held, laws, chance, step + 1)

    yield from fill([None] * WINDOW, [None] * WINDOW, 1.0, 0)


def error_of(resources, order, rule, steps):
    """How far texts are from the target's law where the denoised window itself is judged, with the laws it drew by."""
    made = drafter(resources, V, window=WINDOW, order=order, steps=steps)
    denoiser = made._network if made._surest is None else made._surest._denoiser
    denoiser.begin(PROMPT)
    assert denoiser.guesses([None] * WINDOW).possible.tolist() == list(range(V))
    laws, found = Enumerated(V, LENGTH, p, lambda name, path: None), 0.0
    for weight, tokens, drawn in filled(denoiser, steps, order):
        guesses = [Guess(token, DrawKind.IID, q) for token, q in zip(tokens, drawn, strict=True)]
        found += weight * laws.text_law(laws.built(list(enumerate(guesses))).freeze(), ENDS[rule])
    return float((found - laws.wanted()).abs().max())


@pytest.mark.parametrize("rule", ["multi_step", "block"])
def test_the_law_of_a_place_that_was_filled_after_one_behind_it_is_not_that_of_its_draw(resources, rule):
    """The control: judged by what the denoiser said when it filled each place, the surest places first."""
    for steps in (2, 3):
        assert error_of(resources(V), "left_to_right", rule, steps) < 1e-12
        assert error_of(resources(V), "confidence", rule, steps) > 1e-4
    assert error_of(resources(V), "confidence", rule, 1) < 1e-12, "in one step nothing depends on anything"


def test_no_window_from_left_to_right_holds_a_token_behind_a_mask(resources, monkeypatch):
    seen, read = [], Denoising._pass

    def noted(self, windows):
        seen.extend([*window] for window in windows)
        return read(self, windows)

    monkeypatch.setattr(Denoising, "_pass", noted)

    def held():
        """Whether a token stands behind a mask in some window, and whether tokens stand in any."""
        shown = [[token is not None for token in window] for window in seen]
        seen.clear()
        return any(sorted(window, reverse=True) != window for window in shown), any(map(any, shown))

    rounds(resources(23), steps=3, policy="best_first", nodes=16, width=3)
    assert held() == (False, True)
    rounds(resources(23), steps=3, order="confidence")
    assert held() == (True, True), "the control: by confidence it does"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_text_is_that_of_plain_decoding(resources, order, steps):
    for temperature in (0.0, 0.8):
        said = rounds(resources(5), 5, PROMPT, order=order, steps=steps, temperature=temperature, window=4, top_p=1.0)
        plain = plain_text(target(5), 20, Sampling(temperature=temperature), prompt=PROMPT)
        assert said.tokens == plain
        assert sum(round.accepted for round in said.rounds) > 0


def test_by_confidence_the_first_guesses_are_what_fills_the_window(resources, monkeypatch):
    for temperature in (0.0, 0.8):
        made = drafter(resources(23), 23, order="confidence", steps=3)
        context = context_for(Sampling(temperature=temperature), 7)
        context.budget = Budget(8, 8, 1)
        made.start(context.history)
        windows, guesses = [], made._surest._denoiser.guesses
        monkeypatch.setattr(made._surest._denoiser, "guesses", lambda w: windows.append([*w]) or guesses(w))  # noqa: B023
        tree = make_policy(TREE_POLICIES["chain"]).grow(made, context, context.budget)
        assert {draw.guess.kind for node in range(len(tree)) for draw in tree.draws(node)} == {DrawKind.POINT}
        filled = [token is not None for token in windows[-1]]
        assert [sum(token is not None for token in window) for window in windows] == [0, 2, 5]
        held = [token for token in windows[-1] if token is not None]
        assert [token for token, is_held in zip(tree.tokens[1:], filled, strict=True) if is_held] == held


# ---------------------------------------------------------------------------------------- what is refused


def test_what_an_order_may_claim_decides_which_rules_it_fits(resources):
    trained = resources(23).trained
    for rule in ENDS:
        for order, steps in itertools.product(ORDERS, (1, 2)):
            options = {"specdiff.order": order, "specdiff.steps": steps}
            chosen = Settings().but(
                {"temperature": 0.8, "drafter": "specdiff", "rule": rule, "policy": "chain", "method_options": options}
            )
            if order == "confidence" and steps > 1:
                with pytest.raises(CombinationError, match=r"'specdiff' with its options proposes points.*'follow'"):
                    check_settings(chosen, False, trained)
                check_settings(chosen.but({"rule": "follow"}), False, trained)
            else:
                check_settings(chosen, False, trained)
                assert losslessness(chosen).lossless


def test_windows_longer_than_it_was_trained_for_are_refused(resources):
    for options, said in (({"window": 9}, "window = 9"), ({"steps": 9}, "steps = 9")):
        with pytest.raises(CombinationError, match=rf"specdiff\.{said}, and .* up to 8 tokens; nearest that works: 8$"):
            drafter(resources(23), 23, **options)
    with pytest.raises(UsageError, match=r"specdiff\.steps = 4 is above specdiff\.window = 3; nearest that works: 3$"):
        drafter(resources(23), 23, steps=4, window=3)
    with pytest.raises(UsageError, match="left_to_right"):
        drafter(resources(23), 23, order="left")


def test_a_drafter_of_a_target_with_other_states_is_refused(resources):
    trained = tiny_trained("specdiff", target(7))
    others = trained_resources(trained=TrainedDrafters("tiny", (trained,)))
    with pytest.raises(ModelError, match=r"reads embeddings of 7 numbers; the target has 23 and 1 layers"):
        drafter(others, 23)


# ---------------------------------------------------------------------------------------- what it is worth


STATES = 8
MARKOV = torch.zeros(STATES, STATES)
for _token in range(STATES):
    MARKOV[_token, [2 * _token % STATES, (2 * _token + 1) % STATES]] = 0.5
"""Each token is followed by one of two: of a token three places ahead nothing is known."""


def random_texts(count, length, generator):
    texts = torch.randint(0, STATES, (count, 1), generator=generator)
    while texts.shape[1] < length:
        texts = torch.cat([texts, torch.multinomial(MARKOV[texts[:, -1]], 1, generator=generator)], dim=1)
    return texts


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A network that has learnt texts of this law for some seconds."""
    source, generator = Embedding(STATES, lambda text: MARKOV[text[-1]].log()), torch.Generator().manual_seed(0)
    shared = SharedWeights.of(source, torch.arange(STATES))
    network = new_network("specdiff", sizes(STATES, 4), shared, generator).requires_grad_(True)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(150):
        texts = random_texts(16, 16, generator)
        nothing = torch.zeros(16, 16, 0)
        batch = Batch(nothing, texts, torch.zeros(16).long(), torch.full((16,), 14), nothing.long(), nothing, nothing)
        loss, _ = DenoisingLoss()(network, batch, torch.arange(STATES), 0, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = saved(network, tmp_path_factory.mktemp("taught"))
    return source, trained_resources(trained=TrainedDrafters("tiny", (trained,)))


def accepted(taught, steps):
    """Guesses of four that stand in a round, in the mean over some texts."""
    source, resources = taught
    settings = Settings().but({"method_options": {"specdiff.steps": steps}})
    made = Parts(source, resources=resources).build(choose("specdiff", settings))
    parts = make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["multi_step"]), Always(Budget(4, 4, 1))
    done = []
    for seed in range(8):
        context = context_for(Sampling(temperature=1.0), seed, STATES, [1, 2, 5, 3])
        done += speak(Speculator(source, made, *parts), 24, context)[1]
    return sum(round.accepted for round in done) / len(done)


def test_more_steps_let_more_guesses_stand(taught):
    """With the true laws 1.6, 2.25 and 4 of four stand: a place is known once that before it is."""
    one, two, four = (accepted(taught, steps) for steps in (1, 2, 4))
    assert one + 0.3 < two
    assert two + 0.5 < four
