"""Controllers decide how hard to speculate next. This table is all that listing them needs."""

from specchat.controllers.options import CostModelOptions, GoodputOptions, SearchOptions
from specchat.registry import Method, Table

CONTROLLERS = Table(
    "controller",
    Method(
        "off",
        "specchat.controllers.off:Off",
        "never speculate: plain decoding, by the same round with a budget of 0",
        "baseline",
    ),
    Method(
        "fixed",
        "specchat.controllers.fixed:Fixed",
        "the same width, depth and nodes in every round",
        "baseline",
    ),
    Method(
        "goodput",
        "specchat.controllers.goodput:Goodput",
        "as hard as pays: expected tokens per predicted second, learnt while it runs",
        "SmartSpec arXiv:2406.14066",
        options=GoodputOptions,
    ),
    Method(
        "search",
        "specchat.controllers.search:Search",
        "as fixed, and drafters may search or measure while a reply is written",
        "SWIFT arXiv:2410.06916",
        options=SearchOptions,
    ),
    Method(
        "cost_model",
        "specchat.controllers.cost_model:CostModel",
        "the size with the most tokens a second, by a line through recent times and how often each rank was accepted",
        "ProPD arXiv:2402.13485",
        options=CostModelOptions,
    ),
    Method(
        "memory",
        "specchat.controllers.memory:Memory",
        "no more nodes than memory has room for: a round's peak is predicted, and the limit of `memory` never exceeded",
        "SpecMemo arXiv:2506.01986",
    ),
)
