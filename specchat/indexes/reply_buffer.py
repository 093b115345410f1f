"""The most recent replies as a trained network learns from them: bounded, and as tensors that can be saved."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

LIKELIEST = 32
"""How many of the target's likeliest tokens are kept at every place; the weight of all others is what is left."""

MOST_BYTES = 16 << 20
"""What all kept replies take; the oldest go first."""

MOST_REPLY_TOKENS = 1024
"""The most tokens of a reply that are recorded, from its beginning."""


@dataclass(frozen=True)
class RecordedReply:
    """A reply: T tokens from the one in front of the last of its prompt on, and one more that ends it.

    Args:
        tokens: (T + 1,) int32.
        inputs: (T, d) bfloat16, what the network makes of the target's states at each token.
        known: (T,) bool, where there were states.
        likeliest: (T, K) int32, the target's likeliest next tokens, best first. The first row says nothing.
        log_p: (T, K) float16, the logarithms of their probabilities.
    """

    tokens: Tensor
    inputs: Tensor
    known: Tensor
    likeliest: Tensor
    log_p: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def size_bytes(self) -> int:
        """Bytes in memory, and nearly so on the disk."""
        return sum(tensor.nbytes for tensor in vars(self).values())


class ReplyBuffer:
    """Replies in the order they were written, at most `most_bytes` of them."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = 0
        self._replies: deque[RecordedReply] = deque()

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, place: int) -> RecordedReply:
        return self._replies[place]

    @property
    def tokens(self) -> int:
        return sum(len(reply) for reply in self._replies)

    def add(self, reply: RecordedReply) -> None:
        """Keep a reply; older ones go where there is no room for all. One that is larger than all room is not kept."""
        self._replies.append(reply)
        self.size_bytes += reply.size_bytes
        while self.size_bytes > self.most_bytes:
            self.size_bytes -= self._replies.popleft().size_bytes

    def lengths(self) -> list[int]:
        return [len(reply) for reply in self._replies]

    def saved(self) -> dict[str, Tensor]:
        """The tensors of all replies, one reply behind the other, and (n,) int32 their lengths; or nothing at all."""
        if not self._replies:
            return {}
        joined = {
            field.name: torch.cat([getattr(reply, field.name) for reply in self._replies])
            for field in fields(RecordedReply)
        }
        return {**joined, "lengths": torch.tensor(self.lengths(), dtype=torch.int32)}

    @classmethod
    def restored(cls, saved: Mapping[str, Tensor], vocab_size: int, hidden: int) -> ReplyBuffer:
        """The buffer that `saved` made these tensors of, the lengths of its n replies, (n,), among them.

        Args:
            vocab_size: of the target, whose tokens they hold.
            hidden: d of their inputs.

        Raises:
            ValueError: no replies to such a target were saved so.
        """
        buffer = cls()
        if not saved:
            return buffer
        _check(saved, vocab_size, hidden)
        lengths: Sequence[int] = saved["lengths"].tolist()
        parts = {
            field.name: torch.split(saved[field.name], [n + (field.name == "tokens") for n in lengths])
            for field in fields(RecordedReply)
        }
        for place in range(len(lengths)):
            buffer.add(RecordedReply(**{name: tensors[place].clone() for name, tensors in parts.items()}))
        return buffer


def _check(saved: Mapping[str, Tensor], vocab_size: int, hidden: int) -> None:
    """Raise ValueError where tensors that were saved cannot be those of replies."""
    kinds = {
        "tokens": (torch.int32, ()), "inputs": (torch.bfloat16, (hidden,)), "known": (torch.bool, ()),
        "likeliest": (torch.int32, (LIKELIEST,)), "log_p": (torch.float16, (LIKELIEST,)), "lengths": (torch.int32, ()),
    }  # fmt: skip
    for name, (dtype, shape) in kinds.items():
        tensor = saved.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.shape[1:] != shape or not tensor.dim():
            raise ValueError(f"its replies have no {name} of the right kind")
    for name in ("tokens", "likeliest"):
        if bool(((saved[name] < 0) | (saved[name] >= vocab_size)).any()):
            raise ValueError(f"the {name} of its replies are not all tokens of the target")
    lengths = saved["lengths"]
    rows = {"tokens": int(lengths.sum()) + len(lengths)}
    if not bool((lengths > 0).all()) or any(
        len(saved[name]) != rows.get(name, int(lengths.sum())) for name in kinds if name != "lengths"
    ):
        raise ValueError("its replies are not as long as it says")
    if not bool(saved["inputs"].isfinite().all()):
        raise ValueError("the inputs of its replies are not all finite")
