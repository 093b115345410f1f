"""Losses of draft models: distances between two laws, the places that are learnt from, and masked tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.models.draft_heads.head import Batch, DraftNetwork
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.draft_heads.specdiff import SpecDiff
from specchat.training.losses import (
    Labels,
    LawLoss,
    Laws,
    divergence,
    divergence_then_overlap,
    labels_at,
    laws_of,
    log_overlap,
    logits_of,
)

if TYPE_CHECKING:
    from specchat.training.corpus import Corpus  # not where a GPU is measured: msgspec may be missing there


DRAWS = 16
"""How many tokens are drawn at every place to estimate the gradient of the total variation."""

SELECTED = 0.4
"""The share of places that `behind` selects."""

_LEAST_TIME = 1e-3
_LEAST = 1e-5


def reverse_kl(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) Kullback-Leibler divergence of the network's law from the target's: it avoids what the target never says."""
    laws = laws_of(logits, labels)
    lost: Tensor = laws.q * (laws.log_q - laws.p.clamp_min(_LEAST).log())
    return lost.sum(dim=1)


def jensen_shannon(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) the mean of both laws' divergences from the law halfway between them."""
    laws = laws_of(logits, labels)
    middle = ((laws.p + laws.q) / 2).clamp_min(_LEAST).log()
    target: Tensor = torch.special.xlogy(laws.p, laws.p) - laws.p * middle
    return (target + laws.q * (laws.log_q - middle)).sum(dim=1) / 2


def total_variation(logits: Tensor, labels: Labels) -> Tensor:
    """(n,) half the sum of the differences: what a p/q rule refuses of one draw."""
    laws = laws_of(logits, labels)
    apart: Tensor = (laws.p - laws.q).abs()
    return apart.sum(dim=1) / 2


def aligned(logits: Tensor, labels: Labels, generator: torch.Generator) -> Tensor:
    """(n,) numbers whose gradient is, in the mean over what is drawn, that of the total variation, but for a factor.

    Tokens are drawn from the network; one that the target holds likelier is rewarded with 1. Rewards are brought to a
    mean of 0 and a spread of 1 over all places and draws, which the mean of the gradient keeps and its variance loses.

    Reference: Goel et al., Direct Alignment of Draft Model for Speculative Decoding with Chat-Fine-Tuned LLMs,
    arXiv:2403.00858 (TVD++).
    """
    laws = laws_of(logits, labels)
    q = laws.q.detach().cpu().nan_to_num(nan=1.0)  # what is no number shows in the loss, which is refused there
    drawn = torch.multinomial(q, DRAWS, replacement=True, generator=generator).to(logits.device)
    return policy_gradient(laws, drawn, normalised(rewards(laws).gather(1, drawn)))


def rewards(laws: Laws) -> Tensor:
    """(n, K + 1) 1 for the tokens that the target holds likelier than the network, 0 for all others."""
    return (laws.p > laws.q.detach()).to(laws.p.dtype)


def normalised(drawn: Tensor) -> Tensor:
    """(n, m) rewards of what was drawn, with a mean of 0 and a spread of 1 over all of them."""
    return (drawn - drawn.mean()) / drawn.std(correction=0).clamp_min(_LEAST)


def policy_gradient(laws: Laws, drawn: Tensor, advantage: Tensor) -> Tensor:
    """(n,) numbers whose gradient makes the (n, m) tokens drawn likelier, each by its advantage."""
    return -(advantage * laws.log_q.gather(1, drawn)).mean(dim=1)


LOSSES: Mapping[str, LawLoss] = {
    "forward_kl": lambda logits, labels, _: divergence(logits, labels),
    "reverse_kl": lambda logits, labels, _: reverse_kl(logits, labels),
    "jsd": lambda logits, labels, _: jensen_shannon(logits, labels),
    "tvd": lambda logits, labels, _: total_variation(logits, labels),
    "tvd_plus_plus": aligned,
    "lk": lambda logits, labels, _: log_overlap(logits, labels),
    "lk_mixed": lambda logits, labels, _: divergence_then_overlap(logits, labels),
}
"""The losses by their names in `--loss`."""


