"""How much a pair has to fetch, as its hub lists it."""

from __future__ import annotations

import pytest

from specchat.cli.pair_states import known_pairs, sized_by_hub
from specchat.config import HubSource, ModelFile
from specchat.errors import WeightsError
from specchat.models.fetch import hub


@pytest.fixture
def asked(monkeypatch):
    """A hub on which every repository has one file of weights; what it was asked."""
    repositories: list[str] = []

    def listing(source: HubSource) -> hub.Listing:
        repositories.append(source.repo)
        size = None if "8B" in source.repo else 2_000_000_000
        files = {
            "model.safetensors": ModelFile("model.safetensors", size),
            "config.json": ModelFile("config.json", 500),
        }
        return hub.Listing(source.repo, "c" * 40, files)

    monkeypatch.setattr(hub, "list_repository", listing)
    hub.total_bytes.cache_clear()
    yield repositories
    hub.total_bytes.cache_clear()


def info(name):
    return next(pair for pair in known_pairs() if pair.name == name)


def test_the_files_of_both_models_are_added_up_and_each_repository_is_asked_once(asked):
    assert info("qwen3").download_bytes is None
    sized = sized_by_hub(info("qwen3"))
    assert sized.download_bytes == 4_000_001_000
    assert sized.needed_bytes > 4_000_000_000
    assert sized_by_hub(info("qwen3")).download_bytes == sized.download_bytes
    assert asked == ["Qwen/Qwen3-1.7B", "Qwen/Qwen3-0.6B"]


def test_a_hub_that_does_not_say_a_size_is_an_error_in_one_line(asked):
    with pytest.raises(WeightsError, match="does not say how large"):
        sized_by_hub(info("qwen3-large"))
