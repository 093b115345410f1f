"""Stages 1 and 2: prompts and the target's own replies, several in each pass, and the file that keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specchat.acceptance.follow import Follow
from specchat.controllers.fixed import Off
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.decoding.conversation import Drafted, Steps
from specchat.decoding.speculate import Speculator, Submitted
from specchat.decoding.together import JoinedReply, Together
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.nothing import Nothing
from specchat.drafters.parts import Parts
from specchat.errors import TrainingError, os_errors_as
from specchat.models.decoder.cache_rows import LAZY_TOKENS
from specchat.models.decoder.decoder import Decoder
from specchat.registry import NoOptions
from specchat.training.prompts import encoded_prompt, opening_of, text_of, usable
from specchat.trees.given_shapes import Chain


@dataclass(frozen=True)
class TrainingText:
    """A prompt in the target's chat format and the target's own reply.

    Args:
        index: which of the texts it is; the same index and seed give the same text.
        prompt: tokens up to where the reply begins.
        reply: tokens of the reply, its end included where it has one; empty where the prompt was refused.
        greedy: whether the reply is the likeliest token each time.
    """

    index: int
    prompt: list[int]
    reply: list[int]
    greedy: bool

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.reply

    @property
    def readable(self) -> bool:
        """Whether it is long enough to be read in a pass of its own."""
        return len(self.prompt) + len(self.reply) > LAZY_TOKENS


class TextStore:
    """A file of texts. A line that was cut off by a sudden end is written again."""

    def __init__(self, file: Path, vocab_size: int) -> None:
        self.file = file
        self._vocab_size = vocab_size
        self.texts: dict[int, TrainingText] = {text.index: text for text in self._read()} if file.exists() else {}

    @property
    def reply_tokens(self) -> int:
        return sum(len(text.reply) for text in self.texts.values())

    def append(self, text: TrainingText) -> None:
        line = json.dumps(asdict(text), separators=(",", ":")) + "\n"
        refused = os_errors_as(TrainingError, f"{self.file} cannot be written")
        with refused, open(self.file, "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as file:
            file.write(line)
        self.texts[text.index] = text

    def _read(self) -> list[TrainingText]:
        with os_errors_as(TrainingError, f"{self.file} cannot be read"):
            data = self.file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.file, len(whole))
        return [self._text(line, number) for number, line in enumerate(whole.splitlines(), 1)]

    def _text(self, line: bytes, number: int) -> TrainingText:
        try:
            said: Any = json.loads(line)
            text = TrainingText(**said)
        except (ValueError, TypeError, RecursionError) as error:
            raise TrainingError(f"{self.file}, line {number} is not a text: {error}; remove that line") from None
        if not (_is_count(text.index) and isinstance(text.prompt, list) and isinstance(text.reply, list)):
            raise TrainingError(f"{self.file}, line {number} is not a text: it needs index, prompt and reply")
        if text.reply and not text.prompt:
            raise TrainingError(f"{self.file}, line {number} is a reply to nothing; remove that line")
        if not all(_is_count(token) and token < self._vocab_size for token in text.tokens):
            raise TrainingError(
                f"{self.file}, line {number} holds something that is not a token of this target; remove that line"
            )
        return text


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


TEXTS_TOGETHER = 16
"""Texts in one pass: a core then writes 3.5 times what it writes alone; 32 give no more."""

REPLY_TOKENS = 128
"""Longest reply: drafters learn from many short texts more than from a few long ones."""

_PROMPT_TOKENS = 160
_LONGEST_PROMPT = 512

_TURN = Sampling(temperature=1.0, top_p=0.95)
"""How the target writes the user's turn: varied, without the last per cent of nonsense."""

_CHAT_TEMPERATURE = 0.7
"""How half of the replies are drawn where the chat itself is greedy."""


