"""Coupled draws say how often the target agrees with them, not how likely the draft finds them."""

from __future__ import annotations

import math

from contracts.kit import V, context_for, scripted_draft, scripted_target, target_says

from specchat.core.noise import Stream
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.settings import Settings


def test_the_probability_of_coupled_draws_is_about_how_often_the_target_agrees():
    method = DRAFTERS["draft_model"]
    drafter = method.load()(method.options(), Parts(scripted_target(V), scripted_draft()))
    said, drawn_before, agreed = 0.0, 0.0, 0
    tries = 600
    for seed in range(tries):
        context = context_for(Sampling(temperature=1.0), seed, prompt=[seed % V, seed * 7 % V, 3, seed * 5 % V])
        tree = TokenTree(context.root, V)
        guess = drafter.propose(tree, [ROOT], 1, context)[0][0]
        target = context.law_after(tree, ROOT, target_says()(context.history))
        draft = context.law_after(tree, ROOT, scripted_draft()._says(context.history))
        agreed += guess.token == target.draw(context.noise, Stream.TARGET, len(context.history))
        said += math.exp(guess.logprob)
        drawn_before += float(draft.dense(V)[guess.token])
    assert abs(said / tries - agreed / tries) < 0.12
    assert drawn_before / tries < agreed / tries - 0.12, "the draft's own probability is too modest"


def test_at_temperature_0_coupled_draws_are_the_likeliest_tokens():
    guesses = []
    for drawing in ("coupled", "top"):
        parts, context = Parts(scripted_target(V), scripted_draft()), context_for()
        settings = Settings().but({"method_options": {"draft_model.drawing": drawing}})
        drafter = parts.build(choose("draft_model", settings))
        guesses.append(list(drafter.propose(TokenTree(context.root, V), [ROOT], 4, context)[0]))
    assert guesses[0] == guesses[1]
    assert len(guesses[0]) == 4
