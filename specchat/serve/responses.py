"""OpenAI's Responses API: how a reply is asked for, and how it is answered. Nothing is kept between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specchat.engine.protocol.commands import Message
from specchat.errors import nearest
from specchat.serve.answers import BlockAnswer, Sent
from specchat.serve.api_error import ApiError
from specchat.serve.fields import Fields, Only, shown, wrong
from specchat.serve.reply_reader import Piece, ReplyReader
from specchat.serve.requests import (
    MOST_TOKENS,
    ROLES,
    CheckedRequest,
    answering,
    calling,
    parsed,
    read_choice,
    read_format,
    read_messages,
    read_settings,
    read_tools,
    tools_asked,
    typed_part,
)
from specchat.serve.tools import Call, Tools

_ONLY: Only = {
    "store": ((False,), "nothing is kept between requests; send the whole input each time"),
    "previous_response_id": ((), "nothing is kept between requests; send the whole input each time"),
    "conversation": ((), "nothing is kept between requests; send the whole input each time"),
    "background": ((False,), "a reply is written while its request waits"),
    "truncation": (("disabled",), "an input that is too long is refused"),
    "service_tier": (("auto", "default"), "there is only one tier"),
    "include": (([], ["reasoning.encrypted_content"]), "there is nothing else to include"),
    "metadata": (({},), "nothing is stored"),
    "top_logprobs": ((0,), "log-probabilities are told by chat completions"),
    "max_tool_calls": ((), "tools are called by the client"),
    "prompt": ((), "there are no stored prompts"),
}
"""Fields that have one possible value."""

_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_ECHOED = (
    "instructions", "max_output_tokens", "temperature", "top_p", "tool_choice", "tools", "parallel_tool_calls", "user",
    "text", "truncation", "metadata",
)  # fmt: skip
_KNOWN = (
    "model", "input", "stream", "stream_options", "reasoning", "client_metadata", "top_k", "min_p", "stop", *_ECHOED,
    *_ONLY, *_WITHOUT_EFFECT,
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "temperature": None, "top_p": None, "tool_choice": "auto",
    "tools": [], "parallel_tool_calls": True, "user": None, "text": {"format": {"type": "text"}},
    "truncation": "disabled", "metadata": {},
}  # fmt: skip


def read_request(body: bytes, client: str = "") -> CheckedRequest:
    """The request in a body."""
    fields = Fields.of_body(body, _KNOWN, _ONLY, _WITHOUT_EFFECT)
    fields.table("client_metadata")
    if thinking := fields.inner("reasoning"):
        thinking.refuse_unknown(["effort", "summary"])
        thinking.only("effort", "none", why="how long to think cannot be chosen")
        thinking.only("summary", "auto", why="there are no thoughts to sum up")
    if options := fields.inner("stream_options"):
        options.refuse_unknown(["include_obfuscation"])
        options.only("include_obfuscation", False, why="pieces are not padded")
    form = fields.inner("text")
    if form is not None:
        form.refuse_unknown(["format", "verbosity"])
        form.only("verbosity", "medium", why="how much to say cannot be chosen")
    constraint = None if form is None else read_format(form.inner("format"))
    tools = _tools(fields)
    if tools is not None and constraint is not None:
        raise wrong("text.format", "it cannot be combined with tools")
    told = fields.text("instructions")
    return CheckedRequest(
        form="response",
        model=fields.text("model"),
        messages=(*([Message("system", told)] if told else []), *_input(fields)),
        text=None,
        settings=read_settings(fields, fields.whole("max_output_tokens", 1, MOST_TOKENS)),
        stream=fields.truth("stream") or False,
        client=client,
        constraint=constraint if tools is None else tools.constraint,
        tools=tools,
        echoed={name: _DEFAULTS[name] if (value := fields.raw(name)) is None else value for name in _ECHOED},
    )


def _input(fields: Fields) -> tuple[Message, ...]:
    """The input: a text, or items."""
    given = fields.raw("input")
    if isinstance(given, str):
        return (Message("user", given),)
    if given is not None and not isinstance(given, list):
        raise wrong("input", f"{shown(given)} is neither a text nor a list of items", "invalid_type")
    return read_messages(fields, "input", _item)


def _item(item: Fields) -> Iterator[Message]:
    match kind := item.raw("type"):
        case "function_call":
            item.refuse_unknown(["type", "id", "call_id", "name", "arguments", "status"])
            arguments = parsed(item.text("arguments") or "", item.path("arguments"))
            yield calling("", [(item.name("call_id") or "call", item.needed("name"), arguments)])
        case "function_call_output":
            item.refuse_unknown(["type", "id", "call_id", "output", "status"])
            yield answering(item.name("call_id"), item.texts("output", _part))
        case None | "message":
            item.refuse_unknown(["type", "id", "role", "content", "status"])
            role = item.text("role")
            if role not in ROLES:
                raise wrong(item.path("role"), f"{shown(role)} is not a role{nearest(role or '', ROLES)}")
            yield Message(ROLES[role], item.texts("content", _part))
        case _:
            why = f"{shown(kind)} is none of message, function_call and function_call_output"
            raise wrong(item.path("type"), why)


def _part(part: Fields) -> str:
    part.refuse_unknown(["type", "text", "annotations", "logprobs"])
    return typed_part(part, "input_text", "output_text", "text")


def _tools(fields: Fields) -> Tools | None:
    tools = [*fields.each("tools")]
    for tool in tools:
        if tool.raw("type") != "function":
            raise wrong(tool.path("type"), f"{shown(tool.raw('type'))} is not supported: only functions can be called")
    given = read_tools(tools, "parameters", "type", "strict")
    return tools_asked(given, read_choice(fields, given, _chosen_function), fields.truth("parallel_tool_calls"))


def _chosen_function(choice: Fields) -> Fields:
    choice.refuse_unknown(["type", "name"])
    if choice.raw("type") != "function":
        raise wrong(choice.path("type"), "only functions can be called")
    return choice


class Responses(BlockAnswer):
    """A response, or the events that make one."""

    kind = "resp"

    def __init__(self, readers: Sequence[ReplyReader], model: str) -> None:
        super().__init__(readers, model)
        self._created = int(time.time())
        self._items: list[dict[str, Any]] = []  # complete
        self._sent = 0

    def whole(self, said: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        self.pieces(0, said[0])
        super().closing(0)
        return self._response(self._status())

    def opening(self, index: int) -> list[Sent]:
        """The response without its output."""
        response = self._response("in_progress")
        return [self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress")]

    def closing(self, index: int) -> list[Sent]:
        """The end of the last item, and the whole response."""
        status = self._status()
        return [*super().closing(index), self._event(f"response.{status}", response=self._response(status))]

    def broken(self, error: ApiError) -> Sent:
        failed = {**self._response("failed"), "error": {"code": error.code or "server_error", "message": error.message}}
        return self._event("response.failed", response=failed)

    def text_begins(self) -> list[Sent]:
        self._item_id = f"msg_{secrets.token_hex(12)}"
        item = {**self._text_item(""), "status": "in_progress", "content": []}
        return [
            self._event("response.output_item.added", output_index=self.blocks, item=item),
            self._part_event("response.content_part.added", part=_text_part("")),
        ]

    def text_delta(self, text: str) -> list[Sent]:
        return [self._part_event("response.output_text.delta", delta=text, logprobs=[])]

    def text_ends(self, text: str) -> list[Sent]:
        return [
            self._part_event("response.output_text.done", text=text, logprobs=[]),
            self._part_event("response.content_part.done", part=_text_part(text)),
            self._done(self._text_item(text)),
        ]

    def call_block(self, call: Call) -> list[Sent]:
        self._item_id = call.id.replace("call_", "fc_", 1)
        item = {
            "type": "function_call", "id": self._item_id, "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }  # fmt: skip
        about = {"item_id": self._item_id, "output_index": self.blocks}
        begun = {**item, "arguments": "", "status": "in_progress"}
        return [
            self._event("response.output_item.added", output_index=self.blocks, item=begun),
            self._event("response.function_call_arguments.delta", **about, delta=call.arguments),
            self._event("response.function_call_arguments.done", **about, name=call.name, arguments=call.arguments),
            self._done(item),
        ]

    def _done(self, item: dict[str, Any]) -> Sent:
        self._items.append(item)
        return self._event("response.output_item.done", output_index=self.blocks, item=item)

    def _part_event(self, kind: str, **fields: Any) -> Sent:
        return self._event(kind, item_id=self._item_id, output_index=self.blocks, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Sent:
        self._sent += 1
        return kind, {"type": kind, "sequence_number": self._sent - 1, **fields}

    def _text_item(self, text: str) -> dict[str, Any]:
        return {
            "type": "message", "id": self._item_id, "role": "assistant", "status": "completed",
            "content": [_text_part(text)],
        }  # fmt: skip

    def _status(self) -> str:
        return "incomplete" if self.readers[0].end == "length" else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        over = self.tickets[0].finished is not None and status in ("completed", "incomplete")
        return {
            "id": self.id, "object": "response", "created_at": self._created, "status": status,
            "model": self.model, "output": [*self._items], **self.asked.echoed,
            "error": None, "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "store": False,
            "background": False, "usage": self._usage() if over else None,
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        finished = self.tickets[0].finished
        assert finished is not None, "asked after the reply"
        stats = finished.stats
        return {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.reused_tokens},
            "output_tokens": stats.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": stats.prompt_tokens + stats.tokens,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
