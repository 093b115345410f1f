"""Published systems: which methods they are here, the tests that tell them from imitations, and what differs.

One entry each. The methods of an entry are those of the tables whose `source` names its paper; what is no method (a
training, a loop, a setting) stands under `also`. An entry that has neither is absent.
"""

# ruff: noqa: E501  (names of tests are whole)

from __future__ import annotations

from dataclasses import dataclass

from specchat.decoding.families import methods


@dataclass(frozen=True)
class System:
    """One published system.

    Args:
        paper: its number on arXiv, or the words by which the `source` of its methods names it.
        group: `draft` if it chooses better among the tokens of a given drafter, `model` if it makes the draft.
        tests: as pytest takes them, without the folder `tests/`.
        differs: what of the paper is missing or otherwise here; of an absent system, why it is absent.
        also: where it is besides its methods.
    """

    name: str
    paper: str
    group: str
    tests: tuple[str, ...] = ()
    differs: str = ""
    also: str = ""

    def methods(self) -> tuple[str, ...]:
        """The names of its methods, in the order of the tables."""
        return tuple(method.name for _, method in methods() if self.paper in method.source)


SYSTEMS: tuple[System, ...] = (
    System(
        "Speculative Decoding", "2211.17192", "draft",
        ("acceptance/test_recursion.py::test_the_token_is_distributed_as_the_targets",),
        "draws beside a chain's are tried too, one after the other",
        also="`multi_step` is its rule, `follow` gives the seed's own text",
    ),
    System(
        "Speculative Sampling", "2302.01318", "draft",
        ("decoding/test_sampling_law.py::test_speculation_samples_from_the_target",),
        also="with `draft_model` and `multi_step`",
    ),
    System(
        "Drafter-Invariant Speculative Decoding", "2408.07978", "draft",
        (
            "drafters/test_coupled.py::test_coupled_draws_are_in_the_order_in_which_the_target_would_draw_them",
            "drafters/test_coupled.py::test_with_the_noise_of_another_position_draws_agree_less_often",
        ),
        also="with `follow`",
    ),
    System(
        "SpecInfer", "2305.09781", "draft",
        (
            "acceptance/test_recursion.py::test_more_children_are_accepted_more_often_and_more_than_tries_that_ignore_the_law",
            "drafters/test_several_models.py::test_two_models_cover_more_than_either_and_their_tree_is_smaller_than_both_together",
            "training/test_distillation.py::test_two_boosted_draft_models_guess_more_places_than_two_copies_or_two_seeds",
        ),
        "a series of more than two: `--select prompts` compares with one earlier model, and takes a text for reproduced "
        "of which that guesses as much as on average; `--select missed` leaves out single places. Offloading",
        also="boost-tuning is `specchat train --select prompts`",
    ),
    System(
        "DySpec", "2410.11744", "draft",
        (
            "trees/test_best_first.py::test_no_tree_of_six_nodes_is_worth_more",
            "trees/test_best_first.py::test_with_draws_it_is_the_tree_of_the_published_heap",
        ),
        "its heap with a call for each node: the search goes level by level",
    ),
    System(
        "Sequoia", "2402.12374", "draft",
        ("trees/test_sequoia.py::test_no_tree_of_as_many_nodes_and_levels_is_worth_more",),
        "offloading; rates and costs measured beforehand: they are learnt while it runs",
    ),
    System(
        "SpecExec", "2406.02532", "draft",
        (
            "trees/test_specexec.py::test_the_tree_is_the_best_prefixes_of_all_there_are",
            "decoding/test_exactness.py::test_speculation_never_changes_the_text",
            "trees/test_specexec.py::test_tokens_a_round_grow_with_the_logarithm_of_the_nodes_and_the_text_stays",
        ),
        "the offloaded target for which it was made. `width` bounds children too",
    ),
    System(
        "RSD", "2402.14160", "draft",
        (
            "trees/test_rsd.py::test_two_children_of_two_tokens_are_always_enough_and_independent_draws_are_not",
            "trees/test_rsd.py::test_sequences_are_a_sample_without_replacement_from_all_sequences",
            "acceptance/test_recursion.py::test_two_levels_are_distributed_as_the_targets",
        ),
        "a node gets at most `width` children; where rows have a price, every node of a beam pays that of the last one planned",
    ),
    System(
        "Block Verification", "2403.10444", "draft",
        (
            "acceptance/test_branches.py::test_on_chains_a_block_is_never_shorter_than_draws_judged_one_by_one",
            "acceptance/test_branches.py::test_another_residual_is_measurably_wrong",
        ),
        "published for chains of one length: here they end anywhere, and further draws of a node are tried one by one, "
        "as SpecInfer does. Its greedy form, which needs another law in the next round, is not here",
    ),
    System(
        "Traversal Verification", "2505.12398", "draft",
        ("acceptance/test_branches.py::test_in_trees_judging_branches_is_never_shorter_either",),
        "it judges independent draws too; a node that was dropped in the pass is a leaf",
    ),
    System(
        "EAGLE-2", "2406.16858", "draft",
        ("trees/test_eagle2.py::test_it_is_the_published_expansion_and_reranking",),
        "a node that cannot be among the best any more is not expanded, which leaves the tree as it is",
    ),
    System(
        "Graph-Structured Speculative Decoding", "2407.16207", "draft",
        (
            "trees/test_graph.py::test_the_draft_model_reads_fewer_rows_for_a_tree_of_as_many_nodes",
            "trees/test_graph.py::test_the_target_says_after_a_copied_path_what_it_says_after_the_same_text",
        ),
        "unfolding breadth first up to 100 tokens: here it is best first within the budget, and unlikely branches go by "
        "their worth alone",
    ),
    System(
        "ProPD", "2402.13485", "draft",
        (
            "decoding/test_early_pruning.py::test_what_is_pruned_is_not_computed",
            "decoding/test_early_head.py::test_where_states_are_wide_or_memory_is_limited_a_map_of_low_rank_is_learnt",
            "controllers/test_cost_model.py::test_the_size_is_the_one_that_brute_force_finds_for_a_straight_line",
            "controllers/test_cost_model.py::test_the_line_follows_a_step_change_of_what_passes_take",
        ),
        "ranks by head: they are counted by depth. An early head that is trained beforehand: it is fitted while the target writes",
        also="early pruning (a setting)",
    ),
    System(
        "LLMCad", "2309.04255", "draft",
        (
            "trees/test_confidence.py::test_alpha_halves_while_whole_paths_stand",
            "trees/test_confidence.py::test_partly_wrong_rounds_raise_alpha_by_the_share_that_was_wrong",
            "contracts/test_overlap.py::test_the_drafter_reads_while_the_target_does",
            "contracts/test_overlap.py::test_a_branch_is_cut_to_what_goes_on_from_the_text",
        ),
        "drafting for as long as the target reads: one tree of the round's budget is drafted ahead. A round in which nothing was sure enough lowers alpha too, or it would never fall again",
        also="the loop `overlap` (a setting)",
    ),
    System(
        "BiLD", "2302.07863", "draft",
        (
            "trees/test_confidence.py::test_the_window_ends_at_the_first_node_that_is_less_sure_than_the_fallback",
            "acceptance/test_lossy_rules.py::test_a_guess_is_rolled_back_where_its_negative_log_probability_exceeds_the_distance",
            "acceptance/test_lossy_rules.py::test_without_a_bound_nothing_is_rolled_back_and_the_target_speaks_only_where_the_draft_stops",
        ),
        "lossy, as published. The draft model's alignment with the target: any draft model is taken",
    ),
    System(
        "SmartSpec", "2406.14066", "draft",
        (
            "controllers/test_goodput.py::test_the_depth_is_the_closed_forms_best",
            "controllers/test_goodput.py::test_it_turns_itself_off_when_nothing_is_accepted",
            "controllers/test_goodput_together.py::test_all_texts_get_as_many_tokens_a_second_as_with_the_best_length_for_all",
        ),
        "one acceptance rate for all guesses: each is weighed by the probability that its drafter gives it",
    ),
    System(
        "SpecMemo", "2506.01986", "draft",
        (
            "controllers/test_memory.py::test_the_predicted_peak_of_a_pass_is_within_five_per_cent_of_the_bytes_of_its_tensors",
            "controllers/test_memory.py::test_a_limit_is_never_exceeded_and_trees_shrink_with_it",
            "controllers/test_memory.py::test_texts_that_share_passes_share_a_limit_which_is_never_exceeded",
            "controllers/test_memory.py::test_a_limited_cache_grows_in_steps_and_never_takes_more_than_one_that_doubles",
        ),
        "the pipeline over several devices. Nodes are limited, round by round, and the context when the pair is loaded",
    ),
    System(
        "SpecDec++", "2405.19715", "draft",
        (
            "drafters/test_stop_head.py::test_on_new_texts_it_tells_accepted_guesses_from_refused_ones",
            "drafters/test_stop_head.py::test_no_fixed_length_accepts_as_much_with_as_few_discarded_drafts",
        ),
        "its training beforehand on mixed texts: the head learns from the guesses that rounds judge. It reads the state "
        "before a token, so that draws keep their law and the last token of a branch is not read. One narrow residual "
        "block, added to the draft's own log odds, where the paper has three as wide as the model",
        also="`draft_model.stop`",
    ),
    System(
        "PEARL", "2408.11850", "draft",
        (
            "contracts/test_overlap.py::test_pearls_trace_is_the_published_one",
            "contracts/test_overlap.py::test_the_drafter_reads_while_the_target_does",
            "contracts/test_overlap.py::test_rules_by_probability_keep_their_law",
        ),
        "lengths that follow the speeds of both models: how much is drafted is the controller's choice",
        also="the loop `pearl` (a setting)",
    ),
    System(
        "Mirror-SD", "2510.13161", "draft",
        (
            "contracts/test_overlap.py::test_a_branch_is_reused_as_often_as_the_token_is_among_the_early_candidates",
            "contracts/test_overlap.py::test_the_drafter_reads_while_the_target_does",
        ),
        "a drafter with streams that were trained into it; branches are drafted one after the other, and the early head is the target's own, fitted while it writes",
        also="the loop `mirror` (a setting)",
    ),
    System(
        "Guidance's fast-forwarding", "Guidance (Lundberg et al., 2023)", "draft",
        ("decoding/test_constrained_replies.py::test_forced_spans_are_guessed_and_right",),
        "forced text that is emitted unread: here it is guessed, and the target may write it in other tokens",
    ),
    System(
        "Judge Decoding", "2501.19309", "draft",
        (
            "acceptance/test_judge.py::test_with_threshold_1_the_text_is_the_targets_and_below_it_is_not",
            "acceptance/test_judge.py::test_the_accepted_path_grows_as_the_threshold_falls",
            "acceptance/test_judge.py::test_a_planted_wrong_digit_is_refused_and_a_synonym_is_kept",
        ),
        "labels by people: a token is right if the last number of the reply survives it (after AutoJudge), in tasks of arithmetic or of a file. A small target is a weak judge",
        also="lossy, trained by `specchat train PAIR --drafter judge`",
    ),
    System(
        "AMBEDKAR", "2509.02133", "draft",
        (
            "acceptance/test_fair.py::test_of_all_likely_candidates_the_one_of_least_divergence_is_taken",
            "acceptance/test_fair.py::test_with_one_prompt_it_is_greedy_among_what_is_proposed",
            "acceptance/test_fair.py::test_exchanging_the_identity_changes_the_targets_choice_and_not_the_fair_one",
        ),
        "lossy, as published. A verifier with a constitution in its prompt: the target itself judges, token by token",
    ),
    System(
        "EQSPEC and EXSPEC (Batch Speculative Decoding Done Right)", "2510.22876", "draft",
        (
            "decoding/test_together.py::test_each_text_is_the_one_that_its_request_alone_would_get",
            "decoding/test_together.py::test_replies_join_and_leave_in_the_middle",
            "models/test_read_together.py::test_texts_of_equal_lengths_are_one_pass_and_others_join_where_padding_is_cheap",
            "models/test_read_together.py::test_a_group_whose_positions_are_not_put_right_says_something_else",
        ),
        "texts that wait for others of their length: every text gets a round in every turn. Groups of one length are for "
        "transformers' layers; elsewhere every text has positions and a cache of its own, so lengths need not agree",
        also="`specchat serve` reads the trees of several requests in one pass",
    ),
    System(
        "Prompt Lookup Decoding", "Prompt Lookup Decoding (Saxena, 2023)", "model",
        ("drafters/test_prompt_lookup.py::test_the_longest_run_comes_before_shorter_ones",),
        "the first match from the left: of equal runs the latest comes first. Every guess says how often its kind was right",
    ),
    System(
        "LLMA", "2304.04487", "model",
        (
            "drafters/test_prompt_lookup.py::test_a_quotation_takes_as_many_rounds_as_it_has_tokens_by_those_of_a_round",
            "drafters/test_prompt_lookup.py::test_where_nothing_was_said_before_a_round_is_plain_decoding",
        ),
        "documents beside the chat as references: it copies from prompt and reply, an expected text is given by itself",
    ),
    System(
        "SuffixDecoding", "2411.04975", "model",
        (
            "indexes/test_suffix_tree.py::test_counts_are_those_of_a_brute_force_search",
            "indexes/test_suffix_tree.py::test_forgetting_the_oldest_text_restores_the_counts",
            "drafters/test_suffix.py::test_a_repeated_request_takes_more_than_eight_tokens_a_round",
        ),
        "shares among all occurrences: they are among those that went on at all, and policies are told the chance that it "
        "goes on so again",
    ),
    System(
        "SSSD", "2411.05894", "model",
        (
            "indexes/test_datastore.py::test_matches_counts_and_followers_are_those_of_a_search_through_all_texts",
            "drafters/test_datastore_drafter.py::test_of_matches_of_one_length_the_texts_is_heard_first",
        ),
        "trust in matches that is fitted beforehand: it is learnt while it runs",
    ),
    System(
        "REST", "2311.08252", "model",
        ("indexes/test_datastore.py::test_matches_counts_and_followers_are_those_of_a_search_through_all_texts",),
        "its own choice of continuations: they are ranked as SSSD's",
        also="`datastore`",
    ),
    System(
        "Token Recycling", "2408.08696", "model",
        (
            "trees/test_template.py::test_the_default_is_the_published_tree_of_80_nodes",
            "drafters/test_token_recycling.py::test_after_one_pass_every_token_of_the_tree_has_the_targets_top_8",
            "drafters/test_token_recycling.py::test_the_same_prompt_is_accepted_more_the_second_time",
        ),
        "which nodes get children is computed for the published counts, not copied. Its table begins with zeros, here a token that was never seen has no successors",
    ),
    System(
        "NEST", "2405.19325", "model",
        (
            "acceptance/test_nest.py::test_the_coefficient_is_the_published_sigmoid_of_the_ratio_of_distances",
            "acceptance/test_nest.py::test_with_gamma_2_a_span_goes_on_with_the_likeliest_token_alone_and_with_0_with_any",
            "acceptance/test_nest.py::test_every_accepted_copy_equals_the_text_at_its_source",
            "acceptance/test_nest.py::test_every_accepted_copy_from_a_datastore_equals_its_file",
            "indexes/test_state_neighbours.py::test_where_all_passages_are_looked_into_the_nearest_places_are_those_of_brute_force",
            "drafters/test_datastore_drafter.py::test_the_place_with_a_like_state_is_heard_beside_matches_and_followed_in_its_file",
        ),
        "lossy, as published. Passages are chosen by their mean states, not by a retriever of words; the state that is "
        "looked up is the one before the last token, since the target has not computed a later one while it is drafted; copies "
        "found by equal tokens stand beside those",
        also="with `prompt_lookup`, or `datastore` for files, with `specchat datastore build --states` by hidden states",
    ),
    System(
        "RASD", "2503.03434", "model",
        (
            "drafters/test_several_and_fuse.py::test_fuses_paths_are_the_drafts_and_what_pruning_leaves_of_the_lookups",
            "drafters/test_several_and_fuse.py::test_on_a_text_that_repeats_itself_fuse_accepts_more_than_either_member_alone",
            "drafters/test_several_and_fuse.py::test_a_copy_that_begins_with_what_the_draft_finds_unlikely_has_no_place",
        ),
        "its retrieval tree made beforehand: both trees grow level by level and are pruned on the way",
    ),
    System(
        "Jacobi decoding", "2305.10427", "model",
        (
            "drafters/test_jacobi.py::test_the_next_line_is_what_the_target_says_after_this_one",
            "drafters/test_jacobi.py::test_where_places_do_not_depend_on_each_other_one_pass_is_enough_for_all",
        ),
        "a block that stands until it is done: the line moves along with the text, and several candidates for one place "
        "become siblings",
    ),
    System(
        "Lookahead Decoding", "2402.02057", "model",
        (
            "drafters/test_lookahead.py::test_what_the_window_goes_on_from_is_what_the_target_says_after_its_tokens",
            "drafters/test_lookahead.py::test_it_is_right_about_a_text_in_which_nothing_repeats",
        ),
        "several devices. The window is full from the first round on, and an n-gram is proposed after its first token "
        "anywhere in the tree",
    ),
    System(
        "SWIFT", "2410.06916", "model",
        (
            "drafters/test_layer_skip.py::test_a_trial_scores_what_drafting_token_by_token_would_get_right",
            "drafters/test_layer_skip.py::test_the_more_sub_layers_are_kept_the_more_tokens_match",
            "drafters/test_layer_search.py::test_the_best_score_never_falls_and_belongs_to_the_best_set",
        ),
        "a first phase that searches after every round and a second that never does: a share of the time is spent on it. Its Gaussian process: a linear model guides the search",
    ),
    System(
        "DEL", "2504.05598", "model",
        (
            "drafters/test_early_exit.py::test_shadow_tokens_are_right_as_often_as_really_drafting_at_that_exit",
            "drafters/test_early_exit.py::test_the_choice_has_the_most_tokens_per_layer_of_all",
            "drafters/test_early_exit.py::test_another_kind_of_text_changes_exit_and_length",
        ),
        "every layer as an exit: layers at equal distances are compared",
    ),
    System(
        "LayerSkip", "2404.16710", "model",
        ("drafters/test_early_exit.py::test_it_computes_the_first_layers_alone_and_never_reads_the_text_again",),
        "models that were trained to exit early",
    ),
    System(
        "LLM-Pruner", "2305.11627", "model",
        (
            "models/test_pruned_weights.py::test_a_pruned_network_is_the_whole_one_with_the_rest_silent",
            "models/test_pruned_weights.py::test_without_dimensions_it_is_the_whole_network_in_which_they_are_zero",
            "models/test_pruned_weights.py::test_removing_what_matters_least_costs_less_than_removing_by_size_or_by_chance",
            "models/test_pruned_weights.py::test_removing_the_dimensions_that_matter_least_costs_less_than_removing_by_size_or_by_chance",
            "models/test_pruned_recovery.py::test_acceptance_rises_by_recovery_on_texts_that_it_did_not_learn_from",
        ),
        "unequal layers: every layer loses as many heads and channels; of these the weights that read them out are "
        "counted, of a dimension of the hidden state all of its group. Recovery learns "
        "from the chat's own texts while the engine is idle, adds nothing to queries and keys, and keeps what does best "
        "on texts held out",
        also="its recovery is `pruned.recover`",
    ),
    System(
        "TriForce", "2404.11912", "model",
        (
            "drafters/test_sparse_context.py::test_with_a_budget_for_the_whole_text_every_guess_is_right",
            "drafters/test_cache_parts.py::test_every_head_of_keys_holds_the_chunks_that_brute_force_finds",
            "decoding/test_laws_of_long_texts.py::test_texts_are_distributed_as_the_targets_though_the_drafter_reads_a_part",
            "drafters/test_draft_window.py::test_it_drafts_as_a_draft_model_does_that_is_given_these_tokens_alone",
        ),
        "offloading. Under the sparse target `token_recycling` guesses by default; the pair's draft model with a cache of "
        "the first and last tokens is `sparse_context.below=draft_model(window=512)`, which reads those tokens anew when "
        "the window moves by a quarter",
    ),
    System(
        "RAPID", "2502.20330", "model",
        (
            "drafters/test_retrieved_context.py::test_a_planted_fact_is_retrieved_and_its_words_are_drafted_right",
            "acceptance/test_lossy_rules.py::test_transfer_moves_the_target_towards_the_draft_and_no_unlikely_draft_token",
            "acceptance/test_lossy_rules.py::test_transfer_with_eta_0_writes_the_targets_law_and_with_more_it_does_not",
        ),
        "lossy with `transfer`, as published, which moves the laws that are sampled from and not raw logits. The embedding model: chunks are found by the words that they share with "
        "the end of the text",
    ),
    System(
        "OmniDraft", "2507.02659", "model",
        (
            "indexes/test_token_translation.py::test_what_is_translated_spells_the_same",
            "drafters/test_cross_vocabulary.py::test_probabilities_of_the_guesses_at_a_node_never_exceed_1_together",
            "drafters/test_cross_vocabulary.py::test_ngrams_that_were_met_raise_what_is_accepted",
            "training/test_adapted_draft.py::test_with_other_tokens_it_learns_through_the_translation",
            "training/test_adapted_draft.py::test_what_is_learnt_in_draft_tokens_are_laws_of_shared_tokens_and_the_tokens_of_ngrams",
            "drafters/test_cross_vocabulary.py::test_a_head_ends_branches_that_the_target_would_refuse_and_the_text_stays",
        ),
        "training of the draft itself: an adapter of its last states learns (`/learn`). Its head that ends branches is "
        "SpecDec++'s here (`cross_vocabulary.stop`). Rules that use probabilities: guesses are points",
    ),
    System(
        "Medusa", "2401.10774", "model",
        (
            "models/test_learned_networks.py::test_a_step_sees_the_tokens_up_to_its_own_and_none_behind",
            "acceptance/test_lossy_rules.py::test_by_default_epsilon_caps_the_threshold_as_medusa_published_it",
            "acceptance/test_lossy_rules.py::test_of_the_paths_that_stand_the_longest_is_taken",
        ),
        "the training of target and heads together (Medusa-2). With `typical` it is lossy, as published; the first guess "
        "of a round, which Medusa always takes, is tested like all others",
    ),
    System(
        "DFlash 2's selector", "DFlash 2's selector", "model",
        (
            "models/test_learned_drafting.py::test_a_chain_says_what_unrolling_says_at_its_place",
            "models/test_amphista.py::test_one_call_serves_all_depths_of_a_tree",
            "models/test_native_linear.py::test_c_adds_the_score_of_a_pair_to_each_candidates_logit",
        ),
        "its block of diffusion: parallel heads make the candidates. Scores know the state and the tokens before the pair too, and a tree is "
        "grown over them, where DFlash 2 takes one chain",
    ),
    System(
        "Hydra", "2402.05109", "model",
        ("models/test_learned_networks.py::test_a_step_sees_the_tokens_up_to_its_own_and_none_behind",),
        "its own decoder layer over the text (Hydra++); a head for each depth: one network serves all",
    ),
    System(
        "Amphista", "2406.13170", "model",
        (
            "models/test_amphista.py::test_what_a_head_says_depends_on_the_order_of_the_heads",
            "models/test_amphista.py::test_one_call_serves_all_depths_of_a_tree",
        ),
        "checked sizes: how many layers and blocks it has is from memory",
    ),
    System(
        "Clover", "2405.00263", "model",
        (
            "models/test_clover.py::test_without_the_guessed_tokens_deeper_heads_change_and_the_first_does_not",
            "models/test_clover.py::test_a_tokens_value_is_added_as_far_as_its_key_lies_along_the_query",
        ),
        "a head of its own for each depth: one serves all from the second on",
    ),
    System(
        "EAGLE-3", "2503.01840", "model",
        ("models/test_published_drafters.py::test_a_checkpoint_guesses_what_its_own_formulas_say",),
        "in what is trained here, its training without a loss on states; 3.1 with its norms of taps and of what is fed "
        "back",
    ),
    System(
        "ParallelSpec", "2410.05589", "model",
        (
            "models/test_parallel_spec.py::test_packed_groups_say_what_each_says_by_itself",
            "models/test_parallel_spec.py::test_a_tree_of_several_depths_takes_one_pass",
        ),
        "one embedding for all masks: every mask has its own",
    ),
    System(
        "Falcon", "2412.12639", "model",
        (
            "models/test_falcon.py::test_every_entry_of_a_block_sees_all_of_it_and_no_later_block",
            "models/test_falcon.py::test_a_tree_takes_a_pass_for_every_two_depths",
        ),
        "the noise on states while it learns, blocks that end at each k-th token (here at every one), an LSTM as wide "
        "as the states, and its own tree: any policy's is grown",
    ),
    System(
        "FSPAD", "2408.15562", "model",
        (
            "models/test_fspad.py::test_the_distance_of_states_pulls_at_nothing_that_logits_alone_depend_on",
            "models/test_fspad.py::test_logits_of_the_first_step_pull_at_nothing_that_is_aligned_and_later_ones_do",
            "models/test_fspad.py::test_the_layer_reads_the_gated_state_in_the_place_of_both_side_by_side",
        ),
        "on `eagle`'s layer, which is EAGLE-3's and reads several layers of the target, not on EAGLE-2's; the blocks are "
        "those that its abstract describes, at twice the width of a state, and the parts that are aligned and are not are halves "
        "of the layer's last product",
        also="`eagle`, trained by `specchat train --form fs` or `fspad`",
    ),
    System(
        "PPD", "2405.18628", "model",
        (
            "drafters/test_mask_rows.py::test_there_is_no_pass_but_the_targets_and_every_row_is_counted",
            "drafters/test_mask_places.py::test_where_trees_follow_one_another_the_share_of_each_state_is_that_of_its_markov_chain",
            "drafters/test_mask_places.py::test_what_states_are_worth_is_what_rounds_bring_in_the_long_run",
            "drafters/test_mask_places.py::test_masks_that_move_with_the_tree_bring_more_than_as_many_in_fixed_or_random_places",
            "drafters/test_mask_places.py::test_there_are_as_many_rows_as_bring_most_tokens_a_second",
            "drafters/test_mask_rows.py::test_an_ensemble_says_the_mean_of_its_members_each_of_which_sees_its_own_masks_alone",
        ),
        "one tree for each state that is computed beforehand for the device: places are chosen for every tree, by what states "
        "proved to be worth in the chat's own rounds, and with `rows=0` as many as pay by the times of its own passes",
        also="ensembles are `specchat train --ensemble`",
    ),
    System(
        "MTP (Your LLM Knows the Future)", "2507.11851", "model",
        (
            "drafters/test_mask_rows.py::test_the_rows_of_the_tree_keep_their_bits_whether_the_adapter_acts_or_not",
            "drafters/test_mask_rows.py::test_masks_behind_every_node_accept_at_least_as_much_as_those_behind_the_last",
            "drafters/test_mask_rows.py::test_a_sampler_orders_the_likeliest_tokens_of_a_mask_by_the_token_before",
            "training/test_mtp_sampler.py::test_a_sampler_that_was_trained_guesses_more_than_the_masks_alone",
        ),
        "adapters of the MLPs. The sampler orders a mask's 32 likeliest tokens anew and leaves the others as they are; its "
        "MLP is half as wide as the states. Masks learn the divergence from the target's law, not the text's own tokens",
    ),
    System(
        "Multi-token prediction (DeepSeek-V3)", "2412.19437", "model",
        ("models/test_hybrids.py::test_the_head_of_the_files_says_what_transformers_own_layer_says",),
        "its training: heads are read that come in the files of Qwen3-Next and Qwen3.5. A module for each depth: one "
        "serves all",
    ),
    System(
        "SPACE", "2402.11809", "model",
        (
            "drafters/test_mask_rows.py::test_there_is_no_pass_but_the_targets_and_every_row_is_counted",
            "drafters/test_mask_rows.py::test_the_text_is_that_of_plain_decoding",
        ),
        "the training of the whole model: only masks are trained, with an adapter that acts on them alone",
    ),
    System(
        "Speculative Streaming", "2402.11131", "model",
        (
            "contracts/test_stream_contract.py::test_a_stream_says_what_the_last_layers_make_of_its_nodes_state",
            "contracts/test_stream_contract.py::test_a_stream_sees_the_streams_before_it_and_none_other",
            "contracts/test_stream_contract.py::test_a_stream_costs_the_layers_it_runs_through_and_a_mask_costs_all",
            "contracts/test_stream_contract.py::test_no_stream_enters_below_a_dropped_node",
            "training/test_mask_learning.py::test_trained_masks_accept_more_than_untrained_ones",
        ),
        "the fine-tuned target: it stays as it is, and only streams are trained, all with one weight. A stream stands at the "
        "position of the token before the one it guesses. The early head that drops nodes is fitted while the target writes "
        "(`prune_layer`, off by default), and keeps likely tokens, not transitions above a threshold",
    ),
    System(
        "SpecDiff", "2408.05636", "model",
        (
            "drafters/test_specdiff.py::test_a_round_takes_as_many_passes_as_steps_however_long_the_window_is",
            "drafters/test_specdiff.py::test_texts_are_distributed_as_the_targets_from_left_to_right",
            "drafters/test_specdiff.py::test_more_steps_let_more_guesses_stand",
            "models/test_denoiser.py::test_a_masked_place_sees_tokens_on_both_sides_of_it_in_its_window",
        ),
        "the sampler's own order with q, whose texts are not the target's: places are filled from left to right, or by "
        "confidence as points; the text is attended to causally, and the window alone is denoised",
    ),
    System(
        "ASSD", "2504.20456", "model",
        (
            "decoding/test_infill.py::test_three_places_of_three_tokens_have_exactly_the_joint_law_of_filling_them_in_order",
            "decoding/test_infill.py::test_with_a_wrong_q_the_law_is_another",
            "decoding/test_infill.py::test_there_are_never_more_passes_than_tokens",
            "decoding/test_infill.py::test_the_first_draw_of_the_networks_own_is_always_accepted_and_one_by_pairs_is_not",
            "decoding/test_infill.py::test_a_query_sees_neither_its_own_token_nor_later_ones_and_all_earlier_ones",
        ),
        "published weights: tried with random networks and a small one that was trained here. Blanks are filled from left to "
        "right alone. Where all draws stand the judging pass gives one token more",
        also="`specchat fill`",
    ),
    System(
        "STree", "2505.14969", "model",
        (
            "models/test_hybrids.py::test_a_scan_of_a_tree_is_the_recurrence_along_each_path",
            "models/test_hybrids.py::test_the_states_after_an_accepted_path_are_those_of_plain_decoding",
        ),
        "its kernels, which are for a GPU: there the scan is PyTorch's, on a processor it is C's. Gated delta nets and short "
        "convolutions are scanned too",
        also="models with recurrent layers, under every drafter, policy and rule",
    ),
    System(
        "FR-Spec", "2502.14856", "model",
        ("drafters/test_trained_network.py::test_tokens_of_the_text_can_be_guessed_and_other_rare_ones_not",),
        also="the trimmed heads of all trained networks",
    ),
    System(
        "VocabTrim", "2506.22694", "model",
        (
            "drafters/test_trim.py::test_only_frequent_tokens_and_those_of_the_text_are_guessed_in_the_order_of_the_whole_head",
            "drafters/test_trim.py::test_draws_are_distributed_as_their_q_and_q_has_only_tokens_with_a_row",
            "drafters/test_trim.py::test_operations_and_bytes_of_the_head_fall_to_the_share_that_is_left",
        ),
        "counts of a calibration text: those of the user's own replies, and before them the tokenizer's order",
        also="`draft_model.trim`",
    ),
    System(
        "DistillSpec", "2310.08461", "model",
        (
            "training/test_distillation.py::test_a_loss_has_the_gradient_of_finite_differences",
            "training/test_distillation.py::test_a_training_lowers_the_distance_on_texts_that_were_never_learnt_from",
            "training/test_draft_texts.py::test_learning_from_its_own_replies_is_worth_more_than_the_same_few_texts_again",
            "acceptance/test_lossy_rules.py::test_lenience_makes_no_token_likelier_than_its_probability_over_lenience",
        ),
        "the draft model's own replies are written anew once an epoch, not before every step. Of the target's law 32 "
        "tokens are known, all others count as one. Its lenience is lossy",
        also="`draft_model`, trained by `specchat train --loss … --texts draft` or `mixed`",
    ),
    System(
        "Direct Alignment (TVD++)", "2403.00858", "model",
        (
            "training/test_distillation.py::test_rewarding_what_the_target_holds_likelier_has_the_gradient_of_the_total_variation",
            "training/test_distillation.py::test_a_normalised_advantage_has_less_variance_than_the_reward_alone",
            "training/test_plain_text.py::test_a_draft_model_that_learnt_plain_text_begins_ahead_and_goes_on_after_an_interrupt",
        ),
        "pretraining on a file of the user's (`--plain`), some megabytes, not hundreds of billions of tokens; embedding "
        "and head are the target's. Of the target's law 32 tokens are known, all others count as one",
        also="`draft_model`, trained with `--plain FILE`, then with `--loss tvd_plus_plus` after another loss (`--from`)",
    ),
    System(
        "AdaSPEC", "2510.19779", "model",
        (
            "training/test_distillation.py::test_the_places_with_most_to_learn_are_the_top_two_fifths_by_difference",
            "training/test_distillation.py::test_only_the_selected_places_are_learnt_from",
        ),
        also="`draft_model`, trained with `--reference`",
    ),
    System(
        "GTO", "2509.22134", "model",
        (
            "training/test_unrolling.py::test_the_length_of_a_tree_is_what_brute_force_expects_over_all_texts",
            "training/test_unrolling.py::test_the_loss_of_trees_has_the_gradient_of_their_expected_length",
            "training/test_learning.py::test_drawn_trees_of_texts_that_are_learnt_grow_longer_by_the_loss_of_trees",
        ),
        "trees have 3, 2 and 1 children and are drawn, where the paper's are those of a round: all draws along the text "
        "are reinforced, each with its exact score, not the longest accepted sequence alone. Texts that the target wrote "
        "stand for its probabilities below the first guess; a group is a text; the clipped ratio is to the reference",
        also="networks that guess in chains, such as `hydra`, trained with `--loss tree --from NAME`",
    ),
    System(
        "Online Speculative Decoding", "2310.07177", "model",
        (
            "training/test_online_learning.py::test_acceptance_on_a_narrow_stream_rises_over_20_updates_and_survives_a_change_of_subject",
            "training/test_online_learning.py::test_the_text_is_the_same_with_learning_on_and_off",
            "training/test_adapted_draft.py::test_acceptance_on_a_narrow_stream_rises_over_20_updates_and_survives_a_change_of_subject",
            "training/test_adapted_draft.py::test_prompts_go_to_the_adapter_of_their_topic_which_other_topics_leave_alone",
            "controllers/test_goodput.py::test_the_depths_that_online_speculative_decoding_publishes_are_found",
        ),
        "a draft model's adapter learns, not all of its weights, and topics (`draft_model.topics`) are told apart by the "
        "tokens of prompts; one trained network serves all topics",
        also="`/learn`: the trained drafter or the draft model in use learns from replies",
    ),
    System(
        "S2D", "2407.01955", "model",
        (
            "training/test_sorted_training.py::test_every_depth_is_better_than_the_same_depth_of_one_that_learnt_at_full_depth_alone",
            "training/test_sorted_training.py::test_one_draft_model_drafts_for_the_target_that_it_learnt_from_and_for_another",
            "models/test_early_exits.py::test_exits_move_down_and_fewer_layers_are_computed_as_the_probability_asked_for_falls",
            "models/test_early_exits.py::test_each_token_gets_the_law_of_the_layers_up_to_where_it_leaves_whoever_left_before",
            "models/test_early_exits.py::test_draws_are_distributed_as_their_q_which_is_the_law_of_the_depth_that_the_node_left_at",
        ),
        "a draft model of its own with a few layers is trained, not a pretrained one fine-tuned. The probabilities at which "
        "tokens leave are set by hand, not chosen for each target. What left early is read by the deeper layers once a "
        "later token goes there",
        also="`draft_model.leave_at`, with a draft model of `specchat train --depths`",
    ),
)  # fmt: skip
"""Every published system that specchat knows of, absent ones included."""
