"""Edits that break trained networks and their learning."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

ONLINE = "tests/training/test_online_learning.py"
KEPT_REPLIES = "tests/training/test_kept_replies.py"
LEARNING = "tests/training/test_learning.py"
START = "tests/training/test_training_start.py"
WRITING = "tests/training/test_text_writing.py"
UNROLLING = ("tests/training/test_unrolling.py",)

EDITS = (
    Mutation(
        "drafter hydra",
        "starts from the state of the token before",
        "models/learned/hydra_drafting.py",
        "self._last, self._ahead = len(history) - 2",
        "self._last, self._ahead = len(history) - 3",
        ("tests/models/test_learned_drafting.py", "-k", "hydra"),
    ),
    Mutation(
        "drafter medusa",
        "starts from the state of the token before",
        "models/learned/text_reading.py",
        "given.text.rows(entries - 1, entries)",
        "given.text.rows(entries - 2, entries - 1)",
        ("tests/models/test_learned_drafting.py", "-k", "medusa"),
    ),
    Mutation(
        "drafter eagle",
        "takes every node for one token later",
        "models/learned/eagle_drafting.py",
        "entries - 1 + tree.depths[nodes[0]]",
        "entries + tree.depths[nodes[0]]",
        ("tests/models/test_learned_drafting.py", "-k", "eagle"),
    ),
    Mutation(
        "learning",
        "takes the states of the next token",
        "models/learned/reply_recorder.py",
        "text.kept(first - 1, first - 1 + count)",
        "text.kept(first, first + count)",
        (KEPT_REPLIES, "-k", "every_round"),
    ),
    Mutation(
        "learning",
        "learns from a reply before it is judged",
        "models/learned/online_learning.py",
        "        while self._new:\n",
        "        yield from self._update()\n        while self._new:\n",
        (ONLINE, "-k", "before_it_is_learnt"),
    ),
    Mutation(
        "learning",
        "keeps weights that do worse",
        "models/learned/online_learning.py",
        "if self._judgement.worse:",
        "if self._judgement.worse and not self._updates:",
        (ONLINE, "-k", "worse_goes_back"),
    ),
    Mutation(
        "learning",
        "records replies while it is off",
        "models/learned/learning_network.py",
        "        if self._wanted:\n",
        "        if True:\n",
        (KEPT_REPLIES, "-k", "kept_while_learning_is_off"),
    ),
    Mutation(
        "learning",
        "learns within a reply",
        "models/learned/learning_network.py",
        "            self._recorder.observe(round)\n",
        "            self._recorder.observe(round)\n            self.idle(0.0)\n",
        (ONLINE, "-k", "newest_weights"),
    ),
    Mutation(
        "learning",
        "keeps more than fits",
        "structures/reply_buffer.py",
        "while self.size_bytes > self.most_bytes:",
        "if self.size_bytes > 2 * self.most_bytes:",
        (KEPT_REPLIES, "-k", "bounded"),
    ),
    Mutation(
        "training",
        "learns deeper guesses of chains that were wrong",
        "models/learned/unrolling.py",
        "        going = going & batch.drafted(step, anchors)\n",
        "        going = batch.drafted(step, anchors)\n",
        UNROLLING,
    ),
    Mutation(
        "training",
        "takes the law of the place before as the label",
        "models/learned/unrolling.py",
        "places + step\n",
        "places + step - 1\n",
        UNROLLING,
    ),
    Mutation(
        "training",
        "learns the target's state of the place before",
        "models/learned/unrolling.py",
        "batch.features[rows, at, -1]",
        "batch.features[rows, at - 1, -1]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "counts a guess as right that is one place early",
        "models/learned/unrolling.py",
        "batch.tokens[rows, places + step + 1]",
        "batch.tokens[rows, places + step]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "learns the likeliest token instead of the target's law",
        "models/learned/losses.py",
        "p = torch.where(places >= 0, log_p.exp(), 0.0)",
        "p = torch.where(places >= 0, (log_p >= log_p.max(dim=1, keepdim=True).values).to(rest.dtype), 0.0)",
        (LEARNING, "-k", "shares_out or loss_is_zero"),
    ),
    Mutation(
        "training",
        "gives each token of a trimmed head another one's column",
        "models/learned/losses.py",
        "torch.arange(len(tokens), device=tokens.device)",
        "torch.arange(len(tokens), device=tokens.device).flip(0)",
        UNROLLING,
    ),
    Mutation(
        "training",
        "learns from what progress is measured on",
        "training/corpus.py",
        "if index % _HELD_OUT]",
        "if True]",
        UNROLLING,
    ),
    Mutation(
        "training",
        "begins with random weights where a drafter is named",
        "training/first_network.py",
        "    if start is None:\n        network =",
        "    if True:\n        network =",
        (START, "-k", "own_figures"),
    ),
    Mutation(
        "training",
        "leaves out texts that were begun, for later ones to be put before others",
        "training/text_writing.py",
        "while self._writer.busy or self._store",
        "while self._store",
        (WRITING, "-k", "stand_behind"),
    ),
    Mutation(
        "training",
        "says that the best is better before it is written",
        "training/fitting.py",
        "        if better:  # first",
        "        standing.best = max(standing.best, found.tau)\n        if better:  # first",
        UNROLLING,
    ),
    Mutation(
        "training",
        "goes on with the batches it has learnt from already",
        "training/fitting.py",
        "self._corpus.epoch(epoch, self._seed, self._texts, skipped)",
        "self._corpus.epoch(epoch, self._seed, self._texts, 0)",
        (LEARNING, "-k", "cut_off"),
    ),
    Mutation(
        "training",
        "forgets the optimiser's moments when it is cut off",
        "training/checkpoints.py",
        "optimizer.state_of(parameter).items()",
        "dict[str, Tensor]().items()",
        (LEARNING, "-k", "cut_off"),
    ),
)
