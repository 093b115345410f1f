"""What the head in C says of its logits: the likeliest tokens, and log-probabilities."""

from dataclasses import replace

import pytest
import torch
from native_kit import native, needs_native
from test_decoder import V, branching_tree, network, prompt, source_of

from specchat.core.reading import HeadTensors
from specchat.core.tree import ROOT, TokenTree
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape


@needs_native
@pytest.mark.parametrize("threads", [1, 3])
def test_of_equal_logits_the_lower_numbers_are_named_first(threads):
    net = network("llama")
    with torch.no_grad():
        net.lm_head.weight[3:] = net.lm_head.weight[2]
    own = native(net)
    own.network.threads = threads
    own.prefill(prompt())
    reading = own.read(TokenTree(5, V).freeze())
    order = sorted(range(V), key=lambda token: (-reading.logits[0, token], token))
    assert reading.said.likeliest[0].tolist() == order[: reading.said.likeliest.shape[1]]


@needs_native
@pytest.mark.parametrize("vocab_size", [V, 9001])
def test_a_model_that_drafts_says_what_its_log_probabilities_lack(vocab_size):
    net = network("llama")
    net.resize_token_embeddings(vocab_size)
    logsumexp = []
    for threads in (1, 3):
        own = Decoder(NativeNetwork(Shape.of(net.config), source_of(net), "int8"), 512, drafts=True)
        own.network.threads = threads
        own.prefill(prompt())
        reading = own.read(branching_tree()[0])
        torch.testing.assert_close(reading.said.logsumexp, torch.logsumexp(reading.logits, dim=1))
        logsumexp.append(reading.said.logsumexp)
    assert torch.equal(*logsumexp), "the sums are the same with any number of threads"


@needs_native
@pytest.mark.parametrize("vocab_size", [V, 9001])
def test_log_probabilities_of_some_tokens_are_those_of_whole_rows(vocab_size):
    net = network("llama")
    net.resize_token_embeddings(vocab_size)
    own, nodes, tokens = native(net), [0, 0, 3, 4, 4], [7, vocab_size - 1, 0, 16, 4]
    found = []
    for threads in (1, 3):
        own.network.threads = threads
        own.prefill(prompt())
        reading = own.read(branching_tree()[0])
        assert reading.logprobs_after([], []) == []
        found.append(reading.logprobs_after(nodes, tokens))
        whole = torch.log_softmax(reading.logits, dim=1)[nodes, tokens]
        torch.testing.assert_close(torch.tensor(found[-1]), whole)
        by_torch = replace(reading, said=HeadTensors(reading.logits)).logprobs_after(nodes, tokens)
        torch.testing.assert_close(torch.tensor(by_torch), whole)
    assert found[0] == found[1], "every way to add up gives the same sums"


@needs_native
def test_a_token_that_is_certain_has_no_probability_above_one():
    net = network("llama")
    with torch.no_grad():
        net.lm_head.weight.zero_()
        net.lm_head.weight[5] = 1000 * torch.randn(64)
    own = native(net)
    own.prefill(prompt())
    reading = own.read(TokenTree(5, V).freeze())
    assert reading.logprobs_after([ROOT], [reading.best_after([ROOT], 1)[0][0]])[0] <= 0
