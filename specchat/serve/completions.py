"""OpenAI's chat completions, and its older completions of a text: how they are asked for, and how they are answered."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.round_parts import Likely, TokenLogprob
from specchat.errors import nearest
from specchat.serve.answers import FINGERPRINT, Answer, Sent, usage
from specchat.serve.fields import Fields, Only, shown, wrong
from specchat.serve.reply_reader import Piece, ReplyReader, text_of
from specchat.serve.requests import (
    MOST_LIKELY,
    MOST_REPLIES,
    MOST_TOKENS,
    ROLES,
    SETTINGS,
    CheckedRequest,
    answering,
    calling,
    parsed,
    read_bias,
    read_choice,
    read_format,
    read_messages,
    read_seed,
    read_settings,
    read_tools,
    tools_asked,
    typed_part,
)
from specchat.serve.tools import Call

Form = Literal["chat.completion", "text_completion"]

_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key")
"""Texts about the client; nothing is kept of them."""

_ONLY: Only = {
    "service_tier": (("auto", "default"), "there is only one tier"),
    "store": ((False,), "nothing is stored"),
    "metadata": (({},), "nothing is stored"),
}
"""Fields of both forms that have one possible value."""

_ONLY_IN: Mapping[Form, Only] = {
    "chat.completion": {
        "functions": ((), "tools are called"),
        "function_call": (("none",), "tools are called"),
        "modalities": ((["text"],), "replies are plain text"),
        "audio": ((), "replies are plain text"),
        "reasoning_effort": (("none",), "how long to think cannot be chosen"),
        "verbosity": (("medium",), "how much to say cannot be chosen"),
        "web_search_options": ((), "nothing is searched"),
    },
    "text_completion": {
        "best_of": ((1,), "replies are not compared; `n` asks for several"),
        "suffix": (("",), "text is written only at the end"),
    },
}
"""Fields of one form that have one possible value."""

_COMMON = (
    "model", "stream", "stream_options", "stop", "seed", "max_tokens", "top_k", "prediction", "n", "logit_bias",
    "logprobs", *SETTINGS, *_WITHOUT_EFFECT,
)  # fmt: skip
_OWN: Mapping[Form, tuple[str, ...]] = {
    "chat.completion": (
        "messages",
        "max_completion_tokens",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "top_logprobs",
    ),
    "text_completion": ("prompt", "echo"),
}
_MOST_LIKELY_OF_A_TEXT = 5


def read_request(form: Form, body: bytes, client: str = "") -> CheckedRequest:
    """The request in a body."""
    only = {**_ONLY, **_ONLY_IN[form]}
    fields = Fields.of_body(body, [*_COMMON, *_OWN[form], *only], only, _WITHOUT_EFFECT)
    chat = form == "chat.completion"
    stream = fields.truth("stream") or False
    tools = _tools(fields) if chat else None
    constraint = read_format(fields.inner("response_format"), "json_schema") if chat else None
    if tools is not None and constraint is not None:
        raise wrong("response_format", "it cannot be combined with tools")
    return CheckedRequest(
        form=form,
        model=fields.text("model"),
        messages=read_messages(fields, "messages", _message) if chat else (),
        text=None if chat else _prompt(fields),
        settings=read_settings(fields, _longest(fields)),
        seed=read_seed(fields),
        reference=_reference(fields),
        stream=stream,
        usage=_stream_options(fields, stream),
        client=client,
        constraint=constraint if tools is None else tools.constraint,
        tools=tools,
        replies=fields.whole("n", 1, MOST_REPLIES) or 1,
        logit_bias=read_bias(fields),
        top_logprobs=_top_logprobs(fields) if chat else fields.whole("logprobs", 0, _MOST_LIKELY_OF_A_TEXT),
        echo=not chat and (fields.truth("echo") or False),
    )


def _top_logprobs(fields: Fields) -> int | None:
    """How many of the likeliest tokens are told of; None where no log-probability is."""
    count = fields.whole("top_logprobs", 0, MOST_LIKELY)
    if not fields.truth("logprobs"):
        if count:
            raise wrong("top_logprobs", "it needs logprobs = true")
        return None
    return count or 0


def _longest(fields: Fields) -> int | None:
    old, new = (fields.whole(name, 1, MOST_TOKENS) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", "it contradicts max_completion_tokens; give one of them")
    return old if new is None else new


def _prompt(fields: Fields) -> str:
    prompt = fields.raw("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        why = "one text is continued for each request" if prompt is not None else "it is missing"
        raise wrong(fields.path("prompt"), why)
    return prompt


def _reference(fields: Fields) -> str:
    """The predicted reply, from `{"type": "content", "content": …}`."""
    prediction = fields.inner("prediction")
    if prediction is None:
        return ""
    prediction.refuse_unknown(["type", "content"])
    if prediction.raw("type") != "content":
        raise wrong("prediction.type", f'{shown(prediction.raw("type"))} is not "content"')
    return _content(prediction)


def _stream_options(fields: Fields, stream: bool) -> bool:
    """Whether the figures are wanted at the end of the stream."""
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong("stream_options", "it needs stream = true")
    options.refuse_unknown(["include_usage", "include_obfuscation"])
    options.only("include_obfuscation", False, why="pieces are not padded")
    return options.truth("include_usage") or False


# ------------------------------------------------------------------------------------------------ messages, tools


def _content(fields: Fields) -> str:
    """The field `content`: a text, or the texts of its parts one after the other."""
    return fields.texts("content", _part)


def _part(part: Fields) -> str:
    if part.raw("type") == "text":
        part.refuse_unknown(["type", "text"])
    return typed_part(part, "text")


def _message(fields: Fields) -> Iterator[Message]:
    role = fields.text("role")
    if role == "tool":
        fields.refuse_unknown(["role", "content", "tool_call_id", "name"])
        yield answering(fields.name("tool_call_id"), _content(fields))
        return
    if role not in ROLES:
        raise wrong(
            fields.path("role"), f"{shown(role)} is not a role that can be answered{nearest(role or '', ROLES)}"
        )
    fields.refuse_unknown(["role", "content", "name", "refusal", "tool_calls", "function_call", "audio", "annotations"])
    for name in ("name", "refusal", "function_call", "audio"):
        fields.only(name, why="the model's chat format has no place for it")
    fields.only("annotations", [], why="the model's chat format has no place for it")
    if role == "assistant" and fields.items("tool_calls"):
        yield calling(_content(fields) if fields.raw("content") else "", [*map(_call, fields.each("tool_calls"))])
        return
    fields.only("tool_calls", [], why="only an assistant calls")
    yield Message(ROLES[role], _content(fields))


def _call(fields: Fields) -> tuple[str, str, Any]:
    """Id, name and arguments of a call in an assistant's message."""
    function = _function(fields)
    function.refuse_unknown(["name", "arguments"])
    return (
        fields.name("id") or "call",
        function.needed("name"),
        parsed(function.text("arguments") or "", function.path("arguments")),
    )


