"""A draft model learns from the user's replies: a small adapter on its last states, one for each topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from specchat.core.drafting_networks import JudgedReply, LearningFigures
from specchat.core.reading import HeadOutput, HeadTensors
from specchat.core.request import HeadOfSome, PassRequest
from specchat.core.seams import Model
from specchat.indexes.reply_buffer import LIKELIEST
from specchat.models.decoder.decoder import Decoder
from specchat.models.draft_heads.head import below
from specchat.models.draft_heads.layers import rms_normalize
from specchat.training.distillation import LOSSES
from specchat.training.learning_network import target_law
from specchat.training.losses import columns_of, divergence, labels_of
from specchat.training.online_learning import ChainComparison, Judgement, on_one_thread

RANK = 64
"""Width of an adapter."""

LEARNING_RATE = 1e-3
MOST_PLACES = 8192
"""Places that are kept, the newest; with states of 576 numbers they take 11 MB."""

MOST_TOKENS = 4096
"""Of so many of the tokens that the target held likely there, a step computes the draft's law."""

BATCH = 128
REPEATS = 8
"""How often a place is learnt from before the next reply, on the average."""

_MOST_UPDATES = 64
_BUCKETS = 256
_NEW_TOPIC = 0.6
"""A prompt begins a topic of its own where its likeness to every known one is below this."""

_EPSILON = 1e-5
_PROMPT_TOKENS = 512
_FORMATS = {
    "states": torch.bfloat16, "likeliest": torch.int32, "log_p": torch.float16, "wrote": torch.int32,
    "sure": torch.bool, "topic": torch.int64,
}  # fmt: skip


class Places(NamedTuple):
    """Places in replies, oldest first.

    Args:
        states: (n, d) bfloat16, the draft's last states.
        likeliest, log_p: (n, `LIKELIEST`) the target's likeliest tokens there, as the draft has them, and
            log-probabilities; −1 for a token that the draft has not.
        wrote: (n,) the draft token that the target went on with.
        sure: (n,) bool, whether that token alone is learnt, by its negative log-likelihood.
        topic: (n,) of the reply.
    """

    states: Tensor
    likeliest: Tensor
    log_p: Tensor
    wrote: Tensor
    sure: Tensor
    topic: Tensor

    def __add__(self, other: Any) -> Places:
        return Places(*(torch.cat(pair)[-MOST_PLACES:] for pair in zip(self, other, strict=True)))

    def at(self, chosen: Tensor | slice) -> Places:
        return Places(*(tensor[chosen] for tensor in self))


