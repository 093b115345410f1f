"""The tokenizer: every token in bytes and in words, and a chat as tokens.

A chat template is a program that comes with the weights. transformers runs it in a sandbox, which keeps it from files
and from Python's own parts, but lets it loop for ever and write without end: it runs here within bounds.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from specchat.core.vocabulary import TokenTable
from specchat.decoding.chat_tools import ChatMessage, for_templates, tells_all
from specchat.errors import ModelError
from specchat.models.weights.foreign_code import MOST_CPU_S, bounded, one_line

_LONGEST_LABEL_BYTES = 1000
"""The longest tokens of published vocabularies have some hundred."""

_STRAY_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_CHARACTERS_PER_S = 50_000
"""Tokenizers read some millions."""


class Vocabulary(TokenTable, Protocol):
    """A tokenizer as the engine uses it."""

    def token_label(self, token: int) -> str:
        """The token as the tree shows it: its text, `⟨e2⟩` for half characters, special tokens by name."""

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Messages, in the model's own chat format, ready for the reply to begin."""

    def encode_chat_with_tools(self, messages: Sequence[ChatMessage], tools: list[Any]) -> list[int] | None:
        """The same with functions that may be called, with calls and their results.

        None where the model's format has no place for one of them.
        """

    def encode_text(self, text: str) -> list[int]:
        """A text to go on with: its tokens, after what the model expects at the beginning of any text."""

    def starts_with_space(self) -> bool:
        """Whether the first token of a text carries a space that is not text (SentencePiece)."""


def label(data: bytes) -> str:
    """Bytes as text, where bytes that do not form a whole character read `⟨e2⟩`."""
    return data.decode("utf-8", errors="specchat-angle")


def _angle_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError), "registered for decoding only"
    broken = error.object[error.start : error.end]
    return "".join(f"⟨{byte:02x}⟩" for byte in broken), error.end


codecs.register_error("specchat-angle", _angle_bytes)


