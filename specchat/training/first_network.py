"""The network that a training begins with: a new one, or one with the weights of a trained drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specchat.config.trained_drafters import DESCRIPTION, TrainedDrafter
from specchat.errors import UsageError, short
from specchat.models.decoder.decoder import Decoder
from specchat.models.draft_heads.networks import kind_of, load_network, new_network, read_tokens
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.inspect.drafter_to_start_from import refuse_other_method
from specchat.training.corpus import Corpus
from specchat.training.recipes import HEAD_TOKENS
from specchat.training.target_weights import shared_with


def check_start(start: TrainedDrafter, method: str, sizes: NetworkSizes, target_sha256: str) -> None:
    """Refuse a drafter that does not match what is trained.

    Raises:
        UsageError: its method, its target or a size is another one; what to do instead.
    """
    named = f"--from {short(start.name)}"
    instead = "leave out --from and begin with nothing"
    refuse_other_method(start.name, start.method, method)
    if start.target_sha256 != target_sha256:
        raise UsageError(f"{named} was trained for other weights of {start.target}; {instead}")
    found = kind_of(method).sizes.read(start.options, f"{start.folder / DESCRIPTION}, [options]").options()
    for key, wanted in sizes.options().items():
        if found[key] != wanted:
            raise UsageError(f"{named} has {key} = {short(found[key])}, and {wanted} is trained; {instead}")


def first_network(
    method: str, sizes: NetworkSizes, target: Decoder, corpus: Corpus, seed: int, start: TrainedDrafter | None
) -> Any:
    """The network before it learns, on the target's device.

    A network has no numbers of its own for a token, since embeddings and the head's rows are the target's: which tokens
    it can guess may change at any time. A start was trained on more texts, as a rule, and the corpus is nearer to what
    is to be drafted, so the most frequent tokens of both are taken in turn. Measured with few texts of a subject of
    their own, they hold more of what the target says there than either list; with texts as before, hardly less.
    """
    known = None if start is None else read_tokens(start.weights)
    shared = shared_with(target, corpus, HEAD_TOKENS, known)
    if start is None:
        network = new_network(method, sizes, shared, torch.Generator().manual_seed(seed))
    else:
        network = load_network(start.method, start.options, start.weights, lambda tokens: shared)
        network.train().requires_grad_(True)
    return network.to(shared.head.device)


def reference_network(reference: TrainedDrafter, network: Any, target_sha256: str) -> Any:
    """The network of a trained drafter that guesses the same tokens as this one, to be compared with, not to learn.

    Raises:
        UsageError: it was trained for other weights.
    """
    if reference.target_sha256 != target_sha256:
        raise UsageError(f"--reference {short(reference.name)} was trained for other weights of {reference.target}")
    found = load_network(reference.method, reference.options, reference.weights, lambda tokens: network.shared)
    return found.to(network.shared.head.device)


def label_of(start: TrainedDrafter | None) -> str | None:
    """What a checkpoint keeps of the start, to be the same when it is gone on with."""
    return None if start is None else f"{start.name} ({start.sha256[:12]})"


def data_of(start: TrainedDrafter | None) -> Mapping[str, Any]:
    """What drafter.toml says of the start: its name, its checksum, and what it had learnt from, as far as that is
    known."""
    if start is None:
        return {}
    seen = [start.data.get(key) for key in ("reply_tokens", "from_reply_tokens")]
    before = sum(count for count in seen if type(count) is int)
    return {"from": start.name, "from_sha256": start.sha256, "from_reply_tokens": before}
