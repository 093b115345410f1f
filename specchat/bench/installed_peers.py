"""Other engines that read GGUF files, as contestants where they are installed: llama.cpp and OpenVINO GenAI."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specchat.bench.circumstances import EnergyMeter
from specchat.bench.peer_engines import Peer, PeerPass, transformers_peers
from specchat.errors import EngineError, cut
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.engine.server.loaded_pair import LoadedPair

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
    context_tokens = min(_CONTEXT_TOKENS, pair.target.model.context_tokens)
    drafts = {"llama.cpp": None, "llama.cpp prompt lookup": lookup}
    engines = {name: _Llama(path, context_tokens, draft, pair.device.type) for name, draft in drafts.items()}
    return _peers_of(engines, importlib.metadata.version("llama-cpp-python"), path, pair, settings, pair.device)


class _Llama:
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


_SERVER = "llama-server"

_SERVER_MODES = ("none", "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
"""Its ways of guessing without a draft model, each with its own defaults; the first guesses nothing."""


def server_peers(pair: LoadedPair, settings: Settings, path: Path) -> list[Peer]:
    """Plain, and with every kind of n-grams."""
    names = (_SERVER, *(f"{_SERVER} {mode}" for mode in _SERVER_MODES[1:]))
    eos_id, device = min(pair.vocabulary.eos_ids), pair.device
    engines = {name: _Server(path, mode, eos_id, device.type) for name, mode in zip(names, _SERVER_MODES, strict=True)}
    return _peers_of(engines, _server_version(), path, pair, settings, device)


def _server_version() -> str:
    said = subprocess.run([_SERVER, "--version"], capture_output=True, timeout=_PATIENCE_S)
    first: str = (said.stdout + said.stderr).decode(errors="replace").strip().partition("\n")[0]
    return cut(first.removeprefix("version: "))


class _Server:
    """A server with one file; started when first used, and again when the number of threads changes."""

    def __init__(self, path: Path, mode: str, eos_id: int, device: str) -> None:
        self._path = path
        self._mode = mode
        self._eos_id = eos_id
        self._layers_on_gpu = 999 if device == "cuda" else 0
        self._threads = 1
        self._port = 0
        self._stop: Callable[[], object] | None = None

    def use_threads(self, threads: int) -> None:
        if threads != self._threads:
            self.close()
            self._threads = threads

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None

    def __call__(self, prompt: list[int], most: int) -> Iterator[PeerPass]:
        """Greedy tokens as they are sent, the end token among them.

        Raises:
            EngineError: the server does not start, or does not answer.
        """
        if self._stop is None:
            self._start()
        asked = {
            "prompt": prompt,
            "n_predict": most,
            "temperature": 0,
            "top_k": 1,
            "stream": True,
            "cache_prompt": False,
        }
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        with closing(connection):
            try:
                connection.request("POST", "/completion", json.dumps(asked), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    raise ValueError(cut(answer.read().decode(errors="replace")))
                for line in answer:
                    if line.startswith(b"data: "):
                        said = json.loads(line.removeprefix(b"data: "))
                        now, tokens = time.perf_counter(), [int(token) for token in said.get("tokens", ())]
                        tokens += [self._eos_id] if said.get("stop_type") == "eos" else []
                        if tokens:
                            yield PeerPass(tokens, now)
            except (OSError, HTTPException, ValueError, TypeError, AttributeError) as error:
                raise EngineError(f"{_SERVER} does not answer: {error}") from None

    def _start(self) -> None:
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            self._port = door.getsockname()[1]
        command = [
            _SERVER, "--model", str(self._path), "--host", "127.0.0.1", "--port", str(self._port), "--threads",
            str(self._threads), "--ctx-size", str(_CONTEXT_TOKENS), "--parallel", "1", "--gpu-layers",
            str(self._layers_on_gpu), "--spec-type", self._mode,
        ]  # fmt: skip
        with tempfile.TemporaryFile() as told:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told)
            except OSError as error:
                raise EngineError(f"{_SERVER} does not start: {error}") from None
            self._stop = weakref.finalize(self, _end, process)
            until = time.monotonic() + _PATIENCE_S
            while not self._is_ready():
                if process.poll() is not None or time.monotonic() > until:
                    self.close()
                    told.seek(0)
                    lines = told.read().decode(errors="replace").strip().split("\n")
                    raise EngineError(f"{_SERVER} does not start: {cut(lines[-1])}")
                time.sleep(0.05)

    def _is_ready(self) -> bool:
        with (
            suppress(OSError, HTTPException),
            closing(HTTPConnection("127.0.0.1", self._port, timeout=5)) as connection,
        ):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


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
    lookups = {"OpenVINO GenAI": {}, "OpenVINO GenAI prompt lookup": _OPENVINO_LOOKUP}
    engines = {name: _Pipeline(path, lookup, pair.vocabulary.eos_ids) for name, lookup in lookups.items()}
    version = importlib.metadata.version("openvino-genai")
    return _peers_of(engines, version, path, pair, settings, torch.device("cpu"))


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


def _peers_of(
    engines: Mapping[str, _Llama | _Server | _Pipeline],
    version: str,
    path: Path,
    pair: LoadedPair,
    settings: Settings,
    device: torch.device,
) -> list[Peer]:
    """A contestant for each of these ways of writing, by their names. They run on the device, over the file."""
    limits = (pair.vocabulary.eos_ids, settings.max_tokens, EnergyMeter(device))
    return [
        Peer(name, engine, *limits, engine.use_threads, {"version": version, "weights": path.name})
        for name, engine in engines.items()
    ]


@dataclass(frozen=True)
class Reader:
    """An engine that reads GGUF files.

    Args:
        problem: why it cannot read a file here, or None.
        peers: its ways of writing over a pair's file.
    """

    name: str
    problem: Callable[[Path], str | None]
    peers: Callable[[LoadedPair, Settings, Path], list[Peer]]


def why_not(module: str, package: str, trial: str, path: Path) -> str | None:
    """Why a package cannot read the file, or None. Tried in a process of its own: a crash must not end ours."""
    if importlib.util.find_spec(module) is None:
        return f"{package} is not installed"
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


def why_no_server(path: Path) -> str | None:
    """Why llama.cpp's server cannot read the file, or None."""
    if shutil.which(_SERVER) is None:
        return f"{_SERVER} is not on the PATH"
    trial = _Server(path, _SERVER_MODES[-1], 0, "cpu")
    try:
        next(trial([1, 2, 3], 1), None)
    except EngineError as error:
        return str(error)
    finally:
        trial.close()
    return None


READERS = (
    Reader("llama.cpp", partial(why_not, "llama_cpp", "llama-cpp-python", _LLAMA_TRIAL), llama_peers),
    Reader("llama.cpp with n-grams", why_no_server, server_peers),
    Reader("OpenVINO GenAI", partial(why_not, "openvino_genai", "openvino-genai", _OPENVINO_TRIAL), openvino_peers),
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
    gguf, notes = target_path.suffix == ".gguf", list[str]()
    for reader in READERS:
        problem = reader.problem(target_path) if gguf else "this target is not a GGUF file"
        if problem is None:
            peers += reader.peers(pair, settings, target_path)
        else:
            notes.append(f"{reader.name} is not measured: {problem}")
    for peer in peers:
        peer.choose_threads(sample, pair.threads)
    return peers, notes
