"""A scripted engine for measuring the app: rounds of a given text at a given rate."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import cycle, islice
from typing import Any

from specchat.engine.client.client import take_all
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Command, Generate, Load
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.settings import Settings

TOKENS_PER_ROUND = (1, 4, 2, 1, 5, 2)
"""What rounds emit, in turn: 2.5 tokens on average."""

AHEAD_RATE = 2_000.0

_PIECES = re.compile(r" ?\w{1,8}|\n+|[^\w\s]| ")
_GUESSES = (" lazy", " red", "\n", " fox", " 犬", " ran", " the", " slowly")
_LOSS = ev.Losslessness(True, "the target's own draw decides")

_PROSE = (
    "Speculative decoding lets a *small* model guess and a large one **check**. Reading many tokens costs about as "
    "much as reading one, so `verified` guesses are nearly free; what is wrong is dropped and written again.\n\n"
)
_FENCE = "```python\n" + "".join(
    f"def step_{n}(tree, target):\n    text = target.verify(tree)  # {n} rounds\n    return text[{n}:]\n\n"
    for n in range(50)
)
_LIST = "".join(f"- item {n} says **how** it goes on, and `why` it does\n" for n in range(60)) + "\n"
_WIDE = "推測デコードは小さなモデルが推測し、大きなモデルが確認します。🎉 你好，世界！정말 빠릅니다. "

TEXTS = {
    "prose": _PROSE * 8,
    "a fence of 200 lines": "Here it is:\n\n" + _FENCE + "```\n\n",
    "a list of 60 items": "So:\n\n" + _LIST,
    "wide characters": (_WIDE * 3 + "\n\n") * 4,
}


def rounds_of(text: str, tokens: int, rate: float, id: int, ahead: int = 0) -> Iterator[ev.RoundDone]:
    """Rounds that write so many tokens of the text, over and over, at such a rate, the first `ahead` of them fast."""
    words = cycle(_PIECES.findall(text))
    written, last = 0, "<s>"
    for index, count in enumerate(cycle(TOKENS_PER_ROUND)):
        if written >= tokens:
            return
        pieces = list(islice(words, count))
        written += count
        at_s = min(written, ahead) / AHEAD_RATE + max(0, written - ahead) / rate
        yield _round(id, index, last, pieces, written, at_s)
        last = pieces[-1]


def _round(id: int, index: int, root: str, words: list[str], written: int, at_s: float) -> ev.RoundDone:
    """A tree with the accepted path, two rejected branches of two at every node, and the bonus."""
    texts, parents, reasons = [root], [-1], ["accepted"]
    path: list[int] = []
    parent = 0
    for depth, word in enumerate(words):
        guesses = islice(cycle(_GUESSES), index + depth, index + depth + 4)
        branches = [(guess, "rejected" if place % 2 == 0 else "unreached") for place, guess in enumerate(guesses)]
        kept = [(word, "accepted")] if depth < len(words) - 1 else []
        for place, (text, reason) in enumerate([*kept, *branches]):
            texts.append(text)
            parents.append(len(texts) - 2 if reason == "unreached" else parent)
            reasons.append(reason)
            if kept and place == 0:
                path.append(len(texts) - 1)
        parent = path[-1] if kept else parent
    logprobs = [None, *(-0.1 - 0.3 * (node % 5) for node in range(1, len(texts)))]
    draws = [Draw(node, "point", "scripted", -0.4) for node in range(1, len(texts))]
    return ev.RoundDone(
        id=id,
        index=index,
        at_s=at_s,
        context_tokens=40 + written,
        budget={"nodes": 18, "depth": 6, "width": 4},
        tree=Tree(list(range(len(texts))), parents, texts, draws, logprobs),
        verdict=Verdict(path, 7, words[-1], -0.2, reasons),  # type: ignore[arg-type]
        pieces=[*(Piece(1, word, "drafted") for word in words[:-1]), Piece(2, words[-1], "target")],
        timings=Timings(0.002, 0.020, 0.001),
    )


def stats_of(tokens: int, rate: float) -> ev.Stats:
    rounds = max(1, round(tokens / 2.5))
    return ev.Stats(
        rounds=rounds, tokens=tokens, drafted=rounds * 12, accepted=tokens - rounds, tokens_per_s=rate,
        acceptance_length=2.5, acceptance_rate=0.2, prefill_s=0.1, draft_s=1.0, verify_s=2.0, other_s=0.1,
        speedup=2.0, speedup_low=1.9, speedup_high=2.1, plain_rounds=32,
    )  # fmt: skip


class ScriptedLink:
    """A `Link` that answers every question with the same text, at the same rate."""

    def __init__(self, wake: Callable[[], None], text: str, tokens: int, rate: float, ahead: int = 0) -> None:
        self._wake, self._text, self._rate, self._ahead = wake, text, rate, ahead
        self.tokens = tokens
        self._queue: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.done = threading.Event()
        self._put(ev.Hello(ev.PROTOCOL, "0", [], []))

    def send(self, command: Command) -> None:
        match command:
            case Load():
                self._put(ev.Ready("scripted", "scripted", None, "cpu", "int4", 1, 8192, 9**9, 0.1, _settings(), _LOSS))
            case Generate():
                threading.Thread(target=self._write, args=(command,), daemon=True).start()

    def drain(self) -> list[ev.Event]:
        return take_all(self._queue)

    def close(self) -> None:
        self._closed.set()

    def _write(self, command: Generate) -> None:
        self._put(ev.Started(command.id, command.messages, 40, 0, 7, _settings(), _LOSS, "scripted"))
        begun = time.monotonic()
        for round in rounds_of(self._text, self.tokens, self._rate, command.id, self._ahead):
            if self._closed.wait(max(0.0, begun + round.at_s - time.monotonic())):
                return
            self._put(round)
        self._put(ev.Finished(command.id, "end", "", stats_of(self.tokens, self._rate), self.tokens / self._rate))
        self.done.set()

    def _put(self, event: ev.Event) -> None:
        self._queue.put(event)
        self._wake()


def _settings() -> dict[str, Any]:
    return {**asdict(Settings()), "pair": "scripted", "width": 4}
