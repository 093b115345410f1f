"""Real text: plain decoding, our configurations and transformers over the same prompts, and the texts compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specchat.bench.check_text import SameText, compare_texts
from specchat.bench.configurations import Configuration, plain_of
from specchat.bench.contestants import Contestant, Ours
from specchat.bench.interleaved_run import InterleavedRun
from specchat.bench.measured_reply import Measured
from specchat.bench.peer_engines import Peer
from specchat.bench.report import Group, summarise
from specchat.bench.workloads import own_workload
from specchat.core.costs import Costs
from specchat.decoding.assemble import sampling
from specchat.decoding.profiling import measure_costs
from specchat.decoding.teacher_forcing import Comparer
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.settings import Settings
from tools.gpu.results import Table, table
from tools.gpu.setup import Extent


def predicted_ratio(replies: Sequence[Measured], costs: Costs) -> float:
    """The passes of one row that these tokens would take, in seconds, over the passes that were made for them.

    A draft pass counts as one of one row. Judging, keeping and drafting without a model cost nothing here, on either
    side. 0 where nothing was written.
    """
    tokens = sum(len(reply.written.tokens) for reply in replies)
    spent = 0.0
    for reply in replies:
        if reply.written.work is not None:
            by_rows = reply.written.work.verify_by_rows.items()
            spent += sum(passes * costs.verify_s(rows) for rows, (passes, _) in by_rows)
            spent += reply.written.work.draft_passes * (costs.draft[0][1] if costs.draft else 0.0)
    return tokens * costs.verify_s(1) / spent if spent else 0.0


@dataclass(frozen=True)
class ContestantResult:
    """One contestant, over everything.

    Args:
        predicted: what its ratio ought to be by the costs of passes; None for plain decoding and for peers.
        same_text: None for plain decoding and for peers.
    """

    name: str
    replies: tuple[Measured, ...]
    group: Group
    predicted: float | None = None
    same_text: SameText | None = None

    @property
    def share_of_predicted(self) -> float | None:
        return self.group.ratio.value / self.predicted if self.predicted else None

    def figures(self) -> dict[str, Any]:
        """The record for the results file."""
        group = self.group
        return {
            "name": self.name,
            "tokens_per_s": group.tokens_per_s,
            "ratio": group.ratio.value,
            "ratio_range": [group.ratio.low, group.ratio.high],
            "acceptance_length": group.acceptance_length,
            "acceptance_rate": group.acceptance_rate,
            "draft_share": group.draft_share,
            "verify_share": group.verify_share,
            "predicted_ratio": self.predicted,
            "joules_per_token": group.joules_per_token,
            "texts": [self.same_text.equal, self.same_text.total] if self.same_text else None,
        }


def timed_costs(pair: LoadedPair, extent: Extent) -> Costs:
    """Costs of this pair's passes, up to the widest tree."""
    draft = pair.draft.model if pair.draft else None
    costs = measure_costs(pair.target.model, draft, verify_rows=extent.cost_rows, context_tokens=extent.text_context)
    assert costs is not None, "the measurement was not interrupted"
    return costs


def compare_on_text(
    pair: LoadedPair, changes: dict[str, dict[str, Any]], peers: Sequence[Peer], extent: Extent, costs: Costs
) -> list[ContestantResult]:
    """All contestants answer the same questions of our own set, a few of each kind; plain decoding is the first.

    Args:
        changes: configurations by name, as changes of the default settings.
    """
    settings = greedy(extent)
    configurations = [plain_of(settings), *(Configuration(name, settings.but(own)) for name, own in changes.items())]
    ours = [Ours(configuration, pair, costs=costs) for configuration in configurations]
    entrants: list[Contestant] = [*ours, *peers]
    room = pair.target.model.context_tokens - extent.reply_tokens - 1
    run = InterleavedRun(entrants, lambda messages: pair.vocabulary.encode_chat(messages), room)
    run.run(own_workload().first_turns().limited(extent.prompts).questions)
    replies = {one.name: tuple(m for m in run.measured if m.contestant == one.name) for one in entrants}
    plain = replies[ours[0].name]
    comparer = Comparer(pair.target.model, exact=pair.exact)
    contestants = [_result(name, plain, own) for name, own in replies.items()]
    judged = [_judged(contestant, plain, comparer, settings, costs) for contestant in contestants[1 : len(ours)]]
    return [contestants[0], *judged, *contestants[len(ours) :]]


def greedy(extent: Extent) -> Settings:
    """The settings of all contestants; configurations change their own part."""
    return Settings().but({"temperature": 0.0, "max_tokens": extent.reply_tokens, "seed": 0})


def contestants_table(title: str, contestants: Sequence[ContestantResult]) -> Table:
    """One line for each contestant."""
    columns = (
        "",
        "tok/s",
        "× plain (95 %)",
        "predicted",
        "τ",
        "accepted",
        "draft / verify / other",
        "texts as plain's",
    )
    return table(title, columns, [_row(contestant) for contestant in contestants])


def faults(contestants: Sequence[ContestantResult]) -> tuple[str, ...]:
    """Texts that leave plain decoding's other than at a tie."""
    found = [
        (contestant, one)
        for contestant in contestants
        if contestant.same_text
        for one in contestant.same_text.divergences
        if not one.tie
    ]
    return tuple(
        f"{contestant.name}, {one.question_id}: token {one.margin.place} is not the target's, by a margin of "
        f"{one.margin.gap:.3g} (allowed {one.allowed:.3g})"
        for contestant, one in found
    )


def _result(name: str, plain: Sequence[Measured], own: Sequence[Measured]) -> ContestantResult:
    groups = summarise(plain, own)
    assert groups, "both wrote tokens"
    return ContestantResult(name, tuple(own), groups[0])


def _judged(
    contestant: ContestantResult, plain: Sequence[Measured], comparer: Comparer, settings: Settings, costs: Costs
) -> ContestantResult:
    same = compare_texts(comparer, plain, contestant.replies, sampling(settings), promised=True)
    return ContestantResult(
        contestant.name, contestant.replies, contestant.group, predicted_ratio(contestant.replies, costs), same
    )


def _row(contestant: ContestantResult) -> tuple[str, ...]:
    group, same = contestant.group, contestant.same_text
    spread = "" if group.ratio.low is None else f" ({group.ratio.low:.2f}–{group.ratio.high:.2f})"
    shares = (group.draft_share, group.verify_share, group.other_share)
    return (
        contestant.name,
        f"{group.tokens_per_s:.1f}",
        f"{group.ratio.value:.2f}{spread}",
        "" if contestant.predicted is None else f"{contestant.predicted:.2f}",
        "" if group.acceptance_length is None else f"{group.acceptance_length:.2f}",
        "" if group.acceptance_rate is None else f"{100 * group.acceptance_rate:.0f} %",
        "" if None in shares else " / ".join(f"{100 * (share or 0):.0f}" for share in shares) + " %",
        "" if same is None else _texts(same),
    )


def _texts(same: SameText) -> str:
    if not same.ok:
        return "NOT THE SAME"
    return f"{same.equal} of {same.total}" + ("" if same.equal == same.total else ", others at ties")