@dataclass(frozen=True)
class TextPlan:
    """Which texts are written; the same plan gives the same texts. Without `prompts` the target writes them."""

    vocabulary: Vocabulary
    prompts: Sequence[str] | None
    sampling: Sampling
    seed: int

    def noise(self, index: int, what: str) -> Noise:
        return Noise(self.seed).child(f"training/{index}/{what}")

    def reply_sampling(self, index: int) -> Sampling:
        """Half of the replies are greedy, the others as the chat samples."""
        if index % 2 == 0:
            return Sampling()
        return Sampling(temperature=_CHAT_TEMPERATURE) if self.sampling.greedy else self.sampling


class TextWriting:
    """Writes the texts of a plan in the order of their numbers, as many at a time as a pass has room for."""

    def __init__(self, plan: TextPlan, target: Decoder, store: TextStore) -> None:
        self._plan = plan
        self._store = store
        self._longest = min(_LONGEST_PROMPT + REPLY_TOKENS, target.context_tokens)
        self._opening = opening_of(plan.vocabulary) if plan.prompts is None else []
        self._free = [_plain(target.for_joint_passes()) for _ in range(TEXTS_TOGETHER)]
        self._next = 0

    def run(self, reply_tokens: int, progress: Callable[[int], None]) -> None:
        """Write until the store holds so many tokens of replies, or a file's prompts are used up.

        What was begun is finished: no number is left out that more texts would fill later, so the same texts stay in
        the same order, and those that were never learnt from stay the same.

        Args:
            progress: told the number after every pass; may raise to stop. Finished texts are kept.
        """
        together = Together()
        while True:
            while self._store.reply_tokens < reply_tokens and self._free:
                if (index := self._unwritten()) is None:
                    break
                together.add(JoinedReply(self._text(index), lambda event: None, _fail))
            if not together:
                return
            together.turn()
            progress(self._store.reply_tokens)

    def _unwritten(self) -> int | None:
        while self._next in self._store.texts:
            self._next += 1
        if self._plan.prompts is not None and self._next >= len(self._plan.prompts):
            return None
        self._next += 1
        return self._next - 1

    def _text(self, index: int) -> Steps:
        """Write a text into the store: its prompt first, where no file has that, and the reply."""
        plan, parts = self._plan, self._free.pop()
        try:
            if plan.prompts is not None:
                prompt = plan.prompts[index]
            else:
                noise = plan.noise(index, "prompt")
                turn = yield from self._written(parts, self._opening, _TURN, noise, _PROMPT_TOKENS)
                prompt = text_of(plan.vocabulary, turn) if turn[-1] in plan.vocabulary.eos_ids else ""
            tokens = encoded_prompt(plan.vocabulary, prompt) if usable(prompt) else []
            if not 0 < len(tokens) <= min(_LONGEST_PROMPT, self._longest - 1):
                self._store.append(TrainingText(index, [], [], greedy=True))
                return
            sampling, noise = plan.reply_sampling(index), plan.noise(index, "reply")
            reply = yield from self._written(parts, tokens, sampling, noise, REPLY_TOKENS)
            self._store.append(TrainingText(index, tokens, reply, sampling.greedy))
        finally:
            self._free.append(parts)

    def _written(
        self, parts: Speculator, prompt: list[int], sampling: Sampling, noise: Noise, most_tokens: int
    ) -> Generator[Drafted, Submitted, list[int]]:
        """What plain decoding writes behind these tokens, the token that ends it included."""
        context = Context([*prompt], len(prompt), parts.target.vocab_size, sampling, noise)
        parts.start(context.history)
        end = min(len(prompt) + most_tokens, self._longest)
        while True:
            submitted = yield Drafted(parts, parts.propose(context, parts.plan(context)))
            parts.settle(submitted, context)
            if context.history[-1] in self._plan.vocabulary.eos_ids or len(context.history) >= end:
                return context.history[len(prompt) :]


def _plain(target: Decoder) -> Speculator:
    """Parts that guess nothing."""
    none = NoOptions()
    return Speculator(target, Nothing(none, Parts(target)), Chain(none), Follow(none), Off(none, Budget(nodes=0)))


def _fail(error: Exception) -> None:
    raise error
