"""Edits that break drafters that look up what stood before, and the one that guesses nothing."""

from __future__ import annotations

from tests.mutations.mutation import DRAFTER, Mutation

LOOKUP = "tests/drafters/test_prompt_lookup.py"

EDITS = (
    Mutation(
        "drafter none",
        "answers for one node too few",
        "Nothing.propose",
        "return [() for _ in frontier]",
        "return [() for _ in frontier[1:]]",
        (DRAFTER, "-k", "none and width"),
    ),
    Mutation(
        "reference",
        "stays lost after a change",
        "AlignedText.advance",
        """
if token in window:
    return Alignment(at.place + window.index(token) + 1, 1)
""",
        """
if False and token in window:
    return Alignment(at.place + window.index(token) + 1, 1)
""",
        ("tests/drafters/test_aligned_text.py",),
    ),
    Mutation(
        "reference",
        "proposes the token it has just seen",
        "AlignedText.advance",
        "return Alignment(at.place + 1, min(LONGEST_RUN, at.run + 1))",
        "return Alignment(at.place, min(LONGEST_RUN, at.run + 1))",
        ("tests/drafters/test_aligned_text.py", "tests/drafters/test_reference.py"),
    ),
    Mutation(
        "drafter prompt_lookup",
        "tries the shortest run first",
        "NgramIndex._known",
        """
for size in range(min(self.max_ngram, len(run)), self.min_ngram - 1, -1):
    if followers := self._after.get(tuple(run[len(run) - size :])):
        yield size, followers
""",
        """
for size in range(self.min_ngram, min(self.max_ngram, len(run)) + 1):
    if followers := self._after.get(tuple(run[len(run) - size :])):
        yield size, followers
""",
        (LOOKUP,),
        quick=True,
    ),
    Mutation(
        "drafter prompt_lookup",
        "tries the oldest occurrence first",
        "NgramIndex.continuations",
        """
for token in reversed(followers):
    found.setdefault(token, size)
    if len(found) >= limit:
        return list(found.items())
""",
        """
for token in followers:
    found.setdefault(token, size)
    if len(found) >= limit:
        return list(found.items())
""",
        (LOOKUP,),
    ),
    Mutation(
        "drafter prompt_lookup",
        "judges all lengths of runs alike",
        "ContinuationRates.learn",
        "self._rates.count((size, rank), token == following)",
        "self._rates.count((1, rank), token == following)",
        (LOOKUP,),
    ),
    Mutation(
        "drafter suffix",
        "drafts from the match that should save least",
        "draft",
        """
if saved > most:
    best, most = continued, saved
""",
        """
if saved > 0.0:
    best, most = continued, saved
""",
        ("tests/drafters/test_suffix.py", "-k", "expected_score"),
    ),
    Mutation(
        "drafter suffix",
        "drafts however unlikely the continuation",
        "_continue",
        "followed * probability / value",
        "0.0 * value",
        ("tests/drafters/test_suffix.py", "-k", "unlikely"),
    ),
    Mutation(
        "drafter suffix",
        "claims the whole share of a match, however short",
        "chance",
        "min(count / followed, odds / (1.0 + odds))",
        "count / followed",
        ("tests/drafters/test_suffix.py", "-k", "claim"),
    ),
    Mutation(
        "drafter suffix",
        "drafts from matches that are too short",
        "SuffixOptions.limit",
        "int(self.factor * match) + self.offset if match >= self.min_match else 0",
        "int(self.factor * match) + self.offset if match >= 0 else 0",
        ("tests/drafters/test_suffix.py", "-k", "too_short"),
    ),
    Mutation(
        "drafter token_recycling",
        "rejected nodes have the last word",
        "TokenRecycling._learn",
        "sorted(round.reading.alive, key=lambda node: (node in standing, node))",
        "sorted(round.reading.alive, key=lambda node: (node not in standing, node))",
        ("tests/drafters/test_token_recycling.py",),
    ),
    Mutation(
        "drafter token_recycling",
        "does not learn which ranks are right",
        "TokenRecycling._count_ranks",
        "self._hits[rank] += 1",
        "self._hits[rank] += 0",
        ("tests/drafters/test_token_recycling.py",),
    ),
    Mutation(
        "drafter datastore",
        "hears the datastore before longer matches of the text",
        "DatastoreDrafter._joined",
        "sorted(heard, key=_length, reverse=True)",
        "sorted(heard, key=lambda one: one.source == TEXT)",
        ("tests/drafters/test_datastore_drafter.py",),
    ),
    Mutation(
        "drafter datastore",
        "says that a copy stands where its run begins",
        "Datastore.source",
        "int(self._rows[min(row, len(self._rows) - 1)]) + match.length",
        "int(self._rows[min(row, len(self._rows) - 1)])",
        ("tests/acceptance/test_nest.py",),
    ),
    Mutation(
        "drafter datastore",
        "follows places with like states wherever the root stands",
        "DatastoreDrafter._hear_states",
        "[one for one in followed if one[2][:1] == [root]]",
        "[*followed]",
        ("tests/drafters/test_datastore_drafter.py",),
    ),
    Mutation(
        "drafter datastore",
        "looks into the passages that are least like",
        "StateNeighbours.nearest",
        "-(self._means @ query)",
        "self._means @ query",
        ("tests/indexes/test_state_neighbours.py",),
    ),
    Mutation(
        "drafter datastore",
        "counts only one of the places where a run occurs",
        "Datastore._narrowed",
        "end = bisect.bisect_right(self._rows, run, first, match.end, key=read)",
        "end = first + 1",
        ("tests/indexes/test_datastore.py",),
    ),
    Mutation(
        "drafter datastore",
        "sorts suffixes by their first two tokens alone",
        "suffix_array",
        """
while n and int(rank[order[-1]]) < n - 1:
    following = np.zeros(n, np.int64)
    following[: n - size] = rank[size:] + 1
    order, rank = _sorted(rank * (n + 1) + following)
    size *= 2
""",
        """
while n and size < 2 and int(rank[order[-1]]) < n - 1:
    following = np.zeros(n, np.int64)
    following[: n - size] = rank[size:] + 1
    order, rank = _sorted(rank * (n + 1) + following)
    size *= 2
""",
        ("tests/indexes/test_suffix_array.py",),
    ),
    Mutation(
        "drafter grammar",
        "guesses forced text in tokens of its own",
        "_Fitting._child",
        "self._constraint.as_written(path, guess.token)",
        "(guess.token,)",
        ("tests/decoding/test_constrained_replies.py", "-k", "tokenizer"),
    ),
    Mutation(
        "drafter grammar",
        "cuts forced text where the tree ends",
        "with_forced_room",
        "not forced",
        "True",
        ("tests/decoding/test_constrained_replies.py", "-k", "beyond"),
    ),
    Mutation(
        "drafter grammar",
        "does not tell which guesses were forbidden",
        "WithGrammar.propose",
        "constraint.note_refused(path, guess.token, guess.proposer)",
        "pass",
        ("tests/decoding/test_constrained_replies.py", "-k", "told"),
    ),
    Mutation(
        "drafter grammar",
        "leaves forbidden tokens in the laws of draws",
        "allowed",
        "q = laws[id(guess.q)] = _without_forbidden(guess.q, mask)",
        "q = laws[id(guess.q)] = guess.q",
        ("tests/decoding/test_constrained_replies.py", "-k", "distributed"),
    ),
)
