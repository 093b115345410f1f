"""What the check of a GPU computes with: goals, predictions, idle shares, bytes of a pass, random models."""

import pytest
import transformers
from test_gpu_check import TINY

from specchat.bench.check_text import Divergence, SameText
from specchat.bench.measured_reply import Measured, Work, Written
from specchat.bench.report import Group
from specchat.core.costs import Costs
from specchat.decoding.teacher_forcing import Margin
from tools.gpu.gaps import idle_share
from tools.gpu.random_model import large, middling, random_model, random_prompt, read_bytes, spoken_tokens
from tools.gpu.results import Goal
from tools.gpu.rounds import PLAIN, Running, wide_trees
from tools.gpu.setup import HOST_PARTS, WAIT, HostClock, covered
from tools.gpu.text_comparison import ContestantResult, faults, predicted_ratio


def test_a_goal_is_reached_from_its_own_side():
    assert Goal("share", 0.85, 0.85).reached
    assert not Goal("share", 0.84, 0.85).reached
    assert Goal("ratio", 1.15, 1.15, at_least=False).reached
    assert not Goal("ratio", 1.16, 1.15, at_least=False).reached


def reply(tokens, by_rows, draft_passes=0):
    written = Written(
        tuple(range(tokens)), "", "length", 0.0, 1.0, Work(draft_passes=draft_passes, verify_by_rows=by_rows)
    )
    return Measured("x", "q", "c", 0, 0, (), 0, written)


def test_the_predicted_ratio_is_passes_of_one_row_over_the_passes_made():
    costs = Costs(((1, 0.010), (65, 0.012)))
    # 30 tokens would take 300 ms; 10 rounds of 65 rows take 120 ms.
    assert predicted_ratio([reply(30, {65: (10, 9.9)})], costs) == pytest.approx(2.5)
    # 10 more in 10 passes of one row: 400 ms over 220 ms.
    both = [reply(30, {65: (10, 9.9)}), reply(10, {1: (10, 9.9)})]
    assert predicted_ratio(both, costs) == pytest.approx(400 / 220)
    assert predicted_ratio([reply(10, {1: (10, 9.9)})], costs) == pytest.approx(1.0)
    # 30 draft passes of 2 ms beside 10 rounds of 65 rows: 300 ms over 180 ms.
    drafted = Costs(costs.verify, draft=((1, 0.002), (4, 0.003)))
    assert predicted_ratio([reply(30, {65: (10, 9.9)}, draft_passes=30)], drafted) == pytest.approx(300 / 180)


def test_time_that_overlaps_is_counted_once():
    assert covered([(10, 20), (15, 18), (12, 25), (40, 41)]) == 16
    assert covered([]) == 0
    assert idle_share(round_s=0.010, busy_per_round_s=0.009) == pytest.approx(0.1)
    assert idle_share(round_s=0.010, busy_per_round_s=0.011) == 0


@pytest.mark.parametrize("shape", [large, middling])
def test_the_bytes_of_a_pass_are_the_weights_it_multiplies_and_the_cache(shape):
    _, config = shape(TINY)
    model = random_model(TINY, config, "float32")
    network = transformers.AutoModelForCausalLM.from_config(config)
    matrices = {name: p.numel() for name, p in network.named_parameters() if p.dim() == 2}
    if not config.tie_word_embeddings:
        del matrices["model.embed_tokens.weight"]
    cached = 2 * 2 * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads) * 100
    assert read_bytes(model, "float32", 100) == 4 * (sum(matrices.values()) + cached)


def test_a_model_of_noise_says_the_same_twice_and_keeps_to_its_few_tokens():
    texts = []
    for _ in range(2):
        model = random_model(TINY, large(TINY)[1], "float32")
        running = Running.begin(model, PLAIN | {"temperature": 0.8}, random_prompt(model, 20))
        running.run(60)
        texts.append(running.context.history)
    assert texts[0] == texts[1]
    favoured = spoken_tokens(model.vocab_size)
    assert sum(token < favoured for token in texts[0]) > 0.9 * len(texts[0])
    assert len(set(texts[0])) > 5


def test_timing_the_host_changes_no_text():
    model = random_model(TINY, large(TINY)[1], "float32")
    texts = []
    for timed in (False, True):
        running = Running.begin(model, wide_trees(8), random_prompt(model, 20))
        clock = HostClock()
        running.run(20, clock.on(running.speculator, model.device) if timed else None)
        texts.append(running.context.history)
        assert set(clock.medians) == ({*HOST_PARTS, WAIT} if timed else set())
    shorter = min(map(len, texts))
    assert texts[0][:shorter] == texts[1][:shorter]


def test_a_text_that_is_not_the_targets_is_a_fault_and_a_tie_is_none():
    def contestant(gap):
        same = SameText(1, 2, True, (Divergence(Margin(7, 3, 4, gap), 0.5, "ours", "code-1", 0),))
        group = Group("all", 2, 10, 1.0, 1.0, 1.0, ratio=None, with_prompt=None)
        return ContestantResult("ours", (), group, 1.0, same)

    assert faults([contestant(0.4)]) == ()
    (fault,) = faults([contestant(0.6)])
    assert "code-1" in fault
