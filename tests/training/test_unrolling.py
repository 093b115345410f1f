"""What is learnt from which place of a text: hand-made texts, and a network that says what it is told to."""

import itertools

import pytest
import torch
from training_kit import V, some_texts, target

from specchat.models.draft_heads.head import Batch, DraftNetwork, SharedWeights
from specchat.models.draft_heads.sizes import Sizes
from specchat.training import fitting, losses
from specchat.training.checkpoints import Standing
from specchat.training.corpus import Corpus, shared_with
from specchat.training.fitting import Fitting
from specchat.training.losses import (
    SHARPNESS,
    STATE_SHARE,
    DrawnTrees,
    NextTokens,
    acceptance,
    chain_loss,
    clipped_gain,
    columns_of,
    confidence_weights,
    drawn_children,
    log_chance,
    tree_loss,
)
from specchat.training.states import StateReading

WORDS, LENGTH, STEPS = 6, 9, 2
ANCHORS = LENGTH - STEPS
TOKENS = [0, 1, 2, 3, 4, 5, 0, 1, 2]


class Told(DraftNetwork):
    """A network that says these logits, (1, ANCHORS, WORDS) for each step."""

    def __init__(self, logits):
        super().__init__(Sizes(WORDS, (0, 1), epsilon=1e-5), SharedWeights.none())
        self._said = logits

    def fused(self, features):
        return features

    def states(self, fused, tokens, steps):
        return self._said[:steps]

    def logits(self, states):
        return states

    def normed(self, states):
        return states


def batch(law, features=None):
    """A text of which everything is drafted, and the target's whole law at every place; without states of the target,
    unless some are given."""
    likeliest = torch.arange(WORDS).expand(1, LENGTH, WORDS)
    return Batch(
        features=torch.zeros(1, LENGTH, WORDS) if features is None else features,
        tokens=torch.tensor([TOKENS]),
        first=torch.tensor([0]),
        last=torch.tensor([LENGTH - 2]),
        likeliest=likeliest,
        log_p=law.log(),
        rest=torch.zeros(1, LENGTH),
    )


def told(right):
    """Logits whose likeliest token is the text's at these anchors of step 1, and its least likely elsewhere."""
    noise = torch.Generator().manual_seed(3)
    logits = [torch.rand(1, ANCHORS, WORDS, generator=noise) for _ in range(STEPS)]
    for anchor in range(ANCHORS):
        logits[0][0, anchor, TOKENS[anchor + 2]] = 5.0 if anchor in right else -5.0
    return logits


def divergence(logits, p):
    """From the target's probabilities p, sharpened as heads that guess greedily learn them."""
    p = p**SHARPNESS / (p**SHARPNESS).sum()
    return float((p * (p.log() - torch.log_softmax(logits, 0))).sum())


def test_a_deeper_guess_is_learnt_where_the_one_before_it_was_right_from_the_law_at_its_own_place():
    law = torch.rand(1, LENGTH, WORDS, generator=torch.Generator().manual_seed(4)).softmax(2)
    right = {0, 1, 4}
    logits = told(right)
    loss, chains = chain_loss(Told(logits), batch(law), torch.arange(WORDS), STEPS, torch.Generator().manual_seed(0))
    assert chains == ANCHORS
    wanted = sum(divergence(logits[0][0, place], law[0, place + 1]) for place in range(ANCHORS))
    wanted += sum(divergence(logits[1][0, place], law[0, place + 2]) for place in right)
    assert float(loss) == pytest.approx(wanted / ANCHORS, rel=1e-4)


