"""Forty prompts under JSON schemas: every reply of a real model parses and fits, and is plain decoding's."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from contracts.kit import collect
from real_weights import HOME, fetched

from specchat.config import load_catalog
from specchat.core.constraint import ConstraintSource
from specchat.decoding.conversation import Conversation
from specchat.decoding.emission import Stop
from specchat.decoding.vocabulary import TransformersVocabulary
from specchat.models.model_loading import load_model
from specchat.settings import Settings

pytestmark = pytest.mark.real


def text(most=24):
    return {"type": "string", "maxLength": most}


def record(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def some(items, most=3):
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def one_of(*values):
    return {"enum": [*values]}


def call(name, **arguments):
    return record(name={"const": name}, arguments=record(**arguments))


def whole(low, high):
    return {"type": "integer", "minimum": low, "maximum": high}


TRUTH, NUMBER = {"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 1000}
DATE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
PERSON = record(name=text(), age=whole(0, 120))
PLACE = record(city=text(), country=text(), zip={"type": "string", "pattern": "^[0-9]{5}$"})

PROMPTS = [
    # extraction
    ("Anna is 31 years old.", PERSON),
    ("Bob, 54, lives in Oslo, Norway, 01234.", record(person=PERSON, home=PLACE)),
    ("The meeting with Carla is on 2024-05-17 at noon.", record(who=text(), date=DATE)),
    ("A red bicycle for 250 euros.", record(thing=text(), colour=one_of("red", "green", "blue"), price=NUMBER)),
    (
        "Invoice 4711: three chairs, two tables.",
        record(number=whole(0, 99999), items=some(record(name=text(), count=whole(1, 9)))),
    ),
    ("The film is boring.", record(sentiment=one_of("good", "bad", "neutral"), sure=NUMBER)),
    ("Paris is the capital of France.", record(capital=text(), country=text(), continent=one_of("Europe", "Asia"))),
    ("Water boils at 100 degrees.", record(substance=text(), celsius=whole(-273, 5000))),
    ("Dogs, cats and horses are animals.", record(animals=some(text(12), 4))),
    ("Call me at 555 0199.", record(phone={"type": "string", "pattern": "^[0-9]{3} [0-9]{4}$"})),
    # tool calls
    ("What is the weather in Rome?", call("get_weather", city=text(), unit=one_of("C", "F"))),
    ("Add 3 and 4.", call("add", a=whole(0, 99), b=whole(0, 99))),
    ("Turn on the lights in the kitchen.", call("switch", room=text(), on=TRUTH)),
    ("Remind me tomorrow to call Eve.", call("remind", what=text(40), date=DATE)),
    ("Search for cheap flights.", call("search", query=text(40), pages=whole(1, 5))),
    ("Send 20 dollars to Dan.", call("pay", to=text(), amount=NUMBER, currency=one_of("USD", "EUR"))),
    ("Read the file notes.txt.", call("read_file", path=text(40))),
    ("Rename a to b.", call("rename", old=text(12), new=text(12))),
    ("Play some jazz.", call("play", genre=one_of("jazz", "rock"), loud=TRUTH)),
    ("Translate 'dog' into French.", call("translate", text=text(), language=one_of("fr", "de", "es"))),
    # nested objects
    ("A family of three.", record(family=record(name=text(), members=some(PERSON)))),
    ("A house with two rooms.", record(house=record(address=PLACE, rooms=some(record(name=text(), area=NUMBER), 2)))),
    (
        "A book by Orwell.",
        record(book=record(title=text(30), author=record(first=text(), last=text()), year=whole(1000, 2100))),
    ),
    ("A pizza order.", record(order=record(size=one_of("S", "M", "L"), toppings=some(text(12))), paid=TRUTH)),
    ("A trip from Rome to Oslo.", record(trip=record(start=PLACE, end=PLACE, days=whole(1, 60)))),
    (
        "A server with two disks.",
        record(server=record(name=text(12), disks=some(record(gb=whole(1, 9999), ssd=TRUTH), 2))),
    ),
    ("A class with a teacher.", record(teacher=PERSON, pupils=some(PERSON, 2))),
    (
        "A car.",
        record(car=record(engine=record(power=whole(1, 999), fuel=one_of("petrol", "electric")), doors=whole(2, 5))),
    ),
    (
        "A football match.",
        record(home=record(team=text(), goals=whole(0, 9)), away=record(team=text(), goals=whole(0, 9))),
    ),
    ("A recipe for soup.", record(name=text(), steps=some(record(number=whole(1, 9), what=text(40))))),
    # enums and unions
    ("Is the sky blue?", record(answer=one_of("yes", "no", "unknown"))),
    ("Pick a day.", record(day=one_of("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))),
    ("Rate the hotel.", record(stars=one_of(1, 2, 3, 4, 5))),
    ("Which traffic light?", record(colour=one_of("red", "amber", "green"), wait=TRUTH)),
    ("A number or nothing.", record(value={"anyOf": [whole(0, 99), {"type": "null"}]})),
    ("A shape.", {"anyOf": [record(circle=record(radius=NUMBER)), record(square=record(side=NUMBER))]}),
    ("Spam or not: 'You won!'", record(label=one_of("spam", "ham"), reasons=some(text(30), 2))),
    (
        "Which size?",
        record(size=one_of("small", "medium", "large"), note={"type": ["string", "null"], "maxLength": 20}),
    ),
    ("Priority of the bug: the app crashes.", record(priority=one_of("P0", "P1", "P2"), area=one_of("ui", "core"))),
    ("True or false: 2 > 1.", record(result=TRUTH, why=text(40))),
]


SPECULATING = {"drafter": "suffix", "policy": "best_first", "controller": "fixed", "width": 2, "depth": 6, "nodes": 10}


@pytest.fixture(scope="module")
def conversations():
    """One that speculates, and one that does not, over the same weights."""
    name = load_catalog().pair("smol").target
    path = fetched(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(HOME))
        loaded = load_model(load_catalog().model(name), path, torch.device("cpu"), "auto")
    vocabulary = TransformersVocabulary(loaded.tokenizer, loaded.eos_ids)
    model = loaded.model
    return [
        Conversation(one, None, vocabulary, Settings().but({"max_tokens": 400, "temperature": 0.8, **how}))
        for one, how in ((model, SPECULATING), (model.with_new_cache(), {"controller": "off"}))
    ]


@pytest.mark.parametrize(("said", "schema"), PROMPTS, ids=[said[:24] for said, _ in PROMPTS])
def test_every_reply_is_json_that_fits_and_plain_decodings_own(conversations, said, schema):
    replies = []
    for conversation in conversations:
        prompt = conversation.encode([{"role": "user", "content": f"{said} Answer with JSON."}])
        constraint = conversation.compile(ConstraintSource("json_schema", json.dumps(schema)))
        replies.append(collect(conversation.reply(prompt, 1, constraint=constraint)))
    guessed, plain = replies
    assert guessed.ended.stop is Stop.END
    jsonschema.validate(json.loads(guessed.text), schema)
    assert guessed.tokens == plain.tokens
    assert guessed.ledger.accepted > 0


def test_there_are_forty():
    assert len({said for said, _ in PROMPTS}) == 40
