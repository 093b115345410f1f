"""Low-rank adapters on a transformers network: hooks on the products they add to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from specchat.core.request import Adapter, ExtraRow
from specchat.errors import ModelError
from specchat.models.decoder.adapters import Adapted, checked
from specchat.models.weights.families import LLAMA


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
        found = layers[layer].get_submodule(LLAMA.hub_names[name])
    except (AttributeError, KeyError, IndexError):
        raise ModelError(f"an adapter adds to {name!r} of layer {layer}, which this network does not have") from None
    return found
