"""Controllers decide how hard to speculate next. This table is all that listing them needs."""

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
)
