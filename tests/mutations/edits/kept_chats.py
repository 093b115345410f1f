"""Edits that break how chats are stored."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

EDITS = (
    Mutation(
        "chats",
        "forgets text that arrived while an older state was written",
        "Writer._attempt",
        """
if self._growing.get(name) is job:
    del self._growing[name]
""",
        """
if name in self._growing:
    del self._growing[name]
""",
        ("tests/store/test_writer.py", "-k", "arrives_while"),
    ),
    Mutation(
        "prompt cache",
        "tells a reply from rounded rows to be lossless",
        "started_message",
        "started.lossy and claim.lossless",
        "False",
        ("tests/engine/test_kept_prompts.py", "-k", "rounded"),
    ),
    Mutation(
        "prompt cache",
        "forgets in memory what was rounded",
        "PromptCache.put",
        "lossy",
        "False",
        ("tests/models/test_prompt_cache.py", "-k", "rounded"),
    ),
)
