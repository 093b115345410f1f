"""A draft model that reads the first and last tokens alone: which those are, and what is guessed from them."""

from __future__ import annotations

from contracts.kit import collect, context_for, converse, make_drafter, reply, scripted_draft, scripted_target
from contracts.models import BUILDERS, shared_network
from contracts.models import V as NETWORK_V

from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.draft_model import first_and_last

LONG = [(7 * i + i // 13) % 20 + 3 for i in range(300)]


def test_the_first_and_the_last_tokens_stay_and_what_is_left_out_grows_in_steps():
    text = list(range(500))
    moves = 0
    for length in range(1, len(text)):
        kept = first_and_last(text[:length], 64)
        if length <= 64:
            assert kept == text[:length]
            continue
        assert 64 - 12 < len(kept) <= 64
        assert kept[:16] == text[:16]
        assert kept[16:] == text[length - len(kept) + 16 : length]
        moves += kept[16] != first_and_last(text[: length - 1], 64)[16]
    assert moves == -(-(len(text) - 1 - 64) // 12)
    assert first_and_last(text, 0) is text


def test_it_drafts_as_a_draft_model_does_that_is_given_these_tokens_alone():
    """Whatever the chat has said before: no more rows are ever held."""
    model = BUILDERS["decoder"](shared_network("llama"), 128)
    alone = BUILDERS["decoder"](shared_network("llama"), 128)
    windowed, whole = (
        make_drafter(DRAFTERS["draft_model"], model, window=64),
        make_drafter(DRAFTERS["draft_model"], alone),
    )
    for length in (300, 301, 302):
        text = [*LONG, 5, 6][:length]
        short = [*first_and_last(text[:-1], 64), text[-1]]
        said = []
        for drafter, history in ((windowed, text), (whole, short)):
            drafter.start(history)
            tree = TokenTree(history[-1], NETWORK_V)
            said.append([guess.token for guess in drafter.propose(tree, [ROOT], 4, context_for(prompt=history))[0]])
        assert said[0] == said[1]
        assert model.rows.held <= 65
    assert model.counters.rows < 64 + 3 + 16, "between two steps only what is new is read"


def test_below_the_sparse_target_it_writes_ahead_and_the_text_stays_the_targets():
    options = {"sparse_context.budget": 64, "sparse_context.below": "draft_model(window=32)"}
    settings = {
        "drafter": "sparse_context",
        "policy": "chain",
        "width": 1,
        "depth": 4,
        "nodes": 4,
        "controller": "fixed",
    }
    conversation = converse(
        scripted_target(), scripted_draft(), max_tokens=40, temperature=0.9, method_options=options, **settings
    )
    said = collect(conversation.reply(LONG, 7))
    plain = reply(scripted_target(), prompt=LONG, max_tokens=40, controller="off", temperature=0.9)
    assert said.tokens == plain.tokens
    assert conversation.speculator.drafter._view.counters.passes < said.ledger.accepted, "several tokens in a pass"
