"""Other engines as contestants: transformers' `generate`, llama.cpp, OpenVINO GenAI; plain and with prompt lookup."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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


_LLAMA_LOOKUP_TOKENS = {"cpu": 2, "cuda": 10}
"""The numbers in its own documentation, for processors and for graphics cards."""

_CONTEXT_TOKENS = 4096

_PATIENCE_S = 300

_LLAMA_TRIAL = """
import sys
from llama_cpp import Llama
next(Llama(sys.argv[1], n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False).generate([1, 2, 3], temp=0.0))
"""


def llama_peers(pair: LoadedPair, settings: Settings, path: Path) -> list[Peer]:
    """Plain, and with prompt lookup. Its weights stay as quantised as the file has them."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = LlamaPromptLookupDecoding(num_pred_tokens=_LLAMA_LOOKUP_TOKENS.get(pair.device.type, 10))
    version = importlib.metadata.version("llama-cpp-python")
    about = {"version": version, "weights": path.name}
    limits = (pair.vocabulary.eos_ids, settings.max_tokens, EnergyMeter(pair.device))
    peers: list[Peer] = []
    for name, draft in (("llama.cpp", None), ("llama.cpp prompt lookup", lookup)):
        engine = _Engine(path, min(_CONTEXT_TOKENS, pair.target.model.context_tokens), draft, pair.device.type)
        peers.append(Peer(name, engine, *limits, engine.use_threads, {**about}))
    return peers


_OPENVINO_TRIAL = """
import sys
import openvino, openvino_genai
config = openvino_genai.GenerationConfig(max_new_tokens=1)
openvino_genai.LLMPipeline(sys.argv[1], "CPU").generate(openvino.Tensor([[1, 2, 3]]), config)
"""

_OPENVINO_LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}
"""The numbers in its own example."""


def openvino_peers(pair: LoadedPair, settings: Settings, path: Path) -> list[Peer]:
    """Plain, and with prompt lookup, on the processor. Its weights stay as quantised as the file has them."""
    about = {"version": importlib.metadata.version("openvino-genai"), "weights": path.name}
    eos_ids, meter = pair.vocabulary.eos_ids, EnergyMeter(torch.device("cpu"))
    peers: list[Peer] = []
    for name, lookup in (("OpenVINO GenAI", {}), ("OpenVINO GenAI prompt lookup", _OPENVINO_LOOKUP)):
        engine = _Pipeline(path, lookup, eos_ids)
        peers.append(Peer(name, engine, eos_ids, settings.max_tokens, meter, engine.use_threads, {**about}))
    return peers


class _Pipeline:
    """One file loaded by OpenVINO GenAI; loaded when first used, and again when the number of threads changes."""

    def __init__(self, path: Path, lookup: dict[str, int], eos_ids: frozenset[int]) -> None:
        self._path = path
        self._lookup = lookup
        self._eos_ids = eos_ids
        self._threads = 0
        self._loaded: Any = None

    def use_threads(self, threads: int) -> None:
        if threads != self._threads:
            self._threads, self._loaded = threads, None

    def __call__(self, prompt: list[int], most: int) -> Iterator[PeerPass]:
        """Greedy tokens; a streamer is told of those of each pass."""
        import openvino
        import openvino_genai

        seen: list[PeerPass] = []

        class Passes(openvino_genai.StreamerBase):  # type: ignore[misc]
            def write(self, tokens: int | Sequence[int]) -> Any:
                said = [tokens] if isinstance(tokens, int) else list(tokens)
                seen.append(PeerPass(said, time.perf_counter()))
                return openvino_genai.StreamingStatus.RUNNING

            def end(self) -> None:
                """Nothing is held back until the end."""

        if self._loaded is None:
            properties = {"INFERENCE_NUM_THREADS": self._threads, "prompt_lookup": bool(self._lookup)}
            self._loaded = openvino_genai.LLMPipeline(str(self._path), "CPU", **properties)
        config = openvino_genai.GenerationConfig(max_new_tokens=most, do_sample=False, **self._lookup)
        config.stop_token_ids = set(self._eos_ids)
        self._loaded.generate(openvino.Tensor(np.array([prompt])), config, Passes())
        yield from seen


