"""A draft model learns plain text before it is brought to the target's law, and begins that ahead."""

from __future__ import annotations

import pytest
import torch
from training_kit import V, Words, plainly, subject, target

from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.errors import TrainingError, UsageError
from specchat.models.draft_heads.head import STEPS
from specchat.training import job, plain_text
from specchat.training import texts as text_writing
from specchat.training.corpus import Corpus
from specchat.training.job import Job
from specchat.training.limits import refuse_plain
from specchat.training.losses import columns_of, labels_at
from specchat.training.plain_text import PlainText, shard_of, tokens_of
from specchat.training.training_request import TrainingRequest


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 2)
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 24)
    monkeypatch.setattr(plain_text, "PIECE_TOKENS", 32)


def test_the_law_at_every_place_of_a_piece_is_the_token_that_follows():
    tokens = [3 + (7 * place) % 61 for place in range(32 * 41 + 9)]
    corpus = Corpus([shard_of(tokens, "it")], STEPS, reads_back=True, reads_states=False)
    (batch, count), *_ = corpus.epoch(0, 0, 2)
    rows, places = batch.drafted(1, batch.tokens.shape[1] - 1).nonzero(as_tuple=True)
    labels = labels_at(batch, rows, places + 1, columns_of(torch.arange(V), V))
    assert torch.equal(labels.places[:, 0], batch.tokens[rows, places + 2])
    assert torch.equal(labels.p, torch.ones(len(rows), 1))
    assert len(rows) >= count - 2 * 2, "all but the ends of pieces"
    with pytest.raises(TrainingError, match="it has 1279 tokens, too few to learn from; at least 1280"):
        shard_of(tokens[:1279], "it")


def test_a_text_is_encoded_whole_in_parts():
    text = "w5 w9 w11\nw7\n" + "w8 " * 3000
    assert tokens_of(text, Words()) == [5, 9, 11, 7, *[8] * 3000]


def test_a_draft_model_that_learnt_plain_text_begins_ahead_and_goes_on_after_an_interrupt(tmp_path):
    model = target(forgetful=True)
    warm, written = Sampling(temperature=1.0), []
    for seed in range(30):
        written += plainly(model, [3 + seed, 4], warm, Noise(seed), 120)
    plain, prompts = tmp_path / "plain.txt", tmp_path / "prompts.txt"
    plain.write_text(" ".join(f"w{token}" for token in written if token > 2), encoding="utf-8")
    prompts.write_text("\n".join(f"w{a} w{b} w5 w{a}" for a in range(3, 12) for b in range(20, 28)), encoding="utf-8")
    whose = subject(model)

    def trained(name, tell=lambda stage: None, **changes):
        known = {"pair": "tiny", "drafter": "draft_model", "prompts": str(prompts), "tokens": 1100, "hours": 0.0}
        return Job(TrainingRequest(**{**known, "name": name, **changes}), whose, tell).run()

    without = trained("without")

    def interrupt(stage):
        if "plain text" in stage.says and stage.done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained("cut", interrupt, plain=str(plain))
    cut, ahead = (trained(name, plain=str(plain), resume=name == "cut") for name in ("cut", "ahead"))
    assert ahead.figures["curve_tau"][0] > without.figures["curve_tau"][0] + 0.05
    assert cut.figures["curve_tau"] == ahead.figures["curve_tau"]
    assert ahead.data["plain"].startswith("plain.txt (")
    assert f"--plain {plain}" in ahead.data["command"]
    plain.write_text(plain.read_text(encoding="utf-8") + " w5", encoding="utf-8")
    with pytest.raises(TrainingError, match=r"was made with plain = plain\.txt"):
        trained("ahead", plain=str(plain), resume=True)


def test_plain_text_that_cannot_be_learnt_first_is_refused(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="--plain is for --drafter draft_model; hydra learns from the target's states"):
        refuse_plain("hydra", str(file), "")
    with pytest.raises(UsageError, match="begins with nothing; leave out --from"):
        refuse_plain("draft_model", str(file), "mine")
    with pytest.raises(UsageError, match=r"--plain '.*nowhere' is not a file"):
        refuse_plain("draft_model", str(tmp_path / "nowhere"), "")
    with pytest.raises(UsageError, match=r"--plain .*text"):
        PlainText.of(str(file), Words())
    refuse_plain("draft_model", str(file), "")
