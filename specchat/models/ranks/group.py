"""Messages and sums between ranks by torch.distributed: gloo for what lies on the host, nccl for what lies on cards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from specchat.errors import RanksLost
from specchat.models.ranks.plan import MOST_BYTES, Envelope, Report, demand, encoded, envelope_of, report_of

_FIRST_BYTES = 2048
"""Of a message that are sent at once; most are shorter."""

_LENGTH_BYTES = 4

PATIENCE_S = 30.0
"""How long a rank waits for the others in the middle of a pass. One that has ended is noticed at once."""

LOADING_S = 1800.0
"""How long a rank may take to read its share of the weights."""

# torch's types do not name all of these.
_gloo: Any = dist.ProcessGroupGloo
_prefixed: Any = dist.PrefixStore  # type: ignore[attr-defined]

_EVER = timedelta(days=365)


class Group:
    """The ranks of one first rank, seen from one of them. Of one thread at a time."""

    def __init__(
        self, store: Any, rank: int, size: int, address: str = "127.0.0.1", patience_s: float = PATIENCE_S
    ) -> None:
        """Meet the others; waits for all of them.

        Args:
            store: where the ranks find each other.
            address: of this machine, by which the others reach it; empty where gloo is to find out.

        Raises:
            RanksLost: some do not come.
        """
        self.rank, self.size = rank, size
        self._store, self._patience = store, timedelta(seconds=patience_s)
        options = _gloo._Options()
        options._devices = [_gloo.create_device(hostname=address) if address else _gloo.create_default_device()]
        options._timeout = self._patience
        self._host = self._done(lambda: _gloo(_prefixed("host", store), rank, size, options))
        self._cards: Any = None

    def use_card(self, device: torch.device) -> None:
        """Sum up what lies on this card among cards, from now on; every rank calls it."""
        if device.type != "cuda" or self._cards is not None:
            return
        torch.cuda.set_device(device)
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = self._patience
        store = _prefixed("cards", self._store)
        self._cards = self._done(lambda: nccl(store, self.rank, self.size, options))

    def all_reduce(self, values: Tensor) -> Tensor:
        """Add up what the ranks have. In place."""
        self._done(lambda: self._of(values).allreduce([values]).wait())
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Give everyone what the first rank has. In place."""
        self._done(lambda: self._of(values).broadcast(values, 0).wait())
        return values

    def send(self, values: Tensor, to: int = 0) -> None:
        self._done(lambda: self._of(values).send([values.contiguous()], to, 0).wait())

    def receive(self, values: Tensor, sender: int = 0, patience_s: float | None = None) -> Tensor:
        """Take what a rank sends. In place."""
        patience = self._patience if patience_s is None else timedelta(seconds=patience_s)
        self._done(lambda: self._of(values).recv([values], sender, 0).wait(patience))
        return values

    def announce(self, envelope: Envelope) -> None:
        data = encoded(envelope)
        first = _framed(data)
        self.broadcast(first)
        if len(data) > _FIRST_BYTES - _LENGTH_BYTES:
            self.broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def announced(self) -> Envelope:
        """The first rank's next message, however long it takes. RanksLost: it has gone. PlanRefused: it is none."""
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        self._done(lambda: self._host.broadcast(first, 0, _EVER).wait(_EVER))
        data = first.numpy().tobytes()
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        demand(length <= MOST_BYTES, f"a message of {length} bytes")
        if length <= _FIRST_BYTES - _LENGTH_BYTES:
            return envelope_of(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
        return envelope_of(self.broadcast(torch.zeros(length, dtype=torch.uint8)).numpy().tobytes())

    def report(self, report: Report) -> None:
        self.send(_framed(encoded(report)))

    def reported(self, rank: int) -> Report:
        """A rank's answer to `Load`."""
        room = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        data = self.receive(room, rank, LOADING_S).numpy().tobytes()
        length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        return report_of(data[_LENGTH_BYTES : _LENGTH_BYTES + min(length, _FIRST_BYTES)])

    def _of(self, values: Tensor) -> Any:
        return self._cards if values.device.type == "cuda" else self._host

    def _done(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RuntimeError as error:
            raise RanksLost(f"the ranks lost each other: {str(error).splitlines()[0][-200:]}") from None


def _framed(data: bytes) -> Tensor:
    """(_FIRST_BYTES,) uint8, the length and the beginning of a message."""
    framed = (len(data).to_bytes(_LENGTH_BYTES, "little") + data)[:_FIRST_BYTES]
    return torch.frombuffer(bytearray(framed.ljust(_FIRST_BYTES, b"\0")), dtype=torch.uint8)
