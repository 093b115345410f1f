"""All edits that break a method; one file of `edits` for each kind of method."""

from __future__ import annotations

from tests.mutations.edits import (
    acceptance_rules,
    combined_drafters,
    controllers,
    draft_models,
    kept_chats,
    kernels,
    library,
    lookups,
    recurrent_layers,
    rounds,
    serving,
    target_views,
    trained_networks,
    tree_policies,
)

MUTATIONS = (
    *lookups.EDITS,
    *draft_models.EDITS,
    *target_views.EDITS,
    *trained_networks.EDITS,
    *combined_drafters.EDITS,
    *tree_policies.EDITS,
    *acceptance_rules.EDITS,
    *controllers.EDITS,
    *rounds.EDITS,
    *serving.EDITS,
    *kernels.EDITS,
    *library.EDITS,
    *kept_chats.EDITS,
    *recurrent_layers.EDITS,
)
