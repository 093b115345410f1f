"""Turns a published EAGLE-3 checkpoint into a trained drafter on this machine."""

from __future__ import annotations

import os

from specchat.config import HubSource, ModelSpec, own_drafters_dir
from specchat.config.directories import expanded
from specchat.config.file_replacing import replacing, unfinished
from specchat.config.toml_checks import NAME
from specchat.config.trained_drafters import WEIGHTS, TrainedDrafter, read_drafter, write_drafter
from specchat.errors import UsageError, short
from specchat.models.draft_heads.eagle3_files import TargetSizes, read_eagle3, write_eagle3
from specchat.models.hub import fetching, model_state
from specchat.models.hub.checksum import weights_sha256
from specchat.models.hub.disk import OnProgress
from specchat.models.model_config import open_config

_METHOD = "eagle"


def add_published(name: str, target: ModelSpec, source: str, report: OnProgress) -> TrainedDrafter:
    """Read a checkpoint and write it as a trained drafter for this target, whose weights are here.

    Args:
        source: a folder, or a repository of the hub.

    Raises:
        UsageError: the name is taken or not valid, or the source is neither.
        WeightsError, ModelError: the checkpoint or the target cannot be read, or they do not belong together.
    """
    place = own_drafters_dir() / name
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a valid name: letters, digits, '.', '_' and '-'")
    if place.exists():
        raise UsageError(f"a trained drafter is called {name!r} already; `specchat models remove {name}` makes room")
    fetched = _in_the_hub(source, name)
    sha256 = weights_sha256(target, report)
    folder = expanded(source) if fetched is None else fetching.fetch(fetched, report)
    sizes, tensors = read_eagle3(folder, _sizes_of(target))
    with unfinished(place) as made:
        with replacing(made / WEIGHTS, alone=True) as draft:
            write_eagle3(tensors, draft)
        write_drafter(
            made,
            method=_METHOD,
            target=target.name,
            target_sha256=sha256,
            licence=f"see {source}",
            options=sizes.options(),
            data={"source": source},
            figures={},
        )
        made.rename(place)
    if fetched is not None:
        fetching.remove(fetched)
    return read_drafter(place, (_METHOD,))


def _in_the_hub(source: str, name: str) -> ModelSpec | None:
    """What is to be fetched first; None for a folder."""
    own = expanded(source, "--drafter")
    if os.path.isdir(own):  # never raises
        return None
    if os.path.exists(own) or source.count("/") != 1:
        raise UsageError(f"--drafter {short(source)} is neither a folder nor a repository of the hub (owner/name)")
    return ModelSpec(f"checkpoint-of-{name}", (HubSource(source),))


def _sizes_of(target: ModelSpec) -> TargetSizes:
    _, config = open_config(model_state.locate(target))
    return TargetSizes(config.hidden_size, config.num_hidden_layers, config.vocab_size)
