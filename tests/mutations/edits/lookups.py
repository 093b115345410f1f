"""Edits that break drafters that look up what stood before, and the one that guesses nothing."""

from __future__ import annotations

from tests.mutations.mutation import DRAFTER, Mutation

LOOKUP = "tests/drafters/test_prompt_lookup.py"

EDITS = (
    Mutation(
        "drafter none",
        "answers for one node too few",
        "drafters/nothing.py",
        "return [() for _ in frontier]",
        "return [() for _ in frontier[1:]]",
        (DRAFTER, "-k", "none and width"),
    ),
    Mutation(
        "reference",
        "stays lost after a change",
        "structures/aligned_text.py",
        "        if token in window:",
        "        if False and token in window:",
        ("tests/structures/test_aligned_text.py",),
    ),
    Mutation(
        "reference",
        "proposes the token it has just seen",
        "structures/aligned_text.py",
        "return Alignment(at.place + 1, min(LONGEST_RUN, at.run + 1))",
        "return Alignment(at.place, min(LONGEST_RUN, at.run + 1))",
        ("tests/structures/test_aligned_text.py", "tests/drafters/test_reference.py"),
    ),
    Mutation(
        "drafter prompt_lookup",
        "tries the shortest run first",
        "structures/ngrams.py",
        "for size in range(min(self.max_ngram, len(run)), self.min_ngram - 1, -1):",
        "for size in range(self.min_ngram, min(self.max_ngram, len(run)) + 1):",
        (LOOKUP,),
        quick=True,
    ),
    Mutation(
        "drafter prompt_lookup",
        "tries the oldest occurrence first",
        "structures/ngrams.py",
        "for token in reversed(followers):",
        "for token in followers:",
        (LOOKUP,),
    ),
    Mutation(
        "drafter prompt_lookup",
        "judges all lengths of runs alike",
        "drafters/prompt_lookup.py",
        "self._rates.count((size, rank), ",
        "self._rates.count((1, rank), ",
        (LOOKUP,),
    ),
    Mutation(
        "drafter suffix",
        "drafts from the match that should save least",
        "structures/suffix_draft.py",
        "if saved > most:",
        "if saved > 0.0:",
        ("tests/drafters/test_suffix.py", "-k", "expected_score"),
    ),
    Mutation(
        "drafter suffix",
        "drafts however unlikely the continuation",
        "structures/suffix_draft.py",
        "followed * probability / value",
        "0.0 * value",
        ("tests/drafters/test_suffix.py", "-k", "unlikely"),
    ),
    Mutation(
        "drafter suffix",
        "drafts from matches that are too short",
        "drafters/options/lookups.py",
        "if match >= self.min_match else 0",
        "if match >= 0 else 0",
        ("tests/drafters/test_suffix.py", "-k", "too_short"),
    ),
    Mutation(
        "drafter token_recycling",
        "rejected nodes have the last word",
        "drafters/token_recycling.py",
        "key=lambda node: (node in standing, node)",
        "key=lambda node: (node not in standing, node)",
        ("tests/drafters/test_token_recycling.py",),
    ),
    Mutation(
        "drafter token_recycling",
        "does not learn which ranks are right",
        "drafters/token_recycling.py",
        "self._hits[rank] += 1",
        "self._hits[rank] += 0",
        ("tests/drafters/test_token_recycling.py",),
    ),
    Mutation(
        "drafter datastore",
        "hears the datastore before longer matches of the text",
        "drafters/datastore.py",
        "if other.length < match.length)",
        "if True)",
        ("tests/drafters/test_datastore_drafter.py",),
    ),
    Mutation(
        "drafter datastore",
        "counts only one of the places where a run occurs",
        "structures/datastore.py",
        "end = bisect.bisect_right(self._rows, run, first, match.end, key=read)",
        "end = first + 1",
        ("tests/structures/test_datastore.py",),
    ),
    Mutation(
        "drafter datastore",
        "sorts suffixes by their first two tokens alone",
        "structures/suffix_array.py",
        "while n and int(rank[order[-1]]) < n - 1:",
        "while n and size < 2 and int(rank[order[-1]]) < n - 1:",
        ("tests/structures/test_suffix_array.py",),
    ),
)
