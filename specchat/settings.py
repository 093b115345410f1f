"""The one list of settings: flags, panel, slash commands, `--help` and docs are all generated from it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specchat.errors import UsageError, nearest, short
from specchat.registry import Option, option, options_of

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_amount_or_off(text: str) -> int:
    """Bytes of an amount that is not about memory; 0 for `off`. UsageError for what is neither."""
    said = text.strip() or "0"
    return 0 if said.lower() == "off" else parse_memory(said, "prompt_cache", "2GB, 800MB or off")


def parse_memory(text: str, name: str = "memory", like: str = "2GB or 800MB") -> int:
    """Bytes of an amount; 0 for an empty text. UsageError, naming the setting, if it is not an amount of memory."""
    if not text.strip():
        return 0
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([KMG]I?|)B?\s*", text, re.IGNORECASE)
    amount = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if amount < 1:
        raise UsageError(f"{name} = {short(text)} is not an amount of memory; write it like {like}")
    return amount


def memory_text(amount: int) -> str:
    """An amount as `parse_memory` reads it, rounded up."""
    unit, name = (10**9, "GB") if amount >= 10**10 else (10**6, "MB")
    return f"{-(-amount // unit)}{name}"


COLDEST = 1e-6
"""The least temperature above 0: log-probabilities divided by it stay finite numbers, on every path."""

MOST_LAYERS = 1024
"""Layers of a target that settings and messages speak of, at most."""

MOST_TOGETHER = 8
"""Replies that are written at once, at most."""


_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,250}")


def parse_target_at(at: str) -> str:
    """The host of `ssh:HOST`, a name without anything that ssh would take for an option; empty for an empty text."""
    kind, _, host = at.partition(":")
    if at and not (kind == "ssh" and _HOST.fullmatch(host)):
        raise UsageError(f"target_at = {short(at)} is no place for a target; write it like ssh:box")
    return host


@dataclass(frozen=True)
class Settings:
    """Everything a user may choose for a reply. Fields marked live act between two rounds."""

    pair: str = option("smol", "the model to chat with and what guesses for it, as named in models.toml", live=False)
    drafter: str = option("prompt_lookup", "what guesses the next tokens")
    policy: str = option("chain", "which guesses get a place in the tree")
    rule: str = option("follow", "which guesses are accepted")
    controller: str = option(
        "fixed",
        "how many guesses each round makes; of several, such as goodput+memory, the one that allows fewest holds",
    )
    loop: str = option(
        "sequential",
        "when to draft: before the target reads, or also while it does (overlap, mirror), or only then (pearl)",
        choices=("sequential", "pearl", "overlap", "mirror"),
    )
    mirror_layer: int = option(
        0,
        "layer of the target after which loop mirror taps its candidates; 0: two thirds of the way",
        unit="layers",
        minimum=0,
        maximum=MOST_LAYERS,
    )
    mirror_candidates: int = option(
        2, "candidates for which loop mirror drafts a branch each", unit="tokens", minimum=1, maximum=64
    )
    width: int = option(2, "guesses for one place, at most", unit="nodes", minimum=1, maximum=64)
    depth: int = option(6, "tokens guessed ahead, at most", unit="levels", minimum=1, maximum=64)
    nodes: int = option(
        16, "guesses in one tree; 0 is plain decoding, without guesses", unit="nodes", minimum=0, maximum=512
    )
    temperature: float = option(
        0.0,
        "0 always takes the likeliest token; higher is more varied",
        minimum=0.0,
        maximum=10.0,
        least_above_zero=COLDEST,
    )
    top_k: int = option(0, "draw among so many of the likeliest tokens; 0 is all", unit="tokens", minimum=0)
    top_p: float = option(
        1.0, "draw among the likeliest tokens that have this share of probability together", minimum=0.0, maximum=1.0
    )
    min_p: float = option(
        0.0, "never draw a token less likely than this share of the likeliest one", minimum=0.0, maximum=1.0
    )
    repetition_penalty: float = option(
        1.0, "above 1 makes tokens of prompt and reply less likely", minimum=0.01, maximum=10.0
    )
    presence_penalty: float = option(
        0.0, "subtracted once from tokens already in the reply", minimum=-10.0, maximum=10.0
    )
    frequency_penalty: float = option(
        0.0, "subtracted per occurrence from tokens already in the reply", minimum=-10.0, maximum=10.0
    )
    seed: int = option(-1, "same seed, same text; -1 draws a fresh one for every reply", minimum=-1)
    max_tokens: int = option(2048, "longest reply", unit="tokens", minimum=1)
    prune_layer: int = option(
        0, "drop unlikely nodes after this layer of the target; 0 never", unit="layers", minimum=0, maximum=MOST_LAYERS
    )
    prune_keep: int = option(
        64, "most likely tokens that early pruning keeps below a node", unit="tokens", minimum=1, maximum=65536
    )
    dtype: str = option(
        "auto", "number format of the weights", choices=("auto", "float32", "bfloat16", "int8", "int4"), live=False
    )
    backend: str = option(
        "auto",
        "what runs the models: own decoder, transformers, or llama.cpp, which is a library to install; auto chooses",
        choices=("auto", "own", "transformers", "llama.cpp"),
        live=False,
    )
    kernels: str = option(
        "auto",
        "which code multiplies int8 and int4 weights on a processor: native is compiled here, once, and fastest",
        choices=("auto", "native", "torch"),
        live=False,
    )
    device: str = option(
        "auto",
        "where the models run: auto, cpu, cuda, cuda:1, mps; the target over cards: cuda:0,1, or processes: cpu:2",
        live=False,
    )
    target_at: str = option(
        "",
        "draft here and verify on another machine that has specchat, such as ssh:box; empty: the target runs here too",
        live=False,
        check=parse_target_at,
    )
    threads: int = option(
        0,
        "processor threads of the engine, at most its cores; 0 chooses",
        unit="threads",
        minimum=0,
        maximum=1024,
        live=False,
    )
    memory: str = option(
        "",
        "the most memory that the engine may take, such as 2GB; empty: no limit",
        live=False,
        check=parse_memory,
    )
    prompt_cache: str = option(
        "2GB",
        "the most disk that what was read of chats and long prompts may take, so that it is not read again; or off",
        check=parse_amount_or_off,
    )
    prompt_cache_8bit: bool = option(
        False,
        "round what the prompt cache keeps on the disk to 8 bits: smaller, but lossy: replies from it are not exact",
        live=False,
    )
    learn: bool = option(
        False,
        "let the trained drafter or draft model in use learn from your replies while idle; they stay on this machine",
    )
    lens: bool = option(
        False,
        "show at which of its layers the target decided each token; not counted in figures, but replies take longer",
    )
    stop: tuple[str, ...] = ()
    method_options: Mapping[str, Any] = field(default_factory=dict)

    def but(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some changed; unknown names and values out of range are refused by name.

        Method options come as `"METHOD.OPTION": value` under `method_options`; the method's own table
        checks them, since this list does not know the methods.
        """
        return dataclasses.replace(self, **{name: self.checked(name, value) for name, value in changes.items()})

    def changed_live(self, changes: Mapping[str, Any]) -> Settings:
        """The same while a pair is in use: refuses to change what takes effect only when one is loaded."""
        changed = self.but(changes)
        for name in changes:
            if name in OPTIONS and not OPTIONS[name].live and getattr(changed, name) != getattr(self, name):
                raise UsageError(
                    f"{name} = {short(changes[name])} takes effect when a pair is loaded, not while one is in use"
                )
        return changed

    def options_for(self, method: str) -> dict[str, Any]:
        """The user's options of one method: `{"max_ngram": 5}`."""
        prefix = method + "."
        return {key.removeprefix(prefix): v for key, v in self.method_options.items() if key.startswith(prefix)}

    def checked(self, name: str, value: Any) -> Any:
        """The value of a setting as these settings would hold it; UsageError if it is unknown or out of range."""
        if name == "stop":
            strings = [value] if isinstance(value, str) else value
            if not isinstance(strings, list | tuple) or not all(isinstance(s, str) and s for s in strings):
                raise UsageError(f"stop = {short(value)} must hold non-empty texts")
            return tuple(strings)
        if name == "method_options":
            if not isinstance(value, Mapping):
                raise UsageError(f"method_options = {short(value)} must be a table of METHOD.OPTION = VALUE")
            for key in value:
                if key.count(".") != 1:
                    raise UsageError(f"method option {short(key)} must be written METHOD.OPTION=VALUE")
            return {**self.method_options, **value}
        if name not in OPTIONS:
            known = [*OPTIONS, "stop", "method_options"]
            raise UsageError(f"there is no setting {short(name)}{nearest(name, known)}")
        return OPTIONS[name].parse(value, "")


OPTIONS: dict[str, Option] = {o.name: o for o in options_of(Settings)}
"""Every setting with a single value, by name, in the order they are shown."""

SPECULATION = (
    "drafter", "policy", "rule", "controller", "width", "depth", "nodes", "prune_layer", "prune_keep",
    "loop", "mirror_layer", "mirror_candidates", "method_options",
)  # fmt: skip
"""How to speculate. What pays depends on the models, so these belong to a pair; the others belong to the user."""


GREEDY: Mapping[str, Any] = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
"""Always the most likely token. Measurements and proofs start from it; a chat samples as its pair says."""


def parse_method_options(pairs: list[str]) -> dict[str, str]:
    """`--set METHOD.OPTION=VALUE`, as often as given, into one mapping."""
    chosen: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key.count(".") != 1 or not all(key.split(".")):
            raise UsageError(f"--set {short(pair)} must be written METHOD.OPTION=VALUE")
        chosen[key] = value
    return chosen
