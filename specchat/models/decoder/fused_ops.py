"""The operations of a layer between its matrix products: norms, rotations, gates. Plain torch, or compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

AddNorm = Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
Op = TypeVar("Op", bound=Callable[..., object])
Store = Callable[[Tensor, Tensor | None, Tensor | None, float, Tensor | None, Tensor, Tensor, Tensor], Tensor]


def add_norm(hidden: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(rows, d) the sum (or `hidden` itself where nothing is added), and the same normalised."""
    total = hidden if added is None else hidden + added
    return total, F.rms_norm(total, (total.shape[-1],), weight, epsilon)


def gated(gate_up: Tensor, gelu: bool = False) -> Tensor:
    """(rows, inner) silu(gate) · up, or gelu by its tanh formula, of (rows, 2 · inner)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)).mul_(up)


def rotate(heads: Tensor, rotations: Tensor) -> Tensor:
    """Rotate pairs of neighbouring values of (rows, heads, head_dim).

    Args:
        rotations: (rows, 1, head_dim / 2) complex, or the same as pairs (rows, 1, head_dim / 2, 2). Compilers fuse
            pairs; on a processor complex numbers take a third of the time (20 µs against 57 for a row of 12 heads).
    """
    if rotations.is_complex():
        values = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
        return torch.view_as_real(values * rotations).flatten(-2).to(heads.dtype)
    even, odd = heads.float().view(*heads.shape[:-1], -1, 2).unbind(-1)
    cosine, sine = rotations.unbind(-1)
    rotated = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
    return rotated.flatten(-2).to(heads.dtype)


def store_(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    epsilon: float,
    rotations: Tensor | None,
    places: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Write the rows' keys and values into a layer's cache, in place; the queries are returned.

    Args:
        qkv: (rows, heads + 2 · kv, head_dim) queries, keys and values side by side.
        q_norm, k_norm: (head_dim,), for models that normalise every head.
        rotations: as `rotate` takes them; None for a layer that does not rotate.
        places: (rows,) int64, the cache row of each row.
        keys, values: (kv, capacity, head_dim), written.

    Returns:
        (rows, heads, head_dim).
    """
    kv, size = keys.shape[0], (qkv.shape[-1],)
    heads = qkv.shape[1] - 2 * kv
    rotated = qkv[:, : heads + kv]
    if q_norm is not None and k_norm is not None:
        queries = F.rms_norm(rotated[:, :heads], size, q_norm, epsilon)
        rotated = torch.cat([queries, F.rms_norm(rotated[:, heads:], size, k_norm, epsilon)], dim=1)
    if rotations is not None:
        rotated = rotate(rotated, rotations)
    keys[:, places] = rotated[:, heads:].transpose(0, 1)
    values[:, places] = qkv[:, heads + kv :].transpose(0, 1)
    return rotated[:, :heads]


@dataclass(frozen=True)
class FusedOps:
    """The functions above, in one of their forms.

    Args:
        real_rotations: whether rotations are (…, 2) real numbers, not complex ones.
    """

    add_norm: AddNorm = add_norm
    gated: Callable[[Tensor, bool], Tensor] = gated
    store_: Store = store_
    real_rotations: bool = False

    def rotations(self, table: Tensor | None) -> Tensor | None:
        """(…, n) complex rotations as these functions take them."""
        return torch.view_as_real(table) if self.real_rotations and table is not None else table


PLAIN = FusedOps()


def compiled(backend: str = "inductor") -> FusedOps:
    """The operations compiled, one kernel each where the compiler does its work.

    Row counts may vary: the first other than the first seen compiles once more, for any number.

    Every call makes functions of its own. Dynamo counts what it compiles by code object, gives up after
    `recompile_limit` variants, and takes sizes that two callers give differently for variable ones; so networks that
    shared functions would use up each other's variants.
    """

    # No helper processes: they would take seconds to start and memory to stay.
    options: dict[str, str | int | bool | Callable[..., object]] | None = (
        {"compile_threads": 1} if backend == "inductor" else None
    )

    def made(op: Op) -> Op:
        return cast(Op, torch.compile(_copied(op), backend=backend, options=options, fullgraph=True))

    return FusedOps(made(add_norm), made(gated), made(store_), real_rotations=True)


_copies = itertools.count()


def _copied(op: Op) -> Op:
    """The same function as new code, under a name that no other has: Dynamo remembers variable sizes by name."""
    assert isinstance(op, FunctionType)
    code = op.__code__.replace(co_name=f"{op.__code__.co_name}_{next(_copies)}")
    return cast(Op, FunctionType(code, op.__globals__, op.__name__, op.__defaults__, op.__closure__))


@torch.inference_mode()
def best_ops(device: torch.device, ops: Callable[[], FusedOps] = compiled) -> tuple[FusedOps, str]:
    """Compiled operations where they compile and agree with the plain ones; else the plain ones, and why.

    They are others than those that were compared: the sizes of the comparison are no network's.
    """
    try:
        made = ops()
        for rows in (1, 2, 5):
            _compare(made, rows, device)
    except Exception as error:  # a compiler fails in ways of its own; whatever it was, the plain operations work
        return PLAIN, f"norms and rotations are not compiled: {str(error).strip().split(chr(10))[0]}"
    return ops(), ""


def _compare(ops: FusedOps, rows: int, device: torch.device) -> None:
    """Raise AssertionError where these operations disagree with the plain ones."""
    made = torch.Generator().manual_seed(rows)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(device, dtype)

    hidden, added, weight, qkv = random(rows, 64), random(rows, 64), random(64), random(rows, 8, 16)
    head_norms = (None, random(16))
    table = torch.polar(torch.ones(rows, 1, 8), torch.randn(rows, 1, 8, generator=made)).to(device)
    places = torch.arange(rows, device=device)
    outputs: list[list[Tensor]] = []
    for form in (PLAIN, ops):
        caches = [torch.zeros(2, 8, 16, device=device, dtype=dtype) for _ in range(2)]
        found = [*form.add_norm(hidden, added, weight, 1e-5), *form.add_norm(hidden, None, weight, 1e-5)]
        found += [form.gated(hidden, gelu) for gelu in (False, True)]
        for norm in head_norms:
            found.append(form.store_(qkv, norm, norm, 1e-5, form.rotations(table), places, *caches))
        outputs.append([*found, *caches])
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
