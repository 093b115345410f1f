"""A pair without weights that answers at once, for tests of measuring and proving."""

from __future__ import annotations

import torch

from specchat.engine.server.loaded_pair import LoadedDraft, LoadedPair
from specchat.models.backends.scripted import ScriptedModel, ScriptedVocabulary, scripted_says
from specchat.models.model_loading import Loaded
from specchat.settings import Settings


def quick_pair(precision: str = "float32", target: object = None) -> LoadedPair:
    """Target and draft model of the scripted pair, without their pretended slowness."""
    vocabulary = ScriptedVocabulary()

    def loaded(name: str, memory: int) -> Loaded:
        model = ScriptedModel(vocabulary.size, scripted_says(vocabulary, memory))
        return Loaded(name, model, None, vocabulary.eos_ids, 0, precision)

    main = loaded("scripted", 6)
    if target is not None:
        main = Loaded("scripted", target, None, vocabulary.eos_ids, 0, precision)
    return LoadedPair(
        name="scripted",
        target=main,
        vocabulary=vocabulary,
        device=torch.device("cpu"),
        precision=precision,
        notes=[],
        load_s=0.0,
        loaded_drafts=(LoadedDraft(loaded("draft", 2)),),
    )


def quick_settings(**changes: object) -> Settings:
    return Settings().but({"pair": "scripted", "max_tokens": 24, "nodes": 6, "width": 2, "seed": 0, **changes})
