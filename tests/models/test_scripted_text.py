"""The scripted pair writes its passages word for word, and ends."""

from __future__ import annotations

from contracts.kit import reply

from specchat.config.values import ModelSpec
from specchat.decoding.emission import Stop
from specchat.engine.server.pair_loading import load_scripted
from specchat.models.backends.scripted import PASSAGES, ScriptedVocabulary


def test_every_question_gets_a_whole_passage_and_an_end():
    vocabulary = ScriptedVocabulary()
    model = load_scripted(ModelSpec("scripted", ()), "target").model
    model._pace_s = 0.0
    heard = set()
    for number in range(12):
        prompt = vocabulary.encode_chat([{"role": "user", "content": f"question {number}"}])
        said = reply(model, prompt=prompt, vocabulary=vocabulary, max_tokens=400, controller="off")
        assert said.text in PASSAGES
        assert said.ended.stop is Stop.END
        heard.add(said.text)
    assert heard == set(PASSAGES), "the questions reach every passage"
