"""Trains a small XLNet on texts of the user's, so that `specchat fill` has a network on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.config.kept_files import unfinished
from specchat.errors import TrainingError, UsageError
from specchat.models.any_order import hidden_from
from specchat.models.weights.foreign_code import first_line

VOCAB_SIZE, WIDTH, LAYERS, HEADS = 2048, 128, 4, 4
LENGTH = 64
"""Tokens of a piece of text. Places that are farther apart count as so far."""

BATCH = 8
FEWEST_TOKENS = 40 * LENGTH
_UNSEEN_SHARE = 20
"""One token in so many is kept for measuring."""

_PIECE = 1000
"""Characters that pairs are counted in at once: a word takes time by the square of its length."""

_MOST_BLANK = 0.7
_RATE, _WARM_UP = 2e-3, 50

Tell = Callable[[int, float], None]
"""(steps done, the last one's loss)."""


def train_any_order(text: str, folder: Path, steps: int, seed: int, tell: Tell) -> float:
    """Train a tokenizer and an XLNet of some 4 MB on a text and write both to a new folder.

    Half of the pieces have blanks of several tokens, half single ones; half are filled from left to right, half in a
    random order, as the network guesses a place before those to its left are filled.

    Returns:
        The mean negative log-likelihood, in nats a token, of blanks in the end of the text, which was not learnt from.

    Raises:
        UsageError: there is such a folder already.
        TrainingError: the text is too short, or the folder cannot be written.
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder} is there already; remove it, or name another folder with --model")
    tokenizer = _trained_tokenizer(text)
    tokens = torch.tensor(tokenizer.encode(text))
    if len(tokens) < FEWEST_TOKENS:
        raise TrainingError(f"the text has {len(tokens)} tokens, too few to learn from; at least {FEWEST_TOKENS}")
    unseen = max(len(tokens) // _UNSEEN_SHARE, 2 * LENGTH)
    with ExitStack() as stack:
        with _told_of(folder):
            made = stack.enter_context(unfinished(folder.absolute()))
        network = new_network(len(tokenizer), seed, WIDTH, LAYERS)
        learn(network, tokens[:-unseen], steps, seed, tell)
        with torch.inference_mode():
            random = torch.Generator().manual_seed(0)
            losses = [loss_of(network.eval(), *batch_of(tokens[-unseen:], random)).item() for _ in range(8)]
        with _told_of(folder):
            network.save_pretrained(made)
            tokenizer.save_pretrained(made)
            made.rename(folder)
    return sum(losses) / len(losses)


@contextmanager
def _told_of(folder: Path) -> Iterator[None]:
    """What the system refuses, which libraries say in ways of their own, as a TrainingError."""
    try:
        yield
    except Exception as error:
        raise TrainingError(f"{folder} cannot be written: {first_line(error)}") from None


def _trained_tokenizer(text: str) -> Any:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    pairs = ByteLevelBPETokenizer()
    pieces = (line[at : at + _PIECE] for line in text.splitlines(keepends=True) for at in range(0, len(line), _PIECE))
    pairs.train_from_iterator(pieces, vocab_size=VOCAB_SIZE, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer)


def new_network(vocab_size: int, seed: int, width: int, layers: int) -> Any:
    """An XLNetLMHeadModel with random weights."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    config = XLNetConfig(
        vocab_size=vocab_size, d_model=width, n_layer=layers, n_head=HEADS, d_inner=4 * width, dropout=0.0,
        clamp_len=LENGTH, initializer_range=width**-0.5, use_mems_eval=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return XLNetLMHeadModel(config)


def learn(network: Any, tokens: Tensor, steps: int, seed: int, tell: Tell, rate: float = _RATE) -> None:
    """Let a network learn to fill blanks in random pieces of (T,) tokens."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.01)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / _WARM_UP, 1.0) * max(1.0 - step / max(steps, 1), 0.05)
    )
    network.train()
    for step in range(steps):
        loss = loss_of(network, *batch_of(tokens, random))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        falling.step()
        tell(step + 1, loss.item())


def batch_of(tokens: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """(B, L) pieces of (T,) tokens, and (B, n) their blank places in the order in which they are filled."""
    starts = torch.randint(len(tokens) - LENGTH + 1, (BATCH, 1), generator=random)
    pieces = tokens[starts + torch.arange(LENGTH)]
    count = int(torch.randint(1, int(_MOST_BLANK * LENGTH) + 1, (1,), generator=random))
    single = torch.rand(BATCH, LENGTH, generator=random)
    centres = torch.randint(LENGTH, (BATCH, 1, 2), generator=random)
    around = (torch.arange(LENGTH)[:, None] - centres).abs().amin(dim=2) + single
    in_runs = torch.arange(BATCH)[:, None] % 2 == 0
    blanks = torch.where(in_runs, around, single).argsort(dim=1)[:, :count].sort(dim=1).values
    shuffled = blanks.gather(1, torch.rand(BATCH, count, generator=random).argsort(dim=1))
    return pieces, torch.where(torch.arange(BATCH)[:, None] % 4 < 2, blanks, shuffled)


def loss_of(network: Any, pieces: Tensor, blanks: Tensor) -> Tensor:
    """Mean negative log-likelihood of (B, n) blanks of (B, L) pieces, each given the known text and those before it."""
    ranks = torch.zeros_like(pieces).scatter(1, blanks, torch.arange(1, blanks.shape[1] + 1).expand_as(blanks))
    said = network(
        pieces,
        perm_mask=hidden_from(ranks, ranks),
        target_mapping=F.one_hot(blanks, pieces.shape[1]).float(),
        use_mems=False,
    )
    return F.cross_entropy(said.logits.flatten(0, 1), pieces.gather(1, blanks).flatten())
