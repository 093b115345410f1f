"""Edits that break trained networks and their learning."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

ONLINE = "tests/training/test_online_learning.py"
KEPT_REPLIES = "tests/training/test_kept_replies.py"
NETWORKS = "tests/models/test_learned_networks.py"
LEARNING = "tests/training/test_learning.py"
START = "tests/training/test_training_start.py"
WRITING = "tests/training/test_text_writing.py"
DISTILLING = ("tests/training/test_distillation.py",)
DRAFT_TEXTS = ("tests/training/test_draft_texts.py",)
FSPAD = "tests/models/test_fspad.py"
ADAPTED = "tests/training/test_adapted_draft.py"
DRAFT_MODELS = ("tests/models/test_trained_draft_model.py",)
UNROLLING = ("tests/training/test_unrolling.py",)

EDITS = (
    Mutation(
        "drafter hydra",
        "starts from the state of the token before",
        "HydraDrafting.begin",
        "self._last, self._ahead = len(history) - 2, ahead",
        "self._last, self._ahead = len(history) - 3, ahead",
        ("tests/models/test_learned_drafting.py", "-k", "hydra"),
    ),
    Mutation(
        "drafter hydra",
        "leaves the norm's factors out in C",
        "models/cpu_kernels/hydra.h",
        "round_states(p, h->mlp_norm);",
        "round_states(p, NULL);",
        ("tests/models/test_native_linear.py", "-k", "hydra"),
    ),
    Mutation(
        "drafter hydra",
        "leaves the norm's factors out",
        "Hydra.step",
        "rms_normalize(states, self.sizes.epsilon) * self.mlp_norm",
        "rms_normalize(states, self.sizes.epsilon)",
        (NETWORKS, "-k", "counts and hydra"),
    ),
    Mutation(
        "drafter eagle",
        "draft on the processor beside a card",
        "HeadOfTarget._like",
        "torch.empty(0, dtype=dtype, device=device)",
        "torch.empty(0)",
        ("tests/contracts/test_pretended_device.py", "-k", "are_where_the_target_is"),
    ),
    Mutation(
        "drafter eagle",
        "feeds the layer's output back where its norm is asked for",
        "Eagle.fed_back",
        "self.aligned(states) if self._norm_fed_back else states[..., : self.sizes.hidden]",
        "states[..., : self.sizes.hidden]",
        ("tests/models/test_published_drafters.py", "-k", "formulas"),
    ),
    Mutation(
        "drafter eagle",
        "aligns the part that is for the head",
        "Eagle.aligned",
        "self._parts == 1",
        "self._parts",
        (FSPAD, "-k", "pulls_at_nothing"),
    ),
    Mutation(
        "drafter eagle",
        "goes on from the part that is for the head",
        "Eagle.fed_back",
        "states[..., : self.sizes.hidden]",
        "states[..., -self.sizes.hidden :]",
        (FSPAD, "-k", "pull_at_nothing"),
    ),
    Mutation(
        "drafter eagle",
        "lets states through that no token gates",
        "Eagle.before_attention",
        "self.sample_up(normed) * F.silu(self.sample_gate(tokens))",
        "self.sample_up(normed) + F.silu(self.sample_gate(tokens))",
        (FSPAD, "-k", "gated"),
    ),
    Mutation(
        "drafter eagle",
        "norms every tap where all together are to be",
        "Eagle.fused",
        "rms_normalize(features, self.sizes.epsilon) if self._unit_taps == 1 else features",
        "rms_normalize(features, self.sizes.epsilon) if self._unit_taps else features",
        ("tests/models/test_published_drafters.py", "-k", "formulas"),
    ),
    Mutation(
        "drafter draft_model",
        "learns at its last depth alone",
        "Distillation.__call__",
        "torch.stack([self.loss(logits, labels, generator) for logits in by_depth]).mean(dim=0)",
        "torch.stack([self.loss(logits, labels, generator) for logits in by_depth])[-1]",
        ("tests/training/test_sorted_training.py",),
    ),
    Mutation(
        "drafter clover",
        "leaves the factors of the tokens' norm out",
        "TokenNetwork.of_tokens",
        "normed * self.token_norm if product is None else product(normed)",
        "normed if product is None else product(normed)",
        (NETWORKS, "-k", "counts and clover"),
    ),
    Mutation(
        "drafter amphista",
        "leaves the factors of attention's norm out",
        "DecoderLayer._before",
        "rms_normalize(states, sizes.epsilon) * self.attention_norm",
        "rms_normalize(states, sizes.epsilon)",
        (NETWORKS, "-k", "counts and amphista"),
    ),
    Mutation(
        "drafter falcon",
        "leaves the factors of the states' norm out",
        "Falcon.entries",
        "rms_normalize(inputs, self.sizes.epsilon) * self.state_norm",
        "rms_normalize(inputs, self.sizes.epsilon)",
        (NETWORKS, "-k", "counts and falcon"),
    ),
    Mutation(
        "drafter specdiff",
        "lets a place of a window see those before it alone",
        "models.draft_heads.specdiff:SpecDiff.windows",
        "torch.ones(masks, masks, dtype=torch.bool, device=tokens.device)",
        "torch.ones(masks, masks, dtype=torch.bool, device=tokens.device).tril()",
        ("tests/models/test_denoiser.py", "-k", "both_sides"),
    ),
    Mutation(
        "drafter specdiff",
        "draws from a window without the blocks before",
        "Denoising.read",
        "[*tree.path_tokens(node), *masks]",
        "[None] * self.depth",
        ("tests/drafters/test_specdiff.py", "-k", "distributed"),
    ),
    Mutation(
        "drafter specdiff",
        "promises draws whatever the order",
        "SpecDiffOptions.draws",
        "self.order == ORDERS[0] or self.steps == 1",
        "self.order in ORDERS",
        ("tests/drafters/test_specdiff.py", "-k", "claim"),
    ),
    Mutation(
        "drafter specdiff",
        "learns as if windows of all times counted alike",
        "DenoisingLoss.__call__",
        "lost / time[rows, roots, 0]",
        "lost",
        ("tests/training/test_denoising.py", "-k", "inverse"),
    ),
    Mutation(
        "drafter medusa",
        "starts from the state of the token before",
        "LastEntryAlone.root",
        "given.text.rows(entries - 1, entries)",
        "given.text.rows(entries - 2, entries - 1)",
        ("tests/models/test_learned_drafting.py", "-k", "medusa"),
    ),
    Mutation(
        "drafter selector",
        "scores a guess as if it stood before itself",
        "SelectorDrafting._behind",
        "self._pairs.of(tokens)[:, :rank]",
        "self._pairs.of(tokens)[:, rank:]",
        ("tests/models/test_learned_drafting.py", "-k", "selector"),
    ),
    Mutation(
        "drafter amphista",
        "lets heads know of those before them alone",
        "DecoderLayer.among",
        "_mixed(*self._before(states), causal=False)",
        "_mixed(*self._before(states), causal=True)",
        ("tests/models/test_amphista.py", "-k", "behind_it"),
    ),
    Mutation(
        "drafter amphista",
        "reads what is new of the text as if it stood at its beginning",
        "WholeText.begin",
        "partial(self._over, first)",
        "partial(self._over, 0)",
        ("tests/models/test_learned_drafting.py", "-k", "amphista"),
    ),
    Mutation(
        "drafter clover",
        "goes on from the root's state below every node",
        "CloverDrafting.read",
        "rows_of(self._running, parents)",
        "self._running[[0] * len(parents)]",
        ("tests/models/test_learned_drafting.py", "-k", "clover"),
    ),
    Mutation(
        "drafter clover",
        "lets the length of a key count",
        "TokenAttention.forward",
        "F.cosine_similarity(queries, keys, dim=-1).unsqueeze(-1)",
        "(queries * keys).sum(-1, keepdim=True)",
        ("tests/models/test_clover.py",),
    ),
    Mutation(
        "drafter eagle",
        "takes every node for one token later",
        "EagleDrafting.read",
        "entries - 1 + tree.depths[nodes[0]]",
        "entries + tree.depths[nodes[0]]",
        ("tests/models/test_learned_drafting.py", "-k", "eagle"),
    ),
    Mutation(
        "drafter parallel_spec",
        "lets every row of a group see the mask behind it",
        "ParallelSpec.states",
        "torch.ones(steps, masks, dtype=torch.bool, device=fused.device).tril(-1)",
        "torch.ones(steps, masks, dtype=torch.bool, device=fused.device).tril(0)",
        ("tests/models/test_parallel_spec.py",),
    ),
    Mutation(
        "drafter falcon",
        "takes entries of guessed blocks for one token later",
        "FalconDrafting._read_blocks",
        "(text + depth - k + torch.arange(k)).repeat",
        "(text + depth - k + 1 + torch.arange(k)).repeat",
        ("tests/models/test_learned_drafting.py", "-k", "falcon"),
    ),
    Mutation(
        "drafter falcon",
        "shows the state that is to be guessed without its token",
        "Falcon.glanced",
        "torch.where(shown[..., None], every[:, further], entries)",
        "torch.where(shown[..., None], self.entries(fused[:, further], taken[:, at + 1]), entries)",
        ("tests/models/test_glancing.py",),
    ),
    Mutation(
        "drafter prompt_tokens",
        "reads what was said behind the root, whatever was accepted",
        "MaskRowsDrafter._read",
        "attached.extra_rows.get(path[-1] if path else ROOT)",
        "attached.extra_rows.get(ROOT)",
        ("tests/drafters/test_mask_rows.py", "-k", "after_the_next_one"),
    ),
    Mutation(
        "drafter mtp",
        "leaves its adapter out",
        "MaskRowsDrafter.extra_rows",
        "ExtraRow(node, embedding, after, self._masks.adapter)",
        "ExtraRow(node, embedding, after, None)",
        ("tests/drafters/test_mask_rows.py", "-k", "keep_their_bits"),
    ),
    Mutation(
        "drafter mtp",
        "orders guesses by the token after the root, whichever stands before them",
        "MaskRowsDrafter._sampled",
        "[tree.tokens[node] for node in nodes]",
        "[tree.tokens[ROOT] for node in nodes]",
        ("tests/drafters/test_mask_rows.py", "-k", "sampler_orders"),
    ),
    Mutation(
        "learning",
        "lets masks learn the states of the tokens before their places",
        "MaskLearning.loss",
        "batch.features[rows, before, -1:]",
        "batch.features[rows, before - 1, -1:]",
        ("tests/training/test_mtp_sampler.py", "-k", "consistency"),
    ),
    Mutation(
        "drafter prompt_tokens",
        "counts a mask for the guess it makes alone, not for what comes after",
        "MaskStates.gains",
        "np.linalg.solve(system, reward)",
        "reward",
        ("tests/drafters/test_mask_places.py", "-k", "in_the_long_run"),
    ),
    Mutation(
        "drafter prompt_tokens",
        "takes a row to cost what a round emits in a second of passes of one row",
        "RowPrice.tokens",
        "self._times.slope * self._tokens / self._seconds if known else None",
        "self._tokens / self._seconds if known else None",
        ("tests/drafters/test_mask_places.py", "-k", "tokens_a_second"),
    ),
    Mutation(
        "drafter prompt_tokens",
        "lets the members of an ensemble stand one behind the other",
        "MaskRowsDrafter.extra_rows",
        "len(extra_rows) - 1 if mask else None",
        "len(extra_rows) - 1 if mask or member else None",
        ("tests/drafters/test_mask_rows.py", "-k", "ensemble"),
    ),
    Mutation(
        "learning",
        "puts masks one place too early",
        "FrozenTarget.states",
        "places[..., None] + 1 + torch.arange(behind, device=places.device)",
        "places[..., None] + torch.arange(behind, device=places.device)",
        ("tests/models/test_frozen_target.py",),
    ),
    Mutation(
        "learning",
        "takes the states of the next token",
        "ReplyRecorder.taken",
        "text.kept(first - 1, first - 1 + count)",
        "text.kept(first, first + count)",
        (KEPT_REPLIES, "-k", "every_round"),
    ),
    Mutation(
        "learning",
        "learns from a reply before it is judged",
        "OnlineLearner.training_steps",
        """
