"""llama.cpp's library through llama-cpp-python: import, weights, caches and passes, its log, its errors in one line."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Collection, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.config.values import CACHE_TYPES, LlamaOptions
from specchat.errors import InstallationError, ModelError, NotEnoughMemory, UsageError, cut
from specchat.models.weights.gguf_source import GgufSource

NOT_INSTALLED = (
    "backend = llama.cpp needs llama-cpp-python, which is not installed; run: pip install 'specchat[llama]' "
    "(docs/hardware.md says how for each card)"
)


class LlamaNotInstalled(InstallationError):
    """The library has to be installed first."""

    exit_code = 2


SEQUENCES = 64
"""Sequences of a cache: the leaves of a tree that one pass can read."""

BATCH_ROWS = 1024
"""More than the rows of the largest pass: a tree of 512 nodes, its root, and tokens that were put off."""

_TYPE_BYTES = {0: 4.0, 1: 2.0, 2: 18 / 32, 3: 20 / 32, 6: 22 / 32, 7: 24 / 32, 8: 34 / 32}
_MMAP, _NO_MMAP = 1, 0
_WARNING, _ERROR, _CONTINUES = 3, 4, 5
_CARD, _CARD_IN_PROCESSOR = 1, 2

_said: list[str] = []
"""The last errors of the library, oldest first."""


@cache
def library() -> Any:
    """The functions of llama.cpp, once for the process; its log goes to standard error, warnings and errors alone.

    Raises:
        InstallationError: llama-cpp-python is not installed, or cannot be loaded.
    """
    try:
        import llama_cpp.llama_cpp as found
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "llama_cpp":
            raise LlamaNotInstalled(NOT_INSTALLED) from None
        raise InstallationError(f"llama-cpp-python cannot be loaded: {cut(str(error))}") from None
    except (OSError, RuntimeError) as error:
        raise InstallationError(f"llama-cpp-python cannot be loaded: {cut(str(error))}") from None
    if missing := [name for name in ("llama_memory_seq_cp", "llama_get_memory") if not hasattr(found, name)]:
        raise InstallationError(f"this llama-cpp-python is too old: it has no {missing[0]}; version 0.3.36 works")
    found.llama_log_set(_log_callback(found), ctypes.c_void_p(0))  # before anything is said
    found.llama_backend_init()
    return found


@cache
def _log_callback(found: Any) -> Any:
    level_now = 0

    def log(level: int, text: bytes, _data: Any) -> None:
        nonlocal level_now
        level_now = level_now if level == _CONTINUES else level
        if level_now < _WARNING:
            return
        line = text.decode("utf-8", errors="replace")
        sys.stderr.write(line)
        if level_now == _ERROR and line.strip():
            _said.append(line.strip())
            del _said[:-4]

    return found.llama_log_callback(log)


def is_installed() -> bool:
    try:
        library()
    except InstallationError:
        return False
    return True


def offloads() -> bool:
    """Whether the library that is installed computes on a card or on Metal, and finds one here."""
    return is_installed() and bool(library().llama_supports_gpu_offload()) and has_card()


def has_card() -> bool:
    """Whether llama.cpp knows a card: built with RPC alone it says that it offloads, and has none."""
    found = ggml_function("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int)
    return any(found(kind) for kind in (_CARD, _CARD_IN_PROCESSOR))


def _function(lib: Any, name: str, result: Any, *arguments: Any) -> Any:
    """The same, unless `lib`, which stands for llama.cpp, has one of its own."""
    return getattr(lib, name, None) or ggml_function(name, result, *arguments)


def ggml_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library below llama.cpp, which llama-cpp-python does not declare."""
    from llama_cpp._ggml import libggml

    found = getattr(libggml, name)
    found.restype, found.argtypes = result, list(arguments)
    return found


def _why() -> str:
    """The library's last message, as the end of a line; it is forgotten."""
    said = f": {cut(_said[-1])}" if _said else ""
    _said.clear()
    return said