def why_not(trial: str, path: Path) -> str | None:
    """Why an engine cannot read the file, or None. Tried in a process of its own: a crash must not end ours."""
    try:
        tried = subprocess.run([sys.executable, "-c", trial, str(path)], capture_output=True, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"reading one token took more than {_PATIENCE_S} s"
    if tried.returncode < 0:
        return f"it crashes on this machine (signal {-tried.returncode}); it may have been built for another processor"
    if tried.returncode:
        said = tried.stderr.decode(errors="replace").strip().split("\n")
        return f"it cannot read {path.name}: {said[-1]}"
    return None


class _Engine:
    """One loaded file; loaded when first used, and again when the number of threads changes."""

    def __init__(self, path: Path, context_tokens: int, draft: Any, device: str) -> None:
        self._path = path
        self._context_tokens = context_tokens
        self._draft = draft
        self._layers_on_gpu = -1 if device == "cuda" else 0
        self._threads = 0
        self._llama: Any = None

    def use_threads(self, threads: int) -> None:
        if threads != self._threads:
            self._threads, self._llama = threads, None

    def __call__(self, prompt: list[int], most: int) -> Iterator[PeerPass]:
        """Greedy tokens, one at a time; those that come in one pass come almost at once."""
        llama = self._loaded()
        llama.reset()
        for token in llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
            yield PeerPass([int(token)], time.perf_counter())

    def _loaded(self) -> Any:
        if self._llama is None:
            from llama_cpp import Llama

            self._llama = Llama(
                str(self._path),
                n_ctx=self._context_tokens,
                n_threads=self._threads,
                n_threads_batch=self._threads,
                n_gpu_layers=self._layers_on_gpu,
                draft_model=self._draft,
                logits_all=self._draft is not None,
                verbose=False,
            )
        return self._llama


@dataclass(frozen=True)
class Reader:
    """An engine that reads GGUF files, where its package is installed.

    Args:
        trial: a program that reads a token with the file it is given.
        peers: the engine's ways of writing over a pair's file.
    """

    name: str
    module: str
    package: str
    trial: str
    peers: Callable[[LoadedPair, Settings, Path], list[Peer]]


READERS = (
    Reader("llama.cpp", "llama_cpp", "llama-cpp-python", _LLAMA_TRIAL, llama_peers),
    Reader("OpenVINO GenAI", "openvino_genai", "openvino-genai", _OPENVINO_TRIAL, openvino_peers),
)


def find_peers(pair: LoadedPair, settings: Settings, sample: list[int]) -> tuple[list[Peer], list[str]]:
    """Every peer that is installed and can read this pair's weights, each with its best number of threads.

    Args:
        sample: a prompt to try thread counts on.

    Returns:
        The peers, and why others cannot run here.
    """
    from specchat.config import load_catalog
    from specchat.models.hub import model_state

    catalog = load_catalog()
    spec = catalog.model(catalog.pair(pair.name).target)
    draft = pair.draft.name if pair.draft else None
    if spec.scripted:
        return [], ["no peer can run a model without weights"]
    penalties = (settings.repetition_penalty, settings.presence_penalty, settings.frequency_penalty)
    if not (settings.temperature == 0 and penalties == (1.0, 0.0, 0.0) and not settings.stop):
        return [], ["peers are left out: they are compared greedily, without penalties and stop strings"]
    target_path = model_state.locate(spec)
    draft_path = model_state.locate(catalog.model(draft)) if draft else None
    peers = transformers_peers(pair, settings, target_path, draft_path)
    notes: list[str] = []
    for reader in READERS:
        if importlib.util.find_spec(reader.module) is None:
            problem: str | None = f"{reader.package} is not installed"
        elif target_path.suffix != ".gguf":
            problem = "this target is not a GGUF file"
        else:
            problem = why_not(reader.trial, target_path)
        if problem is None:
            peers += reader.peers(pair, settings, target_path)
        else:
            notes.append(f"{reader.name} is not measured: {problem}")
    for peer in peers:
        peer.choose_threads(sample, pair.threads)
    return peers, notes
