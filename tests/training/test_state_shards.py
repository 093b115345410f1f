"""The target's states on disk: what it said is what is read, and what is damaged is named."""

import dataclasses

import pytest
import torch
from training_kit import CHECKSUM, V, some_texts, target

from specchat.core.states import HiddenStateSink
from specchat.errors import TrainingError
from specchat.training import disk as needs
from specchat.training.corpus import Corpus
from specchat.training.states import (
    StateReading,
    is_there,
    read_shard,
    shard_file,
    source_of,
    tapped_layers,
    write_shard,
)


@pytest.fixture(scope="module")
def model():
    return target()


@pytest.fixture
def written(model, tmp_path):
    texts = some_texts(5)
    reading = StateReading(model, CHECKSUM, tmp_path)
    [source] = reading.run([texts], lambda done: None)
    return texts, source, shard_file(tmp_path, 0), reading


def test_a_shard_holds_what_the_target_says_along_its_texts(model, written):
    texts, source, file, reading = written
    shard = read_shard(file, source, verify=True)
    assert len(shard) == 5
    assert shard.reply_tokens == 5 * 12
    for index, text in enumerate(texts):
        rows = slice(int(shard.starts[index]), int(shard.starts[index + 1]))
        assert shard.tokens[rows].tolist() == text.tokens
        taken = []
        model.prefill(())
        model.prefill(text.tokens, tap=HiddenStateSink(frozenset(reading.layers), taken.append))
        last = taken[0].layers[reading.layers[-1]]
        states = torch.stack([taken[0].layers[layer] for layer in reading.layers], dim=1)
        assert torch.equal(shard.states[rows], states.bfloat16())
        law = torch.softmax(model.head(last), dim=1)[len(text.prompt) - 1 :]
        kept = shard.log_p[rows].float().exp()[len(text.prompt) - 1 :]
        named = shard.likeliest[rows].long()[len(text.prompt) - 1 :]
        torch.testing.assert_close(kept, law.gather(1, named), atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(shard.rest[rows][len(text.prompt) - 1 :], 1 - kept.sum(1), atol=5e-3, rtol=0)
        assert not kept.isnan().any()
        assert not shard.log_p[rows].float().exp()[: len(text.prompt) - 1].any()


@pytest.mark.parametrize("reads_back", [True, False])
def test_every_token_of_a_reply_is_guessed_once(written, reads_back):
    texts, source, file, _ = written
    corpus = Corpus([read_shard(file, source)], steps=2, reads_back=reads_back)
    (batch, count), *others = corpus.epoch(0, 0, len(texts))
    places = batch.drafted(1, batch.tokens.shape[1]).nonzero()
    guessed = [
        [int(batch.tokens[row, place + 2]) for of, place in places if of == row] for row in range(len(batch.tokens))
    ]
    assert sorted(guessed) == sorted(texts[text].reply for _, text in corpus.learnt)
    assert (sum(map(len, guessed)), others) == (count, [])


def test_the_layers_of_learning_md_are_tapped_in_a_model_of_thirty():
    assert tapped_layers(30) == (3, 15, 27, 29)
    assert tapped_layers(1) == (0,)


def test_shards_that_are_there_are_not_made_again(model, tmp_path, written):
    texts, *_ = written
    reading = StateReading(model, CHECKSUM, tmp_path)
    passes = model.counters.passes
    reading.run([texts], lambda done: None)
    assert model.counters.passes == passes
    reading.run([[*texts, *some_texts(6)[5:]]], lambda done: None)
    assert model.counters.passes > passes, "the last group has grown"


def test_a_shard_of_another_target_is_not_taken(model, written):
    texts, source, file, reading = written
    other = source_of(texts, reading.layers, "cd" * 32)
    assert is_there(file.parent, 0, source)
    assert not is_there(file.parent, 0, other)
    with pytest.raises(TrainingError, match="by another target"):
        read_shard(file, other)


def test_a_shard_that_was_cut_off_or_changed_is_named(written):
    _, source, file, _ = written
    whole = file.read_bytes()
    for damaged, verify in ((whole[:-7], False), (whole[:9], False), (b"", False), (_flipped(whole), True)):
        file.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"00000\.safetensors is damaged.*remove it"):
            read_shard(file, source, verify=verify)


def _flipped(data):
    return data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]


def test_a_shard_whose_tensors_do_not_go_together_is_refused(written, tmp_path):
    _, source, file, _ = written
    shard = read_shard(file, source)
    wrongs = {
        "its texts do not fill it": {"starts": shard.starts[:-1]},
        "rest for": {"rest": shard.rest[1:]},
        f"{len(shard.rest) + 5} rest for": {"rest": torch.cat([shard.rest, shard.rest[:5]])},
        "other shapes": {"states": shard.states[:, 0]},
        "tensors have other shapes": {"rest": torch.tensor(1.0)},
        "have other shapes; remove it": {"likeliest": shard.likeliest[:, :0], "log_p": shard.log_p[:, :0]},
        "its tokens are not all tokens of the target": {"tokens": _with(shard.tokens, V)},
        "its likeliest are not all tokens of the target": {"likeliest": _with(shard.likeliest, -1)},
        "its states are not all finite": {"states": _with(shard.states, torch.nan)},
        "its log_p are not logarithms": {"log_p": _with(shard.log_p, 0.5)},
        "its log_p are not": {"log_p": _with(shard.log_p, torch.nan)},
        "its rest are not probabilities": {"rest": _with(shard.rest, -0.1)},
    }
    read_shard(file, source, vocab_size=V)
    for said, change in wrongs.items():
        write_shard(dataclasses.replace(shard, **change), file, source)
        with pytest.raises(TrainingError, match=said):
            read_shard(file, source, vocab_size=V)


def _with(tensor, number):
    changed = tensor.clone()
    changed.view(-1)[-1] = number
    return changed


def test_a_disk_without_room_is_told_before_anything_is_read(model, tmp_path, monkeypatch):
    monkeypatch.setattr(needs, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(
        TrainingError,
        match=r"not enough space in .*the states need .* MB and .* MB must stay free, .* MB are free; ask for fewer",
    ):
        StateReading(model, CHECKSUM, tmp_path).run([some_texts(3)], lambda done: None)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_half_shard(model, tmp_path):
    reading = StateReading(model, CHECKSUM, tmp_path)
    shard = reading.shard(some_texts(2))
    no_folder = tmp_path / "a file"
    no_folder.touch()
    with pytest.raises(TrainingError, match="cannot be written"):
        write_shard(shard, no_folder / "00000.safetensors", "x")
    assert list(tmp_path.iterdir()) == [no_folder]


def test_progress_is_told_after_every_text(model, tmp_path):
    told = []
    texts = some_texts(6)
    StateReading(model, CHECKSUM, tmp_path).run([texts[:4], texts[4:]], told.append)
    assert told == [0, 0.25, 0.5, 0.75, 1, 1.5, 2]
