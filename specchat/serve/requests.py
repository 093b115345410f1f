"""From the body of a request to what is asked of the engine: every field is checked, and honoured or refused."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.commands import Message, ReplyConstraint
from specchat.errors import cut, nearest, short
from specchat.registry import Option
from specchat.serve.api_error import ApiError
from specchat.serve.tools import Tools, call_text, required_call, result_text
from specchat.settings import OPTIONS

Kind = TypeVar("Kind")

_LONGEST_SHOWN = 80


def wrong(param: str, why: str, code: str = "invalid_value") -> ApiError:
    """A field that cannot be accepted."""
    param = cut(param)
    return ApiError(400, f"{param}: {why}", param=param, code=code)


def shown(value: Any) -> str:
    """The value as JSON, as an error shows it: on one line and never long."""
    try:
        return cut(json.dumps(value, ensure_ascii=False), _LONGEST_SHOWN)
    except ValueError:  # a number with too many digits to be written out
        return short(value)


class Fields:
    """The fields of one object, taken one by one; null counts as not given.

    Args:
        place: where the object is in the body, as a prefix of its fields' names.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._place = place

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def path(self, name: str) -> str:
        return f"{self._place}{name}"

    def raw(self, name: str) -> Any:
        """The value as it came; None where it was not given."""
        return self._values.get(name)

    def refuse_unknown(self, known: Collection[str]) -> None:
        for name in self._values:
            if name not in known:
                raise wrong(self.path(name), f"there is no such field{nearest(name, known)}", "unknown_parameter")

    def text(self, name: str) -> str | None:
        return self._of(name, str, "a text")

    def truth(self, name: str) -> bool | None:
        return self._of(name, bool, "true or false")

    def table(self, name: str) -> dict[str, Any] | None:
        return self._of(name, dict, "an object")

    def items(self, name: str) -> list[Any] | None:
        return self._of(name, list, "a list")

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise wrong(self.path(name), f"{shown(value)} is not a whole number", "invalid_type")
        if value is not None and not low <= value <= high:
            raise wrong(self.path(name), f"{shown(value)} is outside its range: {low} to {high}")
        return value

    def number(self, name: str, option: Option) -> float | None:
        """A number in the range of an option, whose kind does not matter."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise wrong(self.path(name), f"{shown(value)} is not a number", "invalid_type")
        if value is not None and not option.allows(value):
            raise wrong(self.path(name), f"{shown(value)} is outside its range: {option.range_text()}")
        return value

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse any value but these."""
        value = self._values.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            raise wrong(self.path(name), f"{shown(value)} is not supported: {why}", "unsupported_value")

    def _of(self, name: str, kind: type[Kind], words: str) -> Kind | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, kind):
            raise wrong(self.path(name), f"{shown(value)} is not {words}", "invalid_type")
        return value


def _function(fields: Fields, known: Collection[str]) -> Fields:
    """The object `function` of a tool or a call."""
    if fields.raw("type") != "function":
        raise wrong(fields.path("type"), f"{shown(fields.raw('type'))} is not supported: only functions can be called")
    function = Fields(fields.table("function") or {}, fields.path("function."))
    function.refuse_unknown(known)
    if not function.text("name"):
        raise wrong(function.path("name"), "it is missing", "missing_required_parameter")
    return function


def _calls(fields: Fields) -> list[str]:
    """The calls of an assistant's message, as the model wrote them."""
    found: list[str] = []
    for number, value in enumerate(fields.items("tool_calls") or []):
        place = f"{fields.path('tool_calls')}[{number}]"
        if not isinstance(value, dict):
            raise wrong(place, f"{shown(value)} is not an object", "invalid_type")
        function = _function(Fields(value, f"{place}."), ["name", "arguments"])
        try:
            arguments = msgspec.json.decode((function.text("arguments") or "{}").encode())
        except UNREADABLE:
            raise wrong(function.path("arguments"), "it is not JSON") from None
        found.append(call_text(function.text("name") or "", arguments))
    return found