while self._new:
    yield from self._judge(self.buffer[len(self.buffer) - self._new])
    self._new = max(0, self._new - 1)
""",
        """
yield from self._update()
while self._new:
    yield from self._judge(self.buffer[len(self.buffer) - self._new])
    self._new = max(0, self._new - 1)
""",
        (ONLINE, "-k", "before_it_is_learnt"),
    ),
    Mutation(
        "learning",
        "keeps weights that do worse",
        "OnlineLearner.training_steps",
        """
if self._judgement.worse:
    self.go_back()
""",
        """
if self._judgement.worse and not self._updates:
    self.go_back()
""",
        (ONLINE, "-k", "worse_goes_back"),
    ),
    Mutation(
        "learning",
        "records replies while it is off",
        "LearningNetwork.observe",
        """
if self._wanted:
    self._recorder.observe(round)
""",
        """
if True:
    self._recorder.observe(round)
""",
        (KEPT_REPLIES, "-k", "kept_while_learning_is_off"),
    ),
    Mutation(
        "learning",
        "learns within a reply",
        "LearningNetwork.observe",
        "self._recorder.observe(round)",
        """
self._recorder.observe(round)
self.idle(0.0)
""",
        (ONLINE, "-k", "newest_weights"),
    ),
    Mutation(
        "learning",
        "keeps more than fits",
        "ReplyBuffer.add",
        """