class LlamaWeights:
    """The weights of a GGUF file in llama.cpp, freed when nothing uses them any more."""

    def __init__(
        self, name: str, path: Path, options: LlamaOptions, *, processor_only: bool = False, functions: Any = None
    ) -> None:
        """Loads them.

        Args:
            functions: llama.cpp's, where they are not those of the library that is installed.
            processor_only: nothing goes to a card, whatever the options leave open.

        Raises:
            ModelError: the file is not one that llama.cpp reads, or its state cannot go back.
            UsageError: the library was built without what an option needs.
        """
        self.library = lib = functions or library()
        self.name, self.path, self.options = name, path, options
        _register_servers(lib, options.rpc_servers)
        parameters = lib.llama_model_default_params()
        layers = 0 if processor_only and options.gpu_layers is None else options.gpu_layers
        parameters.n_gpu_layers = -1 if layers is None else layers
        parameters.load_mode = _NO_MMAP if options.mmap is False else _MMAP
        if options.tensor_split:
            most = int(lib.llama_max_devices())
            if len(options.tensor_split) > most:
                raise UsageError(f"tensor_split names {len(options.tensor_split)} devices, and llama.cpp has {most}")
            self._split = (ctypes.c_float * most)(*options.tensor_split)  # read when layers are placed
            parameters.tensor_split = self._split
        _said.clear()
        self.model = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise ModelError(f"{name} cannot be loaded by llama.cpp{_why()}")
        self._free = weakref.finalize(self, lib.llama_model_free, self.model)
        self._refuse_stateful()
        vocabulary = lib.llama_model_get_vocab(self.model)
        self.vocab_size = int(lib.llama_vocab_n_tokens(vocabulary))
        self.hidden_size = int(lib.llama_model_n_embd(self.model))
        self.layers = int(lib.llama_model_n_layer(self.model))
        self.trained_tokens = int(lib.llama_model_n_ctx_train(self.model))
        self.nbytes = int(lib.llama_model_size(self.model))

    def _refuse_stateful(self) -> None:
        lib, model = self.library, self.model
        if lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model):
            raise ModelError(f"{self.name} keeps a recurrent state, which cannot take back a rejected draft")
        if lib.llama_model_has_encoder(model) or lib.llama_model_is_diffusion(model):
            raise ModelError(f"{self.name} is not a causal language model")

    @property
    def format(self) -> str:
        """The file's number format as llama.cpp names it, in small letters."""
        said = ctypes.create_string_buffer(256)
        self.library.llama_model_desc(self.model, said, 256)
        words = said.value.decode("utf-8", errors="replace").replace("(guessed)", "").split()
        return words[-1].lower() if words else "gguf"

    @property
    def row_bytes(self) -> int:
        """Bytes of a cache for each token."""
        lib, model = self.library, self.model
        head_dim = self.hidden_size // max(1, int(lib.llama_model_n_head(model)))
        size = _TYPE_BYTES[CACHE_TYPES[self.options.cache_type]]
        return int(2 * self.layers * int(lib.llama_model_n_head_kv(model)) * head_dim * size)

    @cached_property
    def file(self) -> GgufSource:
        """The file itself, of which drafters need some rows: embeddings, and the head's."""
        return GgufSource(self.path)