class TransformersVocabulary:
    """The vocabulary of a fast transformers tokenizer, as bytes per token.

    Byte-level BPE writes every byte as a printable character; SentencePiece writes spaces as `▁` and stray bytes
    as `<0xE2>`. Both are undone here once, so that joining bytes gives what decoding the whole text would.
    """

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self._special = frozenset(tokenizer.all_special_ids) | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }
        self._added = {token: str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        self._special_names = [self._added[token] for token in sorted(self._special & self._added.keys())]
        self._bytes: dict[int, bytes] = {}
        self._text_bytes: dict[int, bytes] = {}

    def token_bytes(self, token: int) -> bytes:
        data = self._text_bytes.get(token)
        if data is None:
            data = self._text_bytes[token] = b"" if token in self._special else self.token_spelling(token)
        return data

    def token_spelling(self, token: int) -> bytes:
        if token not in self._bytes:
            self._bytes[token] = self._decoded(token)
        return self._bytes[token]

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        found: list[int] = _bounded_by(text, lambda: self._backend.encode(text, add_special_tokens=False).ids)
        return found

    def token_label(self, token: int) -> str:
        return label(self.token_spelling(token)[:_LONGEST_LABEL_BYTES])

    def starts_with_space(self) -> bool:
        return not self._byte_level

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Apply the model's own chat template; without one, the bare texts.

        Only the template writes special tokens: a message that names one, such as `<|im_end|>`, says its name.
        """
        if self.tokenizer.chat_template is None:
            return self.encode_text("\n".join(m["content"] for m in messages))
        if any(name in message["content"] for message in messages for name in self._special_names):
            return encode_with_names_as_text(self.tokenizer, messages)
        return self.encode(render_chat(self.tokenizer, messages))

    def encode_chat_with_tools(self, messages: Sequence[ChatMessage], tools: list[Any]) -> list[int] | None:
        """Apply the template where it writes the tools, all calls and all results. No text may name a special token."""
        said = json.dumps([*messages, *tools], ensure_ascii=False)
        if self.tokenizer.chat_template is None or any(name in said for name in self._special_names):
            return None
        for turns in for_templates(messages):
            try:
                written = render_chat(self.tokenizer, turns, tools)
                told = not tools or written != render_chat(self.tokenizer, turns)
            except ModelError:  # a template may refuse calls, or several at once
                continue
            if told and tells_all(written, turns):
                return self.encode(written)
        return None

    def encode_text(self, text: str) -> list[int]:
        return [int(token) for token in _bounded_by(text, lambda: self.tokenizer.encode(text))]

    def _decoded(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        written = self._backend.id_to_token(token)
        if written is None:
            return b""  # a row of padding in the embedding, not a token of the vocabulary
        if self._byte_level:
            try:
                return bytes(map(_BYTE_OF.__getitem__, written))
            except KeyError:
                return str(written).encode()  # not written in the alphabet: it stands for itself
        if _STRAY_BYTE.fullmatch(written):
            return bytes.fromhex(written[3:5])
        return str(written).replace("▁", " ").encode()

    @cached_property
    def _backend(self) -> Any:
        """The tokenizer that transformers encodes with, set as transformers sets it.

        Between two passes the code that transformers has around it takes twice as long as encoding a word.
        """
        backend = self.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return backend

    @cached_property
    def _byte_level(self) -> bool:
        decoder = json.loads(self._backend.to_str()).get("decoder") or {}
        parts = [decoder, *decoder.get("decoders", [])]
        return any(part.get("type") == "ByteLevel" for part in parts)


def _bounded_by(text: str, encode: Callable[[], list[int]]) -> list[int]:
    """The tokens of a text by this encoding, within bounds of time and memory; ModelError if the tokenizer fails."""
    with one_line("this model's tokenizer cannot read a text"), bounded(MOST_CPU_S + len(text) / _CHARACTERS_PER_S):
        return encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins: bytes that print stand for themselves, the others follow from 256 up.

    Reference: Radford et al., Language Models are Unsupervised Multitask Learners (2019), the GPT-2 encoding.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


TEMPLATE_SECONDS = 5.0
"""Templates take about a millisecond."""

TEMPLATE_CPU_S = 20.0
"""Processor time after which the process is ended: a template was in one operation all the while."""

TEMPLATE_BYTES = 1 << 30
"""Memory that a template may take: what it writes at most takes a few megabytes."""

TEMPLATE_ADDED = 2**20
"""Characters that a template may add to twice the length of the messages."""

_TEMPLATE_FAILED = "this model's chat template cannot be used"

_Result = TypeVar("_Result")


class _TooLong(BaseException):
    """Time is up; not an Exception, so that nothing in between can catch it by accident."""


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: list[Any] | None = None) -> str:
    """The chat as the model's own template writes it, ready for the reply to begin.

    Raises:
        ModelError: the template fails, takes too long, or writes too much.
    """
    more = {"tools": tools} if tools else {}
    text = str(_applied(tokenizer, messages, tokenize=False, **more))
    said = sum(len(message["content"]) for message in messages) + (len(json.dumps(tools)) if tools else 0)
    said += sum(len(json.dumps(message["tool_calls"])) for message in messages if "tool_calls" in message)
    if len(text) > 2 * said + TEMPLATE_ADDED:
        raise ModelError(f"{_TEMPLATE_FAILED}: it writes {len(text):,} characters for {said:,}")
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


def _applied(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **how: Any) -> Any:
    with one_line(_TEMPLATE_FAILED), bounded(TEMPLATE_CPU_S, TEMPLATE_BYTES):
        return _at_most(
            TEMPLATE_SECONDS, lambda: tokenizer.apply_chat_template(messages, add_generation_prompt=True, **how)
        )


def _at_most(seconds: float, call: Callable[[], _Result]) -> _Result:
    """The result of a call that runs in a thread of its own and is ended after so long, between two steps of Python.

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
