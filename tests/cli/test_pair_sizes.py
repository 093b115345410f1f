"""How much a pair has to fetch, as its hub lists it."""

from __future__ import annotations

import pytest

from specchat.cli.pair_states import judged, known_pairs, pairs_elsewhere, sized_by_hub
from specchat.config import HubSource, ModelFile, config_dir, private_dir
from specchat.errors import WeightsError
from specchat.models.hub import repositories as hub


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


def own_settings(text):
    (private_dir(config_dir()) / "models.toml").write_text(text)


def test_sizes_are_of_the_models_that_the_settings_use_and_the_others_are_named_apart():
    spare = info("qwen-coder")
    assert (spare.draft, spare.unused) == (None, "qwen2.5-coder-0.5b-instruct unused, 491 MB")
    assert spare.download_bytes == 1_117_320_768
    needed = judged(spare).needed_bytes
    own_settings('[pairs.qwen-coder.defaults]\ndrafter = "fuse"\n')
    both = info("qwen-coder")
    assert (both.draft, both.unused) == ("qwen2.5-coder-0.5b-instruct", "")
    assert both.download_bytes == 1_117_320_768 + 491_400_064
    assert judged(both).needed_bytes > needed


def test_the_hub_is_asked_only_about_models_that_the_settings_use(asked):
    own_settings('[pairs.qwen3.defaults]\ndrafter = "suffix"\n')
    assert sized_by_hub(info("qwen3")).download_bytes == 2_000_000_500
    assert asked == ["Qwen/Qwen3-1.7B"]


def test_settings_that_loading_refuses_do_not_keep_a_pair_from_the_list():
    own_settings('[pairs.qwen-coder.defaults]\ndrafter = "merge"\nmethod_options = { merge.of = "suffix+nosuch" }\n')
    assert info("qwen-coder").draft == "qwen2.5-coder-0.5b-instruct"


def test_a_list_of_another_machine_names_draft_models_by_their_use_too():
    listed = {pair.name: (pair.draft, pair.unused) for pair in pairs_elsewhere()}
    assert listed["qwen-coder"] == (None, "qwen2.5-coder-0.5b-instruct unused")
    assert listed["qwen3"] == ("qwen3-0.6b", "")