while self.size_bytes > self.most_bytes:
    self.size_bytes -= self._replies.popleft().size_bytes
""",
        """
if self.size_bytes > 2 * self.most_bytes:
    self.size_bytes -= self._replies.popleft().size_bytes
""",
        (KEPT_REPLIES, "-k", "bounded"),
    ),
    Mutation(
        "training",
        "learns deeper guesses of chains that were wrong",
        "chain_loss",
        "going = going & batch.drafted(step, anchors)",
        "going = batch.drafted(step, anchors)",
        UNROLLING,
    ),
    Mutation(
        "training",
        "takes the law of the place before as the label",
        "chain_loss",
        "places + step",
        "places + step - 1",
        UNROLLING,
    ),
    Mutation(
        "training",
        "learns the target's state of the place before",
        "chain_loss",
        "batch.features[rows, at, -1]",
        "batch.features[rows, at - 1, -1]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "counts a guess as right that is one place early",
        "guessed_chains",
        "batch.tokens[rows, places + step + 1]",
        "batch.tokens[rows, places + step]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "learns the likeliest token instead of the target's law",
        "labels_of",
        "p = torch.where(places >= 0, (sharpness * log_p).exp(), 0.0)",
        "p = torch.where(places >= 0, (log_p >= log_p.max(dim=1, keepdim=True).values).to(rest.dtype), 0.0)",
        (LEARNING, "-k", "shares_out or loss_is_zero"),
    ),
    Mutation(
        "training",
        "gives each token of a trimmed head another one's column",
        "columns_of",
        "torch.arange(len(tokens), device=tokens.device)",
        "torch.arange(len(tokens), device=tokens.device).flip(0)",
        UNROLLING,
    ),
    Mutation(
        "training",
        "lets a draft model that writes forget what it wrote before",
        "written",
        "torch.cat([seen, torch.ones_like(seen[..., :1])], dim=3)",
        "torch.cat([seen, seen[..., :1] & (step == max(lengths))], dim=3)",
        (*DRAFT_TEXTS, "-k", "drawn"),
    ),
    Mutation(
        "training",
        "takes the target's texts every time",
        "DraftTexts.__call__",
        "epoch < self._first",
        "epoch >= 0",
        (*DRAFT_TEXTS, "-k", "worth_more"),
    ),
    Mutation(
        "training",
        "drafts with a draft model's states as they are, whatever was learnt",
        "AdaptedHead.after",
        "self._adapter is not None",
        "self._adapter is self",
        (ADAPTED, "-k", "narrow"),
    ),
    Mutation(
        "training",
        "sends every prompt to the first topic",
        "AdaptedDraft._route",
        "known.index(max(known))",
        "0",
        (ADAPTED, "-k", "topic"),
    ),
    Mutation(
        "training",
        "learns the tokens of n-grams from laws of nothing",
        "CrossVocabulary._note",
        "len(piece) > 1",
        "len(piece) > 9",
        (ADAPTED, "-k", "ngrams"),
    ),
    Mutation(
        "training",
        "drops the texts that the first draft model misses",
        "texts_missed",
        "share[texts] > 1.0 - REPRODUCED",
        "share[texts] <= 1.0 - REPRODUCED",
        (*DISTILLING, "-k", "left_out"),
    ),
    Mutation(
        "training",
        "learns plain text by the token that is there, not the next",
        "shard_of",
        "every.roll(-1)[:, None]",
        "every[:, None]",
        ("tests/training/test_plain_text.py", "-k", "law"),
    ),
    Mutation(
        "drafter cross_vocabulary",
        "goes on where its head says that a branch ends",
        "CrossVocabulary.propose",
        "len(going) < len(frontier)",
        "len(going) > len(frontier)",
        ("tests/drafters/test_cross_vocabulary.py", "-k", "ends_branches"),
    ),
    Mutation(
        "training",
        "takes the larger of both probabilities as shared",
        "overlap",
        "torch.minimum(laws.p, laws.q)",
        "torch.maximum(laws.p, laws.q)",
        DISTILLING,
    ),
    Mutation(
        "training",
        "learns the share of the divergence too",
        "divergence_then_overlap",
        "(-_KL_DECAY * accepted.detach()).exp()",
        "(-_KL_DECAY * accepted).exp()",
        DISTILLING,
    ),
    Mutation(
        "training",
        "weights a guess by the chance that it is reached alone",
        "confidence_weights",
        "reached.flip(0).cumsum(dim=0).flip(0)",
        "reached",
        UNROLLING,
    ),
    Mutation(
        "training",
        "counts children of trees that the text has left",
        "DrawnTrees.grow",
        "self.length[at] += self.going[at] * found.sum(dim=(1, 2))",
        "self.length[at] += found.sum(dim=(1, 2))",
        UNROLLING,
    ),
    Mutation(
        "training",
        "leaves out the places that can be guessed",
        "chain_loss",
        "far * guessable(logits.detach(), labels)",
        "far * ~guessable(logits.detach(), labels)",
        UNROLLING,
    ),
    Mutation(
        "training draft_model",
        "learns sharpened probabilities",
        "Distillation.__call__",
        "labels_at(batch, rows, places + 1, columns)",
        "labels_at(batch, rows, places + 1, columns, 1.25)",
        DISTILLING,
    ),
    Mutation(
        "training",
        "keeps sharpened probabilities on disk",
        "StateReading._labels",
        "self._target.head(rows).float()",
        "self._target.head(rows).float().mul_(1.25)",
        DISTILLING,
    ),
    Mutation(
        "training",
        "leaves the other tokens' probability as it was where it sharpens",
        "sharpened_rest",
        "if sharpness == 1.0:\n    return rest",
        "return rest",
        (LEARNING, "-k", "sharpened"),
    ),
    Mutation(
        "training draft_model",
        "takes the law of the place before as the label",
        "Distillation.__call__",
        "labels_at(batch, rows, places + 1, columns)",
        "labels_at(batch, rows, places, columns)",
        DISTILLING,
    ),
    Mutation(
        "training draft_model",
        "rewards what the target holds less likely",
        "rewards",
        "laws.p > laws.q.detach()",
        "laws.p < laws.q.detach()",
        DISTILLING,
    ),
    Mutation(
        "training draft_model",
        "draws without a baseline",
        "normalised",
        "(drawn - drawn.mean()) / drawn.std(correction=0).clamp_min(_LEAST)",
        "drawn / drawn.std(correction=0).clamp_min(_LEAST)",
        DISTILLING,
    ),
    Mutation(
        "training draft_model",
        "learns where it is ahead of its reference",
        "behind",
        "further.topk",
        "(-further).topk",
        DISTILLING,
    ),
    Mutation(
        "training draft_model",
        "learns what its reference guesses right",
        "Distillation.__call__",
        "others.argmax(dim=1) != wanted",
        "others.argmax(dim=1) == wanted",
        DISTILLING,
    ),
    Mutation(
        "trained draft model",
        "has no factors of its own in front of the head",
        "LayersBetween.dense",
        'values * self._norm[rows] if name == "norm" else values',
        "values",
        DRAFT_MODELS,
    ),
    Mutation(
        "trained draft model",
        "takes rows that rotate together for halves",
        "LayersBetween.__init__",
        "self.interleaved = True",
        "self.interleaved = False",
        DRAFT_MODELS,
    ),
    Mutation(
        "training",
        "learns from what progress is measured on",
        "Corpus.__init__",
        "[place for index, place in enumerate(places) if index % _HELD_OUT]",
        "[place for index, place in enumerate(places) if True]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "begins with random weights where a drafter is named",
        "first_network",
        "network = _begun(method, sizes, shared, seed, start)",
        "network = _begun(method, sizes, shared, seed, None)",
        (START, "-k", "own_figures"),
    ),
    Mutation(
        "training",
        "leaves out texts that were begun, for later ones to be put before others",
        "TextWriting.run",
        "if not together:\n    return",
        "if not together or self._store.reply_tokens >= reply_tokens:\n    return",
        (WRITING, "-k", "stand_behind"),
    ),
    Mutation(
        "training",
        "says that the best is better before it is written",
        "Fitting._measure",
        """
