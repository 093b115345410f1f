"""A trained network that drafts and, where the user wants it, records replies and goes on learning from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.drafting_networks import LearningFigures
from specchat.core.reading import Reading
from specchat.core.request import EVERYTHING, FIRST, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Weights
from specchat.core.states import TextStates
from specchat.core.tree import ROOT
from specchat.indexes.reply_buffer import LIKELIEST, MOST_REPLY_TOKENS, RecordedReply
from specchat.models.draft_heads.drafting import Drafting, TextInputs
from specchat.models.draft_heads.loading import HeadOfTarget
from specchat.training.online_learning import OnlineLearner, on_one_thread

_FEWEST_TOKENS = 6
"""A shorter reply holds no chain of guesses that could be judged."""


class ReplyRecorder:
    """The reply that is being written: its tokens, and what the target held likely after each of them.

    A round costs two small copies. What the network makes of the target's states is known to the drafter already, and
    is fetched when the reply is over.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was noted: a text begins or has changed."""
        self._first = 0  # position of the first root
        self._tokens: list[int] = []
        self._bonus: int | None = None  # follows them, unless the reply ended on one of them
        self._laws: list[tuple[Tensor, Tensor]] = []

    def observe(self, round: Round) -> None:
        """Note what the target said after the root and the accepted path."""
        position = round.start - 1
        if not self._tokens:
            self._first = position
        if len(self._tokens) >= MOST_REPLY_TOKENS:
            return
        if position != self._first + len(self._tokens):  # a round was not shown here
            self.begin()
            return
        path = (ROOT, *round.verdict.path)
        self._tokens += [round.tree.tokens[node] for node in path]
        self._bonus = round.verdict.bonus
        self._laws.append(target_law(round.reading, path))

    def taken(self, text: TextInputs) -> RecordedReply | None:
        """The recorded reply, with the fused states of its places; None where it is too short."""
        read, laws, bonus, first = self._tokens, self._laws, self._bonus, self._first
        self.begin()
        tokens = read if bonus is None else [*read, bonus]
        count = len(tokens)
        if count < _FEWEST_TOKENS or first < 1 or not text.holds(first, read):
            return None
        inputs, known = text.kept(first - 1, first - 1 + count)
        if not bool(known.any()):
            return None
        nothing = torch.zeros(1, LIKELIEST, dtype=torch.int32), torch.full((1, LIKELIEST), -torch.inf)
        likeliest, log_p = (torch.cat(parts)[:count] for parts in zip(nothing, *laws, strict=True))
        return RecordedReply(
            torch.tensor([text.tokens[first - 1], *tokens], dtype=torch.int32),
            inputs.to(torch.bfloat16),
            known,
            likeliest.to(torch.int32),
            log_p.to(torch.float16),
        )


def target_law(reading: Reading, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(n, LIKELIEST) the likeliest tokens after these nodes and the logarithms of their probabilities.

    Where there are fewer tokens, what is left has no probability. Synchronises with the device.
    """
    count = min(LIKELIEST, reading.logits.shape[1])
    likeliest = np.asarray(reading.best_after(nodes, count))
    rows = np.asarray([reading.row(node) for node in nodes])[:, None]
    if reading.logits.device.type == "cpu" and reading.logits.dtype == torch.float32:
        logits = torch.from_numpy(reading.logits.numpy()[rows, likeliest])
    else:
        logits = reading.logits[torch.from_numpy(rows), torch.from_numpy(likeliest)].float().cpu()
    found = torch.zeros(len(nodes), LIKELIEST, dtype=torch.int32)
    log_p = torch.full((len(nodes), LIKELIEST), -torch.inf)
    found[:, :count] = torch.from_numpy(likeliest)
    log_p[:, :count] = logits - reading.logsumexp_after(nodes).cpu()[:, None]
    return found, log_p


_ORIGINAL = "original"


