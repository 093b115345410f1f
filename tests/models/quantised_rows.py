"""Random rows in the formats of GGUF files whose bits a device keeps, and a small Llama made of such rows."""

from __future__ import annotations

import itertools

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from specchat.models.decoder.shape import Shape
from specchat.models.weights.gguf_header import FORMATS, Kind
from specchat.models.weights.grouped_codes import LAYOUTS
from specchat.models.weights.weight_source import StoredRows, TensorFacts, WeightSource


def random_rows(kind, rows, length, spread=1 / 64, seed=0):
    """(rows, bytes per row) uint8 blocks whose float16 factors are about `spread`, all else any bits."""
    random = np.random.default_rng(seed)
    about = FORMATS[kind]
    blocks = random.integers(0, 256, (rows, length // about.block, about.block_bytes), dtype=np.uint8)
    factors = [208 if kind == Kind.Q6_K else 0, *([2] if LAYOUTS[kind].minimum else [])]
    for at in factors:
        drawn = random.standard_normal((*blocks.shape[:2], 1)) * spread
        blocks[..., at : at + 2] = drawn.astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(kind, data):
    """(rows, length) float32, as gguf's own package reads them."""
    return torch.from_numpy(dequantize(data, GGMLQuantizationType(int(kind))))


class MixedSource(WeightSource):
    """A tied Llama whose matrices have one format after another."""

    interleaved = True

    def __init__(self, kinds=tuple(LAYOUTS)):
        config = transformers.LlamaConfig(
            hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512,
            vocab_size=96, tie_word_embeddings=True,
        )  # fmt: skip
        self.shape = Shape.of(config)
        self.rows = {}
        kind = itertools.cycle(kinds)
        matrices = [("embed", None)]
        matrices += [(name, layer) for layer in range(2) for name in ("q", "k", "v", "o", "gate", "up", "down")]
        for seed, (name, layer) in enumerate(matrices):
            of = next(kind)
            out, inputs = self.shape.matrix(name)
            spread = 1 / (2 ** (LAYOUTS[of].bits - 1) * (20 if LAYOUTS[of].per > 1 else 1)) / 16
            spread /= 8 if LAYOUTS[of].table else 1
            self.rows[name, layer] = StoredRows(int(of), random_rows(of, out, inputs, spread, seed), inputs)

    @property
    def nbytes(self):
        return sum(rows.data.nbytes for rows in self.rows.values())

    def stored(self, name, layer=None):
        return self.rows[name, layer]

    def dense(self, name, layer=None, part="weight", rows=slice(None)):
        if (name, layer) not in self.rows:
            return torch.ones(self.shape.hidden)[rows]
        stored = self.rows[name, layer]
        return dequantised(stored.kind, stored.data)[rows]

    def about(self, name, layer=None, part="weight"):
        sizes = self.shape.matrix(name) if (name, layer) in self.rows else (self.shape.hidden,)
        there = part == "weight" and ((name, layer) in self.rows or name in ("norm", "input_norm", "mlp_norm"))
        return TensorFacts(f"the mixed {name}", sizes if there else None)
