"""Edits that break controllers."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

GOODPUT = ("tests/controllers/test_goodput.py", "tests/controllers/test_goodput_riders.py")
ACCOUNT = ("tests/controllers/test_goodput_account.py",)
PASSES = ("tests/controllers/test_goodput_passes.py",)

EDITS = (
    Mutation(
        "controller goodput",
        "trusts an earlier engine's account without end",
        "DraftingAccount.recall",
        "min(_CREDIT, max(balance, min(self.balance, _CREDIT_AGAIN)))",
        "12 * _CREDIT",
        ("tests/controllers/test_goodput_account.py", "-k", "unlearns or lose_less"),
    ),
    Mutation(
        "controller goodput",
        "forgets how deep guesses stood",
        "RoundStatistics.recall",
        "self.accepted[: len(kept.accepted)] = map(recalled, kept.accepted[: len(self.accepted)])",
        "pass",
        ("tests/controllers/test_goodput_account.py", "-k", "unlearns"),
    ),
    Mutation(
        "controller goodput",
        "finds the account of other weights",
        "KeptAccounts._key",
        "(__version__, processor_name(pair.device), pair.key, target, trained, made_with(settings))",
        "(__version__, processor_name(pair.device), pair.key, trained, made_with(settings))",
        ("tests/engine/test_kept_accounts.py", "-k", "other_weights"),
    ),
    Mutation(
        "controller search",
        "searches without end",
        "Search.plan",
        """
if self._searching_s > self._share * self._all_s:
    return dataclasses.replace(self._budget, why="fixed by you")
""",
        """
if False:
    return dataclasses.replace(self._budget, why="fixed by you")
""",
        ("tests/controllers/test_search.py",),
    ),
    Mutation(
        "controller search",
        "never lets the drafter search",
        "Search.plan",
        'dataclasses.replace(self._budget, search=True, why="fixed by you; the drafter may search")',
        'dataclasses.replace(self._budget, search=False, why="fixed by you; the drafter may search")',
        ("tests/controllers/test_search.py",),
    ),
    Mutation(
        "controller cost_model",
        "counts guesses that were never reached as wrong",
        "CostModel._count",
        "(ROOT, *path) if round.verdict.bonus is not None else (ROOT, *path)[:-1]",
        "range(len(tree))",
        ("tests/controllers/test_cost_model.py", "-k", "rank"),
    ),
    Mutation(
        "controller cost_model",
        "believes that nodes cost nothing",
        "CostModel.predicted_s",
        "self._verify_s.at(1.0 + nodes * self._rows_each.value)",
        "self._verify_s.at(1.0)",
        ("tests/controllers/test_cost_model.py",),
    ),
    Mutation(
        "controller cost_model",
        "forgets what levels take",
        "CostModel.predicted_s",
        "depth * self._level_s.value",
        "0.0",
        ("tests/controllers/test_cost_model.py", "-k", "of_its_rows"),
    ),
    Mutation(
        "controller memory",
        "forgets what the last round left",
        "Memory.predicted_bytes",
        "self._limit.base_bytes + self._unforeseen_bytes + kept",
        "self._limit.base_bytes + self._unforeseen_bytes",
        ("tests/controllers/test_memory.py", "-k", "never_exceeded"),
    ),
    Mutation(
        "controller memory",
        "does not learn what was not foreseen",
        "Memory.observe",
        "max(self._unforeseen_bytes, self._limit.peak() - self._foreseen_bytes)",
        "max(self._unforeseen_bytes, 0)",
        ("tests/controllers/test_memory.py", "-k", "foreseen"),
    ),
    Mutation(
        "controller memory",
        "forgets forced text",
        "Memory.plan",
        "max(0, (fitting + 1) // 2 - MOST_FORCED)",
        "fitting",
        ("tests/controllers/test_memory.py", "-k", "forced"),
    ),
    Mutation(
        "several controllers",
        "takes the larger number of nodes",
        "smaller",
        """
Budget(
nodes=min(first.nodes, second.nodes),
depth=min(first.depth, second.depth),
width=min(first.width, second.width),
prices=tuple(max(first.price(node), second.price(node)) for node in range(1, last + 1)),
why=second.why if second.nodes < first.nodes else first.why,
passes=first.passes and second.passes,
pass_price=max(first.pass_price, second.pass_price),
search=first.search or second.search,
)
""",
        """
Budget(
nodes=max(first.nodes, second.nodes),
depth=min(first.depth, second.depth),
width=min(first.width, second.width),
prices=tuple(max(first.price(node), second.price(node)) for node in range(1, last + 1)),
why=second.why if second.nodes < first.nodes else first.why,
passes=first.passes and second.passes,
pass_price=max(first.pass_price, second.pass_price),
search=first.search or second.search,
)
""",
        ("tests/controllers/test_smallest_budget.py",),
        quick=True,
    ),
    Mutation(
        "controller off",
        "speculates",
        "Off.plan",
        'Budget(nodes=0, depth=0, width=0, why="off")',
        'Budget(nodes=1, depth=1, width=1, why="off")',
        ("tests/controllers/test_baselines.py",),
    ),
    Mutation(
        "controller fixed",
        "allows another node",
        "Fixed.__init__",
        'dataclasses.replace(budget, why="fixed by you")',
        'dataclasses.replace(budget, nodes=budget.nodes + 1, why="fixed by you")',
        ("tests/controllers/test_baselines.py",),
    ),
    Mutation(
        "controller goodput",
        "does not count the bonus token",
        "Goodput.best_depth",
        "expected, reach, rate = 1.0, 1.0, UNKNOWN_RATE",
        "expected, reach, rate = 0.0, 1.0, UNKNOWN_RATE",
        ("tests/controllers/test_goodput.py", "-k", "publishes"),
    ),
    Mutation(
        "controller goodput",
        "has no branch for drafters that are sure of themselves",
        "Goodput._planned",
        """
