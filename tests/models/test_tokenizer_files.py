"""One tokenizer serves target and draft model where their files are the same."""

import pytest
import torch
from test_decoder import network
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specchat.config import ModelSpec, PathSource
from specchat.models.model_loading import load_model
from specchat.models.weights.tokenizer_files import same_tokenizer


@pytest.fixture
def folders(tmp_path):
    """Two models in two folders, with equal tokenizers."""
    words = Tokenizer(WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    for name in ("target", "draft"):
        network("qwen2").save_pretrained(tmp_path / name)
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(tmp_path / name)
    return tmp_path / "target", tmp_path / "draft"


def loaded(folder, beside=None):
    return load_model(ModelSpec("m", (PathSource(folder),)), folder, torch.device("cpu"), "float32", beside=beside)


def test_a_tokenizer_is_loaded_once_for_two_models(folders):
    target, draft = folders
    assert same_tokenizer(target, draft)
    first = loaded(target)
    assert loaded(draft, beside=first).tokenizer is first.tokenizer
    assert loaded(draft).tokenizer is not first.tokenizer


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
def test_any_other_byte_and_any_file_more_makes_another_tokenizer(folders, name):
    target, draft = folders
    file = draft / name
    file.write_text((file.read_text() if file.exists() else "{}") + "\n")
    assert not same_tokenizer(target, draft)
    first = loaded(target)
    assert loaded(draft, beside=first).tokenizer is not first.tokenizer


def test_tokenizers_without_a_file_of_their_own_are_never_the_same(folders):
    for folder in folders:
        (folder / "tokenizer.json").unlink()
    assert not same_tokenizer(*folders)