class Adapter(nn.Module):
    """(n, d) last states → (n, d) of mean square 1, with something added: nothing at first."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(0)
        self.down = nn.Parameter(torch.randn(RANK, hidden, generator=made) * hidden**-0.5)
        self.bias = nn.Parameter(torch.zeros(RANK))
        self.up = nn.Parameter(torch.zeros(hidden, RANK))

    def forward(self, states: Tensor) -> Tensor:
        normed = rms_normalize(states, _EPSILON)
        added = F.linear(F.silu(F.linear(normed, self.down, self.bias)), self.up)
        return rms_normalize(normed + added, _EPSILON)


@dataclass
class _Topic:
    """Replies to prompts alike: the sum of what their prompts are like, the adapter that learns, and what drafts."""

    like: Tensor
    adapter: Adapter
    drafting: Adapter | None = None
    optimiser: torch.optim.Optimizer | None = None
    owed: int = 0


class AdaptedDraft:
    """A `LearningDraft`: adapters on the last states of one draft model, below its head, which stays as it is.

    No row of its cache changes, so nothing is read again when weights move; they move when a reply begins. What is
    drawn is drawn from the law that the adapted states give, which is the q that the rule gets. What is learnt from
    are the places that a round judged, the refused ones among them, and the target's law there. Every reply is judged
    with and without its adapter before it is learnt from; an adapter that does surely worse is dropped.

    Reference: Liu et al., Online Speculative Decoding, arXiv:2310.07177; its routing sends prompts by their subject to
    drafts of their own, here to adapters, by likeness of the prompts' tokens. Of the target's law 32 tokens are known.
    """

    def __init__(self, model: Decoder, loss: str, topics: int, weights: Callable[[], str]) -> None:
        """Nothing learnt yet. `loss` is one of `LOSSES`, and there are `topics` adapters at most; `weights` gives the
        checksum of the draft model's weights, asked for once something is saved or restored."""
        self._model, self._loss, self._most, self._weights = model, LOSSES[loss], topics, weights
        self._wanted = False
        self._bout: Iterator[None] | None = None
        self._head: AdaptedHead | None = None
        self._judged: list[JudgedReply] = []
        self._forget()

    def _forget(self) -> None:
        self._topics = [_Topic(torch.zeros(_BUCKETS), self._fresh())]
        self._topic = 0
        self._reply: list[Places] = []
        self._kept: Places | None = None
        self._new = self._replies = self._tokens = self._updates = self._went_back = 0
        self._judgement = Judgement()
        self._bout = None

    # ------------------------------------------------------------------------------------------- drafting

    @property
    def active(self) -> bool:
        """Whether states are to pass through here: to be adapted, or to be learnt from."""
        return self._wanted or any(topic.drafting is not None for topic in self._topics)

    def start(self, history: Sequence[int]) -> None:
        """A reply begins, with the newest weights of its topic."""
        self._reply = []
        self._route(history)
        topic = self._topics[self._topic]
        if topic.optimiser is not None or topic.drafting is None:
            topic.drafting = _copied(topic.adapter) if bool(topic.adapter.up.any()) else None

    def _route(self, history: Sequence[int]) -> None:
        like = likeness_of(history[-_PROMPT_TOKENS:])
        known = [float(F.cosine_similarity(like, topic.like, dim=0)) for topic in self._topics]
        if max(known) < _NEW_TOPIC and len(known) < self._most and bool(self._topics[0].like.any()):
            self._topics.append(_Topic(torch.zeros(_BUCKETS), self._fresh()))
            known.append(2.0)
        self._topic = known.index(max(known))
        if self._wanted:
            self._topics[self._topic].like += like

    def _fresh(self) -> Adapter:
        with torch.inference_mode(False):
            return Adapter(self._model.hidden_size)

    def request(self, request: PassRequest) -> PassRequest:
        """The same with adapted states, which are noted."""
        if not self.active:
            return request
        topic = self._topics[self._topic]
        self._head = AdaptedHead(self._model, request.head, topic.drafting)
        return PassRequest(taps=request.taps, head=self._head, needs=request.needs)

    @property
    def states(self) -> Tensor:
        """(n, d) last states of the nodes that were read last, not adapted."""
        assert self._head is not None, "a pass was made with `request`"
        return self._head.states

    # ------------------------------------------------------------------------------------------- learning

    def learn(self, wanted: bool) -> None:
        self._wanted = wanted
        if not wanted:
            self._reply, self._bout = [], None

    @property
    def wanted(self) -> bool:
        return self._wanted

    law = staticmethod(target_law)

    def add(self, states: Sequence[Tensor], likeliest: Tensor, log_p: Tensor, wrote: Sequence[int], sure: bool) -> None:
        """Note places of the reply, as `Places` has them."""
        if states and self._wanted:
            count = len(states)
            self._reply.append(
                Places(
                    torch.stack(list(states)).to("cpu", torch.bfloat16), likeliest.int(), log_p.half(),
                    torch.tensor(list(wrote), dtype=torch.int32), torch.full((count,), sure),
                    torch.full((count,), self._topic),
                )
            )  # fmt: skip

    def reply_ended(self) -> None:
        if not self._reply:
            return
        with torch.inference_mode(False):
            reply = Places(*(torch.cat(parts).clone() for parts in zip(*self._reply, strict=True)))
        self._reply = []
        self._kept = reply if self._kept is None else self._kept + reply
        self._new = min(len(reply.wrote), MOST_PLACES)
        self._replies += 1
        self._tokens += len(reply.wrote)
        topic = self._topics[self._topic]
        topic.owed = min(_MOST_UPDATES, topic.owed + -(-self._new * REPEATS // BATCH))

    def idle(self, deadline: float) -> bool:
        """Learn until the deadline, one piece of work at least; whether there is more to do. On one thread."""
        if self._bout is None:
            if not self._wanted or self._kept is None or not (self._new or any(one.owed for one in self._topics)):
                return False
            self._bout = self._work(self._kept)
        with torch.inference_mode(False), torch.enable_grad():
            if on_one_thread(self._bout, deadline):
                return True
        self._bout = None
        return False

    def _work(self, kept: Places) -> Iterator[None]:
        """Judge the newest reply, then learn."""
        tokens, counts = torch.unique(torch.cat([kept.likeliest.flatten(), kept.wrote]).long(), return_counts=True)
        counts[tokens < 0] = 0
        tokens = tokens[counts.topk(min(MOST_TOKENS, int((counts > 0).sum()))).indices]
        rows = self._model.head_rows(tokens.tolist()).float().cpu().clone()
        columns = columns_of(tokens, self._model.vocab_size)
        if self._new:
            new, self._new = kept.at(slice(-self._new, None)), 0
            self._judge(new, rows, columns)
            yield
        chance = torch.Generator().manual_seed(self._updates)
        for number, topic in enumerate(self._topics):
            mine = (kept.topic == number).nonzero()[:, 0]
            while topic.owed and len(mine):
                newest = mine[-max(1, len(mine) // 4) :]
                some = [part[torch.randint(len(part), (BATCH // 2,), generator=chance)] for part in (mine, newest)]
                self._update(topic, kept.at(torch.cat(some)), rows, columns, chance)
                topic.owed -= 1
                self._updates += 1
                yield
            topic.owed = 0

    @torch.no_grad()
    def _judge(self, new: Places, rows: Tensor, columns: Tensor) -> None:
        topic, states = self._topics[int(new.topic[0])], new.states.float()
        wanted = columns[new.wrote.long()]
        before, now = (
            (F.linear(one, rows).argmax(dim=1) == wanted).long()
            for one in (rms_normalize(states, _EPSILON), topic.adapter(states))
        )
        self._judgement.add(ChainComparison.of(before, now))
        better, worse = int((now > before).sum()), int((now < before).sum())
        told = JudgedReply(len(now), int(before.sum()), int(now.sum()), self._updates, better, worse, ())
        self._judged = [*self._judged, told][-8:]
        if self._judgement.worse:
            for one in self._topics:
                one.adapter, one.optimiser, one.drafting = self._fresh(), None, None
            self._judgement = Judgement()
            self._went_back += 1

    def _update(self, topic: _Topic, some: Places, rows: Tensor, columns: Tensor, chance: torch.Generator) -> None:
        if topic.optimiser is None:
            topic.optimiser = torch.optim.Adam(topic.adapter.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
        log_p, known = some.log_p.float(), some.likeliest >= 0
        log_p = torch.where(known, log_p, -torch.inf)
        rest = (1.0 - log_p.exp().sum(dim=1)).clamp_min(0.0)
        labels = labels_of(some.likeliest.long().clamp_min(0), log_p, rest, columns)
        logits = F.linear(topic.adapter(some.states.float()), rows)
        far = torch.where(some.sure, divergence(logits, labels), self._loss(logits, labels, chance))
        topic.optimiser.zero_grad()
        far.mean().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(topic.adapter.parameters(), 1.0)
        topic.optimiser.step()

    @property
    def learnt(self) -> LearningFigures:
        total, kept = self._judgement.total, self._kept
        size = 0 if kept is None else sum(tensor.numel() * tensor.element_size() for tensor in kept)
        return LearningFigures(
            self._replies, self._tokens, 0 if kept is None else len(kept.wrote), size, self._updates, self._went_back,
            total.chains, total.before[:1], total.now[:1], tuple(self._judged),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------- state

    def save_state(self) -> bytes:
        """Adapters, places, judgement and counts; nothing where no reply was kept."""
        if self._kept is None:
            return b""
        counters = [self._replies, self._tokens, self._updates, self._went_back]
        tensors = {"counters": torch.tensor(counters), "judgement": self._judgement.saved()}
        tensors["weights"] = torch.tensor(list(self._weights().encode()), dtype=torch.uint8)
        tensors |= {f"places.{name}": tensor for name, tensor in self._kept._asdict().items()}
        for number, topic in enumerate(self._topics):
            tensors |= {f"{number}.{name}": tensor.detach() for name, tensor in topic.adapter.named_parameters()}
            tensors[f"{number}.like"] = topic.like
        return save({name: tensor.contiguous() for name, tensor in tensors.items()})

    def restore_state(self, state: bytes) -> None:
        """Go on from what was saved; ValueError if it is not what `save_state` makes for these weights."""
        self._forget()
        if not state:
            return
        try:
            with torch.inference_mode(False):
                self._restore(load(state))
        except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
            self._forget()
            raise ValueError(f"no learnt adapters: {error}") from None
        except ValueError:
            self._forget()
            raise

    def _restore(self, saved: dict[str, Tensor]) -> None:
        if bytes(saved["weights"].tolist()) != self._weights().encode():
            raise ValueError("they were learnt on other weights of the draft model")
        hidden, kept = self._model.hidden_size, Places(**below(saved, "places."))
        count = len(kept.likeliest)
        shapes = {"states": (count, hidden), "likeliest": (count, LIKELIEST), "log_p": (count, LIKELIEST)}
        numbers = [name.split(".")[0] for name in saved if name.endswith(".like")]
        for name, tensor in kept._asdict().items():
            if tensor.dtype != _FORMATS[name] or tuple(tensor.shape) != shapes.get(name, (count,)):
                raise ValueError(f"its {name} are {list(tensor.shape)} in {tensor.dtype}")
        within = int(kept.likeliest.min()) >= -1 and int(kept.likeliest.max()) < self._model.vocab_size
        if not (within and int(kept.wrote.min()) >= 0 and int(kept.wrote.max()) < self._model.vocab_size):
            raise ValueError("its places hold what are no tokens of this draft model")
        if not (int(kept.topic.min()) >= 0 and int(kept.topic.max()) < len(numbers)) or count > MOST_PLACES:
            raise ValueError("its places are damaged")
        if not bool((kept.log_p <= 2e-3).all()) or not bool(kept.states.isfinite().all()):
            raise ValueError("its places hold damaged numbers")
        counters = saved["counters"].tolist()
        if len(counters) != 4 or not all(isinstance(one, int) and 0 <= one < 1 << 48 for one in counters):
            raise ValueError("its counters are damaged")
        topics = list[_Topic]()
        for number in range(len(numbers)):
            topic = _Topic(saved[f"{number}.like"], self._fresh())
            weights = {name: saved[f"{number}.{name}"] for name, _ in topic.adapter.named_parameters()}
            topic.adapter.load_state_dict(weights)
            numbered = (*weights.values(), topic.like)
            if topic.like.shape != (_BUCKETS,) or any(
                one.dtype != torch.float32 or not bool(one.isfinite().all()) for one in numbered
            ):
                raise ValueError("its adapters hold damaged numbers")
            topic.drafting = _copied(topic.adapter)
            topics.append(topic)
        self._judgement = Judgement.restored(saved["judgement"])
        self._topics, self._kept = topics, kept
        self._replies, self._tokens, self._updates, self._went_back = counters


class AdaptedHead:
    """A `HeadOfSome` for states that an adapter has changed; it keeps them as they came."""

    def __init__(self, model: Model, head: HeadOfSome | None, adapter: Adapter | None) -> None:
        """`head`: whose rows are used; None for the model's whole head."""
        self._model, self._head, self._adapter = model, head, adapter
        self.tokens = torch.arange(model.vocab_size) if head is None else head.tokens

    def add(self, tokens: Sequence[int]) -> None:
        if self._head is not None:
            self._head.add(tokens)
            self.tokens = self._head.tokens

    def after(self, states: Tensor) -> HeadOutput:
        self.states = states.clone()
        if self._adapter is not None:
            states = self._adapter(states.float().cpu()).to(states)
        return HeadTensors(self._model.head(states)) if self._head is None else self._head.after(states)


def likeness_of(tokens: Collection[int]) -> Tensor:
    """The vector that prompts are compared by: square roots of how often tokens occur, put into buckets."""
    counts = torch.bincount(
        torch.tensor([token * 2_654_435_761 % (1 << 32) % _BUCKETS for token in tokens] or [0]), minlength=_BUCKETS
    )
    return counts.float().sqrt()


def _copied(adapter: Adapter) -> Adapter:
    with torch.inference_mode(False):
        made = Adapter(adapter.up.shape[0])
        made.load_state_dict(adapter.state_dict())
        return made.requires_grad_(False)


def adapted_draft(model: Model, loss: str, topics: int, weights: Callable[[], str]) -> AdaptedDraft | None:
    """The learner of a draft model; None for one that does not run in specchat's own decoder."""
    return AdaptedDraft(model, loss, topics, weights) if isinstance(model, Decoder) else None
