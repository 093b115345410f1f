"""Texts to learn from: written side by side, each as plain decoding writes it, none of a benchmark."""

import json

import pytest
from training_kit import REPLY, USER, V, Words, plainly, target

from specchat.bench.workloads import own_workload
from specchat.core.sampling import Sampling
from specchat.errors import TrainingError, UsageError
from specchat.models.decoder.cached_model import read_together
from specchat.training import texts as text_writing
from specchat.training.prompts import opening_of, overlaps_benchmark, prompts_of
from specchat.training.states import grouped
from specchat.training.texts import TEXTS_TOGETHER, TextPlan, TextStore, TextWriting, TrainingText

PROMPTS = [f"w{a} w{b} w{a + 3} w9" for a in range(3, 30, 3) for b in (4, 40)]


def plan(prompts=PROMPTS, seed=0):
    return TextPlan(Words(), prompts, Sampling(), seed)


def test_texts_written_together_are_those_written_one_at_a_time(tmp_path, monkeypatch):
    """One pass reads all that are being written; the first is longer than the longest that is written."""
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 32)
    sizes, model, writing = [], target(), plan(["w9 " * 500, *PROMPTS])

    def counted(trees):
        for readings in read_together(trees):
            sizes.append((len(trees), len(readings)))
            yield readings

    monkeypatch.setattr("specchat.decoding.together.read_together", counted)
    store = TextStore(tmp_path / "texts.jsonl", V)
    TextWriting(writing, model, store).run(500, lambda done: None)
    assert max(sizes) == (TEXTS_TOGETHER, TEXTS_TOGETHER)
    assert all(read == asked for asked, read in sizes)
    assert len(store.texts) >= 16
    for text in store.texts.values():
        sampling, noise = writing.reply_sampling(text.index), writing.noise(text.index, "reply")
        assert text.reply == plainly(model, text.prompt, sampling, noise, 32)


def test_writing_that_was_cut_off_anywhere_goes_on_to_the_same_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 32)
    model = target()
    whole = TextStore(tmp_path / "whole.jsonl", V)
    TextWriting(plan(), model, whole).run(400, lambda done: None)

    class Cut(Exception):
        pass

    def cut(done):
        if done > 80:
            raise Cut

    parts = TextStore(tmp_path / "parts.jsonl", V)
    with pytest.raises(Cut):
        TextWriting(plan(), model, parts).run(400, cut)
    with parts.file.open("ab") as file:
        file.write(b'{"index":99,"prom')  # the power went off in the middle of a line
    again = TextStore(parts.file, V)
    TextWriting(plan(), model, again).run(400, lambda done: None)
    common = whole.texts.keys() & again.texts.keys()
    assert len(common) > 10
    assert all(whole.texts[index] == again.texts[index] for index in common)


def test_more_texts_stand_behind_those_that_were_written_before(tmp_path, monkeypatch):
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 32)
    model = target(spread=0.02)  # unsure of everything, so that replies end at different lengths
    prompts = [f"w{a} w{b} w5" for a in range(3, 20) for b in range(20, 28)]
    store = TextStore(tmp_path / "texts.jsonl", V)
    TextWriting(plan(prompts), model, store).run(500, lambda done: None)
    before = dict(store.texts)
    assert sorted(before) == list(range(len(before))), "what was begun is finished"
    first = [text for group in grouped(list(before.values()), 1500) for text in group]
    TextWriting(plan(prompts), model, store).run(1500, lambda done: None)
    assert len(store.texts) > len(before) + 16
    assert [text for group in grouped(list(store.texts.values()), 1500) for text in group][: len(first)] == first


def test_half_of_the_replies_are_greedy_and_the_others_as_the_chat_samples():
    chatty = TextPlan(Words(), PROMPTS, Sampling(temperature=0.3, top_k=5), 0)
    assert [plan().reply_sampling(index).temperature for index in range(4)] == [0.0, 0.7, 0.0, 0.7]
    assert chatty.reply_sampling(1) == chatty.sampling


def test_the_target_writes_the_users_turn_from_the_bare_chat_format(tmp_path, monkeypatch):
    assert opening_of(Words()) == [USER]
    monkeypatch.setattr(text_writing, "REPLY_TOKENS", 6)
    model = target(spread=0.02)  # unsure of everything, so that turns end
    store = TextStore(tmp_path / "texts.jsonl", V)
    TextWriting(plan(None), model, store).run(60, lambda done: None)
    replied = [text for text in store.texts.values() if text.reply]
    assert replied
    for text in replied:
        assert text.prompt[0] == USER
        assert text.prompt[-1] == REPLY
        assert len(text.prompt) >= 5, "a turn of fewer than three words is no prompt"


def test_a_prompt_of_a_benchmark_is_refused_however_it_is_written(tmp_path):
    question = own_workload().questions[0].turns[0]
    for prompt in (question, question.upper().replace(",", " ;"), f"Please tell me. {question} Thank you."):
        assert overlaps_benchmark(prompt)
    assert not overlaps_benchmark("How do I grow tomatoes on a balcony that gets sun only in the morning?")
    store = TextStore(tmp_path / "texts.jsonl", V)
    TextWriting(plan([question, *PROMPTS[:2]]), target(), store).run(10_000, lambda done: None)
    assert store.texts[0].reply == []
    assert store.texts[1].reply


def test_every_question_of_our_bench_is_known_to_the_check():
    for question in own_workload().questions:
        assert all(overlaps_benchmark(turn) for turn in question.turns), question.question_id


def test_repeated_and_refused_prompts_are_not_learnt_from():
    one, other = TrainingText(0, [1] * 5, [3] * 9, True), TrainingText(2, [1] * 6, [4] * 9, True)
    texts = [other, one, TrainingText(3, one.prompt, [5] * 9, False), TrainingText(1, [], [], True)]
    assert grouped(texts, 100) == [[one, other]]
    assert grouped(texts, 5) == [[one]]


def test_a_file_of_prompts_may_be_lines_or_json(tmp_path):
    file = tmp_path / "prompts"
    turns = json.dumps({"turns": ["the third", "not this"]})
    file.write_text(f'the first\n\n{{"prompt": " the second "}}\n{turns}\nthe first\n')
    assert prompts_of(file) == ["the first", "the second", "the third"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "holds no prompts"),
        (b"\xff\xfe", "is not UTF-8"),
        (b'{"prompt": 3}', "line 1 has no text under `prompt`"),
        (b'fine\n{"prompt": ', "line 2 is not JSON"),
        (b'{"turns": {"0": 1}}', "line 1 has no text"),
        (b'{"a":' * 10_000, "line 1 is not JSON: it is nested too deep"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused_by_line(tmp_path, text, said):
    file = tmp_path / "prompts"
    file.write_bytes(text)
    with pytest.raises(UsageError, match=said):
        prompts_of(file)


@pytest.mark.parametrize(
    "line",
    [
        '{"index":0}',
        "[]",
        '{"index":0,"prompt":[],"reply":[5],"greedy":true}',
        '{"index":0,"prompt":[1],"reply":[64],"greedy":true}',
        "nonsense",
        "1",
    ],
)
def test_a_damaged_line_of_texts_is_named(tmp_path, line):
    file = tmp_path / "texts.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(TrainingError, match=r"texts\.jsonl, line 1"):
        TextStore(file, V)
