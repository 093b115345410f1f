"""A denoiser learns to fill windows behind every place of a text, in which masks stand at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.draft_heads.head import Batch
from specchat.models.draft_heads.specdiff import SpecDiff
from specchat.training.losses import LawLoss, labels_at, logits_of

_LEAST_TIME = 1e-3


@dataclass(frozen=True)
class DenoisingLoss:
    """The bound on the negative log-likelihood of what windows hold, for diffusion that turns tokens into masks.

    Reference: Sahoo et al., MDLM, arXiv:2406.07524, with the schedule 1 − t. Differs: a text is not masked itself, but
    in a window behind each of its places; a token that cannot be guessed is left out.

    Args:
        law: brings the network's law to the target's at masks behind which nothing of the window is shown, in place of
            the token's likelihood. Elsewhere the target's law is not what is to be guessed, as it knows nothing of the
            tokens behind. None: likelihoods alone.
    """

    law: LawLoss | None = None

    def __call__(
        self, network: SpecDiff, batch: Batch, columns: Tensor, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """The mean over places that windows follow, and how many there are.

        Args:
            columns: (V,) the column of every token in the network's logits, −1 where it has none.
            steps: not asked: windows are as long as the network's.
        """
        del steps
        texts, masks, first = len(batch.tokens), network.sizes.masks, int(batch.first.min()) + 1
        followed = batch.drafted(1, batch.tokens.shape[1] - 1)[:, first - 1 :]  # of the root, a token further on
        length = followed.shape[1]
        time = torch.rand(texts, length, 1, generator=generator).clamp_min(_LEAST_TIME)
        masked = torch.rand(texts, length, masks, generator=generator) < time
        time, masked = time.to(batch.tokens.device), masked.to(batch.tokens.device)
        held = torch.arange(length, device=time.device)[:, None] + first + 1 + torch.arange(masks, device=time.device)
        within = held <= batch.last[:, None, None] + 1
        chosen = masked & within & followed[..., None]
        windows = network.windows(batch.tokens, ~masked & within, first)
        rows, roots, places = chosen.nonzero(as_tuple=True)
        logits = logits_of(network, network.widen(windows[rows, roots, places]))
        wanted = columns[batch.tokens[rows, held[roots, places]]]
        lost = F.cross_entropy(logits, wanted, ignore_index=-1, reduction="none")
        if self.law is not None:
            last = (masked | ~within).flip(-1).cumprod(dim=-1).flip(-1).bool()[rows, roots, places]
            labels = labels_at(batch, rows, held[roots, places] - 1, columns)
            lost = torch.where(last, self.law(logits, labels, generator), lost)
        count = int(followed.sum())
        return (lost / time[rows, roots, 0]).sum() / max(1, count), count