def _function(fields: Fields) -> Fields:
    """The object `function` of a tool, a choice or a call."""
    if fields.raw("type") != "function":
        raise wrong(fields.path("type"), f"{shown(fields.raw('type'))} is not supported: only functions can be called")
    return fields.inner("function") or Fields({}, fields.path("function."))


def _tools(fields: Fields) -> Any:
    given = read_tools(map(_function, fields.each("tools")), "parameters", "strict")
    return tools_asked(given, _tool_choice(fields, given), fields.truth("parallel_tool_calls"))


def _tool_choice(fields: Fields, named: Collection[str]) -> tuple[str, ...] | None:
    if not named and fields.raw("tool_choice") not in (None, "none"):
        raise wrong("tool_choice", "there are no tools to choose from")

    def named_function(choice: Fields) -> Fields:
        function = _function(choice)
        function.refuse_unknown(["name"])
        return function

    return read_choice(fields, named, named_function)


# ------------------------------------------------------------------------------------------------------- answers


class Completions(Answer):
    """One object, or a stream of chunks."""

    def __init__(self, readers: Sequence[ReplyReader], model: str) -> None:
        super().__init__(readers, model)
        self._chat = self.asked.form == "chat.completion"
        self._written = [""] * len(readers)  # text so far, where offsets of tokens are told
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, said: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        choices = [self._choice(index, pieces) for index, pieces in enumerate(said)]
        return {**self._head, "object": self.asked.form, "choices": choices, "usage": usage(self.tickets)}

    def _choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        reader = self.readers[index]
        content = text_of(pieces)
        said: dict[str, Any] = {"text": self._echo() + content}
        if self._chat:
            calls = [_whole_call(piece) for piece in pieces if isinstance(piece, Call)]
            message = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
            said = {"message": {**message, "tool_calls": calls} if calls else message}
        tokens = [*self._echoed_tokens(index), *reader.due_tokens()]
        return {
            "index": index, **said, "logprobs": self._logprobs(index, tokens), "finish_reason": _finish_reason(reader)
        }  # fmt: skip

    def opening(self, index: int) -> list[Sent]:
        """The chunk before any text; of a completion the prompt, where it is to be repeated."""
        if self._chat:
            return [self._chunk(index, {"role": "assistant", "content": "", "refusal": None})]
        return [self._chunk(index, self._echo(), self._echoed_tokens(index))] if self.asked.echo else []

    def pieces(self, index: int, pieces: Sequence[Piece]) -> list[Sent]:
        """The chunks that further pieces of the reply make due."""
        tokens = self.readers[index].due_tokens()
        if not self._chat:
            text = text_of(pieces)
            return [self._chunk(index, text, tokens)] if text or tokens else []
        said: list[dict[str, Any]] = []
        for piece in pieces:
            said += [{"content": piece}] if isinstance(piece, str) else [{"tool_calls": [d]} for d in _deltas(piece)]
        if tokens and not said:
            said = [{"content": ""}]
        return [self._chunk(index, one, () if place else tokens) for place, one in enumerate(said)]

    def closing(self, index: int) -> list[Sent]:
        """The chunk that says why the reply ended."""
        return [self._chunk(index, {} if self._chat else "", (), _finish_reason(self.readers[index]))]

    def end(self) -> list[Sent]:
        """The figures, where they were asked for, with no choice; and the end."""
        figures = {**self._head, "object": self._kind(), "choices": [], "usage": usage(self.tickets)}
        return [*([("", figures)] if self.asked.usage else []), ("", None)]

    def _chunk(
        self,
        index: int,
        said: dict[str, Any] | str,
        tokens: Sequence[TokenLogprob | _FirstToken] = (),
        finish_reason: str | None = None,
    ) -> Sent:
        logprobs = self._logprobs(index, tokens) if tokens else None
        choice = {
            "index": index, "delta" if self._chat else "text": said, "logprobs": logprobs,
            "finish_reason": finish_reason,
        }  # fmt: skip
        chunk = {**self._head, "object": self._kind(), "choices": [choice]}
        return "", {**chunk, "usage": None} if self.asked.usage else chunk

    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _echo(self) -> str:
        return (self.asked.text or "") if self.asked.echo else ""

    def _echoed_tokens(self, index: int) -> list[TokenLogprob | _FirstToken]:
        """The prompt's tokens, where they are told of; the first follows nothing."""
        if not self.asked.echo or self.asked.top_logprobs is None:
            return []
        known = self.tickets[index].prompt_tokens
        rest = b"".join(token.spelling for token in known)
        whole = self._echo().encode(errors="replace")
        first = whole[: max(0, len(whole) - len(rest))]
        return [*([_FirstToken(first)] if first else []), *known]

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob | _FirstToken]) -> dict[str, Any] | None:
        if self.asked.top_logprobs is None:
            return None
        if self._chat:
            content = [{**_likely(token), "top_logprobs": [_likely(one) for one in token.top]} for token in tokens]
            return {"content": content, "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(len(self._written[index]))
            self._written[index] += _word(token)
        return {
            "tokens": [_word(token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{_word(one): one.logprob for one in token.top} or None for token in tokens],
            "text_offset": offsets,
        }


@dataclass(frozen=True)
class _FirstToken:
    """The first token of a text, which is as likely as any: nothing is known of it."""

    spelling: bytes
    logprob: None = None
    top: tuple[Likely, ...] = ()


def _word(token: Likely | _FirstToken) -> str:
    return token.spelling.decode(errors="replace")


def _likely(token: Likely | _FirstToken) -> dict[str, Any]:
    return {"token": _word(token), "logprob": token.logprob, "bytes": list(token.spelling)}


def _finish_reason(reader: ReplyReader) -> str:
    return {"length": "length", "calls": "tool_calls"}.get(reader.end, "stop")


def _whole_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _deltas(call: Call) -> list[dict[str, Any]]:
    """A call as a stream has it: the name first."""
    first = {"index": call.index, **_whole_call(call), "function": {"name": call.name, "arguments": ""}}
    return [first, {"index": call.index, "function": {"arguments": call.arguments}}]
