"""Writes a chat as the one text that its model expects, within bounds of time and length.

The template is a program that comes with the weights. transformers runs it in a sandbox, which keeps it from files and
from Python's own parts, but lets it loop for ever and write without end.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from specchat.errors import ModelError
from specchat.models.files.foreign_errors import one_line

MOST_SECONDS = 5.0
"""Templates take about a millisecond."""

MOST_ADDED = 2**20
"""Characters that a template may add to twice the length of the messages."""

_WHAT = "this model's chat template cannot be used"


class _TooLong(BaseException):
    """Time is up; not an Exception, so that nothing in between can catch it by accident."""


def render_chat(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """The chat as the model's own template writes it, ready for the reply to begin.

    Raises:
        ModelError: the template fails, takes too long, or writes too much.
    """
    text = str(_applied(tokenizer, messages, tokenize=False))
    said = sum(len(message["content"]) for message in messages)
    if len(text) > 2 * said + MOST_ADDED:
        raise ModelError(f"{_WHAT}: it makes {len(text):,} characters of {said:,}")
    return text


def encode_with_names_as_text(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """The tokens of that text, where what messages say is never a control token, whatever it is called.

    For messages that name one, such as `<|im_end|>`: read as the token itself it would end their turn.

    Raises:
        ModelError: as above; or the tokenizer can only spell such a name by the token.
    """
    render_chat(tokenizer, messages)  # within its bounds
    found: list[int] = _applied(tokenizer, messages, return_dict=False, sanitize_control_tokens=True)
    return found


def _applied(tokenizer: Any, messages: list[dict[str, str]], **how: bool) -> Any:
    try:
        with one_line(_WHAT), _at_most(MOST_SECONDS):
            return tokenizer.apply_chat_template(messages, add_generation_prompt=True, **how)
    except _TooLong:
        raise ModelError(f"{_WHAT}: it has not ended after {MOST_SECONDS:g} s") from None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_TooLong` in this thread after so long; it comes between two steps of Python, never within one."""
    thread, lock = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    over = told = False

    def tell() -> None:
        nonlocal told
        with lock:
            if not over:
                told = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TooLong))

    timer = threading.Timer(seconds, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
            if told:  # and perhaps not raised yet: it must not be raised later
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
        timer.cancel()
