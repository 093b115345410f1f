"""Stage 4: the network learns, is measured on texts it never learns from, and stops when that no longer helps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from specchat.errors import TrainingError
from specchat.models.draft_heads.head import Batch, DraftNetwork
from specchat.models.draft_heads.loading import save_weights
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.machine import fastest_float
from specchat.training.checkpoints import NetworkOptimizer, Point, Standing, load_checkpoint, save_checkpoint
from specchat.training.corpus import Corpus
from specchat.training.disk import writing
from specchat.training.losses import SHARPNESS, STATE_SHARE, Acceptance, acceptance, chain_loss, columns_of

BatchLoss = Callable[..., tuple[Tensor, int]]
"""(network, texts, columns, steps, randomness) → the mean loss, over how many places; as `chain_loss`. It is called
with `glancing` only where the schedule has some."""

BatchAcceptance = Callable[[Any, Batch, torch.Tensor, int], Acceptance]
"""(network, texts, columns, depth) → how far its guesses are right; as `acceptance`."""

EpochTexts = Callable[[Any, int], Corpus]
"""(network, epoch) → the texts of an epoch, as many each time; as `DraftTexts`."""

CHECKPOINT = "checkpoint.safetensors"
_CHECKPOINT_S = 60.0
_MEASURED_DEPTH = 4
_MEASURED_TEXTS = 16
_PATIENCE = 6
"""Measurements without a gain after which training ends, unless a trained drafter learns further."""

SHARE_OF_START: Final = "share_of_start"
"""A point of the curve that has it is not of the weights as they were learnt, but of a mean with those of the start."""

_SHARES_OF_START = (0.25, 0.5, 0.75)
"""Weights of the start in the means of start and end that are measured."""

_WARM_UP = 0.03
_LAST_RATE = 0.02
_LARGEST_STEP = 1.0


@dataclass(frozen=True)
class Schedule:
    """How long the network learns, and how fast.

    Args:
        tokens: of replies that are seen, repeats included.
        seconds: at most, over all its runs; 0 for no limit.
        learning_rate: at its highest.
        measure_tokens: seen between two measurements.
        glancing: what share of its misses the network is shown at the beginning; it falls to 0.
        further: whether a trained drafter learns further. It guesses less at first, until the rate has fallen, so it
            goes through the schedule although measurements do not rise.
    """

    tokens: int
    seconds: float
    learning_rate: float
    measure_tokens: int
    further: bool = False
    glancing: float = 0.0

    def done(self, standing: Standing) -> float:
        """The share that is done, by tokens or by time, whichever is further."""
        by_time = standing.seconds / self.seconds if self.seconds else 0.0
        return min(1.0, max(standing.tokens / self.tokens, by_time))

    def ended(self, standing: Standing) -> bool:
        return self.done(standing) >= 1.0 or (standing.since_best >= _PATIENCE and not self.further)

    def shown(self, standing: Standing) -> float:
        """The share of its misses that the network is shown now."""
        return self.glancing * (1.0 - self.done(standing))

    def rate(self, standing: Standing) -> float:
        """The learning rate: a short rise, then half a cosine down."""
        done = self.done(standing)
        if done < _WARM_UP:
            return self.learning_rate * (0.1 + 0.9 * done / _WARM_UP)
        fall = 0.5 * (1.0 + math.cos(math.pi * (done - _WARM_UP) / (1.0 - _WARM_UP)))
        return self.learning_rate * (_LAST_RATE + (1.0 - _LAST_RATE) * fall)


class Fitting:
    """One network's training, which can be stopped and gone on with at any time."""

    def __init__(
        self,
        network: DraftNetwork[NetworkSizes],
        corpus: Corpus,
        schedule: Schedule,
        folder: Path,
        vocab_size: int,
        steps: int,
        texts: int,
        seed: int,
        about: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        loss: BatchLoss = chain_loss,
        accepted: BatchAcceptance = acceptance,
        texts_of: EpochTexts | None = None,
    ) -> None:
        """Where the checkpoint in the folder says, or at the beginning.

        Args:
            folder: where checkpoints and the best weights go.
            steps: tokens guessed in a row.
            texts: in a step of learning.
            about: what must be the same when it is gone on with.
            clock: seconds; those in which the process was stopped may be left out.
            texts_of: makes the texts of every epoch; None: they are the corpus's.
        """
        self.network = network
        self.best_weights = folder / "best.safetensors"
        self.standing = Standing()
        self._corpus = corpus
        self._schedule = schedule
        self._steps = steps
        self._texts = texts
        self._seed = seed
        self._about = {
            **about, "texts in a batch": texts, "optimizer": NetworkOptimizer.name, "state share": STATE_SHARE,
            "sharpness": SHARPNESS,
        }  # fmt: skip
        self._clock = clock
        self._loss = loss
        self._accepted = accepted
        self._texts_of = texts_of
        self._checkpoint = folder / CHECKPOINT
        self._device = network.shared.head.device
        self._columns = columns_of(network.shared.tokens.to(self._device), vocab_size)
        self._optimizer = NetworkOptimizer(network, schedule.learning_rate)
        self._start = (
            {name: tensor.clone() for name, tensor in network.state_dict().items()} if schedule.further else {}
        )
        if self._checkpoint.exists():
            self.standing = load_checkpoint(self._checkpoint, network, self._optimizer, self._about)

    @property
    def done(self) -> float:
        return self._schedule.done(self.standing)

    def run(self, progress: Callable[[Standing], None]) -> Standing:
        """Learn until the schedule is through or measurements no longer rise. Stopped by an interrupt, the best stays.

        Args:
            progress: told after every batch; may raise to stop.
        """
        standing, schedule = self.standing, self._schedule
        saved = self._clock()
        try:
            if not standing.curve:
                self._measure()
            for batch, tokens in self._batches():
                if schedule.ended(standing):
                    break
                began = self._clock()
                self._learn(batch)
                before = standing.tokens // schedule.measure_tokens
                standing.batches += 1
                standing.tokens += tokens
                if standing.tokens // schedule.measure_tokens > before:
                    self._measure()
                now = self._clock()
                standing.seconds += now - began
                if now - saved >= _CHECKPOINT_S:
                    self._save()
                    saved = now
                progress(standing)
            if standing.curve[-1]["tokens"] < standing.tokens:
                self._measure()
            if schedule.further:
                self._measure_means()
        finally:
            self._save()
        return standing

    def _batches(self) -> Iterator[tuple[Batch, int]]:
        """Epoch after epoch, from where the training stands."""
        per_epoch = -(-len(self._corpus.learnt) // self._texts)
        epoch, skipped = divmod(self.standing.batches, per_epoch)
        while True:
            yield from self._corpus_of(epoch, begins=not skipped).epoch(epoch, self._seed, self._texts, skipped)
            epoch, skipped = epoch + 1, 0

    def _corpus_of(self, epoch: int, begins: bool) -> Corpus:
        """The texts of an epoch. Where it begins the network is saved, so that it would write the same ones again."""
        if self._texts_of is None or self._schedule.ended(self.standing):
            return self._corpus
        if begins:
            self._save()
        began = self._clock()
        corpus = self._texts_of(self.network, epoch)
        self.standing.seconds += self._clock() - began
        return corpus

    def _learn(self, batch: Batch) -> None:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.standing.batches)
        with self._numbers():
            shown = self._schedule.shown(self.standing)
            loss, _ = self._loss(
                self.network, batch.to(self._device), self._columns, self._steps, generator,
                **({"glancing": shown} if shown else {}),
            )  # fmt: skip
        if not bool(loss.isfinite()):
            raise TrainingError(f"the loss is {loss.item()} after {self.standing.batches} batches: training went wrong")
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), _LARGEST_STEP)
        self._optimizer.step(self._schedule.rate(self.standing))

    def _measure_means(self) -> None:
        """Measure means of the weights that it began and ended with: they often guess more than either.

        Reference: Wortsman et al., Model soups, arXiv:2203.05482. Differs: the start is a part of the mean, since what
        it learnt from is not among the texts.
        """
        measured = {point.get(SHARE_OF_START) for point in self.standing.curve}
        ended = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        try:
            for share in _SHARES_OF_START:
                if share not in measured:
                    mean = {name: torch.lerp(tensor, self._start[name], share) for name, tensor in ended.items()}
                    self.network.load_state_dict(mean)
                    self._measure(share)
        finally:  # an interrupt must not leave a mean where learning ended
            self.network.load_state_dict(ended)

    def _measure(self, share_of_start: float | None = None) -> None:
        """Measure on texts never learnt from, and keep the best weights; `share_of_start` where weights are a mean."""
        found = Acceptance((), 0)
        for batch in self._corpus.unseen(_MEASURED_TEXTS):
            with self._numbers():
                found = found.plus(self._accepted(self.network, batch.to(self._device), self._columns, _MEASURED_DEPTH))
        standing = self.standing
        depths = [round(share, 4) for share in found.by_depth]
        better = found.tau > standing.best
        if better:  # first: an interrupt must not leave figures beside weights that are not theirs
            with writing(self.best_weights) as draft:
                save_weights(self.network, draft)
        standing.best, standing.since_best = max(standing.best, found.tau), 0 if better else standing.since_best + 1
        point: Point = {"tokens": standing.tokens, "tau": round(found.tau, 4), "by_depth": depths}
        if share_of_start is not None:
            point[SHARE_OF_START] = share_of_start
        standing.curve.append(point)

    def _numbers(self) -> AbstractContextManager[Any]:
        """Products in bfloat16 where that is faster; weights stay float32."""
        narrow = fastest_float(self._device) == torch.bfloat16
        return torch.autocast(self._device.type, torch.bfloat16, enabled=narrow)

    def _save(self) -> None:
        save_checkpoint(self._checkpoint, self.network, self._optimizer, self.standing, self._about)