Selection = Callable[[Tensor, Tensor], Tensor]
"""At n places: by how much the network's law is further from the target's than its reference's, (n,); and whether the
reference's likeliest token is not the target's, which can be guessed, (n,) bool → (n,) bool, what is learnt from."""


def behind(further: Tensor, missed: Tensor) -> Tensor:
    """(n,) bool, the share of places where the network is furthest behind its reference: most is left to learn there.

    Reference: Hu et al., AdaSPEC, arXiv:2510.19779.
    """
    chosen = torch.zeros_like(missed)
    chosen[further.topk(max(1, round(SELECTED * len(chosen)))).indices] = True
    return chosen


def wrong_guesses(further: Tensor, missed: Tensor) -> Tensor:
    """(n,) bool, the places where the reference guesses wrong, so that both together guess more in one tree.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (boost-tuning). Differs: single places are left out, not whole
    texts.
    """
    return missed


SELECTIONS: Mapping[str, Selection] = {"behind": behind, "missed": wrong_guesses}
"""The selections of places by their names in `--select`."""


def unreproduced(corpus: Corpus, reference: DraftNetwork[NetworkSizes], columns: Tensor, texts: int) -> Corpus:
    """The texts that an earlier draft model guesses worse than others, for a second one to learn from.

    Args:
        columns: (V,) the column of every token, −1 for those that cannot be guessed; on the reference's device.
        texts: are read at once.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (boost-tuning). Differs: a text counts as reproduced where the
    reference guesses at least as large a share of its tokens, each after the target's own text, as on average. Hardly
    any is guessed whole, and a fixed share may keep all texts, or too few.
    """

    @torch.no_grad()
    def guessed(batch: Batch) -> Tensor:
        batch = batch.to(columns.device)
        drafted = batch.drafted(1, batch.tokens.shape[1] - 1)
        rows, places = drafted.nonzero(as_tuple=True)
        logits = logits_of(reference, _states(reference, batch)[-1][rows, places])
        right = logits.argmax(dim=1) == columns[batch.likeliest[rows, places + 1, 0]]
        share = torch.zeros(len(drafted), device=rows.device).index_add_(0, rows, right.float())
        return (share / drafted.sum(dim=1).clamp_min(1)).cpu()

    return corpus.below_average(guessed, texts)


@dataclass(frozen=True)
class Distillation:
    """The loss of a language model that learns at every place of a reply what the target says there.

    Reference: Zhou et al., DistillSpec, arXiv:2310.08461. Differs: of the target's law its 32 likeliest tokens are
    known, and all others count as one. `draft_texts` lets the network write what it learns from.

    A network of several depths learns at all of them in every step, by the mean of their losses: sorted fine-tuning,
    Kavehzadeh et al., S2D, arXiv:2407.01955.

    Args:
        loss: one of `LOSSES`.
        reference: an earlier draft model for the same target, that decides which places are learnt from; None: all.
        select: one of `SELECTIONS`, which says how.
    """

    loss: LawLoss
    reference: DraftNetwork[NetworkSizes] | None = None
    select: Selection = behind

    def __call__(
        self, network: DraftNetwork[NetworkSizes], batch: Batch, columns: Tensor, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """The mean over all places that are learnt from, and how many there are; as `chain_loss`, of one step."""
        rows, places = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
        labels = labels_at(batch, rows, places + 1, columns)
        by_depth = [logits_of(network, states[rows, places]) for states in _states(network, batch)]
        found = torch.stack([self.loss(logits, labels, generator) for logits in by_depth]).mean(dim=0)
        if self.reference is not None and len(rows):
            with torch.no_grad():
                others = logits_of(self.reference, _states(self.reference, batch)[-1][rows, places])
                wanted = columns[batch.likeliest[rows, places + 1, 0]]
                wrong = (others.argmax(dim=1) != wanted) & (wanted >= 0)
                further = divergence(by_depth[-1], labels) - divergence(others, labels)
            found = found[self.select(further, wrong)]
        return found.sum() / max(1, len(found)), len(found)


def _states(network: DraftNetwork[NetworkSizes], batch: Batch) -> list[Tensor]:
    return network.states_by_depth(network.fused(batch.features), batch.tokens)


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
