"""Tokens a round of `sparse_context` by budget and by how the part of the cache is chosen, and what choosing costs.

    python tools/cache_parts.py [--pair smol] [--budgets 256,512,1024] [--refresh 64] [--tokens 192] [--only layers]

The texts are files of this repository with a question, and files of which a passage is begun again. Every choice writes
the same replies, sampled at temperature 0.8 (checked); tokens a round do not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import load_pair, prepare_environment, settings_in_force

ROOT = Path(__file__).parents[1]
SIZES = {"drafter": "sparse_context", "policy": "chain", "controller": "fixed", "width": 1, "depth": 4, "nodes": 4}
ASKED = {
    "docs/design.md": "Say in your own words what this text says about drafters and about exactness.",
    "CHANGELOG.md": "Which changes matter most to somebody who chats with it, and why?",
    "docs/choosing.md": "Which method should I choose for a chat about code, and why?",
    "specchat/tui/widgets/transcript.py": "Write this class again with every method.",
}
BEGUN_AGAIN = {"docs/design.md": 600, "specchat/tui/widgets/transcript.py": 1200}
CHOICES = ("layers", "states", "latest", "shuffled")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--pair", default="smol")
    asked.add_argument("--budgets", default="256,512,1024")
    asked.add_argument("--refresh", type=int, default=64)
    asked.add_argument("--tokens", type=int, default=192, help="of each reply; 0: costs alone")
    asked.add_argument("--only", default=",".join(CHOICES), help=f"of {', '.join(CHOICES)}")
    measure(asked.parse_args())


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(2)
    settings = settings_in_force({"pair": asked.pair, **SIZES, "temperature": 0.8})
    pair = load_pair(settings)
    prompts = long_prompts(pair)
    budgets = [int(budget) for budget in asked.budgets.split(",")]
    for budget in budgets if asked.tokens else ():
        texts: dict[str, list[int]] = {}
        for choice in asked.only.split(","):
            given = {"sparse_context.budget": budget, "sparse_context.refresh": asked.refresh}
            told = settings.but({"method_options": given})
            rounds: Counter[str] = Counter()
            for name, prompt in prompts.items():
                text, counts = reply(pair, told, choice, prompt, asked.tokens)
                assert texts.setdefault(name, text) == text, "no choice changes a text"
                rounds += counts
            tokens, accepted = rounds["tokens"] / rounds["rounds"], rounds["accepted"] / rounds["drafted"]
            found = f"tokens a round {tokens:.2f}  accepted {accepted:.3f} of {rounds['drafted']}"
            print(f"budget {budget:5}  {choice:9} {found} in {rounds['rounds']} rounds", flush=True)
    for budget in budgets:
        costs(pair.target.model, budget)


def long_prompts(pair: Any) -> dict[str, list[int]]:
    """Some 3,200 tokens each."""

    def tokens(path: str) -> list[int]:
        found: list[int] = pair.target.tokenizer.encode((ROOT / path).read_text(), add_special_tokens=False)
        return found[:3100]

    prompts = {}
    for path, question in ASKED.items():
        said = f"{pair.target.tokenizer.decode(tokens(path))}\n\n{question}"
        prompts[f"{path}, asked"] = pair.vocabulary.encode_chat([{"role": "user", "content": said}])
    for path, first in BEGUN_AGAIN.items():
        prompts[f"{path}, again"] = [*tokens(path), *tokens(path)[first : first + 120]]
    return prompts


def reply(pair: Any, settings: Any, choice: str, prompt: list[int], tokens: int) -> tuple[list[int], Counter[str]]:
    """The tokens that are written, and counts of rounds."""
    from specchat.core.context import Context
    from specchat.core.noise import Noise
    from specchat.decoding.assemble import assemble, sampling

    speculator = assemble(settings, pair.target.model, None, resources=pair.resources)
    choose_by(choice, speculator.drafter, pair.target.model.layers)
    speculator.feed = type(speculator.feed)(speculator.drafter)  # another choice may want states
    context = Context(list(prompt), len(prompt), pair.target.model.vocab_size, sampling(settings), Noise(7))
    speculator.start(context.history)
    counts: Counter[str] = Counter()
    while len(context.history) < len(prompt) + tokens:
        round = speculator.round(context)
        drafted = len(round.tree) - 1
        counts.update(rounds=1, tokens=len(round.emitted), accepted=len(round.verdict.path), drafted=drafted)
    return context.history[len(prompt) :][:tokens], counts


def choose_by(choice: str, drafter: Any, layers: int) -> None:
    """Choose by each layer's queries, by states of one layer, the latest chunks, or chunks of other chunks' scores."""
    import torch

    from specchat.core.drafting_networks import ChunkScores
    from specchat.drafters.sparse_context import PartByStates

    view = drafter._view
    scores = view.chunk_scores
    if choice == "states":
        drafter._part = PartByStates(view, layers // 2)
        drafter.hidden_state_sink = drafter._part.hidden_state_sink
    elif choice != "layers":

        def others(text: list[int], chunk_tokens: int) -> ChunkScores:
            found = scores(text, chunk_tokens)
            if choice == "latest":
                return ChunkScores(found.tokens, torch.zeros_like(found.scores))
            places = torch.rand(found.scores.shape, generator=torch.Generator().manual_seed(7)).argsort(dim=1)
            return ChunkScores(found.tokens, found.scores.gather(1, places))

        view.chunk_scores = others


def costs(model: Any, budget: int) -> None:
    """Print what a choice takes at 4,000 tokens beside a plain pass there."""
    from specchat.core.tree import TokenTree
    from specchat.drafters.sparse_context import part_of

    text = [(7 * i + i // 13) % (model.vocab_size - 100) + 100 for i in range(4001)]
    model.prefill(text[:-1])
    view, tree = model.with_new_cache(), TokenTree(text[-1], model.vocab_size).freeze()
    part, took = part_of(view, model.layers), []
    for _ in range(20):
        began = time.perf_counter()
        model.read(tree)
        plain = time.perf_counter()
        model.prefill(text[:-1])
        scoring = time.perf_counter()
        view.chunk_scores(text, 8)
        whole = time.perf_counter()
        part.copy_rows_from(text, budget)
        took.append((plain - began, whole - scoring, time.perf_counter() - whole))
    ms = [1000 * statistics.median(each) for each in zip(*took[4:], strict=True)]
    print(f"at 4,000 tokens, ms: a plain pass {ms[0]:.1f}, scores {ms[1]:.1f}, scores and {budget} rows {ms[2]:.1f}")


if __name__ == "__main__":
    main()
