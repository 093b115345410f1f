"""Any transformers causal LM as a `Model`: right before fast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specchat.core.seams import Counters, OnLayer, Reading, Rider
from specchat.core.tree import TokenTree
from specchat.models.base.cache_rows import Plan, Rows, common_prefix
from specchat.models.base.head_output import Said
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.layer_hooks import LayerWatch
from specchat.models.base.shape import windows_of
from specchat.models.base.windows import within_window
from specchat.models.files.families import FAMILIES


class ReferenceModel:
    """Runs transformers' own layers over a tree, with our own cache, mask and positions.

    Nodes dropped by `on_layer` are masked out of the result but still computed: transformers' layers take all
    rows or none. The counters say so.
    """

    def __init__(self, network: Any, context_tokens: int) -> None:
        self._network = network.eval()
        self._decoder = network.get_decoder()
        self._layers = list(self._decoder.layers)
        self.vocab_size: int = network.get_output_embeddings().weight.shape[0]
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device: torch.device = network.get_input_embeddings().weight.device
        self.dtype: torch.dtype = network.get_input_embeddings().weight.dtype
        self.cache = KVCache(len(self._layers), context_tokens)
        self._rows = Rows()
        config = network.config
        windows = windows_of(config) if config.model_type in FAMILIES else ()
        self._window = next((window for window in windows if window is not None), None)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return common_prefix(self._rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""
        self._rows.read_prefix(tokens, lambda plan: self._pass(plan, wanted=list), on_chunk)

    @torch.inference_mode()
    def read(
        self,
        tree: TokenTree,
        new_nodes: Sequence[int] | None = None,
        riders: Sequence[Rider] = (),
        taps: Collection[int] = (),
        on_layer: OnLayer | None = None,
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones."""
        plan = self._rows.plan_tree(tree, new_nodes, riders)
        watch = LayerWatch(tree, plan, taps, on_layer)
        with self._watched(watch):
            logits = self._pass(plan, watch.rows, [rider.embedding for rider in riders])
        self._rows.tree_read(plan)
        return watch.reading(Said(logits[plan.missing :]), len(riders))

    def twin(self) -> ReferenceModel:
        """The same network with a cache of its own."""
        return ReferenceModel(self._network, self.context_tokens)

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        start = len(self._rows.prefix)
        self.cache.keep_rows_(start, self._rows.keep(path))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states after any layer."""
        return self._head(self._decoder.norm(hidden))

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._rows.pretend(tokens)

    def _pass(self, plan: Plan, wanted: Callable[[], list[int]], embeddings: Sequence[Tensor] = ()) -> Tensor:
        """One forward pass; (rows wanted, V) logits. Which rows are wanted is asked when the pass is done."""
        rows = len(plan.positions)
        embedded = self._network.get_input_embeddings()(torch.tensor([plan.tokens], device=self.device))
        if embeddings:
            extra = torch.stack(list(embeddings)).to(embedded)
            embedded = torch.cat([embedded, extra.unsqueeze(0)], dim=1)
        self.cache.write_at(plan.start)
        hidden = self._decoder(
            inputs_embeds=embedded,
            attention_mask=self._masks(plan),
            position_ids=torch.tensor([plan.positions], device=self.device),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[0]
        self.counters.passes += 1
        self.counters.rows += rows
        self.counters.node_layers += rows * len(self._layers)
        return self._head(hidden[wanted()])

    def _masks(self, plan: Plan) -> Tensor | dict[str, Tensor]:
        """Whom each row attends to, as transformers' layers take it: by their kinds, where these see different rows."""
        whole = plan.mask.to(self.device)[None, None]
        if self._window is None:
            return whole
        last = within_window(plan.mask, plan.common, self._window).to(self.device)[None, None]
        if getattr(self._network.config, "layer_types", None) is None:
            return last
        return {"full_attention": whole, "sliding_attention": last}

    def _head(self, hidden: Tensor) -> Tensor:
        """(rows, V) logits of final states, with whatever scaling or capping the architecture applies."""
        logits: Tensor = self._network.get_output_embeddings()(hidden)
        config = self._network.config
        if (scale := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / scale
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @contextmanager
    def _watched(self, watch: LayerWatch) -> Iterator[None]:
        """Let `watch` see the states after each layer it wants. Dropped rows are computed on, but not looked at."""

        def after_layer(layer: int) -> Callable[[Any, Any, Any], None]:
            def hook(module: Any, arguments: Any, output: Any) -> None:
                hidden: Tensor = (output if isinstance(output, Tensor) else output[0])[0]
                watch.after_layer(layer, hidden[watch.rows()])

            return hook

        wanted = [layer for layer in range(len(self._layers)) if watch.wants(layer)]
        hooks = [self._layers[layer].register_forward_hook(after_layer(layer)) for layer in wanted]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
