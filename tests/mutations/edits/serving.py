"""Edits that break the server: whose turn it is, and what of a reply is sent."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SCHEDULER = "tests/serve/test_scheduler.py"

EDITS = (
    Mutation(
        "serving",
        "gives a reply the settings of the request alone",
        "Scheduler._begin",
        "{**servers, **asked.settings}",
        "asked.settings",
        (SCHEDULER, "-k", "begins_with_the_servers_settings"),
    ),
    Mutation(
        "serving",
        "keeps the tail of a reply to itself",
        "Ticket.hear",
        "self._say(event.tail)",
        "pass",
        (SCHEDULER, "-k", "held_back"),
    ),
    Mutation(
        "serving",
        "asks an engine on whose target is lost",
        "Scheduler._take",
        "self._engine.close()",
        "pass",
        (SCHEDULER, "-k", "that_is_lost"),
    ),
    Mutation(
        "serving",
        "leaves who has left in the queue",
        "Scheduler._leave",
        "self._waiting.remove(ticket)",
        "pass",
        (SCHEDULER, "-k", "full_queue_refuses"),
    ),
    Mutation(
        "serving",
        "tells every token's probability after the root",
        "round_message",
        "(ROOT, *verdict.path)[: len(round.emitted)]",
        "(ROOT,) * len(round.emitted)",
        ("tests/engine/test_token_logprobs.py",),
    ),
    Mutation(
        "serving",
        "leaves the bias out of laws",
        "penalise",
        "logits = biased(logits, sampling)",
        "logits = logits.float()",
        ("tests/decoding/test_logit_bias.py", "-k", "multi_step"),
    ),
    Mutation(
        "serving",
        "lets draft models guess without the bias",
        "points_below",
        "noisy or context.sampling.shifts_logits",
        "noisy or context.sampling.penalised",
        ("tests/decoding/test_logit_bias.py", "-k", "strong_bias"),
    ),
    Mutation(
        "serving",
        "guesses banned tokens",
        "Conversation.steps",
        "constraint is not None or context.sampling.banned",
        "constraint is not None",
        ("tests/decoding/test_logit_bias.py", "-k", "changes_a_biased_text"),
    ),
    Mutation(
        "serving",
        "leaves the bias out of draws in C",
        "draw_token",
        "logits = biased(logits if isinstance(logits, Tensor) else logits.tensor(), sampling)",
        "pass",
        ("tests/decoding/test_logit_bias.py", "-k", "draw_the_same_token"),
    ),
    Mutation(
        "serving",
        "lets several calls follow where one is wanted",
        "calls_grammar",
        "form.each and form.closing and not single",
        "form.each and form.closing",
        ("tests/decoding/test_held_calls.py", "-k", "may_stand"),
    ),
    Mutation(
        "serving",
        "hides the control token that opens calls",
        "Conversation.hold_calls",
        "constraint.spelled = frozenset(special.values())",
        "pass",
        ("tests/decoding/test_held_calls.py", "-k", "plain_decoding"),
    ),
    Mutation(
        "serving",
        "gives out every call where one is wanted",
        "CallReader._give",
        "self._single and self.count - isinstance(piece, Call)",
        "False",
        ("tests/serve/test_tools.py", "-k", "one_is_wanted"),
    ),
)
