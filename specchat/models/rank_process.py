"""The process of a rank that is not the first: `python -m specchat.models.rank_process FOLDER SIZE PATIENCE_S RANK`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from specchat.config import load_catalog
from specchat.errors import ModelError, RanksLost, SpecchatError
from specchat.models.hub import model_state
from specchat.models.model_loading import own_weights
from specchat.models.ranks.group import Group
from specchat.models.ranks.joining import join_launched, joined
from specchat.models.ranks.network import Follower, RankNetwork, fingerprint, rank_network
from specchat.models.ranks.plan import Load
from specchat.models.ranks.processes import file_store, last_words_file, there
from specchat.models.weights.weight_source import AdjustedSource


def load_share(load: Load, group: Group, path: Path) -> RankNetwork:
    """This rank's share of the model whose weights lie here.

    Raises:
        SpecchatError: it cannot be loaded, or is another model than the first rank's.
    """
    device = torch.device(load.devices[group.rank])
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    group.use_card(device)
    torch.set_num_threads(load.threads)
    source, shape = own_weights(load.name, path)
    source = AdjustedSource(source, rounds=True) if load.rounds else source
    if fingerprint(shape, source) != load.fingerprint:
        raise ModelError(f"the weights of {load.name} here are others than those of the first rank")
    return rank_network(shape, source, load.precision, device, group)


def follow(group: Group, path: Callable[[Load], Path]) -> None:
    """Follow the first rank until it stops.

    Raises:
        RanksLost: it, or another rank, has gone.
        PlanRefused: its plan contradicts itself.
    """
    Follower(group, lambda load, group: load_share(load, group, path(load))).run()


def join(at: str) -> None:
    """Be a rank of an engine on another machine until that ends; models are those of the catalog here.

    Raises:
        SpecchatError: it is not there, or tells what contradicts itself.
    """
    _follow_by_name(joined(at), at)


def join_launched_engine() -> None:
    """Be a rank that torchrun started, until the first one ends; the others as `join`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _follow_by_name(join_launched(), "rank 0")


def _follow_by_name(group: Group, at: str) -> None:
    print(f"rank {group.rank} of {group.size}, with the engine at {at}", file=sys.stderr, flush=True)
    with suppress(RanksLost):
        follow(group, lambda load: model_state.locate(load_catalog().model(load.name)))
    print("the engine has gone", file=sys.stderr, flush=True)


def main() -> None:
    """A rank that the first one has started: it ends when that one ends."""
    folder, size, patience_s, rank = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_first, daemon=True).start()
    try:
        store = file_store(folder, size)
        store.set(there(rank), "")
        follow(Group(store, rank, size, patience_s=patience_s), lambda load: Path(load.path))
    except RanksLost:
        os._exit(0)  # the first rank says it
    except SpecchatError as error:
        last_words_file(folder, rank).write_text(str(error), encoding="utf-8")
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    os._exit(0)


def _end_with_first() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
