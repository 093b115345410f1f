"""The functions of llama.cpp that specchat calls, in Python: cells with sequences, and the rules that llama.cpp checks.

A row's logits are a function of the tokens that it sees: those of the cells of its first sequence, in order. Its state
after the one layer there is are the first of them; as in llama.cpp it has one only where it has logits.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch import Tensor

WIDTH = 32
"""Of a state."""

Says = Callable[[Sequence[int]], Tensor]


@dataclass
class Cell:
    token: int
    position: int
    sequences: set[int]


@dataclass
class Context:
    rows: int
    sequences: int
    cells: list[Cell] = field(default_factory=list)
    logits: dict[int, Any] = field(default_factory=dict)
    threads: int = 0
    looks: Callable[[Any, bool, Any], bool] | None = None

    def of(self, sequence: int) -> list[Cell]:
        return sorted((c for c in self.cells if sequence in c.sequences), key=lambda cell: cell.position)


class LlamaStandIn:
    """In place of the module `llama_cpp.llama_cpp`, with one model that every path names.

    Attributes:
        contexts: those that were made and not freed.
        passes: rows of each pass, as (token, position, sequences).
        failing: what the next pass returns, 0 for success.
    """

    def __init__(self, says: Says, vocab_size: int, trained_tokens: int = 4096, recurrent: bool = False) -> None:
        self._says, self._vocab_size, self._trained, self._recurrent = says, vocab_size, trained_tokens, recurrent
        self.contexts: list[Context] = []
        self.models = 0
        self.passes: list[list[tuple[int, int, tuple[int, ...]]]] = []
        self.failing = 0
        self.asked: Any = None
        self.most_rows = 1 << 30

    # ---------------------------------------------------------------------------------------- model

    def llama_model_default_params(self) -> SimpleNamespace:
        return SimpleNamespace(n_gpu_layers=-1)

    def llama_model_load_from_file(self, path: bytes, parameters: SimpleNamespace) -> str | None:
        self.asked = parameters
        if b"broken" in path:
            return None
        self.models += 1
        return "model"

    def llama_model_free(self, model: str) -> None:
        self.models -= 1

    def llama_model_get_vocab(self, model: str) -> str:
        return "vocabulary"

    def llama_vocab_n_tokens(self, vocabulary: str) -> int:
        return self._vocab_size

    def llama_model_n_embd(self, model: str) -> int:
        return WIDTH

    def llama_model_n_head(self, model: str) -> int:
        return 4

    llama_model_n_head_kv = llama_model_n_head

    def llama_model_n_layer(self, model: str) -> int:
        return 1

    def llama_model_n_ctx_train(self, model: str) -> int:
        return self._trained

    def llama_model_size(self, model: str) -> int:
        return 1000

    def llama_model_desc(self, model: str, buffer: Any, size: int) -> int:
        buffer.value = b"llama 1M Q4_1"
        return len(buffer.value)

    def llama_model_is_recurrent(self, model: str) -> bool:
        return self._recurrent

    def llama_model_is_hybrid(self, model: str) -> bool:
        return False

    llama_model_has_encoder = llama_model_is_diffusion = llama_model_is_hybrid

    def llama_max_devices(self) -> int:
        return 4

    def llama_supports_rpc(self) -> bool:
        return False

    # ---------------------------------------------------------------------------------------- context

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_init_from_model(self, model: str, parameters: SimpleNamespace) -> Context | None:
        if parameters.n_ctx > self.most_rows:
            return None
        assert parameters.kv_unified, "sequences share their rows"
        made = Context(parameters.n_ctx, parameters.n_seq_max, threads=parameters.n_threads)
        made.looks = getattr(parameters, "cb_eval", None)
        self.contexts.append(made)
        return self.contexts[-1]

    def llama_free(self, context: Context) -> None:
        self.contexts.remove(context)

    def llama_set_n_threads(self, context: Context, threads: int, batch_threads: int) -> None:
        context.threads = threads

    def llama_batch_init(self, rows: int, embedding: int, sequences: int) -> SimpleNamespace:
        ids = [[0] * sequences for _ in range(rows)]
        lists = {name: [0] * rows for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(n_tokens=0, seq_id=ids, **lists)

    def llama_batch_free(self, batch: SimpleNamespace) -> None:
        assert batch.n_tokens >= 0

    def llama_decode(self, context: Context, batch: SimpleNamespace) -> int:
        if failing := self.failing:
            self.failing = 0
            return failing
        rows = [
            (batch.token[i], batch.pos[i], tuple(batch.seq_id[i][: batch.n_seq_id[i]])) for i in range(batch.n_tokens)
        ]
        _check(context, rows)
        if len(context.cells) + len(rows) > context.rows:
            return 1
        self.passes.append(rows)
        context.logits = {}
        for token, position, sequences in rows:
            context.cells.append(Cell(token, position, set(sequences)))
        for row, (_, position, sequences) in enumerate(rows):
            if batch.logits[row]:
                seen = [cell for cell in context.of(sequences[0]) if cell.position <= position]
                assert [cell.position for cell in seen] == list(range(position + 1)), "a row sees a whole text"
                said = self._says([cell.token for cell in seen]).tolist()
                context.logits[row] = (ctypes.c_float * self._vocab_size)(*said)
        if context.looks is not None:
            for name in (b"l_out-0", b"result_norm"):
                states = [number for logits in context.logits.values() for number in logits[:WIDTH]]
                result = name, (ctypes.c_float * len(states))(*states)
                if context.looks(result, True, None):
                    assert context.looks(result, False, None), "the pass is to go on"
        return 0

    @staticmethod
    def ggml_backend_sched_eval_callback(looks: Callable[[Any, bool, Any], bool]) -> Callable[[Any, bool, Any], bool]:
        return looks

    def ggml_get_name(self, result: Any) -> bytes:
        return result[0]

    def ggml_nelements(self, result: Any) -> int:
        return len(result[1])

    def ggml_backend_tensor_get(self, result: Any, to: int, offset: int, size: int) -> None:
        ctypes.memmove(to, ctypes.byref(result[1], offset), size)

    def llama_get_logits_ith(self, context: Context, row: int) -> Any:
        return context.logits[row]

    # ---------------------------------------------------------------------------------------- memory

    def llama_get_memory(self, context: Context) -> Context:
        return context

    def llama_memory_seq_cp(self, memory: Context, source: int, to: int, begin: int, end: int) -> None:
        assert not memory.of(to), "a sequence is empty before it gets rows"
        for cell in memory.of(source):
            if begin <= cell.position < end:
                cell.sequences.add(to)

    def llama_memory_seq_keep(self, memory: Context, sequence: int) -> None:
        for cell in memory.cells:
            cell.sequences &= {sequence}
        memory.cells = [cell for cell in memory.cells if cell.sequences]

    def llama_memory_seq_rm(self, memory: Context, sequence: int, begin: int, end: int) -> bool:
        for cell in memory.of(sequence):
            if cell.position >= begin:
                cell.sequences.discard(sequence)
        memory.cells = [cell for cell in memory.cells if cell.sequences]
        return True

    def llama_state_seq_get_size(self, context: Context, sequence: int) -> int:
        return 8 * len(context.of(sequence))

    def llama_state_seq_get_data(self, context: Context, buffer: Any, size: int, sequence: int) -> int:
        numbers = [number for cell in context.of(sequence) for number in (cell.token, cell.position)]
        ctypes.memmove(buffer, struct.pack(f"{len(numbers)}i", *numbers), size)
        return size

    def llama_state_seq_set_data(self, context: Context, buffer: Any, size: int, sequence: int) -> int:
        numbers = struct.unpack(f"{size // 4}i", bytes(buffer))
        context.cells += [Cell(t, p, {sequence}) for t, p in zip(numbers[::2], numbers[1::2], strict=True)]
        return size


def _check(context: Context, rows: list[tuple[int, int, tuple[int, ...]]]) -> None:
    """What llama.cpp refuses a batch for."""
    assert all(0 <= s < context.sequences for _, _, sequences in rows for s in sequences), "invalid seq_id"
    ends = {s: max((c.position for c in context.of(s)), default=-1) for _, _, sequences in rows for s in sequences}
    for sequence, end in ends.items():
        positions = [position for _, position, sequences in rows if sequence in sequences]
        assert positions == list(range(end + 1, end + 1 + len(positions))), "positions of a sequence go on in order"
    last: dict[int, set[int]] = {}
    for _, _, sequences in rows:
        assert len({ends[s] for s in sequences}) == 1, "coupled sequences have diverged"
        for s in sequences:
            last[s] = last.get(s, set(sequences)) & set(sequences)
            assert last[s], "incompatible sequence sets"
