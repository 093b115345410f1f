"""Tokens a second, plain and with trees, of a model of which only a part of the weights fits into memory.

For each share of the weights an engine is loaded with as much `memory` as that share needs, in a control group that has
no more, where groups may be made. It writes the same text plainly and with trees, and says what it read from the disk
in a pass, how quickly the disk gave that, and the most memory that was taken. Needs a quiet machine.

    python tools/larger_than_memory.py --pair qwen-coder --shares 100,75,50 --tokens 64
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_PROMPT = "Write a Python class for a bank account with deposit, withdraw and a history. Include docstrings and tests."
_GROUPS = Path("/sys/fs/cgroup")
_OPTIONS = ("hydra.tokens=16384",)


class Group:
    """A control group that limits memory, by version 1 or 2."""

    def __init__(self, root: Path, name: str) -> None:
        """Make it; OSError where that is not allowed."""
        first = (root / "memory.limit_in_bytes").exists()
        self._folder = root / name
        names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if first else ("memory.max", "memory.peak")
        self._folder.mkdir()
        self._limit, self._peak = (self._folder / one for one in names)
        if not self._limit.exists():
            self._folder.rmdir()
            raise OSError("this group has no limit of memory")
        self.processes = self._folder / "cgroup.procs"

    def limit(self, amount: int) -> None:
        self._limit.write_text(str(amount), encoding="ascii")

    @property
    def peak(self) -> int:
        """The most that its processes took, with what was kept of files."""
        return int(self._peak.read_text(encoding="ascii")) if self._peak.exists() else 0

    def remove(self) -> None:
        self._folder.rmdir()


@contextmanager
def limited(name: str) -> Iterator[Group | None]:
    """A new group; None where this user may not make one."""
    group = None
    for root in (_GROUPS / "memory", _GROUPS):
        with suppress(OSError):
            group = Group(root, name)
            break
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def measured(
    pair: str, memory: int, tokens: int, changes: dict[str, Any], group: Group | None, *, profile: bool = True
) -> dict[str, Any]:
    """What an engine of its own says of the texts that it wrote with so much memory; see `_child`."""
    asked = {"pair": pair, "memory": memory, "tokens": tokens, "changes": changes, "profile": profile}
    if group is not None:
        group.limit(memory)
        asked["group"] = str(group.processes)
    command = [sys.executable, __file__, "--child", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"with memory = {memory}: ended with {done.returncode}\n{done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**said, "memory": memory, "group_peak_bytes": 0 if group is None else group.peak}


def memory_for(pair: str, share: float, changes: dict[str, Any]) -> int:
    """Memory with which so large a share of the weights stays, to a layer: engines are loaded until one says so."""
    said = measured(pair, 64 << 30, 0, changes, None, profile=False)
    weights = said["weight_bytes"]
    memory = int(said["base_bytes"] + said["useful_bytes"] + (share - 1) * weights)
    for _ in range(3 if share < 1 else 0):
        said = measured(pair, memory, 0, changes, None, profile=False)
        missing = share * weights - (weights - said["pass_bytes"])
        if abs(missing) < said["layer_bytes"]:
            break
        memory += int(missing)
    return memory


def _child(asked: dict[str, Any]) -> dict[str, Any]:
    """Load a pair and write a text plainly and with trees."""
    if "group" in asked:
        Path(asked["group"]).write_text(str(os.getpid()), encoding="ascii")
    from specchat.compiled.machine import peak_process_bytes
    from specchat.config import load_catalog, settings_of
    from specchat.core.memory import PairMemory
    from specchat.decoding.conversation import Conversation
    from specchat.decoding.profiling import measure_costs
    from specchat.decoding.reply_events import RoundWritten
    from specchat.engine.server.pair_loading import Loader
    from specchat.models.decoder.decoder import Decoder
    from specchat.settings import GREEDY

    catalog = load_catalog()
    named = catalog.pair(asked["pair"])
    base = {**GREEDY, "pair": asked["pair"], "memory": str(asked["memory"] // 1000) + "KB", "seed": 1}
    base["max_tokens"] = max(1, asked["tokens"])
    settings = settings_of(named, {**base, **asked["changes"]})
    pair = Loader(catalog, lambda event: None, lambda: False).load(settings)
    model = pair.target.model
    assert isinstance(model, Decoder), "our own decoder runs it"
    streamed = getattr(model.network, "streamed", None)
    assert pair.memory is not None, "memory was stated"
    context = min(2048, model.context_tokens)
    useful = PairMemory(model).round_bytes(settings.nodes, context) + PairMemory(model).kept_bytes(settings.nodes)
    trained = sum(one.size for one in pair.trained.fitting)
    said: dict[str, Any] = {
        "base_bytes": pair.memory.base_bytes,
        "weight_bytes": model.network.nbytes,
        "useful_bytes": useful + 14 * trained,
        "layer_bytes": model.network.nbytes // model.layers,
        "pass_bytes": 0 if streamed is None else streamed.pass_bytes,
        "notes": pair.notes,
    }
    draft = pair.draft.model if pair.draft else None
    costs = measure_costs(model, draft, fits=pair.room_for_rows) if asked["profile"] else None
    said["costs"] = costs.verify if costs is not None else ()
    prompt = None
    for name, changes in (("plain", {"controller": "off"}), ("trees", {})) if asked["tokens"] else ():
        chosen = settings_of(named, {**base, **asked["changes"], **changes})
        conversation = Conversation(model, draft, pair.vocabulary, chosen, costs, pair.resources)
        prompt = prompt or conversation.encode([{"role": "user", "content": _PROMPT}])
        before, rounds, at = 0, [], []
        for event in conversation.reply(prompt):
            if isinstance(event, RoundWritten):
                before = before or (streamed.bytes_read if streamed is not None else 0)  # after the prompt was read
                rounds.append(event.round)
                at.append(event.at_s)
        written = [list(one.emitted) for one in rounds]
        read = (streamed.bytes_read if streamed is not None else 0) - before
        text = list(itertools.chain.from_iterable(written))
        said[name] = {
            "tokens_per_s": len(list(itertools.chain.from_iterable(written[1:]))) / max(1e-9, at[-1] - at[0]),
            "tokens_a_round": len(text) / len(rounds),
            "rows": sum(one.rows for one in rounds) / len(rounds),
            "read_a_round_bytes": read / max(1, len(rounds) - 1),
            "text": text,
        }
    said["disk_bytes_per_s"] = 0.0 if streamed is None else streamed.read_rate
    said["peak_bytes"] = peak_process_bytes()
    return said


def _line(share: str, said: dict[str, Any]) -> str:
    plain, trees = said["plain"], said["trees"]
    length = min(len(plain["text"]), len(trees["text"]))
    same = "same text" if plain["text"][:length] == trees["text"][:length] else "ANOTHER TEXT"
    return (
        f"{share:>5} % of the weights, memory {said['memory'] / 1e9:.2f} GB: plain {plain['tokens_per_s']:.2f} tok/s, "
        f"trees {trees['tokens_per_s']:.2f} tok/s = {trees['tokens_per_s'] / plain['tokens_per_s']:.2f} × "
        f"(τ {trees['tokens_a_round']:.2f}, {trees['rows']:.0f} rows a pass), {same}; "
        f"{plain['read_a_round_bytes'] / 1e9:.2f} GB read a round, {said['pass_bytes'] / 1e9:.2f} foreseen, "
        f"the disk gave {said['disk_bytes_per_s'] / 1e9:.2f} GB/s; peak {said['peak_bytes'] / 1e9:.2f} GB, "
        f"of the group {said['group_peak_bytes'] / 1e9:.2f} GB"
    )


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--child"]:
        print(json.dumps(_child(json.loads(arguments[1]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="qwen-coder")
    parser.add_argument("--shares", default="100,75,50", help="per cent of the weights that stay in memory")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--controller", default="goodput")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--drafter", default="merge")
    parser.add_argument("--policy", default="best_first")
    parser.add_argument("--option", action="append", metavar="NAME=VALUE", help="by default hydra.tokens=16384")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    named = (one.partition("=") for one in given.option or _OPTIONS)
    options = {name: int(value) if value.isdecimal() else value for name, _, value in named}
    changes = {name: getattr(given, name) for name in ("nodes", "width", "depth", "controller", "drafter", "policy")}
    changes["method_options"] = options
    found = {}
    for share in given.shares.split(","):
        memory = memory_for(given.pair, float(share) / 100, changes)
        with limited(f"specchat-{os.getpid()}-{share}") as group:
            found[share] = measured(given.pair, memory, given.tokens, changes, group)
        print(_line(share, found[share]), flush=True)
        print("      " + "; ".join([*found[share]["notes"], "" if group else "no control group: not allowed here"]))
        print("      rows: seconds of a pass  " + ", ".join(f"{n}: {s:.2f}" for n, s in found[share]["costs"]))
    if given.out:
        given.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
