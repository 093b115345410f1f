"""Calls are held to their schemas in every form that templates write, and the text is that of plain decoding."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache, lru_cache

import jsonschema
import pytest
from contracts.kit import cached_says, collect, converse
from rows import each_row

from specchat.decoding.chat_tools import FORMS, HERMES, form_of_template, in_words
from specchat.drafters.parts import PairResources
from specchat.errors import ConstraintError, UsageError
from specchat.models.backends.scripted import ScriptedModel, ScriptedVocabulary, random_says
from specchat.serve.tools import Call, CallReader

ADD = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/small"}, "s": {"type": "string", "maxLength": 3}},
    "required": ["a"],
    "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 999}},
}
GET = {
    "type": "object",
    "properties": {"of": {"enum": ["x", "<y>"]}},
    "required": ["of"],
    "additionalProperties": False,
}
SCHEMAS = {"add": ADD, "get-it": GET}
TOOLS = json.dumps([{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()])
LONGEST = 160


class Formatted(ScriptedVocabulary):
    """A vocabulary whose chat format writes calls in one form; `special`: its parts are control tokens."""

    def __init__(self, form, special=False):
        super().__init__()
        parts = [part for part in ("[TOOL_CALLS]", "[ARGS]") if special and part in form.written("n", "{}")]
        self.named = {part: super(Formatted, self).size + at for at, part in enumerate(parts)}
        self.form = form

    @property
    def size(self):
        return super().size + len(self.named)

    def token_bytes(self, token):
        return b"" if token in self.named.values() else super().token_bytes(token)

    def token_label(self, token):
        return next((part for part, one in self.named.items() if one == token), "") or super().token_label(token)

    def encode(self, text):
        for part, token in self.named.items():
            if part in text:
                before, _, after = text.partition(part)
                return [*self.encode(before), token, *self.encode(after)]
        return super().encode(text)

    def encode_chat_with_tools(self, messages, tools):
        if self.form is HERMES:
            return None
        said = "".join(
            "".join(self.form.written(call["name"], json.dumps(call["arguments"])) for call in one.get("calls", ()))
            or one["content"]
            for one in messages
        )
        return self.encode(json.dumps(tools) + said)


def held_reply(form, special, chosen, single, wish, seed, **settings):
    """A reply by a target that wants to write a text, which need not fit the schemas."""
    vocabulary, prompt = formatted(form, special), [65]
    models = (ScriptedModel(vocabulary.size, says) for says in wishing(vocabulary, wish, seed, len(prompt)))
    chat = converse(*models, vocabulary, PairResources(), max_tokens=LONGEST, temperature=0.7, **settings)
    told = chat.vocabulary.encode(in_words([], json.loads(TOOLS))[0]["content"]) if form is HERMES else []
    held = chat.hold_calls(TOOLS, told, chosen=chosen, single=single)
    assert held is not None
    return collect(chat.reply(prompt, seed, constraint=held))


@cache
def formatted(form, special):
    return Formatted(form, special)


@lru_cache(maxsize=1)  # a reply and plain decoding follow the same target
def wishing(vocabulary, wish, seed, begins):
    """What a target that wants to write a text says, and a draft model."""
    size = vocabulary.size
    said, end = vocabulary.encode(wish), min(vocabulary.eos_ids)
    other = random_says(size, seed + 1, memory=2, sharpness=2.0)
    law, between = random_says(size, seed, sharpness=0.5), [*map(ord, ']}"\n`; ,')]

    def target(text):
        logits = law(text)
        at = len(text) - begins
        logits[said[at] if at < len(said) else end] += 15.0
        logits[between] += 2.0
        return logits

    known = cached_says(target, begins + LONGEST)
    return known, lambda text: known(text) + other(text)


def read(text):
    reader = CallReader([*SCHEMAS])
    found = [piece for letter in text for piece in reader.add(letter)] + reader.finish()
    return "".join(one for one in found if isinstance(one, str)), [one for one in found if isinstance(one, Call)]


CASES = [(form, special) for form in FORMS for special in ((False, True) if form.mark == "[TOOL_CALLS]" else (False,))]


def test_held_calls_fit_and_are_written_as_plain_decoding_writes_them():
    called = several = spoken = 0
    rows = itertools.product(CASES, [(), ("add", "get-it"), ("get-it",)], [False, True])
    for number, ((form, special), chosen, single) in enumerate(rows):
        one = form.written("add", '{"a": "no"}')
        two = one + form.between + one if form.each else one.replace("}}", "}}" + form.between + one[len(form.mark) :])
        wish = (two, "So " + one, two, "Well")[(number + number // 6) % 4]
        name = f"{form} {special} {chosen} {single} {wish!r}"
        said = held_reply(form, special, chosen, single, wish, number, drafter="draft_model", controller="fixed")
        plain = held_reply(form, special, chosen, single, wish, number, controller="off")
        assert said.text == plain.text, name
        text, calls = read(said.text)
        if len(said.tokens) == LONGEST:
            continue
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            assert not chosen or call.name in chosen, name
        assert len(calls) <= 1 or not single, name
        assert not chosen or (calls and not text.strip()), f"{name}: {said.text!r}"
        if wish == two or (form.mark and wish.startswith("So")):
            assert calls, f"{name}: {said.text!r}"
        called, several, spoken = called + len(calls), several + (len(calls) > 1), spoken + (not calls)
    assert called > 50
    assert several > 5
    assert spoken > 5


def test_the_form_of_a_template_is_the_one_in_which_it_writes_a_call():
    for form in FORMS:
        for spaces in (str, lambda text: text.replace('", "', '","').replace("\n", "")):

            def written(messages, tools, form=form, spaces=spaces):
                calls = [
                    (call["name"], json.dumps(call["arguments"])) for one in messages for call in one.get("calls", ())
                ]
                return json.dumps(tools) + "User: ?\nReply: " + "".join(spaces(form.written(*call)) for call in calls)

            found = form_of_template(written)
            assert found is not None
            assert (found.mark, found.call, found.each) == (form.mark, form.call, form.each), form
    unknown = replace(HERMES, opening="\n<function=", call=("", ">\n<parameter=x>", "</parameter>"))
    assert form_of_template(lambda messages, tools: unknown.written("probe", "1") * ("calls" in messages[-1])) is None
    assert form_of_template(lambda messages, tools: None) is HERMES
    assert form_of_template(lambda messages, tools: None if messages[1:] else "<tool_call>") is HERMES


def test_calls_in_an_unknown_form_are_free_unless_one_is_required():
    vocabulary = Formatted(replace(FORMS[1], mark="<call:"))
    chat = converse(ScriptedModel(vocabulary.size, random_says(vocabulary.size)), None, vocabulary)
    assert chat.hold_calls(TOOLS, []) is None
    required = chat.hold_calls(TOOLS, [], chosen=["add"])
    assert required is not None
    assert required.allows((), vocabulary.encode(HERMES.mark)[0])
    odd = json.dumps([{"function": {"name": "a>b", "parameters": {}}}])
    chat = converse(ScriptedModel(vocabulary.size, random_says(vocabulary.size)), None, Formatted(FORMS[1]))
    assert chat.hold_calls(odd, []) is None, "its name could not be told from what follows"
    unusable = json.dumps([{"function": {"name": "a", "parameters": {"not": {}}}}])
    assert chat.hold_calls(unusable, []) is None
    with pytest.raises(ConstraintError):
        chat.hold_calls(unusable, [], chosen=["a"])
    for tools in ("[1]", '[{"function": {}}]', '[{"function": {"name": "b", "parameters": 3}}]', TOOLS):
        with pytest.raises(UsageError, match="functions"):
            chat.hold_calls(tools, [], chosen=["a"])


ONE = HERMES.written("add", '{"a": 1}')


@each_row(
    ("text", "free", "single"),
    [
        ("Hello <b> {there} <tool_", True, True),
        (ONE, True, True),
        (f"I add.\n{ONE}\n{ONE} So.", True, False),
        (f"{ONE} So.", True, False),
        (ONE.replace("1", '"one"'), False, False),
        (ONE.replace('"a": 1', ""), False, False),
        (ONE.replace("add", "sub"), False, False),
        (ONE.replace("1}", '1, "b": 1}'), False, False),
        (ONE.removesuffix("</tool_call>"), False, False),
        ("<tool_call>\nnonsense", False, False),
    ],
)
def test_calls_that_may_stand_in_a_text_fit_their_schemas(text, free, single):
    vocabulary = Formatted(HERMES)
    chat = converse(ScriptedModel(vocabulary.size, random_says(vocabulary.size)), None, vocabulary)

    def fits(**asked):
        held = chat.hold_calls(TOOLS, [], **asked)
        for token in [*vocabulary.encode(text), *vocabulary.eos_ids]:
            if not held.allows((), token):
                return False
            held.advance([token])
        return True

    assert fits() == free
    assert fits(single=True) == single
    assert fits(single=True, chosen=["add"]) == (text == ONE)
    assert fits(chosen=["add"]) == (text == ONE)
