"""Other engines as contestants, and the one that is always there: transformers' `generate`."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specchat.bench.circumstances import EnergyMeter
from specchat.bench.measured_reply import Written
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.engine.server.loaded_pair import LoadedPair


_TRIAL_TOKENS = 24
_TRIALS = 2
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class PeerPass:
    """Tokens that a peer handed over at once, and when."""

    tokens: list[int]
    at_s: float


PeerGenerate = Callable[[list[int], int], Iterator[PeerPass]]
"""(prompt, most tokens) → what comes, as it comes. Greedy. The caller stops listening at an end token."""


@dataclass
class Peer:
    """Another engine as a contestant. Its output is counted in token ids, never tokenised anew.

    Args:
        about: what was decided for it: version, threads.
    """

    name: str
    generate: PeerGenerate
    eos_ids: frozenset[int]
    max_tokens: int
    meter: EnergyMeter
    use_threads: Callable[[int], None]
    about: dict[str, Any] = field(default_factory=dict)
    threads: int = 0

    def begin(self) -> None:
        """Nothing is kept from one question to the next."""

    def warm_up(self, prompt: list[int]) -> None:
        self._write(prompt, _WARM_UP_TOKENS)

    def write(self, prompt: list[int], seed: int, json_schema: str = "") -> Written:
        """One greedy reply; nothing holds it to a schema. What comes with the first pass counts as reading the prompt.

        The time of its tokens is therefore taken from the passes after the first, and applied to all of them.
        """
        return self._write(prompt, self.max_tokens)

    def choose_threads(self, prompt: list[int], most: int) -> None:
        """Use one thread or `most`, whichever writes the prompt's reply faster."""
        speeds: dict[int, float] = {}
        for threads in {1, most}:
            self.threads = threads
            self._write(prompt, _WARM_UP_TOKENS)
            tries = [self._write(prompt, _TRIAL_TOKENS) for _ in range(_TRIALS)]
            speeds[threads] = max(len(one.tokens) / (one.prefill_s + one.decode_s) for one in tries)
        self.threads = max(speeds, key=speeds.__getitem__)
        self.about["threads"] = self.threads

    def _write(self, prompt: list[int], most: int) -> Written:
        before_threads = torch.get_num_threads()
        self.use_threads(self.threads)
        try:
            before, began = self.meter.joules(), time.perf_counter()
            passes: list[PeerPass] = []
            for one in self.generate(prompt, most):
                passes.append(one)
                if self.eos_ids.intersection(one.tokens) or sum(len(p.tokens) for p in passes) >= most:
                    break
            energy = self.meter.since(before)
        finally:
            torch.set_num_threads(before_threads)
        return self._timed(passes, began, most, energy)

    def _timed(self, passes: Sequence[PeerPass], began: float, most: int, energy: float | None) -> Written:
        written = [token for one in passes for token in one.tokens]
        end = next((at for at, token in enumerate(written, 1) if token in self.eos_ids), most)
        tokens = written[: min(end, most)]
        if not passes:
            return Written((), "", "end", time.perf_counter() - began, 0.0, None, energy)
        first, last = passes[0], passes[-1]
        total_s, later = last.at_s - began, max(0, len(tokens) - len(first.tokens))
        per_token = (last.at_s - first.at_s) / later if later else total_s / max(1, len(tokens))
        decode_s = min(total_s, per_token * len(tokens))
        stop = "end" if tokens and tokens[-1] in self.eos_ids else "length"
        return Written(tuple(tokens), "", stop, total_s - decode_s, decode_s, None, energy)


_ASSISTANT = "assistant_model"

_LOOKUP_TOKENS = 10
"""The number in transformers' own documentation."""


def transformers_peers(pair: LoadedPair, settings: Settings, target_path: Path, draft_path: Path | None) -> list[Peer]:
    """Plain and prompt lookup, and assisted generation where the pair has a draft model."""
    # It has no kernels for 8 and 4 bits here. A token in bfloat16 is quicker even where it is emulated: fewer bytes.
    dtype = torch.float32 if pair.precision == "float32" else torch.bfloat16
    assistant = _load(draft_path, dtype, pair.device) if draft_path is not None else None
    return peers_over(_load(target_path, dtype, pair.device), assistant, pair, settings)


def peers_over(network: Any, assistant: Any | None, pair: LoadedPair, settings: Settings) -> list[Peer]:
    """The same over networks of transformers that are loaded already."""
    ways: dict[str, dict[str, Any]] = {
        "transformers": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS},
    }
    if assistant is not None:
        ways["transformers assisted"] = {_ASSISTANT: assistant}
    version = importlib.metadata.version("transformers")
    about = {"version": version, "dtype": str(network.dtype).removeprefix("torch.")}
    limits = (pair.vocabulary.eos_ids, settings.max_tokens, EnergyMeter(pair.device))
    return [
        Peer(name, _Generate(network, pair, how), *limits, torch.set_num_threads, {**about})
        for name, how in ways.items()
    ]


class _Generate:
    """One way of calling `generate`. Each pass is noted by a stopping criterion, which is asked after every pass."""

    def __init__(self, network: Any, pair: LoadedPair, how: dict[str, Any]) -> None:
        self._network = network
        self._device = pair.device
        self._eos = sorted(pair.vocabulary.eos_ids)
        self._how = {name: value for name, value in how.items() if name != _ASSISTANT}
        self._assistant = how.get(_ASSISTANT)

    def __call__(self, prompt: list[int], most: int) -> Iterator[PeerPass]:
        from transformers import GenerationConfig, StoppingCriteriaList

        seen: list[PeerPass] = []
        read = len(prompt)

        def note(ids: Any, scores: Any, **_: Any) -> Any:
            nonlocal read
            now = time.perf_counter()
            row = ids[0, read:].tolist()
            read = ids.shape[1]
            seen.append(PeerPass(row, now))
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        ends = {"eos_token_id": self._eos, "pad_token_id": self._eos[0]}
        config = GenerationConfig(do_sample=False, max_new_tokens=most, use_cache=True, **ends, **self._how)
        ids = torch.tensor([prompt], device=self._device)
        with torch.inference_mode():
            self._network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([note]),
                assistant_model=self._assistant,
            )
        yield from (one for one in seen if one.tokens)


def _load(path: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The network once more, with transformers' own cache and attention; its own generation defaults taken off."""
    from transformers import GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    from specchat.models.backends.transformers_network import load_network
    from specchat.models.model_loading import open_config

    disable_progress_bar()
    network = load_network(path, open_config(path)[1], dtype)
    network.generation_config = GenerationConfig()
    return network.eval().to(device)
