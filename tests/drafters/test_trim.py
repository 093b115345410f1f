"""A draft model whose head is trimmed: which tokens it guesses, from which law, and what it keeps."""

import pytest
import torch
from contracts.kit import (
    PROMPT,
    V,
    context_for,
    make_drafter,
    plain_text,
    random_tree,
    reply,
    scripted_draft,
    scripted_target,
)
from contracts.models import native_decoder, native_is_here, own_decoder, shared_network
from rows import each_row
from torch.utils.flop_counter import FlopCounterMode

from specchat.core.request import DEFAULT_REQUEST, PassRequest
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.draft_model import FrequentHead
from specchat.drafters.options import DraftModelOptions

DRAFT_MODEL = DRAFTERS["draft_model"]
TRIM = 4
GUESSABLE = {*range(TRIM), *PROMPT}


def drafted(trim, context, width=V, draft=None):
    drafter = make_drafter(DRAFT_MODEL, draft or scripted_draft(), trim=trim)
    drafter.start(context.history)
    return drafter.propose(TokenTree(context.root, V), [ROOT], width, context)[0]


def test_only_frequent_tokens_and_those_of_the_text_are_guessed_in_the_order_of_the_whole_head():
    whole, trimmed = (drafted(trim, context_for()) for trim in (0, TRIM))
    assert len(whole) == V
    assert [g.token for g in trimmed] == [g.token for g in whole if g.token in GUESSABLE]
    probability = sum(torch.tensor([g.logprob for g in trimmed]).exp())
    assert float(probability) == pytest.approx(1.0, abs=1e-5), "a law of the tokens that have a row"


def test_a_vocabulary_no_larger_than_the_head_is_not_trimmed():
    assert drafted(V, context_for()) == drafted(0, context_for())


def test_tokens_that_the_target_writes_can_be_guessed_in_the_next_round():
    rare = V - 1
    context = context_for()
    assert rare not in {g.token for g in drafted(TRIM, context)}
    context.emit([rare])
    said = reply(scripted_target(), scripted_draft(), drafter="draft_model", method_options={"draft_model.trim": "4"})
    proposed = [
        (round.start, g) for round in said.rounds for node in range(len(round.tree)) for g in round.tree.draws(node)
    ]
    text = [*PROMPT, *said.tokens]
    assert all(draw.guess.token in {*range(TRIM), *text[:start]} for start, draw in proposed)
    assert any(draw.guess.token not in GUESSABLE for _, draw in proposed), "words that came in the reply"


@pytest.mark.parametrize("kind", [DrawKind.IID, DrawKind.WOR], ids=lambda kind: kind.value)
def test_draws_are_distributed_as_their_q_and_q_has_only_tokens_with_a_row(kind):
    draft, counts, tries = scripted_draft(), torch.zeros(V), 1500
    drafter = make_drafter(DRAFT_MODEL, draft, trim=TRIM)
    drafter.start(PROMPT)
    for seed in range(tries):
        context = context_for(Sampling(temperature=0.9), seed)
        context.wanted = kind
        (guess, *_), *_ = drafter.propose(TokenTree(context.root, V), [ROOT], 2, context)
        assert guess.kind is kind
        counts[guess.token] += 1
    assert guess.q is not None
    assert set(guess.q.nonzero().flatten().tolist()) <= GUESSABLE
    expected = tries * guess.q[guess.q > 0]
    chi_square = float(((counts[guess.q > 0] - expected) ** 2 / expected).sum())
    assert chi_square < 3 * len(expected), "of as many degrees of freedom"
    assert float(counts[guess.q == 0].sum()) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("drafter", ["draft_model", "fuse"])
def test_the_text_does_not_depend_on_the_trim(drafter, temperature, penalty):
    sampling = {"temperature": temperature, "repetition_penalty": penalty}
    said = reply(
        scripted_target(),
        scripted_draft(),
        drafter=drafter,
        policy="best_first",
        width=2,
        max_tokens=40,
        method_options={"draft_model.trim": "5"},
        **sampling,
    )
    assert said.ledger.accepted > 0
    assert said.tokens == plain_text(scripted_target(), 40, Sampling(**sampling))


@each_row(("vocabulary", "kept"), [(V, V), (32000, 32000), (49152, 24576), (128256, 64128), (151936, 65536)])
def test_by_default_as_much_is_kept_as_fits_the_pair(vocabulary, kept):
    model = scripted_draft(vocabulary)
    head = FrequentHead(model, DraftModelOptions().trim, vocabulary)
    head.start([])
    assert (head.request.head is None) == (kept == vocabulary)
    assert kept == vocabulary or len(head.request.head.tokens) == kept


def test_operations_and_bytes_of_the_head_fall_to_the_share_that_is_left():
    """What a pass computes falls by just the rows that are left out, and what the kernels hold to their share."""
    network, kept, nodes = shared_network("llama"), 16, 5
    model = own_decoder(network, 64)
    tree = random_tree(model.vocab_size, nodes, 1)
    counted = []
    for request in (DEFAULT_REQUEST, PassRequest(head=model.trimmed_head(range(kept)))):
        model.prefill(())
        model.prefill(PROMPT)
        with FlopCounterMode(display=False) as flops:
            model.read(tree, request=request)
        counted.append(flops.get_total_flops())
    whole, trimmed = counted
    assert whole - trimmed == 2 * len(tree) * (model.vocab_size - kept) * model.hidden_size
    if native_is_here():
        native = native_decoder(network, 64)
        bytes_of = {rows: native.trimmed_head(range(rows)).product.room_for(rows).nbytes for rows in (16, 32, 48)}
        assert bytes_of[48] == 3 * bytes_of[16] == 1.5 * bytes_of[32]


def test_what_the_target_wrote_often_is_frequent_in_the_next_session():
    rare, context = V - 1, context_for()
    first = make_drafter(DRAFT_MODEL, scripted_draft(), trim=TRIM)
    first.start(PROMPT)
    first._head.learn([rare, rare])
    later = make_drafter(DRAFT_MODEL, scripted_draft(), trim=TRIM)
    later.restore_state(first.save_state())
    later.start(PROMPT)
    guesses = later.propose(TokenTree(context.root, V), [ROOT], V, context)[0]
    assert {g.token for g in guesses} == {rare, *range(TRIM - 1), *PROMPT}


def test_a_state_of_another_vocabulary_is_refused():
    drafter = make_drafter(DRAFT_MODEL, scripted_draft(), trim=TRIM)
    with pytest.raises(ValueError, match="another vocabulary"):
        drafter.restore_state((V).to_bytes(4, "little") + (1).to_bytes(4, "little"))


def test_a_drafter_that_does_not_trim_keeps_nothing():
    drafter = make_drafter(DRAFT_MODEL, scripted_draft())
    drafter.start(PROMPT)
    drafter._head.learn([1, 2])
    assert drafter.save_state() == b""