def _tool_message(fields: Fields) -> Message | None:
    """A tool's result, or an assistant's message with calls, as models read them; None for other messages."""
    if fields.text("role") == "tool":
        fields.refuse_unknown(["role", "content", "tool_call_id", "name"])
        return Message("user", result_text(content_text(fields)))
    if not fields.items("tool_calls"):
        return None
    fields.refuse_unknown(["role", "content", "refusal", "tool_calls", "annotations", "audio", "function_call"])
    said = [content_text(fields)] if fields.raw("content") else []
    return Message("assistant", "\n".join([*said, *_calls(fields)]))


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST_MESSAGES = 10_000


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The field `messages`, checked.

    Raises:
        ApiError: naming the message and what is wrong with it.
    """
    given = fields.items("messages")
    if not given:
        raise wrong("messages", "at least one message is needed", "missing_required_parameter")
    if len(given) > _MOST_MESSAGES:
        raise wrong("messages", f"there are {len(given)} of them; {_MOST_MESSAGES} are read")
    return tuple(_message(value, f"messages[{place}]") for place, value in enumerate(given))


def content_text(fields: Fields) -> str:
    """The field `content`: a text, or the texts of its parts one after the other."""
    content = fields.raw("content")
    place = fields.path("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(place, f"{shown(content)} is neither a text nor a list of text parts", "invalid_type")
    return "".join(_part(value, f"{place}[{number}]") for number, value in enumerate(content))


def _message(value: object, place: str) -> Message:
    if not isinstance(value, dict):
        raise wrong(place, f"{shown(value)} is not an object", "invalid_type")
    fields = Fields(value, f"{place}.")
    role = fields.text("role")
    if role in ("tool", "assistant") and (told := _tool_message(fields)) is not None:
        return told
    if role not in _ROLES:
        raise wrong(
            fields.path("role"), f"{shown(role)} is not a role that can be answered{nearest(role or '', _ROLES)}"
        )
    fields.refuse_unknown(["role", "content", "name", "refusal", "tool_calls", "function_call", "audio", "annotations"])
    for name in ("name", "refusal", "function_call", "audio"):
        fields.only(name, why="the model's chat format has no place for it")
    for name in ("tool_calls", "annotations"):
        fields.only(name, [], why="the model's chat format has no place for it")
    return Message(_ROLES[role], content_text(fields))


def _part(value: object, place: str) -> str:
    if not isinstance(value, dict):
        raise wrong(place, f"{shown(value)} is not an object", "invalid_type")
    part = Fields(value, f"{place}.")
    if part.raw("type") != "text":
        raise wrong(part.path("type"), f"{shown(part.raw('type'))} is not supported: only text is read")
    part.refuse_unknown(["type", "text"])
    text = part.text("text")
    if text is None:
        raise wrong(part.path("text"), "it is missing", "missing_required_parameter")
    return text


Form = Literal["chat.completion", "text_completion"]

MOST_STOPS = 4
_LONGEST_STOP = 500
_LARGEST_SEED = 2**63 - 1
_MOST_TOKENS = 1_000_000
"""More than any context holds; a reply ends with the context anyway."""

_SETTINGS = {
    "temperature": replace(OPTIONS["temperature"], maximum=2.0),
    "top_p": OPTIONS["top_p"],
    "min_p": OPTIONS["min_p"],
    "presence_penalty": replace(OPTIONS["presence_penalty"], minimum=-2.0, maximum=2.0),
    "frequency_penalty": replace(OPTIONS["frequency_penalty"], minimum=-2.0, maximum=2.0),
    "repetition_penalty": OPTIONS["repetition_penalty"],
}
"""Fields that are settings of the same name, with their ranges; some are narrower than in a chat."""

_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key")
"""Texts about the client; nothing is kept of them."""

_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "one reply is written for each request"),
    "logprobs": ((False,), "log-probabilities are not given out"),
    "top_logprobs": ((0,), "log-probabilities are not given out"),
    "logit_bias": (({},), "tokens cannot be favoured one by one"),
    "service_tier": (("auto", "default"), "there is only one tier"),
    "store": ((False,), "nothing is stored"),
    "metadata": (({},), "nothing is stored"),
}
"""Fields of both forms that have one possible value."""

_ONLY_IN: Mapping[Form, Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "chat.completion": {
        "functions": (([],), "functions cannot be called"),
        "function_call": (("none",), "functions cannot be called"),
        "modalities": ((["text"],), "replies are plain text"),
        "audio": ((), "replies are plain text"),
        "reasoning_effort": (("none",), "how long to think cannot be chosen"),
        "verbosity": (("medium",), "how much to say cannot be chosen"),
        "web_search_options": ((), "nothing is searched"),
    },
    "text_completion": {
        "best_of": ((1,), "one reply is written for each request"),
        "echo": ((False,), "the prompt is not repeated"),
        "suffix": (("",), "text is written only at the end"),
        "logprobs": ((), "log-probabilities are not given out"),
    },
}
"""Fields of one form that have one possible value."""

_COMMON = (
    "model", "stream", "stream_options", "stop", "seed", "max_tokens", "top_k", "prediction", *_SETTINGS,
    *_WITHOUT_EFFECT,
)  # fmt: skip
_OWN: Mapping[Form, tuple[str, ...]] = {
    "chat.completion": (
        "messages",
        "max_completion_tokens",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
    ),
    "text_completion": ("prompt",),
}


@dataclass(frozen=True)
class CheckedRequest:
    """One request, checked.

    Args:
        model: the name it asked for, None where it named none.
        messages, text: a chat to answer, or a text to go on with.
        settings: those that differ from the server's.
        reference: a text that the reply is expected to follow.
        constraint: what the reply is held to.
        tools: functions that it may call.
        stream, usage: whether it comes in pieces, and whether the last piece has the figures.
        client: the program that asks, as it calls itself.
    """

    form: Form
    model: str | None
    messages: tuple[Message, ...]
    text: str | None
    settings: Mapping[str, Any]
    seed: int | None = None
    reference: str = ""
    stream: bool = False
    usage: bool = False
    client: str = ""
    constraint: ReplyConstraint | None = None
    tools: Tools | None = None


def read_request(body: bytes, form: Form, client: str = "") -> CheckedRequest:
    """The request in a body.

    Raises:
        ApiError: it is not a JSON object, or a field is missing, unknown, of a wrong kind or not supported.
    """
    fields = Fields(_json(body))
    only = {**_ONLY, **_ONLY_IN[form]}
    fields.refuse_unknown([*_COMMON, *_OWN[form], *only])
    for name, (allowed, why) in only.items():
        fields.only(name, *allowed, why=why)
    for name in _WITHOUT_EFFECT:
        fields.text(name)
    chat = form == "chat.completion"
    stream = fields.truth("stream") or False
    tools = _tools(fields) if chat else None
    constraint = _response_format(fields) if chat else None
    if tools is not None and constraint is not None:
        raise wrong("response_format", "it cannot be combined with tools")
    return CheckedRequest(
        form=form,
        model=fields.text("model"),
        messages=read_messages(fields) if chat else (),
        text=None if chat else _prompt(fields),
        settings=_settings(fields),
        seed=_seed(fields),
        reference=_reference(fields),
        stream=stream,
        usage=_stream_options(fields, stream),
        client=client,
        constraint=constraint if tools is None else tools.constraint,
        tools=tools,
    )


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is not a JSON object: {shown(value)}", code="invalid_json")
    return value


def _prompt(fields: Fields) -> str:
    prompt = fields.raw("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        why = "one text is continued for each request" if prompt is not None else "it is missing"
        raise wrong(fields.path("prompt"), why)
    return prompt


def _settings(fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {name: fields.number(name, option) for name, option in _SETTINGS.items()}
    found["top_k"] = fields.whole("top_k", 0, _MOST_TOKENS)
    old, new = (fields.whole(name, 1, _MOST_TOKENS) for name in ("max_tokens", "max_completion_tokens"))
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", "it contradicts max_completion_tokens; give one of them")
    found["max_tokens"] = old if new is None else new
    found["stop"] = _stops(fields)
    return {name: value for name, value in found.items() if value is not None}


def _seed(fields: Fields) -> int | None:
    """The seed; -1 asks for a fresh one, as in the settings, also where the server's own seed is fixed."""
    seed = fields.whole("seed", -_LARGEST_SEED - 1, _LARGEST_SEED)
    return secrets.randbits(53) if seed == -1 else seed


