"""Anthropic's Messages API: how a reply is asked for, and how it is answered."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from specchat.engine.protocol.commands import Message, ReplyConstraint
from specchat.errors import nearest
from specchat.serve.answers import BlockAnswer, Sent
from specchat.serve.api_error import ApiError, anthropic_error
from specchat.serve.fields import Fields, Only, shown, wrong
from specchat.serve.reply_reader import Piece
from specchat.serve.requests import (
    MOST_TOKENS,
    CheckedRequest,
    answering,
    calling,
    chosen_tool,
    read_format,
    read_messages,
    read_settings,
    read_tools,
    tools_asked,
    typed_part,
)
from specchat.serve.tools import Call, Tools

_ONLY: Only = {
    "thinking": (({"type": "disabled"}, {"type": "adaptive"}), "how long to think cannot be chosen"),
    "service_tier": (("auto", "standard_only"), "there is only one tier"),
    "container": ((), "no code is run"),
    "mcp_servers": (([],), "tools are called by the client"),
}
"""Fields that have one possible value."""

_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "mcp_servers", "context_management")
_KNOWN = (
    *_COUNTED, *_ONLY, "max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k", "metadata",
    "output_config",
)  # fmt: skip


def read_request(body: bytes, client: str = "", *, counts: bool = False) -> CheckedRequest:
    """The request in a body; `counts`: to count its tokens."""
    fields = Fields.of_body(body, _COUNTED if counts else _KNOWN, _ONLY)
    longest = fields.whole("max_tokens", 1, MOST_TOKENS)
    if longest is None and not counts:
        raise wrong("max_tokens", "it is missing", "missing_required_parameter")
    if about := fields.inner("metadata"):
        about.refuse_unknown(["user_id"])
        about.text("user_id")
    _thoughts_cleared(fields.inner("context_management"))
    system = [Message("system", fields.texts("system", _text))] if "system" in fields else []
    tools, constraint = _tools(fields), _output(fields.inner("output_config"))
    if tools is not None and constraint is not None:
        raise wrong("output_config.format", "it cannot be combined with tools")
    return CheckedRequest(
        form="message",
        model=fields.text("model"),
        messages=(*system, *read_messages(fields, "messages", _message)),
        text=None,
        settings=read_settings(fields, longest, "stop_sequences"),
        stream=fields.truth("stream") or False,
        client=client,
        constraint=constraint if tools is None else tools.constraint,
        tools=tools,
        counts=counts,
    )


def _thoughts_cleared(given: Fields | None) -> None:
    """Refuse to leave out parts of the messages, except thoughts, which there are none of."""
    if given is not None:
        given.refuse_unknown(["edits"])
        for edit in given.each("edits"):
            kind = edit.text("type") or ""
            if not kind.startswith("clear_thinking"):
                raise wrong(edit.path("type"), f"{shown(kind)} is not supported: messages are read as they are")


def _output(given: Fields | None) -> ReplyConstraint | None:
    """What the reply is held to. How much effort to spend is read, and has no effect."""
    if given is None:
        return None
    given.refuse_unknown(["effort", "format"])
    given.text("effort")
    return read_format(given.inner("format"))


def _text(part: Fields) -> str:
    """A block of text; hints to a cache have no effect, since every prompt is kept."""
    if part.raw("type") == "text":
        part.refuse_unknown(["type", "text", "cache_control"])
    return typed_part(part, "text")


def _message(fields: Fields) -> Iterator[Message]:
    """The messages that one of Anthropic's becomes: each result of a call is one of its own, before what is said."""
    fields.refuse_unknown(["role", "content"])
    role = fields.text("role")
    if role == "system":
        yield Message("system", fields.texts("content", _text))
        return
    if role not in _BLOCKS:
        raise wrong(fields.path("role"), f"{shown(role)} is not a role{nearest(role or '', _BLOCKS)}")
    other, calls = _BLOCKS[role], []
    if isinstance(fields.raw("content"), list):
        for block in fields.each("content"):
            if block.raw("type") == "tool_result" == other:
                yield answering(*_result(block))
            elif block.raw("type") == "tool_use" == other:
                calls.append(_call(block))

    def text(part: Fields) -> str:
        return "" if part.raw("type") == other else _text(part)

    said = fields.texts("content", text)
    if calls:
        yield calling(said, calls)
    elif said or not isinstance(fields.raw("content"), list) or not fields.raw("content"):
        yield Message(role, said)


