"""The messages of a chat as OpenAI writes them: texts, or lists of parts of which each is a text."""

from __future__ import annotations

from specchat.engine.protocol.chat_message import Message
from specchat.errors import nearest
from specchat.serve.fields import Fields, shown, wrong

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_MOST = 10_000


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The field `messages`, checked.

    Raises:
        ApiError: naming the message and what is wrong with it.
    """
    given = fields.items("messages")
    if not given:
        raise wrong("messages", "at least one message is needed", "missing_required_parameter")
    if len(given) > _MOST:
        raise wrong("messages", f"there are {len(given)} of them; {_MOST} are read")
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
