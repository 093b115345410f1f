"""The llama.cpp backend's own logic, over a stand-in of the library that checks what llama.cpp checks."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from contracts.kit import random_tree
from contracts.model_checks import CLOSE, PREFIX, check_next, deepest
from contracts.models import Subject, V
from llama_stand_in import WIDTH, LlamaStandIn
from tiny_models import tiny_gguf

from specchat.config import ModelSpec, PathSource
from specchat.config.values import LlamaOptions
from specchat.core.request import PassRequest
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import InstallationError, ModelError, NotEnoughMemory, SpecchatError, UsageError
from specchat.models.backends import llama_cpp, llama_library
from specchat.models.backends.llama_cpp import LlamaCppModel
from specchat.models.backends.llama_library import SEQUENCES, LlamaWeights
from specchat.models.backends.scripted import random_says
from specchat.models.model_loading import load_model

SAYS = random_says(V, seed=5)


@pytest.fixture
def stand_in():
    return LlamaStandIn(SAYS, V)


def model_over(stand_in: LlamaStandIn, **options) -> LlamaCppModel:
    return LlamaCppModel(LlamaWeights("m", Path("m.gguf"), LlamaOptions(**options), functions=stand_in), 4096)


@pytest.fixture
def model(stand_in):
    return model_over(stand_in)


def wide_tree(width: int, below: int) -> TokenTree:
    """A root with so many children, each with so many."""
    tree = TokenTree(3, 4000)
    for child in [tree.add(ROOT, Guess(token)) for token in range(width)]:
        for token in range(below):
            tree.add(child, Guess(token))
    return tree.freeze()


def assert_right(reading, tree, nodes):
    for node in nodes:
        text = [*PREFIX, 3, *tree.path_tokens(node)]
        torch.testing.assert_close(reading.after(node), SAYS(text), **CLOSE)


def test_a_tree_is_one_pass_and_a_chain_needs_no_second_sequence(model, stand_in):
    model.prefill(PREFIX)
    model.read(random_tree(V, 14, 0))
    assert len(stand_in.passes) == 2
    model.keep(())
    chain = TokenTree(4, V)
    node = ROOT
    for token in range(5):
        node = chain.add(node, Guess(token))
    model.read(chain.freeze())
    (sequences,) = {sequences for _, _, sequences in stand_in.passes[-1]}
    assert len(sequences) == 1


@pytest.mark.parametrize(("width", "below"), [(SEQUENCES, 0), (SEQUENCES + 1, 0), (50, 3), (12, 12)])
def test_a_tree_with_more_leaves_than_sequences_is_read_in_several_passes(model, stand_in, width, below):
    tree = wide_tree(width, below)
    model.prefill(PREFIX)
    before = len(stand_in.passes)
    reading = model.read(tree)
    assert_right(reading, tree, range(len(tree)))
    leaves = width * max(1, below)
    assert len(stand_in.passes) - before == -(-leaves // SEQUENCES)


@pytest.mark.parametrize("node", [1, 20, 150, 200])
def test_what_is_kept_of_such_a_tree_is_read_again_where_it_is_no_longer_held(model, node):
    tree = wide_tree(50, 3)
    model.prefill(PREFIX)
    model.read(tree)
    path = tree.path(node)
    model.keep(path)
    text = [*PREFIX, 3, *tree.path_tokens(node)]
    assert model.cached(text) >= len(PREFIX) + 1
    check_next(Subject(model, SAYS, list), model, [*text, 9])


def test_level_by_level_more_leaves_than_sequences_say_the_same(model):
    tree = wide_tree(30, 4)
    model.prefill(PREFIX)
    for level in range(3):
        nodes = [node for node in range(len(tree)) if tree.depths[node] == level]
        assert_right(model.read(tree, nodes), tree, nodes)
    model.keep(tree.path(len(tree) - 1))
    check_next(Subject(model, SAYS, list), model, [*PREFIX, 3, *tree.path_tokens(len(tree) - 1), 9])


def test_the_cache_grows_with_the_text_and_keeps_it(model, stand_in):
    text = [(7 * i + i // 13) % V for i in range(3000)]
    model.prefill(text[:100])
    first = stand_in.contexts[0].rows
    assert first < 3000
    model.prefill(text)
    assert len(stand_in.contexts) == 1, "the smaller one is given back"
    assert stand_in.contexts[0].rows > 3000
    assert sum(len(rows) for rows in stand_in.passes) == 3000, "nothing is read twice"
    check_next(Subject(model, SAYS, list), model, text)


def test_a_branch_in_another_sequence_survives_growing(model):
    tree = random_tree(V, 14, 0)
    model.prefill(PREFIX)
    model.read(tree)
    path = deepest(tree)
    model.keep(path)
    text = [*PREFIX, 3, *(tree.tokens[node] for node in path)]
    text += [(5 * i + i // 7) % V for i in range(2500)]
    model.prefill(text)
    check_next(Subject(model, SAYS, list), model, text)


def test_twins_share_weights_and_nothing_else(model, stand_in):
    twin = model.with_new_cache()
    model.prefill(PREFIX)
    twin.prefill(PREFIX[::-1])
    assert stand_in.models == 1
    assert model.cached(PREFIX) == len(PREFIX)
    assert twin.cached(PREFIX) == 0
    one = LlamaCppModel(model.weights, 4096).cache_bytes(100)
    assert model.cache_bytes(100) == twin.cache_bytes(100) == 2 * one


def test_what_nothing_refers_to_is_freed(stand_in):
    model = model_over(stand_in)
    twin = model.with_new_cache()
    model.prefill(PREFIX)
    twin.prefill(PREFIX)
    assert (stand_in.models, len(stand_in.contexts)) == (1, 2)
    del model
    gc.collect()
    assert (stand_in.models, len(stand_in.contexts)) == (1, 1)
    del twin
    gc.collect()
    assert (stand_in.models, len(stand_in.contexts)) == (0, 0)


@pytest.mark.parametrize(("code", "words"), [(1, "its cache is full"), (-3, "error -3")])
def test_a_pass_that_fails_is_one_line_and_the_text_can_be_read_anew(model, stand_in, code, words):
    tree = random_tree(V, 9, 0)
    model.prefill(PREFIX)
    stand_in.failing = code
    with pytest.raises(ModelError, match=f"^m: llama.cpp could not compute a pass, {words}$"):
        model.read(tree)
    assert model.cached(PREFIX) == 0
    check_next(Subject(model, SAYS, list), model, PREFIX)


def test_a_cache_that_cannot_be_made_is_one_line(model, stand_in):
    stand_in.most_rows = 100
    with pytest.raises(NotEnoughMemory, match=r"^m: llama\.cpp cannot make a cache of .* rows$"):
        model.prefill(PREFIX * 3)


def test_threads_reach_a_cache_that_is_there_and_one_that_is_made_later(model, stand_in):
    model.threads = 3
    model.prefill(PREFIX)
    assert stand_in.contexts[0].threads == 3
    model.threads = 2
    assert stand_in.contexts[0].threads == 2


def test_costs_are_measured_on_rows_that_are_really_there_and_read_once(model, stand_in):
    model.fill_for_benchmark(500)
    read = sum(len(rows) for rows in stand_in.passes)
    model.fill_for_benchmark(500)
    model.fill_for_benchmark(300)
    assert read == sum(len(rows) for rows in stand_in.passes) == 500
    assert len(stand_in.contexts[0].cells) == 300
    assert model.counters.rows == 0


# --------------------------------------------------------------------------------------------- loading


def test_options_reach_the_library(stand_in):
    weights = LlamaWeights(
        "m", Path("m.gguf"), LlamaOptions(gpu_layers=12, tensor_split=(3.0, 1.0), mmap=False), functions=stand_in
    )
    assert stand_in.asked.n_gpu_layers == 12
    assert list(stand_in.asked.tensor_split) == [3.0, 1.0, 0.0, 0.0]
    assert stand_in.asked.load_mode == 0
    assert weights.format == "q4_1"
    LlamaWeights("m", Path("m.gguf"), LlamaOptions(), processor_only=True, functions=stand_in)
    assert stand_in.asked.n_gpu_layers == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"tensor_split": (1.0,) * 5}, "tensor_split names 5 devices, and llama.cpp has 4"),
        ({"rpc_servers": ("box:1",)}, "rpc_servers needs a llama-cpp-python built with RPC"),
    ],
)
def test_options_that_the_library_cannot_follow_are_refused(stand_in, options, line):
    with pytest.raises(UsageError, match=line):
        LlamaWeights("m", Path("m.gguf"), LlamaOptions(**options), functions=stand_in)


def test_a_file_that_is_not_read_is_one_line(stand_in):
    with pytest.raises(ModelError, match=r"^m cannot be loaded by llama\.cpp$"):
        LlamaWeights("m", Path("broken.gguf"), LlamaOptions(), functions=stand_in)


def test_a_recurrent_state_is_refused():
    stand_in = LlamaStandIn(SAYS, V, recurrent=True)
    with pytest.raises(ModelError, match="cannot take back a rejected draft"):
        LlamaWeights("m", Path("m.gguf"), LlamaOptions(), functions=stand_in)
    gc.collect()
    assert stand_in.models == 0


def test_rows_are_alike_where_a_row_says_the_same_alone_and_among_others(model, stand_in):
    model.prefill(PREFIX)
    assert model.rows_alike
    check_next(Subject(model, SAYS, list), model, [*PREFIX, 9])
    of_many, right = model_over(stand_in), stand_in.llama_get_logits_ith

    def by_rows(context, row):
        """Another sum where a pass has many rows."""
        said = right(context, row)
        if len(stand_in.passes[-1]) > 8:
            said[0] += 1e-3
        return said

    stand_in.llama_get_logits_ith = by_rows
    assert not of_many.rows_alike
    assert not model_over(stand_in, mmap=True).rows_alike, "no pass is tried"


def load(path: Path, cards: bool = True, **spec):
    return load_model(
        ModelSpec("m", (PathSource(path),), **spec), path, torch.device("cpu"), "auto", backend="llama.cpp", cards=cards
    )


def test_without_the_library_one_line_says_how_to_install_it(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.touch()
    llama_library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(SpecchatError, match=r"needs llama-cpp-python, .* pip install 'specchat\[llama\]'") as refused:
        load(file)
    assert isinstance(refused.value, InstallationError)
    assert refused.value.exit_code == 2
    assert not llama_library.is_installed()
    llama_library.library.cache_clear()


@pytest.fixture
def installed(stand_in, monkeypatch):
    """The stand-in where the library would be."""
    stand_in.llama_supports_gpu_offload = lambda: True
    monkeypatch.setattr(llama_library, "has_card", lambda: False)
    for module in (llama_library, llama_cpp):
        monkeypatch.setattr(module, "library", lambda: stand_in)
    return stand_in


def test_a_folder_of_safetensors_is_refused(installed, tmp_path):
    with pytest.raises(UsageError, match="reads GGUF files, and m is none"):
        load(tmp_path)


def test_memory_is_checked_before_weights_are_read(installed, tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x" * 1000)
    monkeypatch.setattr(llama_cpp.host, "free_bytes", lambda: 999)
    with pytest.raises(NotEnoughMemory, match="mmap = true"):
        load(file)
    assert installed.models == 0
    spec = ModelSpec("m", (PathSource(file),), llama=LlamaOptions(mmap=True))
    assert llama_cpp.load_llama(spec, file, cards=False)[0].weights.nbytes == 1000


@pytest.mark.parametrize(
    ("asked", "of_model", "chosen"),
    [("auto", "auto", "auto"), ("auto", "llama.cpp", "llama.cpp"), ("own", "llama.cpp", "own")],
)
def test_what_is_asked_for_now_counts_before_what_the_model_says(asked, of_model, chosen):
    assert llama_cpp.chosen_backend(ModelSpec("m", (), backend=of_model), asked) == chosen


@pytest.mark.parametrize(
    ("backend", "cards", "card_there", "steps"),
    [
        ("auto", True, True, True),
        ("auto", True, False, False),
        ("auto", False, True, False),
        ("own", True, True, False),
    ],
)
def test_unasked_it_runs_what_our_decoder_does_not_where_there_is_a_card(
    installed, tmp_path, monkeypatch, backend, cards, card_there, steps
):
    monkeypatch.setattr(llama_library, "has_card", lambda: card_there)
    file = tmp_path / "m.gguf"
    file.touch()
    assert llama_cpp.steps_in(backend, file, cards=cards) == steps


def test_states_of_a_tree_with_more_leaves_than_sequences_are_those_of_its_nodes(model):
    tree = wide_tree(50, 3)
    model.prefill(PREFIX[:2])  # put off: read in the tree's first pass
    reading = model.read(tree, request=PassRequest(frozenset({0})))
    for node in range(len(tree)):
        text = [*PREFIX[:2], 3, *tree.path_tokens(node)]
        torch.testing.assert_close(reading.taps[0][reading.row(node)], SAYS(text)[:WIDTH], **CLOSE)
    assert reading.text_states is not None
    torch.testing.assert_close(reading.text_states.layers[0][1], SAYS(PREFIX[:2])[:WIDTH], **CLOSE)


def test_a_cache_shows_states_only_once_they_were_wanted_and_keeps_the_text(model, stand_in):
    text = [(7 * i + i // 13) % V for i in range(300)]
    model.prefill(text)
    assert stand_in.contexts[0].looks is None, "each pass would be slower"
    tree = random_tree(V, 9, 0)
    reading = model.read(tree, request=PassRequest(frozenset({0})))
    assert len(stand_in.contexts) == 1, "the other cache is given back"
    assert stand_in.contexts[0].looks is not None
    assert sum(len(rows) for rows in stand_in.passes) == 300 + 10, "nothing is read twice"
    torch.testing.assert_close(reading.taps[0][0], SAYS([*text, 3])[:WIDTH], **CLOSE)
    model.keep(())
    assert not model.read(random_tree(V, 3, 1)).taps


def test_rows_of_embedding_and_head_are_those_of_the_file(tmp_path, stand_in):
    path = tiny_gguf(tmp_path / "m.gguf")
    loaded = load_model(ModelSpec("m", (PathSource(path),)), path, torch.device("cpu"), "float32")
    model = LlamaCppModel(LlamaWeights("m", path, LlamaOptions(), functions=stand_in), 512)
    tokens = [3, 1, 3, 7]
    torch.testing.assert_close(model.embed(tokens), loaded.model.embed(tokens).float())
    torch.testing.assert_close(model.head_rows(tokens), loaded.model.head_rows(tokens).float())
