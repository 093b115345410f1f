"""OpenAI's own client on the engine of an app that runs in a real terminal."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ADDRESS = r"http://127.0.0.1:\d+/v1"
KEY, ENTER, ESCAPE = "a-key-of-the-tests", "\r", "\x1b"


def test_a_client_is_answered_watched_and_stopped(terminals: list[Terminal], tmp_path: Path) -> None:
    app = Terminal(["--pair", "scripted", "--serve", "8765"], SPECCHAT_SERVE_KEY=KEY, SPECCHAT_HOME=str(tmp_path))
    terminals.append(app)
    app.until("● scripted")
    app.type(ESCAPE)  # the tour
    told = app.until(lambda text: re.search(ADDRESS, text) is not None)  # not only its line's beginning
    address = re.findall(ADDRESS, told)[0]
    with (
        openai.OpenAI(base_url=address, api_key=KEY, max_retries=0, timeout=60) as client,
        ThreadPoolExecutor() as aside,
    ):
        model = client.models.list().data[0].id
        question = [{"role": "user", "content": "What are you?"}]

        def text_of_stream() -> str:
            chunks = client.chat.completions.create(model=model, messages=question, temperature=0, stream=True)  # type: ignore[call-overload]
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        asked = aside.submit(client.chat.completions.create, model=model, messages=question)  # type: ignore[call-overload]
        app.until(lambda _: asked.done())  # a terminal whose output is not read would stop the app
        whole = asked.result()
        assert whole.usage is not None
        app.until(f"asked: What are you?  {whole.usage.completion_tokens} tok")
        app.until("served ·")

        app.type("And for me?" + ENTER)
        streamed = aside.submit(text_of_stream)
        app.until(lambda _: streamed.done())
        assert streamed.result() == whole.choices[0].message.content
        app.until("And for me?")

        wrong = client.with_options(api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()

        app.type("/serve off" + ENTER)
        app.until("can no longer use the engine")
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
    app.type("/serve" + ENTER)
    app.until(lambda text: text.count("other programs may ask at") >= 2)  # said in the chat, and above the prompt
    app.type("\x03\x03")
    assert app.gone() == 0
    assert "Traceback" not in app.text