if better:  # first: an interrupt must not leave figures beside weights that are not theirs
    with writing(self.best_weights) as draft:
        save_weights(self.network, draft)
""",
        """
standing.best = max(standing.best, found.tau)
if better:  # first: an interrupt must not leave figures beside weights that are not theirs
    with writing(self.best_weights) as draft:
        save_weights(self.network, draft)
""",
        UNROLLING,
    ),
    Mutation(
        "training",
        "goes on with the batches it has learnt from already",
        "Fitting._batches",
        "self._corpus_of(epoch, begins=not skipped).epoch(epoch, self._seed, self._texts, skipped)",
        "self._corpus_of(epoch, begins=not skipped).epoch(epoch, self._seed, self._texts, 0)",
        (LEARNING, "-k", "cut_off"),
    ),
    Mutation(
        "training",
        "forgets the optimiser's moments when it is cut off",
        "save_checkpoint",
        "optimizer.state_of(parameter).items()",
        "dict[str, Tensor]().items()",
        (LEARNING, "-k", "cut_off"),
    ),
    Mutation(
        "drafter hydra",
        "hands out a q that is not made as the target's law is",
        "drawn_below",
        "q = law.dense(context.vocab_size)",
        "q = logits.double().softmax(-1)",
        ("tests/acceptance/test_trained_draws.py", "-k", "made_as_the_targets_is and hydra"),
    ),
    Mutation(
        "drafter hydra",
        "claims to be sure of every draw",
        "drawn_below",
        "math.log(chance)",
        "0.0",
        ("tests/acceptance/test_trained_draws.py", "-k", "made_as_the_targets_is and hydra"),
    ),
    Mutation(
        "training",
        "tells of gains alone",
        "changed_guesses",
        "(one == wrote) & (other != wrote)",
        "(one == wrote) & (other != wrote) & False",
        (ONLINE, "-k", "some_changed_guesses_are_told"),
    ),
)
