"""Training the rule `judge`: labels by whether a task's answer survives a token, and a linear judge fitted to them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specchat.config import own_drafters_dir
from specchat.config.trained_drafters import JUDGE, WEIGHTS, TrainedDrafter, read_drafter, write_drafter
from specchat.core.request import PassRequest
from specchat.core.seams import Model
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.vocabulary import Vocabulary
from specchat.errors import TrainingError
from specchat.training.disk import drafter_folder

MOST_TOKENS = 64
"""Tokens of a reply: tasks have short answers."""

PLACES, OTHERS = 6, 2
"""Places of a reply at which others are tried, and how many at each: the next likeliest, as a draft would guess."""

FEWEST = 40
"""Labels of each kind without which nothing is fitted."""

_HELD_OUT = 5
"""Every so many-th task is not learnt from."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True)
class Labelled:
    """A token in its context: the target's last state at the token, (d,), whether the answer of its task survives it,
    and the number of that task."""

    state: Tensor
    right: bool
    task: int


def arithmetic(seed: int) -> Iterator[str]:
    """Tasks with one number as the answer, without end."""
    noise = random.Random(seed)
    forms = (
        "What is {a} + {b}? Explain in one sentence.",
        "Calculate {a} - {b} and say the result in words and digits.",
        "Anna has {a} apples and buys {b} more. How many apples does she have now?",
        "There were {a} birds and {b} flew away. How many are left?",
    )
    while True:
        a, b = sorted((noise.randint(2, 99), noise.randint(2, 99)), reverse=True)
        yield noise.choice(forms).format(a=a, b=b)


def labelled(
    model: Model,
    vocabulary: Vocabulary,
    tasks: Iterator[str],
    tokens: int,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda written, labels: None,
) -> list[Labelled]:
    """Labels of the tokens of the target's own greedy replies, which are right, and of others in their places.

    After another token the target writes on; the token is right if the answer, the last number of the reply, is the
    same. Replies without a number are left out.

    Args:
        tokens: that are written at most, and tasks that are looked at.
        tell: told how many are, and how many labels there are; may raise to stop.
    """
    noise, found, written = random.Random(seed), list[Labelled](), 0
    for number, task in enumerate(tasks):
        if max(written, number) >= tokens:  # tasks without end of which none fits end too
            break
        prompt = vocabulary.encode_chat([{"role": "user", "content": task}])
        if len(prompt) + MOST_TOKENS >= model.context_tokens:
            continue
        own = _Written.of(model, vocabulary, prompt)
        written += len(own.tokens)
        if own.answer:
            places = sorted(noise.sample(range(len(own.states)), min(PLACES, len(own.states))))
            for place in places:
                found.append(Labelled(own.states[place], True, number))
                for other in own.others[place]:
                    begun = [*own.tokens[:place], other]
                    changed = _Written.of(model, vocabulary, prompt, begun)
                    written += len(changed.tokens) - len(begun)
                    found.append(Labelled(changed.states[0], changed.answer == own.answer, number))
        tell(written, len(found))
    return found


@dataclass(frozen=True)
class _Written:
    """A greedy reply.

    Args:
        states: of each of its tokens that was read, from the last one it began with on.
        others: for the same tokens, the next likeliest ones in their places.
    """

    tokens: list[int]
    states: list[Tensor]
    others: list[list[int]]
    answer: str

    @classmethod
    def of(cls, model: Model, vocabulary: Vocabulary, prompt: Sequence[int], begun: Sequence[int] = ()) -> _Written:
        text = [*prompt, *begun]
        model.prefill(text[:-1])
        request = PassRequest(taps=frozenset({model.layers - 1}))
        states: list[Tensor] = []
        others: list[list[int]] = []
        while len(text) < len(prompt) + MOST_TOKENS:
            reading = model.read(TokenTree(text[-1], model.vocab_size).freeze(), request=request)
            model.keep(())
            states.append(reading.taps[model.layers - 1][reading.row(ROOT)].float().cpu())
            likeliest = reading.best_after([ROOT], 1 + OTHERS)[0]
            if likeliest[0] in vocabulary.eos_ids:
                break
            others.append([token for token in likeliest[1:] if token not in vocabulary.eos_ids])
            text.append(likeliest[0])
        if not begun:  # the first state is the prompt's last token's
            del states[0]
        reply = text[len(prompt) :]
        said = b"".join(map(vocabulary.token_bytes, reply)).decode(errors="replace")
        numbers = _NUMBER.findall(said)
        return cls(reply, states, others, numbers[-1] if numbers else "")


