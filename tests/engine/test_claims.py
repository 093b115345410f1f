"""One definition says where texts must be equal to the last token; the wire and the race go by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bench.racers import quick_pair, quick_settings

from specchat.core.reading import HeadTensors
from specchat.decoding import combinations
from specchat.decoding.conversation import Conversation
from specchat.decoding.teacher_forcing import Comparer
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Compare, Message
from specchat.engine.protocol.events import Changed, Losslessness
from specchat.engine.server.event_conversion import compared_message, loss_message
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.models.backends.scripted import ScriptedModel, ScriptedVocabulary, scripted_says


class Wavering(ScriptedModel):
    """Says something a little different as soon as a pass has more than one row, as passes that round do."""

    def read(self, tree, *arguments, **named):
        reading = super().read(tree, *arguments, **named)
        if len(tree) > 1:
            return replace(reading, said=HeadTensors(reading.logits + torch.arange(self.vocab_size) * 1e-3))
        return reading


def wavering_pair(precision: str, kernels: str) -> LoadedPair:
    vocabulary = ScriptedVocabulary()
    pair = quick_pair(precision, Wavering(vocabulary.size, scripted_says(vocabulary, 6)))
    return replace(pair, target=replace(pair.target, kernels=kernels))


CASES = [
    ("float32", "torch", ""),
    ("int4", "native", ""),
    ("bfloat16", "torch", "bfloat16"),
    ("int4", "torch", "int4"),
    ("q4_1", "llama.cpp", "llama.cpp"),
    ("float32", "llama.cpp", "llama.cpp"),
]


@pytest.mark.parametrize(("precision", "kernels", "ties"), CASES)
def test_near_ties_are_spoken_of_and_excused_where_passes_round_and_only_there(precision, kernels, ties):
    pair = wavering_pair(precision, kernels)
    assert loss_message(combinations.LosslessClaim(True, "so"), pair).near_ties == ties
    assert loss_message(combinations.LosslessClaim(False, "so"), pair).near_ties == ""
    conversation = Conversation(pair.target.model, None, pair.vocabulary, quick_settings())
    question = Compare(1, [Message("user", "hi")], 7, [5, 6, 7, 8], [5, 6, 9, 8])
    compared = compared_message(question, conversation, Comparer(pair.target.model, exact=pair.exact))
    assert (compared.allowed > 0) == bool(ties)


def test_events_of_exact_pairs_are_what_they_were_before_near_ties_were_spoken_of():
    exact, rounded = (Losslessness(True, "so", ties) for ties in ("", "bfloat16"))
    assert encode(Changed({}, exact)) == encode(Changed({}, Losslessness(True, "so")))
    assert b"near_ties" not in encode(Changed({}, exact))
    assert b'"near_ties":"bfloat16"' in encode(Changed({}, rounded))
