"""What is written in C under AddressSanitizer and UBSan: odd models, whole and damaged, odd logits, any guesses."""

import pytest
import torch
import transformers
from native_kit import have, needs_native
from rows import each_row

from specchat.compiled.build import NativeUnavailable
from specchat.models.decoder.shape import Shape
from specchat.models.weights.families import FAMILIES
from tests.fuzz.native_case import CONFIGS, sizes
from tests.fuzz.sanitized import Found, Sanitized, runtime


def lacking():
    try:
        runtime()
    except NativeUnavailable as error:
        return str(error)
    return have()


pytestmark = [needs_native, pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")]

CASES, DRAWS, SEARCHES, LAYERS = 80, 100, 100, 60

READ_BY_C, REFUSED = (0, 2, 32, 39, 42, 45, 49), 3
"""GGUF files that end up in the kernels, whole and damaged; most others are refused before, or run in torch."""

OTHER_ENDS = 7310265, 7310806
"""Cases in which a pass of one call is told another end of its rows."""


@pytest.fixture(scope="module")
def process():
    process = Sanitized()
    yield process
    process.close()


def test_no_file_makes_the_kernels_leave_their_buffers(process):
    assert {process.do(f"gguf {seed}") for seed in READ_BY_C} == {"done"}
    assert process.do(f"gguf {REFUSED}").startswith("refused")


def test_no_logits_make_a_draw_leave_its_room(process):
    assert {process.do(f"draw {seed}") for seed in range(DRAWS)} == {"done"}


def test_no_guesses_make_a_search_leave_its_room(process):
    assert {process.do(f"guesses {seed}") for seed in range(SEARCHES)} == {"done"}


def test_no_tree_makes_a_recurrent_layer_leave_its_buffers(process):
    answers = {seed: process.do(f"recurrence {seed}") for seed in range(LAYERS)}
    assert {answers[seed] for seed in range(0, LAYERS, 4)} == {"done"}
    assert all("refuse this: " in answer for seed, answer in answers.items() if seed % 4), "rows that are not there"


@each_row("kind", CONFIGS)
def test_models_have_the_tensors_of_transformers_networks(kind):
    config = kind(num_hidden_layers=2, head_dim=64, hidden_size=96, tie_word_embeddings=False)
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert sizes(Shape.of(config), FAMILIES[config.model_type]) == expected


def test_no_model_makes_the_kernels_leave_their_buffers(process):
    answers = {seed: process.do(str(seed)) for seed in (*range(CASES), *OTHER_ENDS)}
    assert {answers[seed] for seed in range(0, CASES, 4)} == {"done"}, "whole models are read"
    refused = [answer for answer in answers.values() if answer != "done"]
    assert len(set(refused)) > CASES / 8, "damaged ones are refused, in many ways"
    with pytest.raises(Found, match="AddressSanitizer"):
        process.do("control")
