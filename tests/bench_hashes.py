"""Writes the hashes by which training knows the questions of benchmarks: `python tests/bench_hashes.py [SET …]`.

SET is a prompt set of mirrors.toml or a file of questions, as `specchat bench --prompts` takes them; specchat's own
questions are always among them.
"""

import sys

import numpy as np

from specchat.bench.workloads import _COMPLETE, find_workload
from specchat.training.prompts import HASHES, word_hashes

TASK = _COMPLETE.split("{prompt}")[0]


def questions(names):
    for name in ("own", *names):
        for question in find_workload(name).questions:
            yield from (turn.removeprefix(TASK) for turn in question.turns)


if __name__ == "__main__":
    found = {number for text in questions(sys.argv[1:]) for number in word_hashes(text)}
    np.save(HASHES, np.array(sorted(found), dtype=np.uint32))
    print(f"{len(found)} hashes in {HASHES}")
