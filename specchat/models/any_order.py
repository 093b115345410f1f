"""An XLNet as an any-order model: the law of any token of a text, given any of the others, by two-stream attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.core.reading import Counters
from specchat.errors import DamagedModel, NotNumbers, UsageError, WeightsError
from specchat.models.backends.transformers_network import load_network
from specchat.models.model_loading import open_config
from specchat.models.weights.tokenizer_files import open_tokenizer

_TOKENIZERS = ("tokenizer.json", "spiece.model")


class AnyOrderModel:
    """A network that fills a text in an order: rank 0 is the known text, whose tokens all see each other; a token of a
    higher rank sees those of lower ranks.

    The content stream holds tokens, and each sees itself. The query stream holds places alone: a query sees the
    contents of lower ranks, neither its own token nor a later one.

    Reference: Yang et al., XLNet, arXiv:1906.08237; masks after Guo and Ermon, Reviving Any-Subset Autoregressive
    Models with Principled Parallel Sampling and Speculative Decoding, arXiv:2504.20456.
    """

    def __init__(self, network: Any, name: str = "") -> None:
        """Wraps transformers' XLNetLMHeadModel; errors call it by its name."""
        self._network, self._name = network.eval(), name
        self.vocab_size: int = network.config.vocab_size
        self.counters = Counters()

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], ranks: Sequence[int], asked: Sequence[int], below: int) -> Tensor:
        """(n, V) float32 logits of the tokens at n asked places, by one pass.

        Args:
            tokens: the text. What stands at places whose rank nobody sees changes nothing.
            ranks: of each place.
            asked: places of ranks from 1.
            below: queries and contents see only ranks below this one, at least 1.

        Raises:
            NotNumbers: names the network.
        """
        self.counters.passes += 1
        self.counters.rows += len(tokens) + len(asked)
        places = torch.tensor([ranks])
        targets = torch.zeros(1, len(asked), len(tokens))
        targets[0, torch.arange(len(asked)), torch.tensor(asked)] = 1.0
        said = self._network(
            torch.tensor([tokens]),
            perm_mask=hidden_from(places, places.clamp(max=below)),
            target_mapping=targets,
            use_mems=False,
        )
        logits: Tensor = said.logits[0].float()
        if not logits.isfinite().all():
            raise NotNumbers(self._name)
        return logits


def hidden_from(ranks: Tensor, seen: Tensor) -> Tensor:
    """(B, L, L) float32: 1 where place i does not see place j, for transformers' `perm_mask`.

    Args:
        ranks: (B, L) of each place.
        seen: (B, L) the rank below which each place sees others. The known text, of rank 0, sees itself.
    """
    return (ranks[:, None, :] >= seen.clamp(min=1)[:, :, None]).float()


def load_any_order(folder: Path) -> tuple[AnyOrderModel, Any]:
    """The XLNet of a folder in transformers' form, in float32 on the processor, and its tokenizer.

    Raises:
        UsageError: it is no folder, or holds another kind of network.
        WeightsError: a file is missing, cannot be read, or holds invalid values.
        ModelError: network and files do not go together.
    """
    if not folder.is_dir():
        raise UsageError(f"--model {folder} is not a folder with an XLNet: config.json, tokenizer and safetensors")
    _, config = open_config(folder)
    if config.model_type != "xlnet" or config.attn_type != "bi":
        kind = config.model_type if config.model_type != "xlnet" else f"xlnet with attn_type = {config.attn_type}"
        raise UsageError(
            f"--model {folder} holds a network of kind {kind}, which does not fill texts in any order; xlnet does, "
            "with attn_type = bi"
        )
    if not any((folder / name).exists() for name in _TOKENIZERS):
        raise WeightsError(f"{folder} holds no tokenizer: neither {' nor '.join(_TOKENIZERS)} is there")
    tokenizer = open_tokenizer(folder)
    if len(tokenizer) > config.vocab_size:
        raise DamagedModel(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the network {config.vocab_size}")
    return AnyOrderModel(load_network(folder, config, torch.float32, attention="eager"), str(folder)), tokenizer
