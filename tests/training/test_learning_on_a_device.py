"""A network learns where the target is: on a pretended CUDA device, which refuses what lies elsewhere."""

from __future__ import annotations

import pytest
from pretended_device import pretended
from training_kit import V, recipe, some_texts, target, weights_of

from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.draft_heads import FAMILIES
from specchat.training.corpus import Corpus
from specchat.training.fitting import Fitting, Schedule
from specchat.training.job import first_network
from specchat.training.states import StateReading


@pytest.mark.parametrize("method", ["hydra", "eagle"])
def test_a_network_learns_on_the_targets_device(method, tmp_path):
    host = target(forgetful=True)
    shape, source = host.network.shape, weights_of(host)
    texts = some_texts(12)
    states = StateReading(host, "ab" * 32, tmp_path)
    shard = states.shard(texts)
    corpus = Corpus([shard], recipe(method).steps, recipe(method).reads_back)
    sizes = FAMILIES[method].load().sizes_for(shape, states.layers)
    with pretended() as device:
        weights = Builder(shape, source, "float32", device).build()
        network = first_network(method, sizes, Decoder(EagerNetwork(weights), 1024), corpus, 0, None)
        assert {parameter.device for parameter in network.parameters()} == {device}
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        fit = Fitting(
            network, corpus, Schedule(300, 0.0, 4e-3, 2000), tmp_path, V, recipe(method).steps, 4, 0, {"method": method}
        )
        fit.run(lambda standing: None)
        moved = [bool((tensor != before[name]).any()) for name, tensor in network.state_dict().items()]
    assert fit.best_weights.is_file()
    assert any(moved)
