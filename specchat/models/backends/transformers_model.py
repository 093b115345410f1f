"""Any transformers causal LM as a `Model`: right before fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.core.device_copy import drawable
from specchat.core.reading import Counters, HeadTensors, Reading
from specchat.core.request import DEFAULT_REQUEST, Adapter, ExtraRow, HeadNeeds, HeadOfSome, PassRequest
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.errors import ModelError
from specchat.models.backends.recurrent_cache import RecurrentCache, compiled_recurrence
from specchat.models.backends.transformers_network import attending_layers, over_states, recurrent_layers, without_parts
from specchat.models.decoder.adapters import Adapted, checked
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.network import PassSizes, SubLayers, windowed
from specchat.models.decoder.shape import windows_of
from specchat.models.decoder.trimmed_head import TorchHead, TrimmedHead
from specchat.models.weights.families import FAMILIES, LLAMA

_SPARE = 0.25
"""Padding that a group of texts may have, as a share of its work."""


@contextmanager
def adapted_products(layers: Sequence[nn.Module], extra_rows: Sequence[ExtraRow]) -> Iterator[None]:
    """Within it, the extra rows' adapters act on their rows, the last of a pass.

    Raises:
        ModelError: an adapter that fits no product of the network.
    """
    device = next(layers[0].parameters()).device

    def prepare(adapter: Adapter) -> Any:
        for layer, name in adapter.factors:
            of_one = {where: pair for where, pair in adapter.factors.items() if where == (layer, name)}
            product = _product(layers, layer, name)
            checked(Adapter(of_one), len(layers), {name: (product.weight.shape[0], product.weight.shape[1])})
        like = next(layers[0].parameters())
        return {where: (down.to(like), up.to(like)) for where, (down, up) in adapter.factors.items()}

    adapted = Adapted.of(extra_rows, prepare, device)
    with ExitStack() as hooks:
        if adapted is not None:
            for layer, name in {where for factors, _ in adapted.acting for where in factors}:
                hook = _product(layers, layer, name).register_forward_hook(_adding(adapted, layer, name))
                hooks.callback(hook.remove)
        yield


def _adding(adapted: Adapted, layer: int, name: str) -> Callable[[Any, Any, Tensor], Tensor]:
    def hook(module: Any, arguments: Any, out: Tensor) -> Tensor:
        adapted.add_(layer, {name: slice(None)}, arguments[0][0], out[0])
        return out

    return hook


def _product(layers: Sequence[nn.Module], layer: int, name: str) -> Any:
    try:
        return layers[layer].get_submodule(LLAMA.hub_names[name])
    except (AttributeError, KeyError, IndexError):
        raise ModelError(f"an adapter adds to {name!r} of layer {layer}, which this network does not have") from None


_ROW_WORK = 6
"""What a row takes besides attention, 12 · width² products in a layer, in rows attended to (2 · width) and widths."""


class _JoinedCaches:
    """Keys and values of several texts, as transformers' layers ask for them: zeros fill up the shorter ones."""

    def __init__(self, texts: Sequence[tuple[KVCache, PassPlan]], end: int) -> None:
        """For a pass that sees `end` rows of each cache."""
        self._texts, self._end = texts, end
        for cache, plan in texts:
            cache.write_at(plan.start)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """(texts, heads, end, head_dim) each; rows of padding are not written."""
        seen = [
            cache.update(keys[text : text + 1, :, : plan.rows], values[text : text + 1, :, : plan.rows], layer)
            for text, (cache, plan) in enumerate(self._texts)
        ]
        padded = [
            [F.pad(part, (0, 0, 0, self._end - part.shape[2])) for part in parts] for parts in zip(*seen, strict=True)
        ]
        return torch.cat(padded[0]), torch.cat(padded[1])


