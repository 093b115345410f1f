"""The server with real weights: what OpenAI's client gets is what the engine writes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from real_weights import HOME, fetched
from serve.kit import Server

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server(preloaded_module: None) -> Iterator[Server]:
    fetched("smollm2-135m-instruct")
    running = Server("--pair", "smol", "--temperature", "0", "--controller", "fixed", home=HOME)
    yield running
    assert running.close() == 0


def ask(server: Server, content: str, **fields: object) -> object:
    return server.client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": content}], seed=1, **fields
    )


def test_a_real_reply_is_the_same_whole_and_streamed(server: Server) -> None:
    whole = ask(server, "Name three colours.", max_tokens=20)
    pieces = ask(server, "Name three colours.", max_tokens=20, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == whole.choices[0].message.content
    assert len(text.split()) > 3


def test_a_long_reply_says_how_much_sooner_it_came(server: Server) -> None:
    """A busy machine may make the figure larger than it can be; then none is given."""
    reply = ask(server, "Tell a long story.", max_tokens=80, temperature=1, extra_body={"repetition_penalty": 1.05})
    assert reply.usage.completion_tokens > 50
    assert reply.usage.speedup is None or 0.1 < reply.usage.speedup <= reply.usage.acceptance_length


def test_a_prediction_stands_where_the_model_repeats_it(server: Server) -> None:
    question = "Write a function in Python that computes the area of a rectangle."
    plain = ask(server, question, max_tokens=64)
    text = plain.choices[0].message.content
    guided = ask(server, question, max_tokens=64, prediction={"type": "content", "content": text})
    assert guided.choices[0].message.content == text
    assert guided.usage.acceptance_length > 1.3 * plain.usage.acceptance_length
    assert guided.usage.completion_tokens_details.accepted_prediction_tokens > 32


def test_a_text_is_gone_on_with(server: Server) -> None:
    reply = server.client.completions.create(model="smol", prompt="The capital of France is", max_tokens=5)
    assert "Paris" in reply.choices[0].text


def test_who_leaves_frees_the_engine(server: Server) -> None:
    stream = ask(server, "Tell a very long story.", max_tokens=4000, temperature=1, stream=True)
    next(iter(stream))
    stream.close()
    began = time.monotonic()
    ask(server, "Hi", max_tokens=1)
    assert time.monotonic() - began < 20  # the story would take longer
