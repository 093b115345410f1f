"""A native pass computes what is needed of the head; whatever else is asked for has the same bits."""

from functools import cache
from itertools import product

import torch
from native_kit import native, needs_native
from rows import each_row
from test_decoder import V, branching_tree, network, prompt

from specchat.core.request import EVERYTHING, FIRST, LIKELIEST, LOGITS, ExtraRow, PassRequest
from specchat.core.tree import TokenTree
from specchat.models.cpu_kernels import kernels
from specchat.models.cpu_kernels.logits_buffer import BEST

pytestmark = needs_native

NEEDS = {"first": FIRST, "likeliest": LIKELIEST, "logits": LOGITS, "everything": EVERYTHING}
LOOKS = {
    "first": lambda said: list(said.first),
    "likeliest": lambda said: said.likeliest.tolist(),
    "logits": lambda said: said.logits.tolist(),
    "log-probabilities": lambda said: said.log_probabilities([0, 0, 2], [5, V - 1, 7]),
}
COMPUTED = {"first": {"first"}, "likeliest": {"first", "likeliest"}, "logits": {"first", "logits", "log-probabilities"}}


def heads_computed(monkeypatch):
    """How often the head alone is computed from now on."""
    made, head = [], kernels.Kernels.head

    def counted(*given):
        made.append("head")
        return head(*given)

    monkeypatch.setattr(kernels.Kernels, "head", counted)
    return made


def read(needs, precision="int4", taps=frozenset(), family="llama", extra_rows=()):
    """What is said of a tree behind a prompt, some of which is read with it."""
    own = native(network(family), precision)
    own.prefill(prompt(40))
    own.prefill([*prompt(40), 7, 8, 9])
    return own, own.read(branching_tree()[0], request=PassRequest(taps, extra_rows=extra_rows, needs=needs)).said


@cache
def everything(**how):
    """The same where everything is computed."""
    return read(EVERYTHING, **how)


@each_row("taps", [frozenset(), frozenset({1})], ids=["bare", "tapped"])
@each_row("look", LOOKS)
@each_row("needs", NEEDS)
def test_whatever_is_needed_everything_can_be_asked_for_with_the_same_bits(needs, look, taps, monkeypatch):
    anew = heads_computed(monkeypatch)
    _, said = read(NEEDS[needs], taps=taps)
    assert LOOKS[look](said) == LOOKS[look](everything()[1])
    assert bool(anew) == (look not in COMPUTED.get(needs, LOOKS))


STREAM = ExtraRow(1, torch.linspace(-0.5, 0.5, 64), says=False)
IN_STEPS = {
    "past a window": {"family": "mistral, sliding window"},
    "with rows that say nothing": {"extra_rows": (STREAM,)},
}


@each_row("how", IN_STEPS)
@each_row("look", LOOKS)
@each_row("needs", NEEDS)
def test_a_pass_in_steps_computes_of_the_head_what_is_needed_too(needs, look, how):
    _, said = read(NEEDS[needs], **IN_STEPS[how])
    assert (said.states_address is None) == (needs == "everything")
    assert LOOKS[look](said) == LOOKS[look](everything(**IN_STEPS[how])[1])


@each_row("needs", ["first", "likeliest", "logits"])
def test_what_is_left_out_is_computed_once(needs, monkeypatch):
    anew = heads_computed(monkeypatch)
    _, said = read(NEEDS[needs])
    for look in (*LOOKS, *LOOKS):
        LOOKS[look](said)
    assert anew == ["head"]


@each_row("needs", ["first", "likeliest", "logits"])
def test_what_is_left_out_can_be_asked_for_when_the_text_has_gone_on(needs):
    own, said = read(NEEDS[needs])
    own.keep([1])
    for token in range(5):
        own.read(TokenTree(token, V).freeze(), request=PassRequest(needs=NEEDS[needs]))
        own.keep([])
    _, wanted = everything()
    assert torch.equal(said.logits, wanted.logits)
    assert torch.equal(said.likeliest, wanted.likeliest)


@each_row(("needs", "repeated"), product(NEEDS, [2, 5, V]))
def test_of_equally_likely_tokens_the_lowest_is_named_first(needs, repeated):
    net = network("llama")
    with torch.no_grad():
        head = net.get_output_embeddings().weight
        rows = head[torch.arange(V) // (V // repeated) % repeated if repeated < V else torch.zeros(V, dtype=torch.long)]
        head.copy_(rows.flip(0) if repeated == 5 else rows)
    own = native(net)
    own.prefill(prompt())
    said = own.read(branching_tree()[0], request=PassRequest(needs=NEEDS[needs])).said
    assert list(said.first) == said.logits.argmax(dim=-1).tolist()
    assert list(said.first) == said.likeliest[:, 0].tolist()
    assert (said.logits == said.logits.amax(dim=-1, keepdim=True)).sum(dim=-1).min() > 1, "there are equals"


def test_what_is_needed_of_the_head_takes_no_more_memory_than_it_has_numbers():
    said = read(FIRST)[1]
    assert said.asked[1:] == (1, 1, None, None, None)
    assert read(LIKELIEST)[1].asked[1:] == (BEST, BEST, None, None, None)
    assert read(LOGITS)[1].asked[1] == 1
    assert read(EVERYTHING)[1].states_address is None


def test_a_draft_model_is_always_told_everything(monkeypatch):
    anew = heads_computed(monkeypatch)
    own = native(network("llama"))
    own._drafts = True
    own.prefill(prompt())
    said = own.read(branching_tree()[0], request=PassRequest(needs=FIRST)).said
    assert said.logsumexp is not None
    assert said.highest is not None
    assert torch.isfinite(said.logits).all()
    assert not anew