class _Taps:
    """States after layers, copied while a pass runs: llama.cpp asks of each result whether it is wanted."""

    def __init__(self, weights: LlamaWeights) -> None:
        lib = weights.library
        self.callback = lib.ggml_backend_sched_eval_callback(self._look)
        self._name = _function(lib, "ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._count = _function(lib, "ggml_nelements", ctypes.c_int64, ctypes.c_void_p)
        arguments = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        self._copy = _function(lib, "ggml_backend_tensor_get", None, *arguments)
        self._width = weights.hidden_size
        self._wanted: dict[bytes, int] = {}
        self._found: dict[int, list[Tensor]] = {}

    def begin(self, layers: Collection[int]) -> None:
        """From here on the states after these layers are wanted."""
        self._wanted = {b"l_out-%d" % layer: layer for layer in layers}
        self._found = {}

    def taken(self) -> dict[int, Tensor]:
        """Layer → (rows, d) states, of all passes since they were wanted."""
        return {layer: torch.cat(parts) if len(parts) > 1 else parts[0] for layer, parts in self._found.items()}

    def _look(self, result: Any, asks: bool, _data: Any) -> bool:
        layer = self._wanted.get(self._name(result)) if self._wanted else None
        if layer is None or asks:
            return layer is not None or not asks
        states = torch.empty(self._count(result) // self._width, self._width)
        self._copy(result, states.data_ptr(), 0, 4 * states.numel())
        self._found.setdefault(layer, []).append(states)
        return True


class LlamaCache:
    """A context of llama.cpp: keys and values of a text and of the branches behind it, and passes over more of it.

    Attributes:
        rows: so many rows it has.
    """

    def __init__(self, weights: LlamaWeights, rows: int, threads: int, *, tapped: bool) -> None:
        """An empty one; `tapped`: whether its passes can show states of layers, for which llama.cpp asks about every
        operation. NotEnoughMemory if it cannot be made."""
        self._weights = weights  # whose model must outlive the context
        self._lib = lib = weights.library
        self.rows = rows
        self.taps = _Taps(weights) if tapped else None
        options, parameters = weights.options, lib.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = rows, BATCH_ROWS, 512
        parameters.n_seq_max, parameters.kv_unified = SEQUENCES, True
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = -1 if options.flash_attn is None else int(options.flash_attn)
        parameters.type_k = parameters.type_v = CACHE_TYPES[options.cache_type]
        parameters.swa_full = True  # rows behind a sliding window are needed when a text is edited
        parameters.no_perf = True
        if self.taps is not None:
            parameters.cb_eval = self.taps.callback
        _said.clear()
        self._context = lib.llama_init_from_model(weights.model, parameters)
        if not self._context:
            raise NotEnoughMemory(f"{weights.name}: llama.cpp cannot make a cache of {rows} rows{_why()}")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(BATCH_ROWS, 0, SEQUENCES)
        self._free = weakref.finalize(self, _free_cache, lib, self._context, self._batch)

    def decode(self, passed: Sequence[tuple[int, int, Sequence[int], bool]]) -> None:
        """Compute a pass over rows: token, position, sequences it belongs to, whether its logits are wanted.

        Raises:
            ModelError: llama.cpp could not.
        """
        batch = self._batch
        batch.n_tokens = len(passed)
        for row, (token, position, sequences, wanted) in enumerate(passed):
            batch.token[row], batch.pos[row], batch.n_seq_id[row] = token, position, len(sequences)
            named = batch.seq_id[row]
            for place, sequence in enumerate(sequences):
                named[place] = sequence
            batch.logits[row] = wanted
        _said.clear()
        if code := self._lib.llama_decode(self._context, batch):
            what = {1: "its cache is full", 2: "it was stopped"}.get(code, f"error {code}")
            raise ModelError(f"{self._weights.name}: llama.cpp could not compute a pass, {what}{_why()}")

    def copy_logits(self, row: int, to: Tensor) -> None:
        """Copy the logits of a row of the last pass, (V,) float32."""
        found = self._lib.llama_get_logits_ith(self._context, row)
        ctypes.memmove(to.data_ptr(), found, 4 * self._weights.vocab_size)

    def share(self, sequence: int, new: int, rows: int) -> None:
        """Let another sequence have the first so many rows of this one too."""
        self._lib.llama_memory_seq_cp(self._memory, sequence, new, 0, rows)

    def keep_sequence(self, sequence: int) -> None:
        """Forget all rows that are not of this sequence, and all other sequences."""
        self._lib.llama_memory_seq_keep(self._memory, sequence)

    def cut(self, sequence: int, rows: int) -> None:
        """Forget the rows of a sequence behind the first so many."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, rows, -1)

    def use_threads(self, threads: int) -> None:
        self._lib.llama_set_n_threads(self._context, threads, threads)

    def copy_to(self, other: LlamaCache, sequence: int) -> None:
        """Copy the rows of a sequence into an empty cache, as its sequence 0.

        Raises:
            ModelError: llama.cpp could not.
        """
        size = self._lib.llama_state_seq_get_size(self._context, sequence)
        state = (ctypes.c_uint8 * size)()
        written = self._lib.llama_state_seq_get_data(self._context, state, size, sequence)
        if not written or not self._lib.llama_state_seq_set_data(other._context, state, written, 0):
            raise ModelError(f"{self._weights.name}: llama.cpp could not make its cache larger{_why()}")

    def close(self) -> None:
        self._free()


def _free_cache(lib: Any, context: Any, batch: Any) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(context)


def _register_servers(lib: Any, servers: Sequence[str]) -> None:
    """Let llama.cpp know these machines, each once.

    Raises:
        UsageError: the library was built without RPC.
        ModelError: a server does not answer.
    """
    if not servers:
        return
    if not lib.llama_supports_rpc():
        raise UsageError(
            "rpc_servers needs a llama-cpp-python built with RPC: CMAKE_ARGS=-DGGML_RPC=ON pip install --no-binary "
            ":all: llama-cpp-python"
        )
    for server in servers:
        if not _registered(server):
            _registered.cache_clear()
            raise ModelError(f"rpc_servers: {server} does not answer{_why()}")


@cache
def _registered(server: str) -> bool:
    backend = ggml_function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"RPC")
    address = ggml_function("ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address(backend, b"ggml_backend_rpc_add_server"))
    if not (added := add(server.encode())):
        return False
    ggml_function("ggml_backend_register", None, ctypes.c_void_p)(added)
    return True
