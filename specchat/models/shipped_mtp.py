"""The head that guesses further ahead and comes in a target's own files, `mtp.*`, which transformers leaves out."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specchat.core.compiled_guessing import CompiledNetwork
from specchat.core.device_copy import rows_of, to_device
from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.request import CHUNK_TOKENS
from specchat.core.states import TextStates
from specchat.core.tree import ROOT, TokenTree
from specchat.errors import ModelError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.draft_heads.drafting import TextInputs
from specchat.models.model_loading import Loaded
from specchat.models.weights.config_file import shown
from specchat.models.weights.foreign_code import first_line, one_line
from specchat.models.weights.safetensors_header import tensors_in, weight_files

_PREFIX = "mtp."
_KNOWN = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
"""Architectures whose heads are read."""

_CANDIDATES = 64
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class MtpModules(nn.Module):
    """The modules of such a head, under the names of its tensors.

    What they compute is Qwen3-Next's: norms of a token's embedding and of the state before it, both through
    `fc`, one decoder layer with attention over the text, and a norm. The embedding and the head are the target's.
    """

    def __init__(self, network: Any) -> None:
        """As the network's own layers with attention are built."""
        super().__init__()
        decoder, config = network.get_decoder(), network.config.get_text_config()
        self.number = next(n for n, layer in enumerate(decoder.layers) if hasattr(layer, "self_attn"))
        like = decoder.layers[self.number]
        d = int(config.hidden_size)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            type(like.input_layernorm)(d, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.layers = nn.ModuleList([type(like)(config, self.number)])


class ShippedHead:
    """A `TrainedNetwork` that reads the target's last states of the whole text, and then its own outputs.

    An entry of its text pairs the target's normed state at a token with the token that follows. Below the root a node
    is paired with the output at its parent. Nodes lie behind the text's entries and are forgotten with their tree.

    Reference: DeepSeek-V3, arXiv:2412.19437; one module is used for all depths, as Qwen3-Next's is meant to be.
    """

    depth = sys.maxsize
    one_pass = False
    skip: Callable[[int, Sequence[int]], None] | None = None

    def __init__(self, modules: MtpModules, model: ReferenceModel) -> None:
        """Nothing read yet. It uses its target's embedding and output head, and a cache counted with the target's."""
        tap, like = model.layers - 1, modules.fc.weight
        self.layers = frozenset({tap})
        self.passes = 0
        self._modules, self._model = modules, model
        self._cache = KVCache((modules.number,), model.context_tokens, beside=model.cache)
        self._text = TextInputs((tap,), lambda states: model.final_norm(states[:, 0].to(like)))
        self._read: list[int] = []  # the tokens of the entries that were read
        self._row_of: dict[int, int] = {}  # nodes below the root → row behind the entries
        self._outputs = torch.empty(0)  # of the last entry and of these nodes

    def take(self, states: TextStates) -> None:
        self._text.take(states)
        del self._read[max(0, states.first - 1) :]  # entry s is made of state s

    @torch.inference_mode()
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        count, tokens = len(history) - 1, history[1:]
        self._row_of = {}
        if count < 1 or not self._text.cover(history, count):
            return False
        for first in range(min(common_prefix(self._read, tokens), count - 1), count, CHUNK_TOKENS):
            some = tokens[first : first + CHUNK_TOKENS]
            seen = torch.ones(len(some), first + len(some), dtype=torch.bool).tril(first)
            states = self._text.rows(first, first + len(some))
            self._outputs = self._step(states, some, list(range(first, first + len(some))), first, seen)[-1:]
        self._read = list(tokens)
        return True

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        if nodes[0] == ROOT:
            return self._guessed(self._outputs[:1])
        entries, first = len(self._read), len(self._row_of)
        parents = [self._row_of[tree.parents[node]] + 1 if tree.parents[node] != ROOT else 0 for node in nodes]
        self._row_of.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        seen = torch.zeros(len(nodes), entries + len(self._row_of), dtype=torch.bool)
        seen[:, :entries] = True
        for row, node in enumerate(nodes):
            seen[row, [entries + self._row_of[above] for above in tree.path(node)]] = True
        positions = [entries - 1 + tree.depths[node] for node in nodes]
        states = rows_of(self._outputs, parents)
        outputs = self._step(states, [tree.tokens[node] for node in nodes], positions, entries + first, seen)
        self._outputs = torch.cat([self._outputs, outputs])
        return self._guessed(outputs)

    def compiled(self, tokens: Sequence[int], rows: int) -> CompiledNetwork | None:
        return None

    def count_passes(self, count: int) -> None:
        """Compiled code reads nothing by itself."""

    def _step(self, states: Tensor, tokens: Sequence[int], positions: list[int], place: int, seen: Tensor) -> Tensor:
        """(n, d) outputs of rows that are written from `place` on: one pass.

        Args:
            states: (n, d) normed states of the target, or outputs.
            tokens: those that follow them.
            seen: (n, place + n) bool, on the host, what each row attends to.
        """
        modules = self._modules
        embedded = modules.pre_fc_norm_embedding(self._model.embed(tokens))
        hidden = modules.fc(torch.cat([embedded, modules.pre_fc_norm_hidden(states)], dim=-1))[None]
        places = torch.tensor([positions], device=hidden.device)
        self._cache.write_at(place)
        self.passes += 1
        out = modules.layers[0](
            hidden,
            position_embeddings=self._model.rotary(hidden, places),
            attention_mask=to_device(seen, hidden.device)[None, None],
            position_ids=places,
            past_key_values=self._cache,
        )
        outputs: Tensor = modules.norm(out[0] if isinstance(out, Tensor) else out[0][0])
        return outputs

    def _guessed(self, outputs: Tensor) -> Guessed:
        logits = self._model.logits_of(outputs).float().cpu()
        logsumexp = logits.logsumexp(-1).numpy()
        best = logits.topk(min(_CANDIDATES, logits.shape[1]))
        logprobs = best.values.double().numpy() - logsumexp[:, None]
        return Guessed(best.indices.numpy(), logprobs, np.arange(logits.shape[1]), logsumexp, lambda: logits)


def with_shipped_head(loaded: Loaded, path: Path) -> Loaded:
    """A target with the head of its files, if transformers runs it and it has one; its notes say why one is not used.
    Raises ModelError, WeightsError: its tensors cannot be read."""
    if not isinstance(model := loaded.model, ReferenceModel):
        return loaded
    head, why_none = read_mtp(path, model.network)
    if head is None:
        return replace(loaded, notes=(*loaded.notes, f"{loaded.name}: {why_none}")) if why_none else loaded
    taken = sum(weight.numel() * weight.element_size() for weight in head.parameters())
    return replace(loaded, shipped=partial(ShippedHead, head, model), weight_bytes=loaded.weight_bytes + taken)


def read_mtp(path: Path, network: Any) -> tuple[MtpModules | None, str]:
    """The head in a folder of safetensors, on the network's device; None without one, and why it cannot be used.

    Raises:
        WeightsError: a file cannot be read.
    """
    if not path.is_dir() or not (names := [name for name in tensors_in(path) if name.startswith(_PREFIX)]):
        return None, ""
    kind = network.config.get_text_config().model_type
    if kind not in _KNOWN:
        return None, f"the mtp head in its files is not used: that of {kind} is not known here"
    with torch.device("meta"):
        modules = MtpModules(network)
    shapes = {name: tensor.shape for name, tensor in modules.state_dict().items()}
    like = network.get_input_embeddings().weight
    with one_line(f"{path}: the mtp head cannot be read"):
        tensors = _with_experts_together(_tensors(path, names, like))
    held = {name: tensor.shape for name, tensor in tensors.items()}
    if wrong := sorted(name for name in shapes.keys() | held.keys() if shapes.get(name) != held.get(name)):
        return None, f"the mtp head in its files is not used: {len(wrong)} tensors do not fit, first {shown(wrong[0])}"
    try:
        modules.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{path}: the mtp head cannot be read: {first_line(error)}") from None
    return modules.eval().requires_grad_(False), ""


def _tensors(path: Path, names: Sequence[str], like: Tensor) -> dict[str, Tensor]:
    from safetensors import safe_open

    wanted, found = set(names), {}
    for file in weight_files(path):
        with safe_open(file, framework="pt") as opened:
            for name in wanted.intersection(opened.keys()):
                found[name.removeprefix(_PREFIX)] = opened.get_tensor(name).to(like)
    return found


def _with_experts_together(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts that have tensors of their own become the two tensors that transformers' layers have."""
    experts: dict[str, dict[int, dict[str, Tensor]]] = {}
    others = {}
    for name, tensor in tensors.items():
        if (of_one := _EXPERT.fullmatch(name)) is None:
            others[name] = tensor
        else:
            experts.setdefault(of_one[1], {}).setdefault(int(of_one[2]), {})[of_one[3]] = tensor
    for name, each in experts.items():
        some = [each[number] for number in sorted(each)]
        if sorted(each) == list(range(len(each))) and all(len(one) == 3 for one in some):
            others[f"{name}.gate_up_proj"] = torch.stack([torch.cat([one["gate"], one["up"]]) for one in some])
            others[f"{name}.down_proj"] = torch.stack([one["down"] for one in some])
    return others