if not seen.passes and seen.gives_probabilities:
    return self._looked_up(seen, account)
""",
        """
if False:
    return self._looked_up(seen, account)
""",
        GOODPUT,
        quick=True,
    ),
    Mutation(
        "controller goodput",
        "goes on with guesses that do not pay",
        "Goodput._planned",
        """
if account.pays:
    if self._comparison.due and not account.surely_pays:
        return Budget(nodes=0, depth=0, width=0, why="to compare with")
    self._deep = self._deep or self._drafting_with_passes()
    return self._deep
""",
        """
if True:
    if self._comparison.due and not account.surely_pays:
        return Budget(nodes=0, depth=0, width=0, why="to compare with")
    self._deep = self._deep or self._drafting_with_passes()
    return self._deep
""",
        GOODPUT,
    ),
    Mutation(
        "controller goodput",
        "silences free guesses with the draft model",
        "Goodput._planned",
        "self._looked_up(self._free, self._free_account)",
        'self._plain("")',
        GOODPUT,
    ),
    Mutation(
        "controller goodput",
        "does not charge what extra rows take that lead to no guess",
        "DraftingAccount.add",
        "min(0.0, gain + _IN_VAIN)",
        "0.0",
        ACCOUNT,
    ),
    Mutation(
        "controller goodput",
        "tries again before plain rounds have set aside what that may lose",
        "DraftingAccount.rounds_left",
        "max(0, self._patience - self._rested, math.ceil((loss - self._saved) / _SAVED))",
        "max(0, self._patience - self._rested)",
        ACCOUNT,
    ),
    Mutation(
        "controller goodput",
        "gives drafting up after one round that lost",
        "_CREDIT",
        "_CREDIT = 2.5",
        "_CREDIT = 0.1",
        ACCOUNT,
    ),
    Mutation(
        "controller goodput",
        "learns from one round of four though drafting loses",
        "Goodput.observe",
        "self._sure = account.surely_pays and seen.drafting_rounds >= _FEW",
        "self._sure = seen.drafting_rounds >= _FEW",
        ACCOUNT,
    ),
    Mutation(
        "controller goodput",
        "makes a controller anew that was kept",
        "ControllerCache.kept",
        "_, controller = self._controllers.setdefault(made_from, (settings, new))",
        "_, controller = self._controllers[made_from] = (settings, new)",
        ("tests/decoding/test_controller_cache.py",),
    ),
    Mutation(
        "controller goodput",
        "says how many rounds there were until a trial some rounds ago",
        "Goodput.plan",
        "self._trial_in -= 1",
        "pass",
        (GOODPUT[0], "-k", "counted_down"),
    ),
    Mutation(
        "controller goodput",
        "counts depths that were never judged as failed",
        "stood_by_depth",
        "[False] * judged",
        "[False]",
        GOODPUT,
    ),
    Mutation(
        "controller goodput",
        "does not price the rows that come with a guess",
        "Goodput._prices",
        "max(each * rows_s[math.ceil(node * each) - 1], least_s)",
        "max(rows_s[math.ceil(node * each) - 1], least_s)",
        (GOODPUT[1], "-k", "priced"),
    ),
    Mutation(
        "controller goodput",
        "charges a first guess the mean of rows that grow dearer",
        "Goodput._prices",
        "min((self.costs.verify_s(seen.rows(nodes)) - self.costs.one_s) / nodes for nodes in likely)",
        "max((self.costs.verify_s(seen.rows(nodes)) - self.costs.one_s) / nodes for nodes in likely)",
        (GOODPUT[0], "-k", "dearer_than_the_one_before"),
    ),
    Mutation(
        "controller goodput",
        "pays for a pass and not for the row of its guess",
        "Goodput._drafting_with_passes",
        "(seen.draft.step_s + row_s) / max(0.02 / goodput, gain)",
        "seen.draft.step_s / max(0.02 / goodput, gain)",
        (*PASSES, "-k", "gets_a_pass"),
    ),
    Mutation(
        "controller goodput",
        "forgets what a pass of the draft model was measured to take",
        "Goodput.__init__",
        "costs.draft[0][1] if costs is not None and costs.draft else 0.0",
        "0.0",
        PASSES,
    ),
    Mutation(
        "controller goodput",
        "believes what the drafter promises a pass to gain",
        "Goodput._drafting_with_passes",
        "seen.rate.value * seen.calibration.value / goodput",
        "seen.rate.value / goodput",
        (*PASSES, "-k", "gets_a_pass"),
    ),
    Mutation(
        "controller goodput",
        "saves for a trial what it costs, and not what it may lose",
        "Goodput._trial_loss",
        "self._seconds(seen, seen.rows(1), 1.0) * self._plain_goodput(seen) - 1.0",
        "self._seconds(seen, seen.rows(1), 1.0) * self._plain_goodput(seen)",
        (*ACCOUNT, "-k", "set_aside"),
    ),
    Mutation(
        "controller goodput",
        "takes levels that were looked up for passes",
        "RoundStatistics.add",
        "steps = round.draft_passes if self.passes else levels",
        "steps = levels",
        PASSES,
    ),
    Mutation(
        "controller goodput",
        "lets every pass be run that the budget is deep enough for",
        "Growth.ask",
        """
if context.passes and most < self._budget.pass_price:
    context.budget = dataclasses.replace(context.budget, passes=False)
""",
        """
if False:
    context.budget = dataclasses.replace(context.budget, passes=False)
""",
        ("tests/contracts/test_policy_contract.py", "-k", "worth_its_pass"),
    ),
)
