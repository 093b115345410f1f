"""A scripted engine for the app's tests: realistic rounds made by arithmetic, the same every time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Command, Message
from specchat.engine.protocol.describe import option_info
from specchat.engine.protocol.events import MethodInfo, OptionInfo
from specchat.engine.protocol.round_parts import Draw, Piece, Timings, Tree, Verdict
from specchat.registry import NoOptions, options_of
from specchat.settings import OPTIONS

TEXT = """Speculative decoding lets a small model *guess* and a large model **check**.

Here is the idea in Python:

```python
def speak(target, drafter, text):
    while not text.done:
        tree = drafter.grow(text)
        text += target.verify(tree)

    return text
```

It helps because:

1. reading many tokens costs about as much as reading one,
2. most tokens are easy to guess,
3. the check keeps the text exactly the same.

| part | cost |
|---|---|
| draft | 1.9 ms |
| verify | 4.1 ms |

So the answer is the target's own, only sooner. 你好 🎉
"""

PIECES = re.compile(r" ?\w{1,9}|\n+|[^\w\s]| ")


def tokens_of(text: str) -> list[str]:
    return PIECES.findall(text)


def round_at(
    index: int, words: list[str], at: int, accepted: int, width: int, id: int = 1, at_s: float = 0.0
) -> ev.RoundDone:
    """A round whose tree holds the next `accepted` words, a few siblings, and some words never reached."""
    texts, parents, reasons, logprobs = [words[at - 1] if at else "<s>"], [-1], ["accepted"], [None]
    path, parent = [], 0
    others = [" lazy", " red", " slow", "\n", " fox", " 犬", " ran", " the"]

    def add(text: str, under: int, reason: str, logprob: float | None) -> int:
        texts.append(text)
        parents.append(under)
        reasons.append(reason)
        logprobs.append(logprob)
        return len(texts) - 1

    for depth in range(accepted):
        node = add(words[at + depth], parent, "accepted", -0.05 - 0.13 * ((index + depth) % 4))
        for sibling in range((index + depth) % max(1, width)):
            child = add(others[(index + sibling + depth) % 8], parent, "rejected", -1.5 - sibling)
            if (index + sibling) % 2 == 0:
                grand = add(others[(index + sibling + 3) % 8], child, "unreached", None)
                add(others[(index + 5) % 8], grand, "unreached", None)
        path.append(node)
        parent = node
    tail = add(others[index % 8], parent, "rejected", -2.2)
    add(others[(index + 2) % 8], tail, "unreached", None)
    bonus = words[at + accepted]
    kept = words[at : at + accepted]
    draws = [Draw(child, "point", "scripted", -0.4) for child in range(1, len(texts))]
    return ev.RoundDone(
        id=id,
        index=index,
        at_s=at_s,
        context_tokens=40 + at,
        budget={"nodes": 18, "depth": 6, "width": width},
        tree=Tree(list(range(len(texts))), parents, texts, draws, logprobs),
        verdict=Verdict(path, 7, bonus, -0.2, reasons),  # type: ignore[arg-type]
        pieces=[*(Piece(1, word, "drafted") for word in kept), Piece(2, bonus, "target")],
        timings=Timings(0.0019, 0.0041, 0.0003),
        why="fixed by you",
    )


def rounds_of(text: str = TEXT, width: int = 4, id: int = 1, step_s: float = 0.045) -> list[ev.RoundDone]:
    """A whole reply in rounds."""
    words = tokens_of(text)
    rounds: list[ev.RoundDone] = []
    at = 0
    while at < len(words):
        index = len(rounds)
        accepted = min((index * 5 + 3) % 6, len(words) - at - 1)
        rounds.append(round_at(index, words, at, accepted, width, id, (index + 1) * step_s))
        at += accepted + 1
    return rounds


def stats_of(rounds: list[ev.RoundDone], **more: Any) -> ev.Stats:
    tokens = sum(len(r.pieces) for r in rounds)
    drafted = sum(len(r.tree.tokens) - 1 for r in rounds)
    accepted = sum(len(r.verdict.path) for r in rounds)
    offered = [sum(1 for r in rounds if depth < 6) for depth in range(6)]
    taken = [sum(1 for r in rounds if len(r.verdict.path) > depth) for depth in range(6)]
    values: dict[str, Any] = {
        "rounds": len(rounds), "tokens": tokens, "drafted": drafted, "accepted": accepted, "tokens_per_s": 96.0,
        "acceptance_length": tokens / max(1, len(rounds)), "acceptance_rate": accepted / max(1, drafted),
        "prefill_s": 0.2, "draft_s": 0.1, "verify_s": 0.2, "other_s": 0.01, "prompt_tokens": 40,
        "offered_by_depth": offered, "accepted_by_depth": taken,
        "speedup": 2.7, "speedup_low": 2.6, "speedup_high": 2.8, "plain_rounds": 12,
    }  # fmt: skip
    return ev.Stats(**(values | more))


SETTINGS: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()} | {
    "pair": "smol", "drafter": "prompt_lookup", "policy": "expansion", "width": 4, "nodes": 18,
}  # fmt: skip
LOSS = ev.Losslessness(True, "the target's own draw decides")


def option_infos(options: Any) -> list[OptionInfo]:
    return [option_info(option) for option in options]


def hello() -> ev.Hello:
    lookup = [OptionInfo("max_ngram", "int", 3, "longest piece of text looked up", "tokens", 1, 16)]
    methods = [
        MethodInfo("drafter", "prompt_lookup", "what followed these words before", "", "yes", lookup),
        MethodInfo("drafter", "draft_model", "a smaller model of the family", "", "yes", [], True),
        MethodInfo("tree policy", "chain", "one child per node", "", "yes"),
        MethodInfo("tree policy", "expansion", "a fixed number per level", "", "yes"),
        MethodInfo("acceptance rule", "follow", "the target's own draw decides", "", "yes"),
        MethodInfo("acceptance rule", "typical", "plausible enough is good enough", "", "no"),
        MethodInfo("controller", "fixed", "always the same", "", "yes"),
        MethodInfo("controller", "off", "plain decoding", "", "yes"),
    ]
    assert not options_of(NoOptions)
    return ev.Hello(ev.PROTOCOL, "0", methods, option_infos(OPTIONS.values()), 1)


def ready(**more: Any) -> ev.Ready:
    values: dict[str, Any] = {
        "pair": "smol", "target": "SmolLM2-360M", "draft": "SmolLM2-135M", "device": "cpu", "dtype": "float32",
        "threads": 1, "context_tokens": 8192, "memory_bytes": 1_900_000_000, "load_s": 2.0, "settings": SETTINGS,
        "loss": LOSS,
    }  # fmt: skip
    return ev.Ready(**(values | more))


def started(messages: list[Message], id: int = 1) -> ev.Started:
    return ev.Started(id, messages, 40, 12, 7, SETTINGS, LOSS, "smol")


class FakeLink:
    """A `Link` whose events the test puts in by hand, and whose commands it can read."""

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.wake = wake or (lambda: None)
        self.sent: list[Command] = []
        self.waiting: list[ev.Event] = []
        self.closed = False

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def drain(self) -> list[ev.Event]:
        events, self.waiting = self.waiting, []
        return events

    def close(self) -> None:
        self.closed = True

    def put(self, *events: ev.Event) -> None:
        """Events arrive."""
        self.waiting.extend(events)
        self.wake()

    def last(self, kind: type) -> Any:
        """The last command of this type."""
        return [c for c in self.sent if isinstance(c, kind)][-1]


def nodes_of(round: ev.RoundDone) -> int:
    return len(round.tree.tokens) + (round.verdict.bonus is not None)


def broad() -> ev.RoundDone:
    """A round with a path of three, siblings and grandchildren."""
    return next(r for r in rounds_of() if len(r.verdict.path) == 3)
