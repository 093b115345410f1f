"""Writes a chat as the one text that its model expects, within bounds of time, memory and length.

The template is a program that comes with the weights. transformers runs it in a sandbox, which keeps it from files and
from Python's own parts, but lets it loop for ever and write without end.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from specchat.errors import ModelError
from specchat.models.weights.foreign_code import bounded, one_line

MOST_SECONDS = 5.0
"""Templates take about a millisecond."""

MOST_CPU_S = 20.0
"""Processor time after which the process is ended: a template was in one operation all the while."""

MOST_BYTES = 1 << 30
"""Memory that a template may take: what it writes at most takes a few megabytes."""

MOST_ADDED = 2**20
"""Characters that a template may add to twice the length of the messages."""

_WHAT = "this model's chat template cannot be used"

_Result = TypeVar("_Result")


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
        raise ModelError(f"{_WHAT}: it writes {len(text):,} characters for {said:,}")
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
    with one_line(_WHAT), bounded(MOST_CPU_S, MOST_BYTES):
        return _at_most(
            MOST_SECONDS, lambda: tokenizer.apply_chat_template(messages, add_generation_prompt=True, **how)
        )


def _at_most(seconds: float, call: Callable[[], _Result]) -> _Result:
    """What a call returns, which runs in a thread of its own and is ended after so long, between two steps of Python.

    One step that does not end holds Python's lock and this thread too, until the process's bound of time is reached.

    An exception that was sent to a thread must arrive there: Python 3.11 runs slower for ever after one that did not,
    and a program that is traced stands still.

    Raises:
        TimeoutError: the call was ended.
    """
    lock, results, errors = threading.Lock(), list[_Result](), list[BaseException]()
    over = told = False

    def run() -> None:
        nonlocal over
        try:
            try:
                results.append(call())
            except _TooLong:
                raise
            except BaseException as error:  # a panic of compiled code is not an Exception
                errors.append(error)
            with lock:
                over = True
            while told:
                time.sleep(0.001)  # until it arrives
        except _TooLong:
            results.clear()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    with lock:
        if not over:
            told = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TooLong))
    thread.join()
    for error in errors:
        raise error
    for result in results:
        return result
    raise TimeoutError(f"it has not ended after {seconds:g} s")
