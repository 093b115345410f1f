"""Edits that break tree policies, and the prices that end their trees."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

PRICES = "tests/contracts/test_node_prices.py"

EDITS = (
    Mutation(
        "policy comb",
        "goes on from the second guess",
        "Comb.grow",
        "{(0,) * depth: width for depth in range(levels)}",
        "{(1,) * depth: width for depth in range(levels)}",
        ("tests/trees/test_comb.py",),
    ),
    Mutation(
        "policy rsd_s",
        "keeps more of a level than it is told in C",
        "indexes/native/guess_search.c",
        "s->beams < room ? s->beams : room",
        "room",
        ("tests/drafters/test_compiled_search.py", "-k", "every_policy"),
    ),
    Mutation(
        "policy rsd_s",
        "gives all siblings the score of their parent",
        "_scored",
        """
if left < 1.0:
    location = parent.logprob + math.log(left)
    score = truncated(location + gumbel, location, score)
""",
        """
if left < 0.0:
    location = parent.logprob + math.log(left)
    score = truncated(location + gumbel, location, score)
""",
        ("tests/trees/test_rsd.py", "-k", "sample_without_replacement"),
    ),
    Mutation(
        "policy eagle2",
        "expands nodes of earlier levels in C",
        "indexes/native/frontiers.h",
        "s->levels ? 0 : kept",
        "kept",
        ("tests/drafters/test_compiled_search.py", "-k", "every_policy"),
    ),
    Mutation(
        "policy eagle2",
        "expands every node of a level",
        "Eagle2.grow",
        "best(growth.that_may_have_children(level), growth, self._expand)",
        "best(growth.that_may_have_children(level), growth, 0)",
        ("tests/trees/test_eagle2.py",),
    ),
    Mutation(
        "policy chain",
        "grows two branches",
        "Chain.grow",
        "{(0,) * above: 1 for above in range(depth)}",
        "{(0,) * above: 2 for above in range(depth)}",
        ("tests/trees/test_levels.py",),
    ),
    Mutation(
        "policy chain",
        "does not obey prices",
        "grow_by_ranks",
        "growth, children = Growth(context, budget), shape.children",
        "growth, children = Growth(context, Budget(budget.nodes, budget.depth, budget.width)), shape.children",
        (PRICES, "-k", "chain"),
    ),
    Mutation(
        "policy expansion",
        "ignores the width",
        "Expansion.grow",
        "(budget.width, *[1] * (budget.depth - 1))",
        "(1, *[1] * (budget.depth - 1))",
        ("tests/trees/test_levels.py",),
    ),
    Mutation(
        "policy best_first",
        "keeps the guesses of least worth",
        "Growth.best_tree",
        "sorted(range(len(worths)), key=worths.__getitem__, reverse=True)",
        "sorted(range(len(worths)), key=worths.__getitem__)",
        ("tests/trees/test_best_first.py", "-k", "worth_more"),
    ),
    Mutation(
        "policy best_first",
        "asks about the least promising nodes",
        "best",
        "heapq.nlargest(count, nodes, key=growth.worth)",
        "heapq.nsmallest(count, nodes, key=growth.worth)",
        ("tests/trees/test_best_first.py",),
    ),
    Mutation(
        "policy best_first",
        "takes logits of rows for log-probabilities",
        "Growth._offers_of_rows",
        "logprob = value - total",
        "logprob = value",
        ("tests/trees/test_growth.py", "-k", "definition"),
    ),
    Mutation(
        "policy sequoia",
        "skips ranks that do not pay",
        "_Level.above",
        "np.maximum(totals.take(self._rows + best), 0.0, out=later)",
        "np.maximum(totals.take(self._rows + best), later, out=later)",
        ("tests/trees/test_sequoia.py", "-k", "worth_more"),
    ),
    Mutation(
        "policy sequoia",
        "takes levels for free",
        "Sequoia._best_size",
        "self._verify_s.at(1.0) + self._verify_s.slope * nodes + self._level_s * levels[:, None]",
        "self._verify_s.at(1.0) + self._verify_s.slope * nodes + 0.0 * levels[:, None]",
        ("tests/trees/test_sequoia.py",),
    ),
    Mutation(
        "policy specexec",
        "forgets the decay",
        "Growth._offers",
        "sure = self._value[parent] * self._decay",
        "sure = self._value[parent]",
        ("tests/trees/test_specexec.py", "-k", "best_prefixes"),
    ),
    Mutation(
        "policy rsd_c",
        "gives every node two children",
        "RsdC.grow",
        "widths = [min(b, budget.width) for b in self._branching or (budget.width,) * budget.depth]",
        "widths = [min(2, budget.width) for b in self._branching or (budget.width,) * budget.depth]",
        ("tests/trees/test_rsd.py", "-k", "branching_of_its_depth"),
    ),
    Mutation(
        "policy confidence",
        "raises alpha when everything stood",
        "Confidence.observe",
        "0.5**-wrong if wrong > 0.0 else 0.5",
        "0.5**-wrong if wrong > 0.0 else 2.0",
        ("tests/trees/test_confidence.py",),
    ),
    Mutation(
        "policy confidence",
        "lets a draw's token decide",
        "sureness",
        "float(guess.q.max())",
        "float(guess.q[guess.token])",
        ("tests/trees/test_confidence.py", "-k", "of_draws"),
    ),
    Mutation(
        "policy graph",
        "links to less likely nodes too",
        "Graph._unlike",
        "growth.worth(source) < growth.worth(node)",
        "False",
        ("tests/trees/test_graph.py",),
    ),
    Mutation(
        "policy graph",
        "copies one level only",
        "unfold",
        "waiting.append((child, links.get(below, below)))",
        "waiting[:0] = []",
        ("tests/trees/test_graph.py", "-k", "root_paths"),
    ),
    Mutation(
        "policy template",
        "keeps the paths of least worth",
        "Template.shape",
        "fitting.sort(key=lambda path: (-worth(path, rates), len(path), path))",
        "fitting.sort(key=lambda path: (-len(path), path))",
        ("tests/trees/test_template.py",),
    ),
    Mutation(
        "policy template",
        "does not obey prices",
        "grow_by_ranks",
        "Growth(context, budget)",
        "Growth(context, Budget(budget.nodes, budget.depth, budget.width))",
        (PRICES, "-k", "template"),
        quick=True,
    ),
    Mutation(
        "prices",
        "a node's price is always 0",
        "Budget.price",
        "return self.prices[min(node, len(self.prices)) - 1] if self.prices else 0.0",
        "return 0.0",
        (PRICES,),
    ),
    Mutation(
        "prices",
        "every node pays the first one's price",
        "Growth.best_tree",
        "budget.price(at[0])",
        "budget.price(1)",
        (PRICES, "-k", "its_own_price"),
    ),
    Mutation(
        "prices",
        "compares them with what a draw's own token is worth",
        "Growth._offers",
        "worth, below, left = sure * left, sure * left * drawn, left * (1.0 - drawn)",
        "worth, below, left = sure * left * drawn, sure * left * drawn, left * (1.0 - drawn)",
        ("tests/acceptance/test_policy_laws.py", "-k", "under_prices and best_first"),
    ),
)
