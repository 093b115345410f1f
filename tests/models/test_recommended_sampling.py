"""How a chat samples: as the makers' files say, checked like any setting, and mildly where they say nothing."""

from __future__ import annotations

import json
import math

import pytest
from gguf import GGUFWriter
from models_without_weights import folder, gguf

from specchat.errors import WeightsError
from specchat.models.hub.recommended_sampling import NOTHING_SAID, recommended_sampling, sampling_for_chat


def said(tmp_path, **config):
    place = folder(tmp_path / "m")
    (place / "generation_config.json").write_text(json.dumps(config))
    return place


def test_a_generation_config_is_followed(tmp_path):
    place = said(
        tmp_path, do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, eos_token_id=3
    )
    expected = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    assert recommended_sampling(place) == sampling_for_chat(place) == expected


def test_sampling_without_a_temperature_is_at_temperature_1(tmp_path):
    assert recommended_sampling(said(tmp_path, do_sample=True, top_k=64)) == {"temperature": 1.0, "top_k": 64}


@pytest.mark.parametrize("config", [{}, {"do_sample": False, "temperature": 0.7}])
def test_where_nothing_is_recommended_a_chat_samples_mildly(tmp_path, config):
    place = said(tmp_path, **config)
    assert recommended_sampling(place) == {}
    assert sampling_for_chat(place) == NOTHING_SAID


@pytest.mark.parametrize("value", [-1, 99, math.nan, math.inf, True, "hot", None, [0.7], 10**400])
def test_what_is_no_temperature_recommends_nothing(tmp_path, value):
    assert "temperature" not in recommended_sampling(said(tmp_path, temperature=value, top_k=5))


def test_metadata_of_a_gguf_file_is_followed(tmp_path):
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_float32("general.sampling.temp", 0.7)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_float32("general.sampling.penalty_repeat", 1.05)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = recommended_sampling(tmp_path / "m.gguf")
    assert found == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}


def test_a_file_that_cannot_be_read_is_said_and_harms_no_chat(tmp_path):
    place = gguf(tmp_path / "m.gguf")
    place.write_bytes(place.read_bytes()[:40])
    with pytest.raises(WeightsError, match=r"m\.gguf"):
        recommended_sampling(place)
    assert sampling_for_chat(place) == NOTHING_SAID
