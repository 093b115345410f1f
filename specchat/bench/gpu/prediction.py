"""The speed-up predicted from the costs of passes and from acceptance; the difference to it is host overhead."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.bench.measured_reply import Measured
from specchat.core.costs import Costs


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
