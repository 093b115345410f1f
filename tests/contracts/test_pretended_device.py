"""Every method of the tables on a pretended CUDA device: the host's text, no mixed devices, few waits a round."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import pytest
import torch
from contracts.kit import Reply, random_tree, reply, scripted_target
from contracts.models import V, own_decoder, perturbed, source_of, tiny_network
from contracts.tiny_networks import tiny_resources, tiny_trained
from pretended_device import RecordsNothing, pretended, waits
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.request import PassRequest
from specchat.decoding.combinations import check_settings
from specchat.drafters import DRAFTERS
from specchat.engine.server.event_conversion import target_logprobs
from specchat.errors import CombinationError
from specchat.models.decoder.cached_model import read_together
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import methods
from specchat.models.draft_heads.loading import HeadOfTarget
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

CONTEXT = 512
ROUNDS: dict[str, Any] = {"controller": "fixed", "nodes": 8, "depth": 5, "width": 2}


def on_device(network: Any, device: torch.device, dtype: str = "float32") -> Decoder:
    weights = Builder(Shape.of(network.config), source_of(network), dtype, device).build()
    eager = EagerNetwork(weights)
    return Decoder(GraphNetwork(eager, RecordsNothing()) if device.type == "cuda" else eager, CONTEXT)


@pytest.fixture(scope="module")
def networks() -> tuple[Any, Any]:
    target = tiny_network("llama", num_hidden_layers=2)
    return target, perturbed(target, 0.3)


@cache
def text_of_the_host(networks: tuple[Any, Any], settings: tuple[tuple[str, Any], ...]) -> list[int]:
    models = (own_decoder(network, CONTEXT) for network in networks)
    return reply(*models, **ROUNDS, **dict(settings), max_tokens=5).tokens


def said_there(
    networks: tuple[Any, Any], kind: str, dtype: str = "float32", **settings: Any
) -> tuple[Reply, Counter[str]]:
    with pretended(kind) as device:
        models = [on_device(network, device, dtype) for network in networks]
        with waits() as counted:
            said = reply(*models, **settings)
        return said, counted


def is_allowed(settings: dict[str, Any]) -> bool:
    stores = tiny_resources(scripted_target())
    try:
        check_settings(Settings().but(settings), True, stores.trained, stores.datastores, stores.draft_models)
    except CombinationError:
        return False
    return True


def combinations() -> list[dict[str, Any]]:
    """Every drafter with one policy, one rule that suits both and a temperature, so that each of the tables is used."""
    policies, temperatures = itertools.cycle(TREE_POLICIES), itertools.cycle((0.8, 0.0))
    used = dict.fromkeys(ACCEPTANCE_RULES, 0)
    rows = []
    for drafter, policy, temperature in zip(DRAFTERS, policies, temperatures, strict=False):
        row = {"drafter": drafter, "policy": policy, "temperature": temperature}
        rule = next(
            rule
            for rule in sorted(used, key=lambda rule: (used[rule], rule != "nest"))
            if is_allowed({**row, "rule": rule})
        )
        used[rule] += 1
        rows.append({**row, "rule": rule})
    return rows


COMBINATIONS = combinations()


def test_the_combinations_have_every_method():
    for key, table in (("drafter", DRAFTERS), ("policy", TREE_POLICIES), ("rule", ACCEPTANCE_RULES)):
        assert {row[key] for row in COMBINATIONS} == set(table)


def each_kind() -> Iterator[Any]:
    """All combinations on CUDA; on MPS, which has no float64, those that draw."""
    for row in COMBINATIONS:
        words = "-".join(map(str, row.values()))
        yield pytest.param("cuda", row, id=f"cuda-{words}")
        if row["temperature"] > 0:
            yield pytest.param("mps", row, id=f"mps-{words}")


@each_row(("kind", "settings"), each_kind())
def test_the_text_is_the_hosts(networks, kind, settings):
    there, _ = said_there(networks, kind, **ROUNDS, **settings, max_tokens=5)
    assert there.tokens == text_of_the_host(networks, tuple(settings.items()))


def test_trees_of_several_texts_are_read_in_one_replay_as_the_host_reads_each(networks):
    trees = [random_tree(V, nodes, 1) for nodes in (5, 0, 7)]
    texts = [[1 + i % 40 for i in range(length)] for length in (30, 4, 12)]
    said: list[list[torch.Tensor]] = []
    with pretended("cuda") as device:
        model = on_device(networks[0], device)
        models = [model.with_new_cache() for _ in trees]
        for _ in range(3):  # the second time it is recorded, the third time that is replayed
            for own, text in zip(models, texts, strict=True):
                own.prefill(text)
            (readings,) = read_together([(own, tree, PassRequest()) for own, tree in zip(models, trees, strict=True)])
            said.append([readings[place].logits.cpu() for place in range(3)])
            for own in models:
                own.keep([])
    for joint in said:
        for one, tree, text in zip(joint, trees, texts, strict=True):
            host = own_decoder(networks[0], CONTEXT)
            host.prefill(text)
            torch.testing.assert_close(one, host.read(tree).logits, atol=1e-4, rtol=1e-4)


def test_memory_and_recordings_of_a_text_stay_while_it_grows_to_the_limit(networks):
    """One allocation at load, tables of rotations included; a second way from the shortest to the longest text records
    nothing. A text beside it begins small."""
    limit, recorder = 2500, RecordsNothing()
    lengths = (160, 300, 700, 1100, 2000, limit - 9)  # more is read between them than is recorded
    with pretended() as device:
        weights = Builder(Shape.of(networks[0].config), source_of(networks[0]), "float32", device).build()
        model = Decoder(GraphNetwork(EagerNetwork(weights), recorder), 100_000)
        model.limit_context_(limit)

        def addresses() -> list[int]:
            like = model.network.like
            tables = (table for table in model.rotations.until(0) if table is not None)
            return [stored.data_ptr() for stored in (*model.cache.room_for(0, like), *tables)]

        at_load, bytes_at_load = addresses(), model.cache_bytes(0)
        made = []
        for _ in range(2):
            model.prefill([])
            for length in lengths:
                model.prefill([1 + i % 40 for i in range(length)])
                for nodes in (0, 3, 7):
                    model.read(random_tree(V, nodes, 1))
                    model.keep([])
                    model.prefill([1 + i % 40 for i in range(length)])
            made.append(recorder.recordings)
        assert addresses() == at_load
        assert model.cache_bytes(limit) == bytes_at_load
        contexts = {next(size for size in (512, 1024, 2048, 4096) if size >= length + 8) for length in lengths}
        assert made == [3 * 3 * len(contexts)] * 2, "a pass and two timed ways of attention for each size"
        other = model.with_new_cache()
        other.prefill([1, 2, 3] * 10)
        assert other.cache.capacity < model.cache.capacity


def test_a_prompt_is_read_in_chunks_of_2048_on_a_device_and_says_what_the_host_says(networks):
    text, tree = [1 + i % 40 for i in range(2500)], random_tree(V, 3, 1)
    host = own_decoder(networks[0], 3000)
    with pretended() as device:
        weights = Builder(Shape.of(networks[0].config), source_of(networks[0]), "float32", device).build()
        there = Decoder(GraphNetwork(EagerNetwork(weights), RecordsNothing()), 3000)
        said, passes = [], []
        for model in (host, there):
            told: list[tuple[int, int]] = []
            model.prefill(text, lambda done, total, told=told: told.append((done, total)))
            passes.append(model.counters.passes)
            assert told[-1] == (2500, 2500)
            said.append(model.read(tree).logits.cpu())
        assert passes == [10, 2]
        there.chunk_bytes = there.pass_bytes(512, 0, logits=False)
        smaller = there.with_new_cache()
        smaller.prefill(text[:1000])
        assert smaller.counters.passes == 3, "512, then 256 and what is left"
    torch.testing.assert_close(*said, atol=1e-4, rtol=1e-4)


class Waited(Protocol):
    def __call__(self, where: str = "", /) -> float: ...


def a_round(networks: tuple[Any, Any], dtype: str = "float32", max_tokens: int = 12, **settings: Any) -> Waited:
    """Waits a round of a reply, of those lines of the product that have this in their name."""
    said, counted = said_there(networks, "cuda", dtype, **{**ROUNDS, **settings}, max_tokens=max_tokens)
    once = ("synchronize",)  # the clock of the prompt
    lines = {line: times for line, times in counted.items() if not line.startswith(once)}
    return lambda where="", /: sum(times for line, times in lines.items() if where in line) / len(said.rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_plain_round_waits_once(networks, temperature):
    assert a_round(networks, controller="off", temperature=temperature)() == 1


def test_figures_of_a_tree_are_one_copy(networks):
    with pretended() as device:
        models = [on_device(network, device) for network in networks]
        said = reply(*models, drafter="draft_model", **ROUNDS, max_tokens=12)
        for written in said.rounds:
            with waits() as counted:
                target_logprobs(written)
            assert sum(counted.values()) == 1
            with waits() as counted:
                written.reading.best_after(written.reading.nodes, 5)
            assert sum(counted.values()) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("vocabulary", [0, 40])
def test_a_draft_model_waits_once_a_level(networks, temperature, vocabulary):
    options = {"draft_model.trim": vocabulary}
    waited = a_round(networks, drafter="draft_model", temperature=temperature, method_options=options)
    assert waited("drafters/") + waited("trimmed_head") <= ROUNDS["depth"]
    assert waited() <= ROUNDS["depth"] + 1


TRAINED = [
    ({"drafter": drafter, "temperature": temperature}, dtype)
    for drafter, (temperature, dtype) in zip(
        methods("head", "masks", "denoiser"), itertools.cycle(((0.0, "bfloat16"), (0.8, "float32"))), strict=False
    )
]


@each_row(("settings", "dtype"), TRAINED)
def test_a_trained_network_waits_once_a_level(networks, settings, dtype):
    """One that guesses a whole tree at once waits once. Its tensors, and its table of rotations, are sent once."""
    whole_trees = settings["drafter"] in {"medusa", "selector", "amphista", "parallel_spec", "prompt_tokens"}
    levels = 1 if whole_trees else ROUNDS["depth"]
    # Of the selector, which waits at some tokens, as many rounds as tell the share from one wait a round.
    waited = a_round(networks, dtype, max_tokens=24 if settings["drafter"] == "selector" else 12, **settings)
    # A token of the text that is asked about for the first time, and numbers of the selector that are copied once.
    new = waited("models/draft_heads/selector") + waited("models/draft_heads/head")
    assert new <= 0.2  # 4 waits in the 22 rounds of the selector's reply; one a round would be 1
    assert 0 < waited("copy to the host") <= levels + new
    once = ("draft_heads/loading", "draft_heads/masks", "draft_heads/layers", "decoder/eager")
    sent = sum(waited(f"pageable memory models/{file}") for file in once)
    assert waited() - sent - new <= levels + 1


def test_trained_networks_are_where_the_target_is_and_in_its_format(networks):
    with pretended() as device:
        target = on_device(networks[0], device, "bfloat16")
        for method in methods("head"):
            loaded = HeadOfTarget(target, tiny_trained(method, target), target.vocab_size)
            head = loaded.load()
            given = loaded.ready(head).given
            tensors = [*head.parameters(), given.tokens.of([3, 5]), given.head.after(head.norm[None]).logits]
            assert {tensor.device for tensor in tensors} == {device}, method
            assert {tensor.dtype for tensor in tensors[:-1]} == {torch.bfloat16}, method


RULES = [
    {"rule": rule, "drafter": drafter, "temperature": 0.8}
    for rule, drafter in itertools.product(ACCEPTANCE_RULES, ("draft_model", "prompt_lookup"))
]


@pytest.mark.parametrize("settings", filter(is_allowed, RULES), ids=lambda row: f"{row['rule']}-{row['drafter']}")
def test_a_rule_waits_at_most_three_times(networks, settings):
    levels = ROUNDS["depth"] if settings["drafter"] == "draft_model" else 0
    assert a_round(networks, max_tokens=6, **settings)() <= levels + 3
