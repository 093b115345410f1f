"""Replies as OpenAI's clients read them: one object, or a stream of chunks."""

from __future__ import annotations

import secrets
import time
from typing import Any

from specchat import __version__
from specchat.engine.protocol.events import Ready, StopReason
from specchat.serve.ticket import Ticket

_FINISH: dict[StopReason, str] = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

FINGERPRINT = f"specchat-{__version__}"


class Answer:
    """Everything that is sent about one reply.

    Args:
        ticket: a request whose reply has begun.
        model: the name of the pair that writes.
    """

    def __init__(self, ticket: Ticket, model: str) -> None:
        self._ticket = ticket
        self._chat = ticket.asked.form == "chat.completion"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, text: str) -> dict[str, Any]:
        """The reply as one object."""
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._finish_reason()}
        return {**self._head, "object": self._ticket.asked.form, "choices": [choice], "usage": usage(self._ticket)}

    def opening(self) -> dict[str, Any] | None:
        """The chunk before any text; a completion has none."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None}) if self._chat else None

    def piece(self, text: str) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk({"content": text} if self._chat else text)

    def closing(self) -> dict[str, Any]:
        """The chunk that says why the reply ended."""
        return self._chunk({} if self._chat else "", self._finish_reason())

    def figures(self) -> dict[str, Any]:
        """The chunk after the last choice, with nothing but the figures."""
        return {**self._head, "object": self._kind(), "choices": [], "usage": usage(self._ticket)}

    def _chunk(self, said: dict[str, Any] | str, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta" if self._chat else "text": said, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head, "object": self._kind(), "choices": [choice]}
        return {**chunk, "usage": None} if self._ticket.asked.usage else chunk

    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _finish_reason(self) -> str:
        finished = self._ticket.finished
        assert finished is not None, "asked after the reply"
        return _FINISH.get(finished.stop, "stop")


def usage(ticket: Ticket) -> dict[str, Any]:
    """The figures of a reply that is complete: OpenAI's, and how the speculation went."""
    assert ticket.finished is not None, "figures stand at the end"
    stats = ticket.finished.stats
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.tokens,
        "total_tokens": stats.prompt_tokens + stats.tokens,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": ticket.predicted_right,
            "rejected_prediction_tokens": ticket.predicted - ticket.predicted_right,
        },
        "acceptance_length": round(stats.acceptance_length, 4),
        "speedup": None if stats.speedup is None else round(stats.speedup, 4),
        "drafted_tokens": stats.drafted,
        "accepted_draft_tokens": stats.accepted,
    }


def model_card(ready: Ready, name: str, created: int) -> dict[str, Any]:
    """One model of the list."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "specchat",
        "context_tokens": ready.context_tokens,
        "target": ready.target,
        "draft": ready.draft,
    }
