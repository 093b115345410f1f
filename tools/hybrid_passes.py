"""Times passes of a random network with recurrent layers: a plain token and trees, and the parts of each.

    python tools/hybrid_passes.py [--family qwen3_5_text] [--rows 1,16,32] [--dtype float32] [--forms C,torch]

Both forms of the recurrence take turns. Medians in milliseconds of wall time and of processor time; a pass ends when
a path of the tree is kept. Products are those of linear layers; what is left is transformers' own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, whichever is installed

from specchat.bench.configurations import prepare_environment

WARM_UP = 3
PARTS = ("whole", "products", "convolution", "scan", "keeping")
RECURRENT, ATTENTION = "linear_attention", "full_attention"
SIZES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "head_dim": 256,
    },
    "granitemoehybrid": {
        "mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "num_local_experts": 0,
        "shared_intermediate_size": 2048,
    },
    "lfm2": {"block_auto_adjust_ff_dim": False},
}  # fmt: skip
"""Of the recurrent layers, as the small published models of these families have them."""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--family", choices=SIZES, default="qwen3_5_text")
    asked.add_argument("--rows", default="1,16,32")
    asked.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    asked.add_argument("--forms", default="C,torch")
    asked.add_argument("--threads", type=int, default=2)
    asked.add_argument("--turns", type=int, default=15)
    asked.add_argument("--context", type=int, default=200)
    measure(asked.parse_args())


def network_of(family: str, dtype: str, layers: int = 24) -> Any:
    """Hidden size 1024, three of four layers recurrent."""
    import torch
    import transformers

    recurrent = "conv" if family == "lfm2" else RECURRENT
    shape = {
        "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": None,
        "layer_types": [ATTENTION if layer % 4 == 3 else recurrent for layer in range(layers)],
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(family, **shape, **SIZES[family])
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def measure(asked: argparse.Namespace) -> None:
    prepare_environment(asked.threads)
    import torch
    from torch import nn

    from specchat.decoding.profiling import tree_of
    from specchat.models.backends.recurrent_cache import RecurrentCache
    from specchat.models.backends.transformers_model import ReferenceModel

    torch.set_num_threads(asked.threads)
    model: Any = ReferenceModel(network_of(asked.family, asked.dtype), 4096)
    spent: dict[str, float] = defaultdict(float)

    @contextmanager
    def counted(part: str) -> Iterator[None]:
        wall, processor = time.perf_counter(), time.process_time()
        yield
        spent[part] += time.perf_counter() - wall
        spent[f"{part} cpu"] += time.process_time() - processor

    def watched(of: Any, name: str, part: str) -> None:
        inner: Callable[..., Any] = getattr(of, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            with counted(part):
                return inner(*arguments, **named)

        setattr(of, name, timed)

    watched(nn.Linear, "forward", "products")
    watched(RecurrentCache, "_convolve", "convolution")
    watched(RecurrentCache, "_scan", "scan")
    watched(model.cache, "keep_rows_", "keeping")
    taken: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    compiled = model.cache.compiled
    assert compiled is not None or asked.forms == "torch", "the compiled kernels are not available"
    text, sizes = list(range(asked.context)), [int(rows) for rows in asked.rows.split(",")]
    trees = {rows: tree_of(rows, model.vocab_size) for rows in sizes}
    model.prefill(text)
    for turn in range(WARM_UP + asked.turns):
        for form in asked.forms.split(",")[:: 1 if turn % 2 else -1]:
            model.cache.compiled = compiled if form == "C" else None
            for rows, tree in trees.items():
                model.prefill(text)
                spent.clear()
                with counted("whole"):
                    model.read(tree).logits[0].argmax().item()
                    model.keep(tree.path(max(range(len(tree)), key=tree.depths.__getitem__)))
                if turn >= WARM_UP:
                    taken[form, rows].append([1e3 * spent[part + unit] for unit in ("", " cpu") for part in PARTS])
    report(taken)


def report(taken: dict[tuple[str, int], list[list[float]]]) -> None:
    print("form  rows " + " ".join(f"{part + unit:>15}" for unit in ("", " cpu") for part in PARTS))
    for (form, rows), turns in sorted(taken.items(), key=lambda one: one[0][1]):
        figures = " ".join(f"{statistics.median(of):15.2f}" for of in zip(*turns, strict=True))
        print(f"{form:5} {rows:4} {figures}")


if __name__ == "__main__":
    main()
