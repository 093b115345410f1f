"""Edits that break drafters that are made of others."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

MERGE = "tests/drafters/test_merge.py"
SEVERAL = ("tests/drafters/test_several_and_fuse.py", "tests/drafters/test_several_models.py")

EDITS = (
    Mutation(
        "drafter merge",
        "puts the least trusted first",
        "MergedGuesses.merged",
        "believed.sort(key=_first, reverse=True)",
        "believed.sort(key=_first)",
        (MERGE,),
    ),
    Mutation(
        "drafter merge",
        "orders guesses of one node the other way round in C",
        "indexes/native/joined_guesses.h",
        "probable[at - 1] < rate",
        "probable[at - 1] > rate",
        ("tests/drafters/test_compiled_search.py",),
    ),
    Mutation(
        "drafter merge",
        "guesses with another position's noise in C",
        "indexes/native/network_guesses.h",
        "s->position + depth",
        "s->position",
        ("tests/drafters/test_compiled_search.py", "-k", "too_both_ways"),
    ),
    Mutation(
        "drafter merge",
        "asks a model where others are sure, and only there",
        "Merge.propose",
        "index not in self._models or not sure(said[node], self._sure)",
        "index not in self._models or sure(said[node], self._sure)",
        (MERGE,),
    ),
    Mutation(
        "drafter cascade",
        "hears the last member that has something to say",
        "Cascade.propose",
        "open_nodes = [node for node in frontier if node not in said]",
        "open_nodes = list(frontier)",
        ("tests/drafters/test_cascade.py",),
    ),
    Mutation(
        "drafter cascade",
        "does not hear the last member where it is unsure",
        "Cascade.propose",
        "last = member is self.members[-1]",
        "last = False",
        ("tests/drafters/test_cascade.py", "-k", "last_member"),
    ),
    Mutation(
        "drafter cascade",
        "claims to name sources where no member does",
        "Cascade.names_sources",
        "return any(members)",
        "return True",
        ("tests/acceptance/test_nest.py", "-k", "cascade"),
    ),
    Mutation(
        "drafter several",
        "asks every member about every node",
        "Several.propose",
        "own = [node for node in frontier if everywhere or index in owners[node]]",
        "own = list(frontier)",
        SEVERAL,
    ),
    Mutation(
        "drafter several",
        "asks a member that samples below its own draws alone",
        "Several.propose",
        "everywhere = sampled and self._samplers[index]",
        "everywhere = False",
        ("tests/decoding/test_draw_laws.py", "-k", "own_draws_alone"),
    ),
    Mutation(
        "drafter several",
        "gives drafters of one name at different levels one name",
        "_numbered",
        "number = before[choice.name] if uses[choice.name] > 1 else 0",
        "number = 0",
        ("tests/decoding/test_draw_laws.py", "-k", "targets_law_together"),
    ),
    Mutation(
        "drafter several",
        "lets all members draw with the same noise",
        "Parts.noise",
        'noise.child(f"drafter/{self.label}")',
        'noise.child("drafter")',
        ("tests/decoding/test_draw_laws.py", "-k", "members_draw_independently"),
    ),
    Mutation(
        "drafter several",
        "puts all draws of the first member before those of the second",
        "drafters.combine:_in_turn",
        "return (guess for rank in itertools.zip_longest(*said) for guess in rank if guess is not None)",
        "return (guess for guesses in said for guess in guesses)",
        (*SEVERAL, "-k", "distributed"),
    ),
    Mutation(
        "drafter fuse",
        "prunes nothing",
        "Fuse._fused",
        "[guess for guess in looked_up if guess.token in top]",
        "[guess for guess in looked_up ]",
        (*SEVERAL, "-k", "fuse or copy"),
    ),
    Mutation(
        "drafter fuse",
        "lets the draft go on below what was grafted",
        "MemberPaths.owners",
        "return self._whose.get(path, self._all)",
        "return self._all",
        (*SEVERAL, "-k", "fuse or copy"),
    ),
)