def test_a_guess_learns_the_last_state_of_the_target_at_its_own_place():
    law = torch.rand(1, LENGTH, WORDS, generator=torch.Generator().manual_seed(4)).softmax(2)
    states = torch.randn(1, LENGTH, 2, WORDS, generator=torch.Generator().manual_seed(5))
    right = {0, 1, 4}
    logits = told(right)

    def loss(*features):
        given = batch(law, *features)
        return chain_loss(Told(logits), given, torch.arange(WORDS), STEPS, torch.Generator().manual_seed(0))[0]

    last = states[0, :, -1] / states[0, :, -1].square().mean(dim=1, keepdim=True).sqrt()
    wanted = sum((logits[0][0, place] - last[place + 1]).square().mean() for place in range(ANCHORS))
    wanted += sum((logits[1][0, place] - last[place + 2]).square().mean() for place in right)
    assert float(loss(states) - loss()) == pytest.approx(STATE_SHARE * float(wanted) / ANCHORS, rel=1e-4)


def test_guesses_are_weighted_by_the_gain_in_expected_length_as_their_confidence_grows():
    said = torch.tensor([[0.5, 0.2], [0.25, 0.4], [0.8, -1.0]], dtype=torch.float64)  # the second chain has two steps
    smooth = (0.5 + 0.5 * said).where(said >= 0, 0.0).requires_grad_()
    expected = smooth.cumprod(0).sum(0)
    (slope,) = torch.autograd.grad(expected.sum(), smooth)
    torch.testing.assert_close(confidence_weights(said), (slope * smooth).detach())
    assert not torch.allclose(confidence_weights(said), (0.5 + 0.5 * said).cumprod(0).where(said >= 0, 0.0))


def test_every_guess_of_a_chain_is_learnt_by_its_confidence_if_so_chosen():
    law = torch.rand(1, LENGTH, WORDS, generator=torch.Generator().manual_seed(4)).softmax(2)
    logits = told({0, 1, 4})
    about = batch(law), torch.arange(WORDS), STEPS, torch.Generator().manual_seed(0)
    loss, _ = chain_loss(Told(logits), *about, select="confidence")
    ends = {1: ANCHORS, 2: ANCHORS - 1}  # from the last anchor one token is left
    said = torch.full((STEPS, ANCHORS), -1.0)
    for step in (1, 2):
        for place in range(ends[step]):
            said[step - 1, place] = torch.softmax(logits[step - 1][0, place], 0)[TOKENS[place + step + 1]]
    weights = confidence_weights(said)
    wanted = sum(
        float(weights[step - 1, place]) * divergence(logits[step - 1][0, place], law[0, place + step])
        for step in (1, 2)
        for place in range(ends[step])
    )
    assert float(loss) == pytest.approx(wanted / ANCHORS, rel=1e-4)
    unweighted, _ = chain_loss(Told(logits), *about)
    assert float(unweighted) != pytest.approx(float(loss), rel=0.05)


def test_places_whose_likeliest_token_is_out_of_reach_are_left_out_if_so_chosen(monkeypatch):
    monkeypatch.setattr(losses, "_GUESSABLE", 1)
    law = torch.rand(1, LENGTH, WORDS, generator=torch.Generator().manual_seed(4)).softmax(2)
    right, logits = {0, 1, 4}, told({0, 1, 4})
    about = batch(law), torch.arange(WORDS), STEPS, torch.Generator().manual_seed(0)
    found, _ = chain_loss(Told(logits), *about, select="guessable")
    places = [(0, place) for place in range(ANCHORS)] + [(1, place) for place in right]
    hit = [
        (step, at) for step, at in places if int(logits[step][0, at].argmax()) == int(law[0, at + step + 1].argmax())
    ]
    assert 0 < len(hit) < len(places)
    wanted = sum(divergence(logits[step][0, place], law[0, place + step + 1]) for step, place in hit)
    assert float(found) == pytest.approx(wanted / ANCHORS, rel=1e-4)


LETTERS = 3
"""Tokens of the toy language that trees are drawn for."""


def laws(seed):
    """The probabilities of a toy language after every text of at most two tokens."""
    noise = torch.Generator().manual_seed(seed)
    texts = [text for length in range(3) for text in itertools.product(range(LETTERS), repeat=length)]
    return {text: (2 * torch.randn(LETTERS, generator=noise, dtype=torch.float64)).softmax(0) for text in texts}


