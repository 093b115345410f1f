"""A trained network that drafts and, where the user wants it, goes on learning from the replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from specchat.core.drafting_networks import LearningFigures, TrainedNetwork
from specchat.core.request import EVERYTHING, FIRST, HeadNeeds
from specchat.core.round import Round
from specchat.core.seams import Weights
from specchat.core.states import TextStates
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.online_learning import OnlineLearner
from specchat.models.draft_heads.reply_recorder import ReplyRecorder
from specchat.models.draft_heads.text_inputs import TextInputs

_ORIGINAL = "original"


@dataclass(frozen=True)
class Drafting:
    """A network that drafts, and what it drafts with."""

    network: TrainedNetwork
    inputs: DraftingInputs


class LearningNetwork:
    """A `LearningTrainedNetwork`: drafts with one set of weights while another learns.

    Weights that were learnt are made ready for drafting while the engine is idle, and are used from the next reply on:
    within a reply nothing changes.
    """

    def __init__(
        self,
        load_original: Callable[[], Any],
        make: Callable[[Any, TextInputs | None], Drafting],
        target: Weights,
        sha256: str,
    ) -> None:
        """The network as it was trained.

        Args:
            load_original: the network in float32, each time a new one.
            make: a network in float32, which it may change, and the rows of the text that are known already → one that
                drafts.
            sha256: of the original weights.
        """
        self._load, self._make, self._target, self._sha256 = load_original, make, target, sha256
        self._draft_with(make(load_original(), None))
        self._next: Drafting | None = None  # takes over when a reply begins
        self._passes_before = 0
        self._learner: OnlineLearner | None = None
        self._recorder = ReplyRecorder()
        self._bout: Iterator[None] | None = None
        self._wanted = False
        self.layers, self.depth = self._drafting.network.layers, self._drafting.network.depth

    # ------------------------------------------------------------------------------------------- drafting

    @property
    def passes(self) -> int:
        return self._passes_before + self._drafting.network.passes

    def take(self, states: TextStates) -> None:
        self._drafting.network.take(states)

    @property
    def skip(self) -> Callable[[int, Sequence[int]], None] | None:
        return None if self._drafting.network.skip is None else self._skip

    def _draft_with(self, drafting: Drafting) -> None:
        """Use this network; calls of every round go to its own methods directly."""
        self._drafting, network = drafting, drafting.network
        self.begin, self.read = network.begin, network.read
        self.compiled, self.count_passes = network.compiled, network.count_passes

    def _skip(self, first: int, tokens: Sequence[int]) -> None:
        assert self._drafting.network.skip is not None, "no network with `skip` becomes one without"
        self._drafting.network.skip(first, tokens)

    # ------------------------------------------------------------------------------------------- learning

    def start(self, history: Sequence[int]) -> None:
        """A reply begins: draft with the newest weights, and read what is known of the text."""
        if self._next is not None:
            self._passes_before = self.passes
            self._draft_with(self._next)
            self._next = None
            self._drafting.inputs.head.add(self._drafting.inputs.text.tokens)
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
        """What the recorder notes down, where replies are learnt from."""
        return EVERYTHING if self._wanted else FIRST

    def observe(self, round: Round) -> None:
        """Note what the target said, where it is to be learnt from."""
        if self._wanted:
            self._recorder.observe(round)

    def reply_ended(self) -> None:
        """Keep the reply, to learn from it later."""
        reply = self._recorder.taken(self._drafting.inputs.text)
        if reply is not None:
            self._learning().add(reply)

    def idle(self, deadline: float) -> bool:
        """Learn until the deadline, one piece of work at least; whether there is more to do. On one thread."""
        if self._bout is None:
            if not self._wanted or self._learner is None or not self._learner.due:
                return False
            self._bout = self._work(self._learner)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            while next(self._bout, self) is not self:
                if time.monotonic() >= deadline:
                    return True
        finally:
            torch.set_num_threads(threads)
        self._bout = None
        return False

    @property
    def learnt(self) -> LearningFigures:
        """What was learnt so far."""
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
            self._next = self._make(self._load(), self._drafting.inputs.text)

    def _restored(self, state: bytes) -> OnlineLearner:
        try:
            saved = load(state)
            if bytes(saved.pop(_ORIGINAL).tolist()).hex() != self._sha256:
                raise ValueError("it was learnt from other weights than those that are here now")
            learner = OnlineLearner(self._load(), self._target, self.depth)
            learner.restore(saved)
        except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"no learnt weights: {error}") from None
        return learner

    def _learning(self) -> OnlineLearner:
        if self._learner is None:
            self._learner = OnlineLearner(self._load(), self._target, self.depth)
        return self._learner

    def _work(self, learner: OnlineLearner) -> Iterator[None]:
        yield from learner.training_steps()
        self._renew(learner)

    def _renew(self, learner: OnlineLearner) -> None:
        """Make the learnt weights ready for drafting."""
        self._next = self._make(learner.drafting_copy(), self._drafting.inputs.text)