class LearningNetwork:
    """A `LearningTrainedNetwork`: drafts with one set of weights while another learns.

    Weights that were learnt are made ready for drafting while the engine is idle, and are used from the next reply on:
    within a reply nothing changes.
    """

    def __init__(self, target: Weights, trained: TrainedDrafter, tokens: int) -> None:
        """The network as it was trained.

        Args:
            tokens: so many of the tokens that it can guess are kept, those that texts use most.

        Raises:
            ConfigError: the sizes that its folder names are wrong.
            WeightsError: its file is damaged, or holds another network.
            ModelError: it was trained for a target of other sizes.
        """
        self._head, self._target, self._sha256 = HeadOfTarget(target, trained, tokens), target, trained.sha256
        self._draft_with(self._head.ready())
        self._next: Drafting | None = None  # takes over when a reply begins
        self._passes_before = 0
        self._learner: OnlineLearner | None = None
        self._recorder = ReplyRecorder()
        self._bout: Iterator[None] | None = None
        self._wanted = False
        self.layers, self.depth = self._drafting.layers, self._drafting.depth

    # ------------------------------------------------------------------------------------------- drafting

    @property
    def passes(self) -> int:
        return self._passes_before + self._drafting.passes

    def take(self, states: TextStates) -> None:
        self._drafting.take(states)

    @property
    def one_pass(self) -> bool:
        return self._drafting.one_pass

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        return None if self._drafting.skip is None else self._skip

    def _draft_with(self, drafting: Drafting) -> None:
        """Use this network; calls of every round go to its own methods directly."""
        self._drafting = drafting
        self.begin, self.read = drafting.begin, drafting.read
        self.compiled, self.count_passes = drafting.compiled, drafting.count_passes

    def _skip(self, first: int, tokens: Sequence[int]) -> None:
        assert self._drafting.skip is not None, "no network with `skip` becomes one without"
        self._drafting.skip(first, tokens)

    # ------------------------------------------------------------------------------------------- learning

    def start(self, history: Sequence[int]) -> None:
        """A reply begins: draft with the newest weights, and read what is known of the text."""
        if self._next is not None:
            self._passes_before = self.passes
            self._draft_with(self._next)
            self._next = None
            self._drafting.given.head.add(self._drafting.given.text.tokens)
        self._recorder.begin()
        self.begin(history)

    def learn(self, wanted: bool) -> None:
        """Learn from replies from now on, or no longer. What was learnt stays in use."""
        self._wanted = wanted
        if not wanted:
            self._recorder.begin()
            self._bout = None

    @property
    def needs(self) -> HeadNeeds:
        """The parts of the head's output that the recorder reads, where replies are learnt from."""
        return EVERYTHING if self._wanted else FIRST

    def observe(self, round: Round) -> None:
        if self._wanted:
            self._recorder.observe(round)

    def reply_ended(self) -> None:
        reply = self._recorder.taken(self._drafting.given.text)
        if reply is not None:
            self._learning().add(reply)

    def idle(self, deadline: float) -> bool:
        """Learn until the deadline, one piece of work at least; whether there is more to do. On one thread."""
        if self._bout is None:
            if not self._wanted or self._learner is None or not self._learner.due:
                return False
            self._bout = self._work(self._learner)
        if on_one_thread(self._bout, deadline):
            return True
        self._bout = None
        return False

    @property
    def learnt(self) -> LearningFigures:
        return LearningFigures() if self._learner is None else self._learner.learnt

    def save_state(self) -> bytes:
        """Learnt weights, the replies that are kept, and how both networks did; nothing where no reply was kept."""
        if self._learner is None:
            return b""
        digest = torch.frombuffer(bytearray(bytes.fromhex(self._sha256)), dtype=torch.uint8)
        return save({_ORIGINAL: digest, **self._learner.saved()})

    def restore_state(self, state: bytes) -> None:
        """Draft with what was learnt, from the next reply on; with the original weights where that is nothing.

        Raises:
            ValueError: it was learnt by another network, or from other weights.
        """
        self._bout, forgotten = None, self._learner
        self._learner = None
        self._recorder.begin()
        if state:
            self._learner = self._restored(state)
            self._renew(self._learner)
        elif forgotten is not None:
            self._next = self._head.ready(text=self._drafting.given.text)

    def _restored(self, state: bytes) -> OnlineLearner:
        try:
            saved = load(state)
            if bytes(saved.pop(_ORIGINAL).tolist()).hex() != self._sha256:
                raise ValueError("it was learnt from other weights than those that are here now")
            learner = OnlineLearner(self._head.load(), self._target, self.depth)
            learner.restore(saved)
        except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"no learnt weights: {error}") from None
        return learner

    def _learning(self) -> OnlineLearner:
        if self._learner is None:
            self._learner = OnlineLearner(self._head.load(), self._target, self.depth)
        return self._learner

    def _work(self, learner: OnlineLearner) -> Iterator[None]:
        yield from learner.training_steps()
        self._renew(learner)

    def _renew(self, learner: OnlineLearner) -> None:
        self._next = self._head.ready(learner.drafting_copy(), self._drafting.given.text)
