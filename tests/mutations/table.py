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
        "trees/search.py",
        "heapq.nlargest(count, nodes, key=growth.worth)",
        "heapq.nsmallest(count, nodes, key=growth.worth)",
        ("tests/trees/test_best_first.py",),
    ),
    Mutation(
        "policy sequoia",
        "skips ranks that do not pay",
        "trees/optimal_shape.py",
        "later = np.where(pays, value, 0.0)",
        "later = np.where(pays, np.maximum(value, later), later)",
        ("tests/trees/test_sequoia.py", "-k", "worth_more"),
    ),
    Mutation(
        "policy sequoia",
        "takes levels for free",
        "trees/sequoia.py",
        "+ self._level_s * levels[:, None]",
        "+ 0.0 * levels[:, None]",
        ("tests/trees/test_sequoia.py",),
    ),
    Mutation(
        "policy specexec",
        "forgets the decay",
        "trees/growth.py",
        "self._value[parent] * self._decay",
        "self._value[parent]",
        ("tests/trees/test_specexec.py", "-k", "best_prefixes"),
    ),
    Mutation(
        "policy eagle2",
        "expands every node of a level",
        "trees/eagle2.py",
        "growth, self._expand)",
        "growth, 0)",
        ("tests/trees/test_eagle2.py",),
    ),
    Mutation(
        "policy rsd_c",
        "gives every node two children",
        "trees/rsd_c.py",
        "widths = [min(b, budget.width)",
        "widths = [min(2, budget.width)",
        ("tests/trees/test_rsd.py", "-k", "branching_of_its_depth"),
    ),
    Mutation(
        "policy rsd_s",
        "gives all siblings the score of their parent",
        "trees/rsd_s.py",
        "if left < 1.0:",
        "if left < 0.0:",
        ("tests/trees/test_rsd.py", "-k", "sample_without_replacement"),
    ),
    Mutation(
        "policy confidence",
        "raises alpha when everything stood",
        "trees/confidence.py",
        "if wrong > 0.0 else 0.5",
        "if wrong > 0.0 else 2.0",
        ("tests/trees/test_confidence.py",),
    ),
    Mutation(
        "policy confidence",
        "lets a draw's token decide",
        "trees/confidence.py",
        "float(guess.q.max())",
        "float(guess.q[guess.token])",
        ("tests/trees/test_confidence.py", "-k", "of_draws"),
    ),
    Mutation(
        "policy graph",
        "links to less likely nodes too",
        "trees/graph.py",
        "growth.worth(source) < growth.worth(node)",
        "False",
        ("tests/trees/test_graph.py",),
    ),
    Mutation(
        "policy graph",
        "copies one level only",
        "trees/graph.py",
        "waiting.append((child, links.get(below, below)))",
        "waiting[:0] = []",
        ("tests/trees/test_graph.py", "-k", "root_paths"),
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
        "trees/ranks.py",
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
    Mutation(
        "rule typical",
        "takes the shortest typical path",
        "acceptance/typical.py",
        "(length, chances[node]) > (below[parent], chances[rival])",
        "(-length, chances[node]) > (-below[parent], chances[rival])",
        ("tests/acceptance/test_lossy_rules.py",),
    ),
    Mutation(
        "rule typical",
        "asks as much of an undecided target",
        "acceptance/typical.py",
        "self._delta * math.exp(-entropy)",
        "self._delta",
        ("tests/acceptance/test_lossy_rules.py",),
    ),
    Mutation(
        "rule lenient",
        "forgets the lenience",
        "acceptance/recursion.py",
        "g = g if lenience == 1.0 else lenience * g",
        "g = g if lenience == 1.0 else 1.0 * g",
        ("tests/acceptance/test_lossy_rules.py",),
    ),
    Mutation(
        "rule rollback",
        "never rolls back",
        "acceptance/rollback.py",
        "<= self._distance",
        "<= math.inf",
        ("tests/acceptance/test_lossy_rules.py",),
    ),
    Mutation(
        "rule transfer",
        "moves tokens that the draft holds unlikely too",
        "acceptance/transfer.py",
        "_SHARE * q.max()",
        "0.0 * q.max()",
        ("tests/acceptance/test_lossy_rules.py",),
    ),
    Mutation(
        "rule nest",
        "goes on with a span whatever the target thinks",
        "acceptance/nest.py",
        "float(p[token]) >= 0.5 * self._options.gamma * float(p.max())",
        "True",
        ("tests/acceptance/test_nest.py",),
    ),
    Mutation(
        "rule nest",
        "takes any copy for the next of the span",
        "acceptance/nest.py",
        "if copy.source == last + 1)",
        "if copy.source is not None)",
        ("tests/acceptance/test_nest.py",),
    ),
    Mutation(
        "rule fair",
        "takes the token that changes most",
        "acceptance/fair.py",
        "return tokens[min(found)[2]]",
        "return tokens[max(found)[2]]",
        ("tests/acceptance/test_fair.py",),
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
        "(submitted.returned if on_host else judged)",
        "submitted.returned",
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