def chance_of(law, text):
    return float(torch.stack([law[text[:place]][token] for place, token in enumerate(text)]).prod())


def test_the_length_of_a_tree_is_what_brute_force_expects_over_all_texts(monkeypatch):
    """A tree of 2, 2 and 1 children, and the 27 texts of three tokens as rows of a batch."""
    law, children = laws(1), {text: said.topk(2 - (len(text) == 2)).indices for text, said in laws(2).items()}
    texts = list(itertools.product(range(LETTERS), repeat=3))
    trees, rows = DrawnTrees(torch.ones(27, 1, dtype=torch.bool)), torch.arange(27)
    for step in (1, 2, 3):
        above = [text[: step - 1] for text in texts]
        drawn = torch.stack([children[text] for text in above])
        monkeypatch.setattr(losses, "drawn_children", lambda log_q, count, generator, drawn=drawn: drawn)
        likeliest, p = torch.arange(LETTERS).expand(27, LETTERS), torch.stack([law[text] for text in above])
        wanted = torch.tensor([text[step - 1] for text in texts])
        trees.grow(step, p.log(), NextTokens(rows, 0 * rows, likeliest, p.float(), wanted), torch.Generator())
    chances = torch.tensor([chance_of(law, text) for text in texts])
    inside = {()}
    for depth in range(3):
        inside |= {(*text, int(token)) for text in inside if len(text) == depth for token in children[text]}
    stood = [sum(text[:depth] in inside for depth in (1, 2, 3)) for text in texts]
    wanted = float((chances * torch.tensor(stood)).sum())
    assert float((chances * trees.length[:, 0]).sum()) == pytest.approx(wanted, abs=1e-6)
    assert wanted == pytest.approx(sum(chance_of(law, text) for text in inside if text), abs=1e-6)
    assert trees.going[:, 0].tolist() == [text in inside for text in texts]


