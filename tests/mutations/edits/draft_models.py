"""Edits that break drafters that run a smaller model."""

from __future__ import annotations

from tests.mutations.mutation import DRAFTER, Mutation

EXITS = "tests/models/test_early_exits.py"

EDITS = (
    Mutation(
        "drafter draft_model",
        "proposes beyond the end of its context",
        "DraftModel._readable",
        "[node for node in frontier if tree.depths[node] <= self._room]",
        "[node for node in frontier if tree.depths[node] <= self._room + 1]",
        ("tests/contracts/test_end_of_context.py", "-k", "draft_model"),
    ),
    Mutation(
        "drafter draft_model",
        "runs where passes are not allowed",
        "DraftModel.propose",
        "self._readable(tree, frontier, context) if context.passes else []",
        "self._readable(tree, frontier, context)",
        (DRAFTER, "-k", "runs_no_model"),
    ),
    Mutation(
        "drafter draft_model",
        "forgets the accepted path",
        "DraftModel.observe",
        "self._model.keep(path)",
        "self._model.keep(())",
        (DRAFTER, "-k", "renumbered"),
    ),
    Mutation(
        "drafter draft_model",
        "goes by the last guess of a branch alone where all of it may be refused",
        "StopHead._stands",
        "chance *= place.chance if tree.tokens[node] == place.token else 1.0 - place.chance",
        "chance = place.chance if tree.tokens[node] == place.token else 1.0 - place.chance",
        ("tests/drafters/test_stop_head.py", "-k", "product"),
    ),
    Mutation(
        "drafter draft_model",
        "learns from a guess that was accepted as if it was refused",
        "StopHead.judge",
        "float(token == place.token)",
        "float(token != place.token)",
        ("tests/drafters/test_stop_head.py", "-k", "new_texts"),
    ),
    Mutation(
        "drafter draft_model",
        "says of a token that goes on what the depth before says",
        "EarlyExits.read",
        "states[going], asked = deeper, len(going)",
        "asked = len(going)",
        (EXITS, "-k", "each_token"),
    ),
    Mutation(
        "drafter draft_model",
        "reads tokens anew where the states of the layers below go on",
        "Level._pass",
        "running if self.below is None else dataclasses.replace(running, embed=partial(self._states_below, plan))",
        "running",
        (EXITS, "-k", "each_token"),
    ),
    Mutation(
        "drafter draft_model",
        "lets sure tokens go on and unsure ones leave",
        "EarlyExits.read",
        "confidence(said) < sure",
        "confidence(said) >= sure",
        (EXITS, "-k", "exits_move_down"),
    ),
    Mutation(
        "drafter draft_model",
        "drafts for a target with other tokens",
        "_is_lent",
        "len(places) == 2 and not differing_tokens(*places)[0]",
        "len(places) == 2",
        ("tests/engine/test_trained_draft_models.py", "-k", "lent_only"),
    ),
    Mutation(
        "drafter pruned",
        "keeps what it learnt although texts held out became less likely",
        "recovery",
        "loss < least",
        "loss != least",
        ("tests/models/test_pruned_recovery.py", "-k", "dropped"),
    ),
    Mutation(
        "drafter pruned",
        "learns nothing back",
        "recovery",
        "optimiser.step()",
        "optimiser.zero_grad()",
        ("tests/models/test_pruned_recovery.py", "-k", "becomes_likelier"),
    ),
    Mutation(
        "drafter draft_model",
        "makes all draws after a node with the same noise",
        "drawn_below",
        "(*salt, draw)",
        "salt",
        ("tests/decoding/test_draw_laws.py", "-k", "their_places and draft_model"),
    ),
    Mutation(
        "drafter draft_model",
        "couples with noise of another position",
        "coupled",
        "context.noise.gumbel_of_few(Stream.TARGET, position, named[:count])",
        "context.noise.gumbel_of_few(Stream.TARGET, position + 1, named[:count])",
        ("tests/drafters/test_coupled.py",),
    ),
    Mutation(
        "drafter draft_model",
        "names the rows of a trimmed head instead of their tokens",
        "TrimmedHead.after",
        "tokens[places.long()]",
        "places.long()",
        ("tests/drafters/test_trim.py",),
    ),
    Mutation(
        "drafter draft_model",
        "does not guess the text's own rare tokens",
        "FrequentHead.start",
        "self._add(history)",
        "pass",
        ("tests/drafters/test_trim.py",),
    ),
    Mutation(
        "drafter draft_model",
        "copies another output of a block",
        "models/cpu_kernels/gather.h",
        "size_t lane = (size_t)(output % LANES)",
        "size_t lane = (size_t)((output + 1) % LANES)",
        ("tests/models/test_native_gathered_head.py",),
    ),
    Mutation(
        "drafter cross_vocabulary",
        "leaves out what a draft token still stands for",
        "CrossVocabulary._guessed",
        "return source, self._translation.own_tokens(source[0])[1:]",
        "return source, ()",
        ("tests/drafters/test_cross_vocabulary.py", "-k", "needs_no_pass"),
    ),
    Mutation(
        "drafter cross_vocabulary",
        "counts an n-gram's probability twice",
        "TranslatedGuesses.of",
        "values[row, 0] += left",
        "pass",
        ("tests/drafters/test_cross_vocabulary.py", "-k", "together"),
    ),
    Mutation(
        "drafter cross_vocabulary",
        "learns no n-grams",
        "TokenTranslation.learn",
        "self._ngrams[ngram] = token",
        "pass",
        ("tests/indexes/test_token_translation.py", "tests/drafters/test_cross_vocabulary.py", "-k", "ngram"),
    ),
    Mutation(
        "drafter retrieved_context",
        "gives frequent words the same weight as rare ones",
        "shared_words",
        "math.log((1 + len(chunks)) / (1 + count))",
        "1.0",
        ("tests/drafters/test_retrieved_text.py",),
    ),
    Mutation(
        "drafter retrieved_context",
        "chooses another part in every round",
        "RetrievedText.shortened",
        "0 <= len(text) - self._chosen_at < self._refresh",
        "0 <= len(text) - self._chosen_at < 1",
        ("tests/drafters/test_retrieved_text.py",),
    ),
    Mutation(
        "several draft models",
        "drafts with the first whatever is named",
        "Parts._drafting_with",
        """
if name not in self.resources.further:
    return self
model = self.resources.further[name].model
""",
        """
if True:
    return self
model = self.resources.further[name].model
""",
        ("tests/drafters/test_several_models.py", "-k", "wrappers"),
    ),
    Mutation(
        "several draft models",
        "lets two members share one cache",
        "Parts.members",
        "self._with_new_caches(used & taken)",
        "self",
        ("tests/drafters/test_several_models.py", "-k", "cache_for_each"),
    ),
)
