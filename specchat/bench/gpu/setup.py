"""What is measured, where, and how much of it: everything that the parts of the program agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specchat.errors import UsageError
from specchat.models.machine import choose_device, choose_precision


@dataclass(frozen=True)
class Extent:
    """How much is done.

    Args:
        buffer_bytes: copied and read to measure bandwidth.
        contexts: tokens of context at which passes are timed.
        rows: of the passes that are timed: up to a wide tree, and one more, where kernels of fixed sizes take a step.
        nodes: draft nodes of a wide tree. With the root they make a number of rows that kernels like.
        rounds, warm_rounds: that count, and before them.
        prompts, reply_tokens: of real text.
        text_context: tokens of context at which the costs of passes over real text are timed.
    """

    buffer_bytes: int
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    nodes: int
    rounds: int
    warm_rounds: int
    prompts: int
    reply_tokens: int
    text_context: int

    @property
    def cost_rows(self) -> tuple[int, ...]:
        """Rows at which the costs of passes are timed for planning: up to the widest tree with its root."""
        return tuple(rows for rows in self.rows if rows <= self.wide_rows)

    @property
    def wide_rows(self) -> int:
        """Rows of a wide tree: its nodes and the root."""
        return self.nodes + 1


FULL = Extent(
    buffer_bytes=4 << 30,
    contexts=(512, 4096),
    rows=(1, 2, 4, 8, 16, 32, 64, 65),
    nodes=63,
    rounds=64,
    warm_rounds=16,
    prompts=14,
    reply_tokens=96,
    text_context=256,
)
TINY = Extent(
    buffer_bytes=1 << 20,
    contexts=(12, 40),
    rows=(1, 2, 8, 9),
    nodes=7,
    rounds=4,
    warm_rounds=24,
    prompts=2,
    reply_tokens=12,
    text_context=16,
)


@dataclass(frozen=True)
class Setup:
    """Device, number format, extent, and the weights there are.

    Args:
        tiny: small shapes and few rounds, so that a processor does it in seconds.
        weights: a small model of the Llama shape, a GGUF file or a folder, to be widened.
        target, draft: a true pair.
    """

    device: torch.device
    precision: str
    tiny: bool = False
    weights: Path | None = None
    target: Path | None = None
    draft: Path | None = None

    @classmethod
    def on(cls, device: str, tiny: bool, **weights: Path | None) -> Setup:
        """On the device a word names, in the number format that suits it.

        Raises:
            UsageError: no such device here, or a processor asked to do it all.
        """
        chosen = choose_device(device)
        if chosen.type == "cpu" and not tiny:
            raise UsageError(
                "8 billion parameters are too many for a processor; --tiny tries the program at a small size"
            )
        return cls(chosen, choose_precision("auto", chosen, quantised=False, own=True), tiny, **weights)

    @property
    def extent(self) -> Extent:
        return TINY if self.tiny else FULL

    @property
    def kernels(self) -> str:
        """Whose kernels multiply whole numbers: at the small size nothing is compiled for it."""
        return "torch" if self.tiny else "auto"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.precision == "float32" else torch.bfloat16

    def describe(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other ended."""
        names = {name: getattr(self, name) for name in ("weights", "target", "draft")}
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        files = {name: path.name if path is not None else None for name, path in names.items()}
        return {"device": device, "precision": self.precision, "tiny": self.tiny, **files}