def _stops(fields: Fields) -> list[str] | None:
    stop = fields.raw("stop")
    if stop is None:
        return None
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong("stop", f"{shown(stop)} is neither a text nor a list of texts", "invalid_type")
    if len(texts) > MOST_STOPS or not all(0 < len(text) <= _LONGEST_STOP for text in texts):
        raise wrong("stop", f"at most {MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters can end a reply")
    return texts


def _reference(fields: Fields) -> str:
    """The predicted reply, from `{"type": "content", "content": …}`."""
    given = fields.table("prediction")
    if given is None:
        return ""
    prediction = Fields(given, "prediction.")
    prediction.refuse_unknown(["type", "content"])
    if prediction.raw("type") != "content":
        raise wrong("prediction.type", f'{shown(prediction.raw("type"))} is not "content"')
    return content_text(prediction)


def _tools(fields: Fields) -> Tools | None:
    """The functions that may be called; None where there are none, or none may be."""
    named: dict[str, dict[str, Any]] = {}
    given = fields.items("tools") or []
    for number, value in enumerate(given):
        place = f"tools[{number}]"
        if not isinstance(value, dict):
            raise wrong(place, f"{shown(value)} is not an object", "invalid_type")
        function = _function(Fields(value, f"{place}."), ["name", "description", "parameters", "strict"])
        function.text("description")
        name = function.text("name") or ""
        if name in named:
            raise wrong(function.path("name"), f"{shown(name)} is the name of two tools")
        named[name] = function.table("parameters") or {"type": "object"}
    chosen = _tool_choice(fields, named)
    single = fields.truth("parallel_tool_calls") is False
    if chosen == () or not named:
        return None
    if single and chosen is None:
        raise wrong("parallel_tool_calls", "false is not supported: where calls are free, there may be several")
    return Tools(tuple(named), msgspec.json.encode(given).decode(), required_call(named, chosen) if chosen else None)


