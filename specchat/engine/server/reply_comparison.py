"""Answers where two replies of the loaded pair part."""

from __future__ import annotations

from specchat.decoding.assemble import sampling
from specchat.decoding.conversation import Conversation
from specchat.decoding.teacher_forcing import Comparer
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Compare
from specchat.engine.server.event_conversion import compared_message
from specchat.engine.server.loaded_pair import LoadedPair


class Comparing:
    """Compares replies over one target, whose own text it goes by."""

    def __init__(self, pair: LoadedPair) -> None:
        self._target = pair.target.model  # not the pair: its draft models may go
        self._exact = pair.exact
        self._comparer: Comparer | None = None

    def answer(self, command: Compare, conversation: Conversation, prompt: list[int]) -> events.Compared:
        """Where the command's two replies to the prompt part, if they do.

        Raises:
            UsageError: a token that the target does not have.
        """
        if self._comparer is None:
            self._comparer = Comparer(self._target, exact=self._exact)
        law = sampling(conversation.settings.but(command.apart or {}))
        divergence = self._comparer.first_divergence(prompt, command.plain, command.other, law, command.seed)
        return compared_message(command, divergence, conversation.vocabulary)
