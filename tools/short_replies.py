"""Counts what short replies lose while a controller has learnt nothing, and by plain rounds.

    python tools/short_replies.py [--pair smol] [--tokens 40] [--questions 8] [--sampled] [--costs avx2]

The first turns of specchat's own questions, the kinds by turns. Rounds are charged what they cost on a quiet machine,
by their rows and passes, whatever they took: a loaded machine gives the same figures. "kept" is what a program begins
with that was used for earlier questions, "kind" the same where these were all of one kind; "app" has plain rounds, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

PASS_S = {
    "avx512": {"smol": 2.24e-3, "qwen-coder": 20e-3},
    "avx2": {"smol": 3.7e-3, "qwen-coder": 31.3e-3},
}
"""A pass of one row where it was measured."""

ROWS = {
    "avx512": ((1, 1.0), (2, 1.05), (4, 1.16), (8, 1.34), (12, 1.65), (16, 2.05)),
    "avx2": ((1, 1.0), (2, 1.08), (3, 1.37), (4, 1.65), (6, 2.39), (8, 3.01), (9, 3.54), (12, 4.42), (16, 5.84)),
}
"""What passes of more rows take beside it."""

DRAFT_S, STEP_S, OTHER_S, PLAIN_OTHER_S = 1.5e-4, 6e-5, 3.0e-4, 1.6e-4
MODES = ("cold", "kept", "kind", "warm", "app")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol", choices=sorted(PASS_S["avx512"]))
    asked.add_argument("--tokens", type=int, default=40, help="of each reply")
    asked.add_argument("--questions", type=int, default=8, help="of each kind")
    asked.add_argument("--sampled", action="store_true", help="as the pair's chats sample, not greedily")
    asked.add_argument(
        "--costs", default="avx512", choices=sorted(ROWS), help="the processor that rounds are charged for"
    )
    count(asked.parse_args())


def count(asked: argparse.Namespace) -> None:
    prepare_environment()
    from specchat.bench.workloads import own_workload
    from specchat.config import load_catalog, settings_of
    from specchat.controllers.goodput import Goodput
    from specchat.core.costs import Costs
    from specchat.core.round import Round, RoundTimings
    from specchat.decoding.conversation import Conversation
    from specchat.decoding.kept_parts import ControllerCache
    from specchat.decoding.reply_events import RoundWritten

    settings = settings_in_force({"pair": asked.pair})
    if asked.sampled:
        settings = settings_of(load_catalog().pair(asked.pair))
    settings = settings.but({"max_tokens": asked.tokens})
    pair, pass_s = load_pair(settings), PASS_S[asked.costs][asked.pair]
    costs = Costs(tuple((rows, pass_s * times) for rows, times in ROWS[asked.costs]))
    charged: list[float] = []
    learn = Goodput.observe

    def observe(self: Goodput, round: Round) -> None:
        drafts = round.budget.nodes > 0
        draft_s = drafts * (DRAFT_S + STEP_S * round.draft_passes)
        timings = RoundTimings(draft_s, costs.verify_s(round.rows), OTHER_S if drafts else PLAIN_OTHER_S)
        charged.append(timings.draft_s + timings.verify_s + timings.other_s)
        learn(self, dataclasses.replace(round, timings=timings))

    Goodput.observe = observe  # type: ignore[method-assign]
    found: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
    guesses: dict[str, list[list[int]]] = defaultdict(list)

    def write(mode: str, kind: str, prompt: list[int], seed: int, controllers: ControllerCache) -> tuple[int, ...]:
        draft = pair.draft.model if pair.draft else None
        parts: dict[str, Any] = {"controllers": controllers, "plain_rounds": mode == "app"}
        chat = Conversation(pair.target.model, draft, pair.vocabulary, settings, costs, pair.resources, **parts)
        charged.clear()
        rounds = [event.round for event in chat.reply(prompt, seed) if isinstance(event, RoundWritten)]
        text = tuple(token for round in rounds for token in round.emitted)
        found[mode, kind].append((len(text), len(rounds), sum(charged)))
        guesses[mode].append([round.tree.drafted for round in rounds])
        return text

    def kept(cache: ControllerCache) -> ControllerCache:
        state = next((state for _, state in cache.states()), b"")
        return ControllerCache(lambda _: state)

    mixed, alike, asked_so_far = (
        ControllerCache(),
        defaultdict[str, ControllerCache](ControllerCache),
        defaultdict[str, int](int),
    )
    for question in own_workload().in_turn():
        kind, number = question.category, asked_so_far[question.category]
        if number >= asked.questions:
            continue
        asked_so_far[kind] += 1
        prompt = pair.vocabulary.encode_chat([{"role": "user", "content": question.turns[0]}])
        states = {"cold": ControllerCache(), "kept": kept(mixed), "kind": kept(alike[kind]), "app": kept(mixed)}
        texts = {write(mode, kind, prompt, number, states[mode]) for mode in states if number}
        texts.add(write("warm" if number else "", kind, prompt, number, mixed))
        write("", kind, prompt, number, alike[kind])
        assert len(texts) == 1, "a controller changes no text"
    report(found, guesses, sorted(asked_so_far), pass_s + PLAIN_OTHER_S)


def report(
    found: dict[tuple[str, str], list[tuple[int, int, float]]],
    guesses: dict[str, list[list[int]]],
    kinds: list[str],
    plain_s: float,
) -> None:
    print(f"{'tokens a round, × plain':24}" + "".join(f"{mode:>14}" for mode in MODES))
    for name, those in [*((kind, [kind]) for kind in kinds), ("all", kinds)]:
        line = f"{name:24}"
        for mode in MODES:
            tokens, rounds, seconds = map(sum, zip(*(one for kind in those for one in found[mode, kind]), strict=True))
            line += f"{tokens / rounds:8.2f} {tokens * plain_s / seconds:5.3f}"
        print(line)
    for begin, end in ((0, 4), (4, 10), (10, 30)):
        line = f"guesses, rounds {begin + 1}–{end}"
        means = (statistics.mean(n for sizes in guesses[mode] for n in sizes[begin:end]) for mode in MODES)
        print(f"{line:24}" + "".join(f"{mean:14.2f}" for mean in means))


if __name__ == "__main__":
    main()
