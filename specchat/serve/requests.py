"""A request as the engine is asked, whichever API it came by, and the checks of fields that several APIs have."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.commands import Message, ReplyConstraint, ToolCall
from specchat.errors import nearest
from specchat.serve.fields import Fields, shown, wrong
from specchat.serve.tools import Tools
from specchat.settings import OPTIONS

Form = Literal["chat.completion", "text_completion", "message", "response"]

MOST_REPLIES = 8
MOST_STOPS = 4
MOST_LIKELY = 20
_MOST_MESSAGES = 10_000
_MOST_BIASED = 1024
_LAST_TOKEN = 2**24 - 1
_LONGEST_STOP = 500
_LARGEST_SEED = 2**63 - 1
MOST_TOKENS = 1_000_000
"""More than any context holds; a reply ends with the context anyway."""

SETTINGS = {
    "temperature": replace(OPTIONS["temperature"], maximum=2.0),
    "top_p": OPTIONS["top_p"],
    "min_p": OPTIONS["min_p"],
    "presence_penalty": replace(OPTIONS["presence_penalty"], minimum=-2.0, maximum=2.0),
    "frequency_penalty": replace(OPTIONS["frequency_penalty"], minimum=-2.0, maximum=2.0),
    "repetition_penalty": OPTIONS["repetition_penalty"],
}
"""Fields that are settings of the same name, with their ranges; some are narrower than in a chat."""


@dataclass(frozen=True)
class CheckedRequest:
    """One request, checked.

    Args:
        model: the name it asked for, None where it named none.
        messages, text: a chat to answer, or a text to go on with.
        settings: those that differ from the server's.
        reference: a text that the reply is expected to follow.
        stream, usage: whether it comes in pieces, and whether the last piece has the figures.
        client: the program that asks, as it calls itself.
        replies: how many are written, with seeds that follow each other.
        top_logprobs: with each token its log-probability, and so many of the likeliest in its place; None: neither.
        echo: the reply begins with the prompt.
        counts: only the prompt's tokens are counted.
        echoed: fields that the answer repeats.
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
    replies: int = 1
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None
    echo: bool = False
    counts: bool = False
    echoed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told_tools(self) -> str:
        return "" if self.tools is None else self.tools.told

    def each(self, servers_seed: int) -> list[CheckedRequest]:
        """The same as requests for one reply each.

        Args:
            servers_seed: the seed of replies whose request names none; below 0 each draws its own.
        """
        seed = servers_seed if self.seed is None and servers_seed >= 0 else self.seed
        if self.replies == 1:
            return [self]
        seeds = [None if seed is None else (seed + n + 2**63) % 2**64 - 2**63 for n in range(self.replies)]
        return [replace(self, seed=one) for one in seeds]


# ------------------------------------------------------------------------------------------------ how to sample


def read_settings(fields: Fields, longest: int | None, stop: str = "stop") -> dict[str, Any]:
    """Fields that are settings; those of them that this API has not are refused before.

    Args:
        longest: tokens of reply.
        stop: the field with the texts that end a reply.
    """
    found: dict[str, Any] = {name: fields.number(name, option) for name, option in SETTINGS.items()}
    found["top_k"] = fields.whole("top_k", 0, MOST_TOKENS)
    found["max_tokens"] = longest
    found["stop"] = _stops(fields, stop)
    return {name: value for name, value in found.items() if value is not None}


def _stops(fields: Fields, name: str) -> list[str] | None:
    stop = fields.raw(name)
    if stop is None:
        return None
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong(name, f"{shown(stop)} is neither a text nor a list of texts", "invalid_type")
    if len(texts) > MOST_STOPS or not all(0 < len(text) <= _LONGEST_STOP for text in texts):
        raise wrong(name, f"at most {MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters can end a reply")
    return texts


def read_seed(fields: Fields) -> int | None:
    """The seed; -1 asks for a fresh one, as in the settings, also where the server's own seed is fixed."""
    seed = fields.whole("seed", -_LARGEST_SEED - 1, _LARGEST_SEED)
    return secrets.randbits(53) if seed == -1 else seed


def read_bias(fields: Fields) -> dict[int, float]:
    """What `logit_bias` adds to the logits of tokens, which it names by number."""
    found: dict[int, float] = {}
    given = fields.table("logit_bias") or {}
    if len(given) > _MOST_BIASED:
        raise wrong("logit_bias", f"it has {len(given)} tokens; {_MOST_BIASED} are read")
    for name, amount in given.items():
        token = int(name) if name.isascii() and name.isdecimal() and len(name) <= 8 else -1
        if not 0 <= token <= _LAST_TOKEN:
            raise wrong("logit_bias", f"{shown(name)} is not the number of a token")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not -100 <= amount <= 100:
            raise wrong("logit_bias", f"{shown(amount)} is not a number from -100 to 100")
        found[token] = float(amount)
    return found


# ----------------------------------------------------------------------------------------------------- messages


