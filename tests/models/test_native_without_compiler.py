"""Where nothing can be compiled torch multiplies, and it is said why."""

import pytest
import torch
from native_kit import needs_native
from test_decoder import network, source_of

from specchat.compiled import build as compiling
from specchat.compiled.build import NativeUnavailable
from specchat.errors import ModelError
from specchat.models import model_loading
from specchat.models.cpu_kernels import build, kernels
from specchat.models.decoder.shape import Shape


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine with an empty cache and no compiler."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    kernels.loaded_kernels.cache_clear()
    yield tmp_path
    kernels.loaded_kernels.cache_clear()


@needs_native
def test_without_a_compiler_torch_multiplies_and_it_is_said(nowhere):
    net = network("llama")
    shape, source = Shape.of(net.config), source_of(net)
    chosen, notes = model_loading.own_network(shape, source, "int8", torch.device("cpu"), "auto")
    assert chosen.kernels == "torch"
    assert "no C compiler" in notes[0]
    with pytest.raises(ModelError, match=r"pip install -e .\.\[native\]"):
        model_loading.own_network(shape, source, "int8", torch.device("cpu"), "native")


@needs_native
def test_a_compiler_that_fails_is_quoted(nowhere, monkeypatch):
    failing = nowhere / "mycc"
    failing.write_text("#!/bin/sh\nprintf 'no such luck: \\377\\n' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(NativeUnavailable, match="no such luck"):
        build.load()
