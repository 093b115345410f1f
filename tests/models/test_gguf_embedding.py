"""Rows of a GGUF file's embedding, kept unpacked, stay the rows of the file however many were asked for."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import tiny_gguf

from specchat.models.weights import gguf_source
from specchat.models.weights.gguf_source import GgufSource


@pytest.mark.parametrize("kept", [1, 8, 1024])
def test_embedded_rows_are_those_of_the_file(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_source, "_EMBEDDED_ROWS", kept)
    source, generator = GgufSource(tiny_gguf(tmp_path / "tiny.gguf")), random.Random(kept)
    every = source.dense("embed")
    for count in (1, 3, 8, 12, 1, 20, 5):
        ids = [generator.randrange(len(every)) for _ in range(count)]
        rows = source.embed(ids)
        assert torch.equal(rows, every[ids])
        rows.zero_()  # the reader may write over them
        assert torch.equal(source.embed(ids), every[ids])