def _tool_choice(fields: Fields, named: Collection[str]) -> tuple[str, ...] | None:
    """The tools one of which must be called; empty where none may be, None where the model decides."""
    choice = fields.raw("tool_choice")
    if choice is None:
        return None
    if choice == "none":
        return ()
    if not named:
        raise wrong("tool_choice", "there are no tools to choose from")
    if choice == "auto":
        return None
    if choice == "required":
        return tuple(named)
    if not isinstance(choice, dict):
        raise wrong("tool_choice", f"{shown(choice)} is none of none, auto, required and a function")
    name = _function(Fields(choice, "tool_choice."), ["name"]).text("name") or ""
    if name not in named:
        raise wrong("tool_choice.function.name", f"{shown(name)} is not the name of a tool{nearest(name, named)}")
    return (name,)


def _response_format(fields: Fields) -> ReplyConstraint | None:
    """What the reply is held to; whether a schema can be used the engine finds out."""
    given = fields.table("response_format")
    if given is None:
        return None
    wanted = Fields(given, "response_format.")
    match kind := wanted.raw("type"):
        case "text":
            wanted.refuse_unknown(["type"])
            return None
        case "json_object":
            wanted.refuse_unknown(["type"])
            return ReplyConstraint("json_object")
        case "json_schema":
            wanted.refuse_unknown(["type", "json_schema"])
            return ReplyConstraint("json_schema", _schema(wanted))
        case _:
            raise wrong(wanted.path("type"), f"{shown(kind)} is none of text, json_object and json_schema")


def _schema(wanted: Fields) -> str:
    """The schema as text. It is enforced whether `strict` or not."""
    about = Fields(wanted.table("json_schema") or {}, wanted.path("json_schema."))
    about.refuse_unknown(["name", "description", "schema", "strict"])
    about.text("name")
    about.text("description")
    about.truth("strict")
    schema = about.table("schema")
    if schema is None:
        raise wrong(about.path("schema"), "it is missing", "missing_required_parameter")
    return msgspec.json.encode(schema).decode()


def _stream_options(fields: Fields, stream: bool) -> bool:
    """Whether the figures are wanted at the end of the stream."""
    given = fields.table("stream_options")
    if given is None:
        return False
    if not stream:
        raise wrong("stream_options", "it needs stream = true")
    options = Fields(given, "stream_options.")
    options.refuse_unknown(["include_usage", "include_obfuscation"])
    options.only("include_obfuscation", False, why="pieces are not padded")
    return options.truth("include_usage") or False
