"""Edits that break a method, each with the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass

CONTRACTS = "tests/contracts/test_{}_contract.py"
DRAFTER, POLICY = (CONTRACTS.format(family) for family in ("drafter", "policy"))
GOODPUT, MERGE = "tests/controllers/test_goodput.py", "tests/drafters/test_merge.py"
LOOKUP, PRUNING = "tests/drafters/test_prompt_lookup.py", "tests/decoding/test_pruning.py"


@dataclass(frozen=True)
class Mutation:
    """One edit of one file.

    Args:
        method: `family name` of the method it breaks, or what else it breaks.
        what: the edit in words.
        file: below the package.
        old, new: the text that is replaced, which occurs once, and what replaces it.
        tests: pytest arguments that select the tests of which one must fail.
        quick: whether it is also tried in the short run.
    """

    method: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False


MUTATIONS = (
    # ---------------------------------------------------------------------------------------------- drafters
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
        "in reversed(self._after.get(tuple(run[len(run) - size :]), ())):",
        "in self._after.get(tuple(run[len(run) - size :]), ()):",
        (LOOKUP,),
    ),
    Mutation(
        "drafter prompt_lookup",
        "judges all lengths of runs alike",
        "drafters/prompt_lookup.py",
        "self._seen[size, rank] = hits",
        "self._seen[1, rank] = hits",
        (LOOKUP,),
    ),
    Mutation(
        "drafter suffix",
        "drafts from the match that should save least",
        "drafters/suffix.py",
        "if saved > most:",
        "if saved > 0.0:",
        ("tests/drafters/test_suffix.py", "-k", "expected_score"),
    ),
    Mutation(
        "drafter suffix",
        "drafts however unlikely the continuation",
        "drafters/suffix.py",
        "followed * self._options.min_probability / value",
        "0.0 * value",
        ("tests/drafters/test_suffix.py", "-k", "unlikely"),
    ),
    Mutation(
        "drafter draft_model",
        "proposes beyond the end of its context",
        "drafters/draft_model.py",
        "if tree.depths[node] <= room]",
        "if tree.depths[node] <= room + 1]",
        (DRAFTER, "-k", "beyond_its_end and draft_model"),
    ),
    Mutation(
        "drafter draft_model",
        "runs where passes are not allowed",
        "drafters/draft_model.py",
        "] if context.passes else []",
        "]",
        (DRAFTER, "-k", "runs_no_model"),
    ),
    Mutation(
        "drafter draft_model",
        "forgets the accepted path",
        "drafters/draft_model.py",
        "self._model.keep(self._tree.follow(round.emitted))",
        "self._model.keep(())",
        (DRAFTER, "-k", "renumbered"),
    ),
    Mutation(
        "drafter draft_model",
        "couples with noise of another position",
        "drafters/draft_model.py",
        "context.noise.gumbels(Stream.TARGET, positions,",
        "context.noise.gumbels(Stream.TARGET, [at + 1 for at in positions],",
        ("tests/drafters/test_coupled.py",),
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
        "drafter merge",
        "puts the least trusted first",
        "drafters/merge.py",
        "believed.sort(key=_first, reverse=True)",
        "believed.sort(key=_first)",
        (MERGE,),
    ),
    Mutation(
        "drafter merge",
        "asks a model where others are sure, and only there",
        "drafters/merge.py",
        "or not self._is_sure(said[node])",
        "or self._is_sure(said[node])",
        (MERGE,),
    ),
    # ------------------------------------------------------------------------------------------ tree policies
    Mutation(
        "policy chain",
        "grows two branches",
        "trees/chain.py",
        "[1] * budget.depth",
        "[2] * budget.depth",
        ("tests/trees/test_levels.py",),
    ),
    Mutation(
        "policy expansion",
        "ignores the width",
        "trees/expansion.py",
        "(budget.width, *[1] * (budget.depth - 1))",
        "(1, *[1] * (budget.depth - 1))",
        ("tests/trees/test_levels.py",),
    ),
    Mutation(
        "policy best_first",
        "keeps the guesses of least worth",
        "trees/growth.py",
        "key=lambda i: (-self._places[i].worth, i)",
        "key=lambda i: (self._places[i].worth, -i)",
        ("tests/trees/test_best_first.py", "-k", "worth_more"),
    ),
    Mutation(
        "policy best_first",
        "asks about the least promising nodes",
        "trees/best_first.py",
        "heapq.nlargest(count, nodes, key=growth.worth)",
        "heapq.nsmallest(count, nodes, key=growth.worth)",
        ("tests/trees/test_best_first.py",),
    ),
    Mutation(
        "policy template",
        "keeps the paths of least worth",
        "trees/template.py",
        "fitting.sort(key=lambda path: (-worth(path, rates), len(path), path))",
        "fitting.sort(key=lambda path: (-len(path), path))",
        ("tests/trees/test_template.py",),
    ),
    Mutation(
        "policy template",
        "does not obey prices",
        "trees/template.py",
        "growth = Growth(context, budget)",
        "growth = Growth(context, Budget(budget.nodes, budget.depth, budget.width))",
        (POLICY, "-k", "template and (price or prices)"),
        quick=True,
    ),
    Mutation(
        "policy chain",
        "does not obey prices",
        "trees/levels.py",
        "growth = Growth(context, budget)",
        "growth = Growth(context, Budget(budget.nodes, budget.depth, budget.width))",
        (POLICY, "-k", "chain and (price or prices)"),
    ),
    Mutation(
        "prices",
        "a node's price is always 0",
        "core/budget.py",
        "return self.prices[min(node, len(self.prices)) - 1] if self.prices else 0.0",
        "return 0.0",
        (POLICY, "-k", "price or prices"),
    ),
    Mutation(
        "prices",
        "every node pays the first one's price",
        "trees/growth.py",
        "self._budget.price(at[0])",
        "self._budget.price(1)",
        (POLICY, "-k", "its_own_price"),
    ),
    # --------------------------------------------------------------------------------------- acceptance rules
    Mutation(
        "rule follow",
        "draws with noise that plain decoding does not use",
        "acceptance/follow.py",
        "return law.draw(context.noise, Stream.TARGET, context.position(tree, node))",
        "return law.draw(context.noise, Stream.DRAFT, context.position(tree, node))",
        (DRAFTER, "-k", "changed_in_the_middle and prompt_lookup"),
        quick=True,
    ),
    Mutation(
        "rule multi_step",
        "accepts every draw",
        "acceptance/recursion.py",
        "return 1.0 if wanted >= offered else wanted / offered",
        "return 1.0",
        ("tests/acceptance/test_recursion.py",),
    ),
    Mutation(
        "rule multi_step",
        "tries later draws against the whole law again",
        "acceptance/recursion.py",
        "        left = remaining\n",
        "        left = p\n",
        ("tests/acceptance/test_recursion.py",),
    ),
    Mutation(
        "rule recursive",
        "takes draws without replacement for independent ones",
        "acceptance/recursion.py",
        "earlier = taken[guess.proposer] if guess.kind is DrawKind.WOR else []",
        "earlier: list[int] = []",
        ("tests/acceptance/test_recursion.py",),
    ),
    # ------------------------------------------------------------------------------------------- controllers
    Mutation(
        "controller off",
        "speculates",
        "controllers/off.py",
        'Budget(nodes=0, depth=0, width=0, why="off")',
        'Budget(nodes=1, depth=1, width=1, why="off")',
        ("tests/controllers/test_baselines.py",),
    ),
    Mutation(
        "controller fixed",
        "allows another node",
        "controllers/fixed.py",
        'dataclasses.replace(budget, why="fixed by you")',
        'dataclasses.replace(budget, nodes=budget.nodes + 1, why="fixed by you")',
        ("tests/controllers/test_baselines.py",),
    ),
    Mutation(
        "controller goodput",
        "has no branch for drafters that are sure of themselves",
        "controllers/goodput.py",
        "if seen.free_with_probabilities and not self._rounds_cost_too_much(seen):",
        "if False:",
        (GOODPUT,),
        quick=True,
    ),
    Mutation(
        "controller goodput",
        "goes on with guesses that do not pay",
        "controllers/goodput.py",
        "if depth > 0 or seen.drafting_rounds < _TRIAL_ROUNDS:",
        "if True:",
        (GOODPUT,),
    ),
    Mutation(
        "controller goodput",
        "silences free guesses with the draft model",
        "controllers/goodput.py",
        "self._what_pays(self._free) if self._free.free_with_probabilities else None",
        "None",
        (GOODPUT,),
    ),
    Mutation(
        "controller goodput",
        "counts depths that were never judged as failed",
        "controllers/round_statistics.py",
        "[False] * judged",
        "[False]",
        (GOODPUT,),
    ),
    # ------------------------------------------------------------------------------------------ early pruning
    Mutation(
        "pruning",
        "drops the likely nodes",
        "decoding/pruning.py",
        "if rank < self.keep",
        "if rank >= self.keep",
        (PRUNING, "-k", "likely or among"),
        quick=True,
    ),
    Mutation(
        "pruning",
        "asks the head at the node instead of at its parent",
        "decoding/pruning.py",
        "rows = logits[[row_of[tree.parents[node]] for node in asked]]",
        "rows = self.target.head(hidden[[places[node] for node in asked]])",
        (PRUNING, "-k", "likely"),
    ),
    # ------------------------------------------------------------------------------------------------ the round
    Mutation(
        "round",
        "takes a device's time when the pass was asked for",
        "decoding/speculate.py",
        'read if self.target.device.type == "cpu" else time.perf_counter()',
        "read",
        ("tests/decoding/test_timings.py",),
    ),
    Mutation(
        "truncation",
        "keeps other tokens than the law does where they tie",
        "core/truncation.py",
        "least = best[:, top_k - 1 : top_k] if top_k else None",
        "least = best[:, top_k - 1 : top_k] + 1e-6 if top_k else None",
        ("tests/core/test_draw_from_top_k.py", "-k", "as_likely"),
    ),
)