class ReferenceModel(CachedModel["ReferenceModel"]):
    """Runs transformers' own layers over a tree, with our own cache, mask and positions.

    Nodes dropped by `on_layer` are masked out of the result but still computed, and extra rows that enter later are
    computed before: transformers' layers take all rows or none. The counters say so.
    """

    def __init__(
        self,
        network: Any,
        context_tokens: int,
        parts: SubLayers | None = None,
        source: ReferenceModel | None = None,
        recurrence_in_c: bool = True,
    ) -> None:
        """Nothing read yet.

        Args:
            parts: what of the network is computed; None for all.
            source: the model whose rows `copy_rows_from` copies.
            recurrence_in_c: whether recurrent layers may use the compiled kernels, where these are available.
        """
        self.network, self._recurrence_in_c = network.eval(), recurrence_in_c
        self._parts = parts or SubLayers.of_all(len(network.get_decoder().layers))
        beside = source.cache if source else None
        mixed, recurrent = self._parts.attention, recurrent_layers(network)
        self._network = without_parts(network, self._parts)
        self._states: RecurrentCache | None = None
        if recurrent:
            recurrent = {layer: sizes for layer, sizes in recurrent.items() if layer in mixed}
            weights = network.get_input_embeddings().weight
            compiled = compiled_recurrence(recurrent.values(), weights) if recurrence_in_c and recurrent else None
            attending = attending_layers(network) & mixed
            self._states = RecurrentCache(attending, recurrent, context_tokens, beside, compiled)
            self._network = over_states(self._network, self._states)
        self.cache: KVCache = self._states or KVCache(mixed, context_tokens, beside=beside)
        self._decoder = self._network.get_decoder()
        self.rotary: Any = getattr(self._decoder, "rotary_emb", None)
        self._layers = list(self._decoder.layers)
        self.layers = len(self._layers)
        self.hidden_size: int = network.get_input_embeddings().weight.shape[1]
        self.vocab_size: int = network.get_output_embeddings().weight.shape[0]
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device: torch.device = network.get_input_embeddings().weight.device
        self.dtype: torch.dtype = network.get_input_embeddings().weight.dtype
        super().__init__(self.cache, source)
        config = network.config
        names = ("norm", "norm_f", "final_layernorm", "embedding_norm")
        norms = (getattr(self._decoder, name) for name in names if hasattr(self._decoder, name))
        self.final_norm: Any = next(norms, None)
        # Falcon-H1 scales what it embeds itself, but not embeddings that it is given.
        self._embedding_scale = config.embedding_multiplier if config.model_type == "falcon_h1" else None
        self._sizes = pass_sizes(config.get_text_config(), self.vocab_size, self.dtype)
        windows = windows_of(config) if config.model_type in FAMILIES else ()
        self._window = next((window for window in windows if window is not None), None)

    @torch.inference_mode()
    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        plan = self.rows.plan_tree(tree, new_nodes, request.extra_rows)
        watch = LayerWatch(plan, request, tree)
        with self._watched(watch):
            states = self._pass(plan, watch.rows, request.extra_rows)[plan.missing :]
        self.rows.tree_read(plan)
        head = request.head
        return watch.reading(HeadTensors(drawable(self.logits_of(states))) if head is None else head.after(states))

    @property
    def joint_weights(self) -> Any:
        return self._network if self._parts.complete and self._states is None else None

    def planned(self, tree: TokenTree, request: PassRequest) -> tuple[PassPlan, LayerWatch]:
        plan = self.rows.plan_tree(tree, None, ())
        return plan, LayerWatch(plan, request, tree)

    def joint_groups(self, planned: Sequence[tuple[PassPlan, LayerWatch]]) -> list[list[int]]:
        sizes = [(plan.rows, plan.start + plan.rows) for plan, _ in planned]
        return groups_of_equal_lengths(sizes, _ROW_WORK * self.hidden_size)

    @torch.inference_mode()
    def read_joined(
        self, joined: Sequence[tuple[ReferenceModel, tuple[PassPlan, LayerWatch]]], needs: Sequence[HeadNeeds]
    ) -> list[Reading]:
        plans = [plan for _, (plan, _) in joined]
        most, end = max(plan.rows for plan in plans), max(plan.start + plan.rows for plan in plans)
        tokens = torch.tensor([[*plan.tokens, *[plan.tokens[-1]] * (most - plan.rows)] for plan in plans])
        positions = [[*plan.positions, *[plan.positions[-1]] * (most - plan.rows)] for plan in plans]
        caches = _JoinedCaches([(model.cache, plan) for model, (plan, _) in joined], end)
        with ExitStack() as watched:
            for number, (_, (plan, watch)) in enumerate(joined):
                watched.enter_context(self._watched(watch, number, plan.rows))
            hidden = self._decoder(
                inputs_embeds=self._network.get_input_embeddings()(tokens.to(self.device)),
                attention_mask=self._joined_masks(plans, most, end),
                position_ids=torch.tensor(positions, device=self.device),
                past_key_values=caches,
                use_cache=True,
            ).last_hidden_state
        readings = []
        for (model, (plan, watch)), states in zip(joined, hidden, strict=True):
            model.counters.count(plan.rows, self.layers)
            model.rows.tree_read(plan)
            readings.append(watch.reading(HeadTensors(drawable(self.logits_of(states[plan.missing : plan.rows])))))
        return readings

    def _joined_masks(self, plans: Sequence[PassPlan], most: int, end: int) -> Tensor | dict[str, Tensor]:
        """`_masks` of several texts, (texts, 1, most, end) each: padding sees what its text's last row sees."""
        each = [self._masks(plan) for plan in plans]

        def joined(masks: list[Tensor]) -> Tensor:
            rows = [
                torch.cat([mask, mask[:, :, -1:].expand(-1, -1, most - mask.shape[2], -1)], dim=2) for mask in masks
            ]
            return torch.cat([F.pad(mask, (0, end - mask.shape[3])) for mask in rows])

        by_kind = [{"": mask} if isinstance(mask, Tensor) else mask for mask in each]
        masks = {kind: joined([mask for of in by_kind if (mask := of[kind]) is not None]) for kind in by_kind[0]}
        return masks.get("", masks)

    def _of_parts(self, parts: SubLayers) -> ReferenceModel:
        return ReferenceModel(self.network, self.context_tokens, parts, self, self._recurrence_in_c)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> Tensor:
        embedded: Tensor = self._network.get_input_embeddings()(torch.tensor(list(tokens), device=self.device))
        return embedded if self._embedding_scale is None else embedded * self._embedding_scale

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        return drawable(self.logits_of(self.final_norm(hidden)))

    @torch.inference_mode()
    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        rows = self._scaled(self._network.get_output_embeddings().weight[list(tokens)])
        # The norm of ±1 is ± its factors, whether it takes the mean away or not; what it adds drops out.
        signs = 1.0 - 2.0 * (torch.arange(self.hidden_size, device=self.device) % 2).to(rows)
        factors: Tensor = (self.final_norm(signs[None]) - self.final_norm(-signs[None])) * signs / 2
        return (rows * factors).float().cpu()

    @torch.inference_mode()
    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head with rows for these tokens alone; what it is given is normed already."""

        head = self._network.get_output_embeddings()
        bias: Tensor | None = getattr(head, "bias", None)

        def rows(some: Sequence[int]) -> Tensor:
            found: Tensor = head.weight[list(some)]
            return found if bias is None else torch.cat([found, bias[list(some), None]], dim=1)

        def states(normed: Tensor) -> Tensor:
            return normed if bias is None else F.pad(normed, (0, 1), value=1.0)

        def empty() -> TorchHead:
            return TorchHead(states, rows([]), self._capped)

        return TrimmedHead(empty, torch.tensor(tokens), rows(tokens), rows)

    def itself(self, tokens: Sequence[int]) -> Tensor:
        """(V,) float32 logits after these tokens as the network computes them alone, without our cache."""
        logits: Tensor = self.network(torch.tensor([list(tokens)], device=self.device), use_cache=False).logits[0, -1]
        return logits.float()

    @property
    def recurrent(self) -> bool:
        """Whether some of its layers keep a state instead of a row for each token."""
        return self._states is not None

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        like = torch.empty(self._sizes.kv_heads, self._sizes.head_dim, dtype=self.dtype, device="meta")
        return self.cache.bytes_until(tokens, like, longest)

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        layers = () if self._states is None else self._states.recurrent.values()
        states = sum(rows * sizes.row_bytes for sizes in layers) + max(
            (of.pass_bytes(rows) for of in layers), default=0
        )
        return self._sizes.bytes(rows, tokens + rows, logits) + states

    def limit_context_(self, tokens: int) -> None:
        self.context_tokens = self.cache.max_rows = tokens
        self.cache.in_steps = self.device.type == "cpu"

    def _pass(self, plan: PassPlan, wanted: Callable[[], list[int]], extra_rows: Sequence[ExtraRow] = ()) -> Tensor:
        """One forward pass; (rows wanted, d) normed states. Which rows are wanted is asked when the pass is done."""
        rows = plan.rows
        embedded = self.embed(plan.tokens).unsqueeze(0)
        if extra_rows:
            extra = torch.stack([extra_row.embedding for extra_row in extra_rows]).to(embedded)
            embedded = torch.cat([embedded, extra.unsqueeze(0)], dim=1)
        if self._states is None:
            self.cache.write_at(plan.start)
        else:
            self._states.begin(plan)
        with adapted_products(self.network.get_decoder().layers, extra_rows):
            hidden = self._decoder(
                inputs_embeds=embedded,
                attention_mask=self._masks(plan),
                position_ids=torch.tensor([plan.positions], device=self.device),
                past_key_values=self.cache,
                use_cache=True,
            ).last_hidden_state[0]
        if self._states is not None and not plan.nodes:
            self._states.text_read(rows)
        self.counters.count(rows, self._parts.computed_in_all)
        states: Tensor = hidden[wanted()]
        return states

    def _masks(self, plan: PassPlan) -> Tensor | Mapping[str, Tensor | None]:
        """The rows that each row attends to, as transformers' layers take them: by kind, where kinds differ."""
        whole = plan.mask.to(self.device)[None, None]
        if self._states is not None:  # by kind of layer; recurrent layers are not masked
            return defaultdict(lambda: None, full_attention=whole)
        if self._window is None:
            return whole
        last = windowed(plan, self._window).to(self.device)[None, None]
        if getattr(self._network.config, "layer_types", None) is None:
            return last
        return {"full_attention": whole, "sliding_attention": last}

    def logits_of(self, hidden: Tensor) -> Tensor:
        """(rows, V) logits of final states, with whatever scaling or capping the architecture applies."""
        return self._capped(self._network.get_output_embeddings()(hidden))

    def _capped(self, products: Tensor) -> Tensor:
        logits = self._scaled(products)
        if (cap := getattr(self._network.config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _scaled(self, logits: Tensor) -> Tensor:
        config = self._network.config
        if (scale := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / scale
        for name in ("logit_scale", "lm_head_multiplier"):
            if (scale := getattr(config, name, None)) is not None:
                logits = logits * scale
        return logits

    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> None:
        with self._watched(watch):
            self._pass(plan, wanted=list)

    @contextmanager
    def _watched(self, watch: LayerWatch | None, text: int = 0, rows: int | None = None) -> Iterator[None]:
        """Let `watch` see the states after each layer it wants. Dropped rows are computed on, but not looked at.

        Args:
            text: its place among the texts of the pass.
            rows: of the text, where padding follows.
        """
        if watch is None:
            yield
            return

        def after_layer(layer: int) -> Callable[[Any, Any, Any], None]:
            def hook(module: Any, arguments: Any, output: Any) -> None:
                hidden: Tensor = (output if isinstance(output, Tensor) else output[0])[text][:rows]
                watch.after_layer(layer, hidden[watch.rows()])

            return hook

        def before_layer(layer: int) -> Callable[[Any, Any], Any]:
            def hook(module: Any, arguments: Any) -> Any:
                hidden: Tensor = arguments[0].clone()
                entered = watch.enter(layer, hidden[0, watch.rows()])
                hidden[0, watch.rows()] = entered
                return hidden, *arguments[1:]

            return hook

        wanted = [layer for layer in range(self.layers) if watch.wants(layer)]
        hooks = [self._layers[layer].register_forward_hook(after_layer(layer)) for layer in wanted]
        hooks += [self._layers[layer].register_forward_pre_hook(before_layer(layer)) for layer in watch.entries]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def refuse_other_states(name: str, model: ReferenceModel) -> None:
    """Refuse a network with recurrent layers that says something else over a tree than when it reads a text by itself.

    What its layers compute is known from the transformers that is installed, and another version may do otherwise.
    """
    tree = TokenTree(0, model.vocab_size)
    below = [tree.add(tree.add(ROOT, Guess(token % model.vocab_size)), Guess(1)) for token in (2, 3)]
    with torch.inference_mode():
        read = model.read(tree.freeze(), request=PassRequest()).after(below[1])
        model.keep(())
        model.prefill([])
        said = model.itself([0, *tree.path_tokens(below[1])])
    apart = float((read.float() - said).abs().max() / said.abs().max().clamp(min=1e-6))
    if not apart <= (1e-3 if model.dtype == torch.float32 else 0.1):
        raise ModelError(
            f"{name} cannot be used: over a tree its logits differ from its own by {apart:.2g} of the largest; nearest "
            "that works: another version of transformers"
        )


def pass_sizes(config: Any, vocab_size: int, dtype: torch.dtype) -> PassSizes:
    """Sizes as a transformers configuration tells them; what it does not name is taken to be the usual."""
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    return PassSizes(
        hidden=hidden,
        inner=int(getattr(config, "intermediate_size", None) or 4 * hidden),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        vocab_size=vocab_size,
        element=dtype.itemsize,
    )


def groups_of_equal_lengths(sizes: Sequence[tuple[int, int]], row_work: int) -> list[list[int]]:
    """Places of texts that are read in one pass where all texts of a pass must be equally long.

    Texts of equal lengths come together first. Others join them, padded, where that costs little more work.

    Reference: EXSPEC in "Batch Speculative Decoding Done Right", arXiv:2510.22876. Differs: a round is read whole, so
    no text waits for another of its length.

    Args:
        sizes: rows, and rows of the cache that these attend to, of each text.
        row_work: what a row takes besides attention, in rows that are attended to.
    """

    def work(rows: int, seen: int) -> int:
        return rows * (seen + row_work)

    groups: list[list[int]] = []
    exact = widest = longest = 0  # of the last group
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place]):
        rows, seen = sizes[place]
        exact, widest, longest = exact + work(rows, seen), max(widest, rows), max(longest, seen)
        if groups and (len(groups[-1]) + 1) * work(widest, longest) <= (1 + _SPARE) * exact:
            groups[-1].append(place)
        else:
            groups.append([place])
            exact, widest, longest = work(rows, seen), rows, seen
    return groups
