"""Errors, in the forms that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specchat.engine.protocol.events import Failed
from specchat.engine.protocol.text import one_line

_PROMPT_IS_WRONG = {"PromptTooLong": "context_length_exceeded", "PromptEmpty": "invalid_value"}
"""The engine's errors about what is to be answered, and what OpenAI calls them."""

_REQUEST_IS_WRONG = ("ModelError", "UsageError", "CombinationError")
"""The engine's errors that another request would not have met."""


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        param: the field that is wrong, such as `messages[0].role`.
        retry_after_s: when to try again, where that helps.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = one_line(message)
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return {**headers, "WWW-Authenticate": "Bearer"} if self.status == 401 else headers


ErrorBody = Callable[[ApiError], dict[str, Any]]
"""An error as an API writes it."""


def openai_error(error: ApiError) -> dict[str, Any]:
    kind = {429: "rate_limit_error"}.get(
        error.status, "server_error" if error.status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


_ANTHROPICS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors, by status; other errors are the client's below 500, and ours from there."""


def anthropic_error(error: ApiError) -> dict[str, Any]:
    kind = _ANTHROPICS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def from_engine(failed: Failed, field: str | None, held_by: str) -> ApiError:
    """The engine's refusal of a reply; `field` is where the request says what is to be answered."""
    if failed.kind in _PROMPT_IS_WRONG:
        return ApiError(400, failed.message, param=field, code=_PROMPT_IS_WRONG[failed.kind])
    if failed.kind == "ConstraintError":
        return ApiError(400, failed.message, param=held_by, code="invalid_value")
    if failed.kind in _REQUEST_IS_WRONG:
        return ApiError(400, failed.message)
    return ApiError(500, failed.message, code="engine_error")
