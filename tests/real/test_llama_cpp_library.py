"""llama.cpp itself on real weights, where llama-cpp-python is installed: its own text, trees, two machines."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
import torch
from real_weights import fetched

from specchat.config import load_catalog
from specchat.config.values import LlamaOptions
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import RoundWritten
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.models.backends.llama_cpp import LlamaCppModel
from specchat.models.backends.llama_library import LlamaWeights, is_installed, library
from specchat.models.model_loading import Loaded, load_model
from specchat.settings import GREEDY, Settings

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not is_installed(), reason="llama-cpp-python is not installed"),
]
NAME = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "Name the planets, one a line, then the same list in capital letters."}]


@lru_cache
def smol() -> Loaded:
    path = fetched(NAME)
    loaded = load_model(load_catalog().model(NAME), path, torch.device("cpu"), "auto", backend="llama.cpp")
    loaded.model.threads = 2
    return loaded


def vocabulary() -> TransformersVocabulary:
    return TransformersVocabulary(smol().tokenizer, smol().eos_ids)


def said(model: LlamaCppModel, tokens: int = 60, **changes: object) -> tuple[list[int], int]:
    """The reply's tokens at temperature 0, and the most tokens that one round wrote."""
    settings = Settings().but({**GREEDY, "max_tokens": tokens, "controller": "fixed", **changes})
    conversation = Conversation(model, None, vocabulary(), settings)
    rounds = [
        one.round for one in conversation.reply(conversation.encode(QUESTION), 1) if isinstance(one, RoundWritten)
    ]
    emitted = [list(one.emitted) for one in rounds]
    return [token for one in emitted for token in one], max(map(len, emitted))


def test_loading_says_nothing_on_standard_error():
    script = (
        "import torch, sys; from pathlib import Path; from specchat.config import ModelSpec, PathSource\n"
        "from specchat.models.backends.llama_cpp import load_llama; path = Path(sys.argv[1])\n"
        "load_llama(ModelSpec('m', (PathSource(path),)), path, cards=False)[0].prefill(list(range(20)))"
    )
    command = [sys.executable, "-c", script, str(fetched(NAME))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""


def test_the_text_is_llama_cpps_own():
    from llama_cpp import Llama

    own = Llama(str(fetched(NAME)), n_ctx=2048, n_threads=2, flash_attn=True, verbose=False)
    prompt = vocabulary().encode_chat(QUESTION)
    own.eval(prompt[:-1])
    theirs, token = [], prompt[-1]
    while len(theirs) < 60:
        own.eval([token])
        token = int(np.ctypeslib.as_array(library().llama_get_logits_ith(own.ctx, -1), (own.n_vocab(),)).argmax())
        if token in smol().eos_ids:
            break
        theirs.append(token)
    ours, longest = said(model(), nodes=0)
    assert longest == 1
    assert [token for token in ours if token not in smol().eos_ids] == theirs


def model() -> LlamaCppModel:
    made = smol().model
    assert isinstance(made, LlamaCppModel)
    return made


@pytest.mark.parametrize("policy", ["chain", "expansion"])
def test_rounds_with_guesses_write_the_same_up_to_near_ties(policy):
    plain, _ = said(model(), nodes=0)
    guessed, longest = said(model(), drafter="prompt_lookup", policy=policy, nodes=8, width=3)
    assert longest > 1, "guesses are accepted"
    same = next((at for at, (one, other) in enumerate(zip(plain, guessed, strict=False)) if one != other), len(plain))
    if same < len(plain):  # only where the two tokens are nearly as likely may the texts part
        logits = read_alone([*vocabulary().encode_chat(QUESTION), *plain[:same]])
        assert float(logits[plain[same]] - logits[guessed[same]]) < 0.5


def read_alone(text: list[int]) -> torch.Tensor:
    twin = model().with_new_cache()
    twin.prefill(text[:-1])
    return twin.read(TokenTree(text[-1], twin.vocab_size).freeze()).after(ROOT).clone()


def test_a_tree_says_what_its_paths_say_in_passes_of_as_many_rows():
    text = vocabulary().encode_chat(QUESTION)
    tree = TokenTree(text[-1], model().vocab_size)
    children = [tree.add(ROOT, Guess(token)) for token in (504, 198, 1234)]
    for child in children:
        for token in (260, 327):
            tree.add(child, Guess(token))
    tree.freeze()
    twin = model().with_new_cache()
    twin.prefill(text[:-1])
    reading = twin.read(tree)
    for node in range(len(tree)):
        chain = TokenTree(text[-1], twin.vocab_size)
        last = ROOT
        for token in [*tree.path_tokens(node), *[198] * (len(tree) - 1 - tree.depths[node])]:
            last = chain.add(last, Guess(token))
        twin.prefill(text[:-1])
        alone = twin.read(chain.freeze()).after(tree.depths[node])
        assert float((reading.after(node) - alone).abs().max()) < 1e-3


@pytest.fixture
def server() -> Iterator[str]:
    """llama.cpp's RPC server in another process."""
    if not library().llama_supports_rpc():
        pytest.skip("this llama-cpp-python was built without RPC")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.DEVNULL)
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert process.poll() is None, "the server ended"
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


SERVER = """
import ctypes, sys
from specchat.models.backends.llama_library import library
library()
from llama_cpp._ggml import libggml
def function(name, result, *arguments):
    found = getattr(libggml, name)
    found.restype, found.argtypes = result, list(arguments)
    return found
register = function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"RPC")
address = function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
kinds = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
start = kinds(address(register, b"ggml_backend_rpc_start_server"))
cpu = function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)(0)
start(f"127.0.0.1:{sys.argv[1]}".encode(), None, 1, 1, (ctypes.c_void_p * 1)(cpu))
"""


def test_a_second_process_holds_layers_and_the_text_is_the_same(server):
    options = LlamaOptions(rpc_servers=(server,), gpu_layers=99)
    weights = LlamaWeights(NAME, fetched(NAME), options)
    there = LlamaCppModel(weights, 2048, threads=1)
    here, _ = said(model(), 30, nodes=0)
    assert said(there, 30, nodes=0)[0] == here
    _, longest = said(there, 30, drafter="prompt_lookup", policy="expansion", nodes=8, width=3)
    assert longest > 1
