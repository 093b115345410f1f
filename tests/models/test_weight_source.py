"""Weights in 4 bits, whatever the file has: for models that only guess."""

import dataclasses

import pytest
import torch
from test_decoder import network, two_rounds
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specchat.config import ModelSpec, PathSource
from specchat.models.model_loading import load_model
from specchat.models.weights.weight_source import GROUP, AdjustedSource, FourBit, TensorSource

CPU = torch.device("cpu")


def values(four):
    return (four.numbers.unflatten(1, (-1, GROUP)) * four.scale[..., None] + four.minimum[..., None]).flatten(1)


def test_a_weight_is_rounded_to_the_nearest_of_sixteen_steps_of_its_group():
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(1))
    four = FourBit.rounded(weight)
    steps = four.scale.repeat_interleave(GROUP, dim=1)
    assert int(four.numbers.max()) == 15
    assert int(four.numbers.min()) == 0
    assert ((values(four) - weight).abs() / steps).max() < 0.51
    nearer = values(dataclasses.replace(four, numbers=(four.numbers + 1).clamp(max=15)))
    assert ((nearer - weight).abs() > (values(four) - weight).abs()).float().mean() > 0.9


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_group_of_one_value_stays_what_it_is(value):
    weight = torch.full((2, GROUP), value)
    assert torch.equal(values(FourBit.rounded(weight)), weight.half().float())


def test_rows_are_rounded_alike_however_many_there_are():
    weight = torch.randn(5000, GROUP, generator=torch.Generator().manual_seed(2))
    source = AdjustedSource(TensorSource({"model.embed_tokens.weight": weight}), rounds=True)
    assert torch.equal(values(source.four_bit("embed")), values(FourBit.rounded(weight)))
    assert torch.equal(source.embed([4999]), weight[4999:])


def test_four_bits_that_the_file_has_are_left_as_they_are():
    own = FourBit.rounded(torch.randn(16, GROUP, generator=torch.Generator().manual_seed(3)))

    class Source(TensorSource):
        def four_bit(self, name, layer=None):
            return own

    source = AdjustedSource(Source({"model.embed_tokens.weight": torch.zeros(16, GROUP)}), rounds=True)
    assert source.four_bit("embed") is own


def test_a_model_that_only_guesses_is_loaded_in_four_bits_and_one_that_writes_is_not(tmp_path):
    net = network("qwen2")
    net.save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(tmp_path)
    spec = ModelSpec("m", (PathSource(tmp_path),))
    writes, guesses = (load_model(spec, tmp_path, CPU, "auto", guesses=guesses) for guesses in (False, True))
    assert (writes.precision == "int4", guesses.precision) == (False, "int4")
    assert load_model(spec, tmp_path, CPU, "float32", guesses=True).precision == "float32"
    exact, rounded = (two_rounds(loaded.model) for loaded in (writes, guesses))
    assert 0.001 < (rounded - exact).std() / exact.std() < 0.5
    assert guesses.weight_bytes < writes.weight_bytes / 2