def test_the_loss_of_trees_has_the_gradient_of_their_expected_length(monkeypatch):
    """Over all texts of two tokens and all trees of 2 children and 1, against finite differences."""
    monkeypatch.setattr(losses, "TREE_WIDTHS", (2, 1))
    monkeypatch.setattr(losses, "_standardised", lambda values, known: values)
    law = laws(3)
    noise = torch.Generator().manual_seed(6)
    first, second = (torch.randn(*size, generator=noise, dtype=torch.float64) for size in ((3,), (3, 3)))
    roots, tokens = list(itertools.permutations(range(3), 2)), range(3)

    def chance(said, drawn):
        left, found = said.softmax(0), 1.0
        for token in drawn:
            found, left = found * left[token] / left.sum(), left.index_fill(0, torch.tensor([token]), 0.0)
        return float(found)

    def expected(first, second):
        """Each child's chance of being in the tree × of being accepted, level by level."""
        total = 0.0
        for root in roots:
            below = sum(chance_of(law, (a, b)) * chance(second[a], (b,)) for a in root for b in tokens)
            total += chance(first, root) * (sum(chance_of(law, (a,)) for a in root) + below)
        return total

    leaves = first.clone().requires_grad_(), second.clone().requires_grad_()
    for a, b in itertools.product(tokens, repeat=2):
        at = torch.stack([torch.full((3,), 1 / 3), law[()], law[a,], law[a, b]]).float()
        text = Batch(
            torch.zeros(1, 4, 3), torch.tensor([[0, 0, a, b]]), torch.tensor([0]), torch.tensor([2]),
            torch.arange(3).expand(1, 4, 3), at.log()[None], torch.zeros(1, 4),
        )  # fmt: skip
        own, before = ([f[None, None], s[a][None, None]] for f, s in (leaves, (first, second)))
        for root, child in itertools.product(roots, tokens):
            script = iter([root, (0, 1), (child,), (2,)])  # by turns the network's and the reference's
            monkeypatch.setattr(losses, "drawn_children", lambda *about, script=script: torch.tensor([next(script)]))
            loss, chains = tree_loss(Told(own), text, torch.arange(3), 2, torch.Generator(), reference=Told(before))
            assert chains == 1
            weight = chance_of(law, (a, b)) * chance(first, root) * chance(second[a], (child,))
            (weight * loss).backward()
    step = 1e-5
    for leaf, which in zip(leaves, (0, 1), strict=True):
        for place in range(leaf.numel()):
            ends = []
            for sign in (1, -1):
                moved = [first.clone(), second.clone()]
                moved[which].view(-1)[place] += sign * step
                ends.append(expected(*moved))
            assert -float(leaf.grad.view(-1)[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-5)
    assert float(leaves[0].grad.abs().max()) > 0.01


def test_children_are_drawn_as_often_as_is_said_of_them():
    log_q = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    drawn = drawn_children(log_q.expand(20_000, 4), 2, torch.Generator().manual_seed(0))
    orders = torch.tensor(list(itertools.permutations(range(4), 2)))
    said = log_chance(log_q.expand(len(orders), 4), orders).exp()
    assert float(said.sum()) == pytest.approx(1.0, abs=1e-4)
    found = (drawn[:, None] == orders).all(2).float().mean(0)
    torch.testing.assert_close(found, said, atol=0.012, rtol=0)  # 3.4 standard deviations of the most frequent


def test_a_draw_far_from_the_reference_is_reinforced_no_further_and_is_taken_back():
    log_ratio = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    clipped_gain(log_ratio, torch.tensor([1.0, -1.0, 1.0, -1.0])).sum().backward()
    assert (log_ratio.grad != 0).tolist() == [False, True, True, False]


def test_acceptance_counts_chains_that_say_what_the_text_says():
    logits = told({0, 1, 4})
    for anchor in range(ANCHORS - 1):  # from the last one only one token is left
        logits[1][0, anchor, TOKENS[anchor + 3]] = 5.0 if anchor in (1, 2, 4) else -5.0
    law = torch.full((1, LENGTH, WORDS), 1 / WORDS)
    found = acceptance(Told(logits), batch(law), torch.arange(WORDS), STEPS)
    assert (found.chains, found.right) == (ANCHORS, (3, 2))
    assert found.tau == pytest.approx(1 + 5 / ANCHORS)


def test_every_column_of_a_trimmed_head_is_the_token_it_stands_for():
    assert columns_of(torch.tensor([5, 2]), 7).tolist() == [-1, -1, 1, -1, -1, 0, -1]
    model = target()
    shard = StateReading(model, "ab" * 32, None).shard(some_texts(6))
    shared = shared_with(model, Corpus([shard], 3, reads_back=False), 20)
    columns = columns_of(shared.tokens, V)
    for token in shared.tokens.tolist():
        torch.testing.assert_close(shared.head[columns[token]], model.head_rows([token]).float()[0])
    text = shard.tokens[:5].long()
    torch.testing.assert_close(shared.embed(text), model.embed(text.tolist()).float())


def test_what_progress_is_measured_on_is_never_learnt_from():
    model = target()
    reading = StateReading(model, "ab" * 32, None)
    corpus = Corpus([reading.shard(some_texts(45))], 3, reads_back=False)
    assert len(corpus.held_out) == 3
    assert not set(corpus.held_out) & set(corpus.learnt)
    assert len(corpus.held_out) + len(corpus.learnt) == 45


def test_an_interrupt_while_the_best_weights_are_written_leaves_figures_that_are_theirs(tmp_path, monkeypatch):
    class Measured(Fitting):
        """Nothing but what a measurement touches."""

        def __init__(self):
            self.best_weights, self.standing = tmp_path / "best.safetensors", Standing()
            self.network, self._columns, self._device = torch.nn.Linear(1, 1), None, torch.device("cpu")
            self._corpus = type("Corpus", (), {"unseen": lambda self, texts: iter(())})()

    def interrupted(network, file):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "save_weights", interrupted)
    measured = Measured()
    with pytest.raises(KeyboardInterrupt):
        measured._measure()
    assert (measured.standing.best, measured.standing.curve) == (0.0, [])
