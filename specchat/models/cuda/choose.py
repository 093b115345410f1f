"""Chooses the fastest layers for a CUDA device among those that agree with the eager ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.base.network import Network
from specchat.models.cuda.graphs import GraphNetwork
from specchat.models.cuda.recording import CudaRecorder, Recorder
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.fused_ops import PLAIN, FusedOps, best_ops
from specchat.models.decoder.layer_weights import DecoderWeights

_APART = {torch.float32: 0.01, torch.bfloat16: 0.5}
"""How far logits may lie apart, as a share of their spread. Rounding takes 0.00001 in float32 and 0.07 to 0.11 in
bfloat16 (SmolLM2-135M and Qwen2.5-Coder-0.5B, on a processor); a row seen or turned wrongly, 1.5 to 2.3."""


def cuda_network(weights: DecoderWeights, compiles: bool = True) -> tuple[Network, tuple[str, ...]]:
    """Recorded passes, with compiled ops if wanted and possible; what is not available is named."""
    ops, why = best_ops(weights.device) if compiles else (PLAIN, "")
    network, why_slow = recorded_network(weights, lambda: CudaRecorder(weights.device), ops)
    if why_slow and ops is not PLAIN:
        why = f"compiled ops are not used: {why_slow}"
        network, why_slow = recorded_network(weights, lambda: CudaRecorder(weights.device), PLAIN)
    return network, tuple(f"slower than it could be: {note}" for note in (why, why_slow) if note)


def recorded_network(weights: DecoderWeights, recorder: Callable[[], Recorder], ops: FusedOps) -> tuple[Network, str]:
    """Recorded passes where they agree with the eager layers; else the eager layers, and why."""
    eager = EagerNetwork(weights)
    try:
        recorded = GraphNetwork(eager, recorder(), ops)
        apart = disagreement(eager, recorded)
    except Exception as error:  # whatever went wrong in recording, the eager layers do without
        return eager, f"passes are launched kernel by kernel: {str(error).strip().split(chr(10))[0]}"
    if recorded.trouble:
        return eager, f"passes are launched kernel by kernel: {recorded.trouble}"
    if not apart < _APART[weights.activations]:  # written so that NaN is refused
        return eager, f"passes are launched kernel by kernel: recorded ones were off by {apart:.2g}"
    return recorded, ""


def disagreement(one: Network, other: Network) -> float:
    """How far the logits of two networks lie apart over some rounds, as a share of their spread: the worst row's."""
    first, second = rounds(one), rounds(other)
    spread = (first - first.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float(((first - second).norm(dim=-1) / spread).max())


def rounds(network: Network) -> Tensor:
    """(rows, V) float32 logits of two rounds of trees, so that what was recorded in one is replayed in the next."""
    model = Decoder(network, context_tokens=1024)
    vocab_size = model.vocab_size

    def token(i: int) -> int:
        return (7919 * i + 1) % vocab_size

    said: list[Tensor] = []
    model.prefill([token(i) for i in range(20)])
    for round in (1, 2):
        tree = TokenTree(token(100 * round), vocab_size)
        for branch in range(3):
            child = tree.add(ROOT, Guess(token(100 * round + 10 * branch + 1)))
            tree.add(child, Guess(token(100 * round + 10 * branch + 2)))
        said.append(model.read(tree.freeze()).logits.float())
        model.keep([tip := len(tree) - 2, tip + 1])  # the last branch: its rows have to be moved
    return torch.cat(said)