@dataclass(frozen=True)
class FittedJudge:
    """A linear judge of (d,) states, and how it does on tasks that it did not learn from."""

    weight: Tensor
    bias: float
    auc: float


def fitted(labels: Sequence[Labelled], shrinkage: float = 1.0) -> FittedJudge:
    """Logistic regression in which both kinds of labels weigh the same, held back towards no judgement.

    Raises:
        TrainingError: there are too few labels of a kind.
    """
    learnt = [one for one in labels if one.task % _HELD_OUT]
    held = [one for one in labels if not one.task % _HELD_OUT]
    for part, least in ((learnt, FEWEST), (held, 1)):
        count = sum(one.right for one in part)
        if min(count, len(part) - count) < least:
            raise TrainingError(
                f"of {len(labels)} labels too few are of one kind: give it more --tokens, or tasks with other answers"
            )
    states, right = _tensors(learnt)
    mean, scale = states.mean(0), states.std(0).clamp(min=1e-6)
    given = (states - mean) / scale
    weights = torch.where(right > 0, 0.5 / right.sum(), 0.5 / (1 - right).sum())
    parameters = torch.zeros(given.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = given @ parameters[:-1] + parameters[-1]
        costs = torch.nn.functional.binary_cross_entropy_with_logits(logits, right, weights, reduction="sum")
        total = costs + shrinkage * parameters[:-1].square().sum() / len(given)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    found = parameters.detach()
    weight = found[:-1] / scale
    bias = float(found[-1] - mean @ weight)
    unseen, truth = _tensors(held)
    return FittedJudge(weight.float(), bias, auc(unseen @ weight + bias, truth > 0))


def auc(scores: Tensor, right: Tensor) -> float:
    """The share of pairs of a right and a wrong label in which the right one has the higher score; ties count half."""
    above = scores[right][:, None] - scores[~right][None]
    return float(((above > 0).double() + 0.5 * (above == 0).double()).mean())


def _tensors(labels: Sequence[Labelled]) -> tuple[Tensor, Tensor]:
    """(n, d) states and (n,) whether they are right, float64."""
    right = torch.tensor([float(one.right) for one in labels], dtype=torch.float64)
    return torch.stack([one.state for one in labels]).double(), right


def refuse_taken(name: str) -> None:
    """TrainingError where something of this name was trained before."""
    if (own_drafters_dir() / name).exists():
        raise TrainingError(f"{name!r} is trained already, in {own_drafters_dir() / name}; choose another --name")


def write_judge(name: str, judge: FittedJudge, layer: int, about: dict[str, Any], labels: int) -> TrainedDrafter:
    """The judge in a folder of its own, as trained drafters are kept.

    Args:
        about: target, target_sha256, licence, and data for people to read.

    Raises:
        TrainingError: it cannot be written.
    """
    folder = own_drafters_dir() / name
    figures = {"labels": labels, "auc_held_out": round(judge.auc, 4)}
    with drafter_folder(folder) as made:
        save_file({"weight": judge.weight, "bias": torch.tensor([judge.bias])}, made / WEIGHTS)
        write_drafter(made, method=JUDGE, options={"layer": layer}, figures=figures, **about)
    return read_drafter(folder, (JUDGE,))