def read_messages(fields: Fields, name: str, one: Callable[[Fields], Iterable[Message]]) -> tuple[Message, ...]:
    """The messages in a list, each checked by `one`.

    Raises:
        ApiError: naming the message and what is wrong with it.
    """
    given = fields.items(name)
    if not given:
        raise wrong(name, "at least one message is needed", "missing_required_parameter")
    if len(given) > _MOST_MESSAGES:
        raise wrong(name, f"there are {len(given)} of them; {_MOST_MESSAGES} are read")
    return tuple(message for value in fields.each(name) for message in one(value))


ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""OpenAI's roles, and those of the model's chat format."""


def typed_part(part: Fields, *types: str) -> str:
    """The text of a part of one of these types."""
    if part.raw("type") not in types:
        raise wrong(part.path("type"), f"{shown(part.raw('type'))} is not supported: only text is read")
    text = part.text("text")
    if text is None:
        raise wrong(part.path("text"), "it is missing", "missing_required_parameter")
    return text


def calling(said: str, calls: Sequence[tuple[str, str, Any]]) -> Message:
    """An assistant's message with calls: id, name and arguments of each."""
    return Message("assistant", said, tuple(ToolCall(*call) for call in calls))


def answering(call: str, result: str) -> Message:
    """The result of a call, whose id some clients leave out."""
    return Message("user", result, answers=call or "call")


def parsed(text: str, place: str) -> dict[str, Any]:
    """A JSON object that is written as a text."""
    try:
        value = msgspec.json.decode((text or "{}").encode(errors="replace"))
    except UNREADABLE:
        raise wrong(place, "it is not JSON") from None
    if not isinstance(value, dict):
        raise wrong(place, f"{shown(value)} is not an object")
    return value


# ---------------------------------------------------------------------------- what the reply is held to, and tools


def read_format(given: Fields | None, nested: str = "") -> ReplyConstraint | None:
    """What the reply is held to; whether a schema can be used the engine finds out.

    Args:
        nested: the field that holds name and schema, where they do not stand beside the type.
    """
    if given is None:
        return None
    match kind := given.raw("type"):
        case "text":
            given.refuse_unknown(["type"])
            return None
        case "json_object":
            given.refuse_unknown(["type"])
            return ReplyConstraint("json_object")
        case "json_schema":
            about = given
            if nested:
                given.refuse_unknown(["type", nested])
                about = given.inner(nested) or Fields({}, given.path(f"{nested}."))
            about.refuse_unknown(["name", "description", "schema", "strict", *([] if nested else ["type"])])
            return ReplyConstraint("json_schema", _schema(about))
        case _:
            raise wrong(given.path("type"), f"{shown(kind)} is none of text, json_object and json_schema")


def _schema(about: Fields) -> str:
    """The schema as text. It is enforced whether `strict` or not."""
    about.text("name")
    about.text("description")
    about.truth("strict")
    schema = about.table("schema")
    if schema is None:
        raise wrong(about.path("schema"), "it is missing", "missing_required_parameter")
    return msgspec.json.encode(schema).decode()


def read_tools(functions: Iterable[Fields], parameters: str, *others: str) -> dict[str, dict[str, Any]]:
    """The functions that may be called by name, as chat templates are given them.

    Args:
        parameters: the field with the schema of a function's parameters.
        others: further fields that a function may have, besides its name and description.
    """
    found: dict[str, dict[str, Any]] = {}
    for function in functions:
        function.refuse_unknown(["name", "description", parameters, *others])
        name, description = function.needed("name"), function.text("description")
        schema = function.table(parameters) or {"type": "object"}
        if name in found:
            raise wrong(function.path("name"), f"{shown(name)} is the name of two tools")
        told = {} if description is None else {"description": description}
        found[name] = {"type": "function", "function": {"name": name, **told, "parameters": schema}}
    return found


def tools_asked(
    tools: Mapping[str, dict[str, Any]], chosen: Sequence[str] | None, parallel: bool | None
) -> Tools | None:
    """The functions of a request; None where there are none, or none may be called.

    Args:
        chosen: those one of which must be called, none where none may be; None where the model decides.
        parallel: whether several calls are wanted; where nothing is said, only if none is required.
    """
    if not tools or chosen == ():
        return None
    single = parallel is False or (parallel is None and bool(chosen))
    held = ReplyConstraint("calls", chosen=tuple(chosen or ()), single=single)
    return Tools(tuple(tools), msgspec.json.encode([*tools.values()]).decode(), held)


def read_choice(fields: Fields, named: Collection[str], function: Callable[[Fields], Fields]) -> tuple[str, ...] | None:
    """OpenAI's `tool_choice`: the tools one of which must be called, none where none may be; None: the model decides.

    Args:
        function: finds and checks the object with a function's name in the choice of one.
    """
    match choice := fields.raw("tool_choice"):
        case None | "auto":
            return None
        case "none":
            return ()
        case "required" if named:
            return tuple(named)
        case "required":
            raise wrong("tool_choice", "there are no tools to choose from")
        case dict():
            chosen = function(Fields(choice, "tool_choice."))
            return chosen_tool(chosen.needed("name"), chosen.path("name"), named)
        case _:
            raise wrong("tool_choice", f"{shown(choice)} is none of none, auto, required and a function")


def chosen_tool(name: str, place: str, named: Collection[str]) -> tuple[str, ...]:
    if name not in named:
        raise wrong(place, f"{shown(name)} is not the name of a tool{nearest(name, named)}")
    return (name,)