_BLOCKS = {"user": "tool_result", "assistant": "tool_use"}
"""The blocks that a message of each role may have besides texts."""


def _call(block: Fields) -> tuple[str, str, dict[str, Any]]:
    block.refuse_unknown(["type", "id", "name", "input", "cache_control"])
    return block.name("id") or "call", block.needed("name"), block.table("input") or {}


def _result(block: Fields) -> tuple[str, str]:
    block.refuse_unknown(["type", "tool_use_id", "content", "is_error", "cache_control"])
    failed = block.truth("is_error")
    said = block.texts("content", _text) if "content" in block else ""
    return block.name("tool_use_id"), f"Error: {said}" if failed else said


def _tools(fields: Fields) -> Tools | None:
    tools = [*fields.each("tools")]
    for tool in tools:
        tool.only("type", "custom", why="only functions can be called")
    given = read_tools(tools, "input_schema", "cache_control", "type", "strict", "eager_input_streaming")
    choice = fields.inner("tool_choice")
    alone = None if choice is None else choice.truth("disable_parallel_tool_use")
    return tools_asked(given, _choice(choice, given), None if alone is None else not alone)


def _choice(choice: Fields | None, named: Collection[str]) -> tuple[str, ...] | None:
    if choice is None:
        return None
    choice.refuse_unknown(["type", "name", "disable_parallel_tool_use"])
    match kind := choice.raw("type"):
        case "auto":
            return None
        case "none":
            return ()
        case "any" if named:
            return tuple(named)
        case "tool":
            return chosen_tool(choice.needed("name"), choice.path("name"), named)
        case "any":
            raise wrong("tool_choice", "there are no tools to choose from")
        case _:
            raise wrong(choice.path("type"), f"{shown(kind)} is none of auto, any, tool and none")


class Messages(BlockAnswer):
    """A message, or the events that make one."""

    error_body = staticmethod(anthropic_error)
    kind = "msg"

    def whole(self, said: Sequence[Sequence[Piece]]) -> dict[str, Any]:
        return {**self._message([_block(piece) for piece in self.joined(said[0])]), **self._ending()}

    def opening(self, index: int) -> list[Sent]:
        """The message without its content."""
        return [("message_start", {"type": "message_start", "message": self._message([])})]

    def closing(self, index: int) -> list[Sent]:
        """The end of the last block, why the reply ended, and the end of the message."""
        ending = self._ending()
        usage = ending.pop("usage")
        return [
            *super().closing(index),
            ("message_delta", {"type": "message_delta", "delta": ending, "usage": usage}),
            ("message_stop", {"type": "message_stop"}),
        ]

    def broken(self, error: ApiError) -> Sent:
        return "error", self.error_body(error)

    def text_begins(self) -> list[Sent]:
        return [self._event("content_block_start", content_block={"type": "text", "text": ""})]

    def text_delta(self, text: str) -> list[Sent]:
        return [self._event("content_block_delta", delta={"type": "text_delta", "text": text})]

    def text_ends(self, text: str) -> list[Sent]:
        return [self._event("content_block_stop")]

    def call_block(self, call: Call) -> list[Sent]:
        return [
            self._event("content_block_start", content_block={**_block(call), "input": {}}),
            self._event("content_block_delta", delta={"type": "input_json_delta", "partial_json": call.arguments}),
            self._event("content_block_stop"),
        ]

    def _event(self, kind: str, **fields: Any) -> Sent:
        return kind, {"type": kind, "index": self.blocks, **fields}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": None, "stop_sequence": None, "usage": self._usage(0),
        }  # fmt: skip

    def _ending(self) -> dict[str, Any]:
        end, finished = self.readers[0].end, self.tickets[0].finished
        assert finished is not None, "asked after the reply"
        reason = {"length": "max_tokens", "calls": "tool_use", "stop": "stop_sequence", "end": "end_turn"}[end]
        stop = finished.stop_string if end == "stop" else None
        return {"stop_reason": reason, "stop_sequence": stop, "usage": self._usage(finished.stats.tokens)}

    def _usage(self, tokens: int) -> dict[str, int]:
        started = self.tickets[0].started
        assert started is not None, "asked when the reply has begun"
        reused = started.reused_tokens
        return {
            "input_tokens": started.prompt_tokens - reused, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reused, "output_tokens": tokens,
        }  # fmt: skip


def _block(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    id = piece.id.replace("call_", "toolu_", 1)
    return {"type": "tool_use", "id": id, "name": piece.name, "input": json.loads(piece.arguments)}
