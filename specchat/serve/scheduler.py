"""Some replies at a time: requests wait in a limited queue and hear of their reply, and the engine is kept running."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specchat.drafters import REFERENCE
from specchat.engine.protocol import events
from specchat.engine.protocol.commands import Cancel, Count, Generate
from specchat.engine.protocol.round_parts import TokenLogprob
from specchat.errors import SpecchatError, nearest, short
from specchat.serve.api_error import ApiError, from_engine
from specchat.serve.loaded_engine import LoadedEngine, last_words
from specchat.serve.requests import CheckedRequest
from specchat.settings import GREEDY


@dataclass(eq=False)
class Ticket:
    """A request that waits for its turn, has it, or had it.

    Args:
        on_leave: called when the client leaves before the reply is complete.
    """

    asked: CheckedRequest
    on_leave: Callable[[Ticket], None]
    id: int = 0
    began_s: float = 0.0
    started: events.Started | None = None
    finished: events.Finished | None = None
    predicted: int = 0  # tokens that were proposed from the prediction
    predicted_right: int = 0  # … and accepted
    left: bool = False
    tokens: list[TokenLogprob] = field(default_factory=list)  # of the reply, where they are told of
    prompt_tokens: list[TokenLogprob] = field(default_factory=list)  # … and of the prompt, but for the first
    counted: int | None = None  # the prompt's tokens, where they are only counted
    _news: asyncio.Queue[str | ApiError | None] = field(default_factory=asyncio.Queue)

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.finished is not None or self.counted is not None or self.left

    def hear(self, event: events.Event) -> None:
        """Take what the engine says of this reply. Trees are counted and let go: slow readers hold only text."""
        match event:
            case events.Started():
                self.started = event
                self._news.put_nowait("")
            case events.PromptLogprobs():
                self.prompt_tokens += event.tokens
            case events.Counted():
                self.counted = event.tokens
                self._news.put_nowait("")
            case events.RoundDone():
                nodes = {draw.child for draw in event.tree.draws if draw.proposer == REFERENCE}
                self.predicted += len(nodes)
                self.predicted_right += len(nodes.intersection(event.verdict.path))
                self.tokens += [piece.likely for piece in event.pieces if piece.likely is not None]
                self._say("".join(piece.text for piece in event.pieces))
            case events.Finished():
                self._say(event.tail)
                self.finished = event
                self._news.put_nowait(None)
            case events.Failed():
                field = "messages" if self.asked.text is None else "prompt"
                self.fail(from_engine(event, field, "response_format" if self.asked.tools is None else "tools"))

    def fail(self, error: ApiError) -> None:
        self._news.put_nowait(error)

    def leave(self) -> None:
        """The client no longer waits for the reply."""
        if not self.over:
            self.left = True
            self.on_leave(self)

    async def begun(self) -> None:
        """Wait until the reply begins.

        Raises:
            ApiError: it will not.
        """
        first = await self._news.get()
        if isinstance(first, ApiError):
            raise first

    async def texts(self) -> AsyncIterator[str]:
        """The reply, piece by piece, after it has begun.

        Raises:
            ApiError: it ended early.
        """
        while (news := await self._news.get()) is not None:
            if isinstance(news, ApiError):
                raise news
            yield news

    def _say(self, text: str) -> None:
        if text:
            self._news.put_nowait(text)


_OWN_OF_A_REQUEST = (*GREEDY, "max_tokens", "stop")
"""Settings that a request may choose; each begins with the server's own."""

_PAIR_IS_LOST = ("RanksLost", "TargetLost", "PackedWeightsError")
"""The engine's errors after which nothing can be read until the pair is loaded anew. What follows their last `;` is
advice to somebody who sits before a chat."""

_SHORTEST_REST_S, _LONGEST_REST_S = 1.0, 30.0
"""How long nothing is tried after an engine could not be loaded."""

_log = logging.getLogger(__name__)

_KEPT_AS = "serve"
"""The name under which the engine keeps what it reads of requests: long system prompts of agents come again."""


class Scheduler:
    """Takes requests, and has the engine answer them in their order, some at a time.

    Args:
        engine: loaded already.
        longest: requests that may wait while others are answered.
        parallel: requests that are answered at a time.
        hear: told of every event of every reply; None: nobody looks at trees.
        begins: told of a request before its reply is asked for.
    """

    def __init__(
        self,
        engine: LoadedEngine,
        longest: int,
        parallel: int = 1,
        hear: Callable[[events.Event], None] | None = None,
        begins: Callable[[CheckedRequest], None] = lambda asked: None,
    ) -> None:
        self._engine = engine
        self._longest, self._parallel = longest, parallel
        self._watched = hear is not None
        self._hear, self._begins = hear or (lambda event: None), begins
        self._waiting: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._stirred = asyncio.Event()
        self._last_id = 0
        self._reply_s = 1.0  # what a reply took lately
        self._rest_s = 0.0
        self._rest_until = 0.0
        self._stopping = False
        engine.on_event = self._stirred.set

    @property
    def pair(self) -> events.Ready:
        """The pair that is loaded, or was loaded last."""
        assert self._engine.ready is not None, "a server begins with a loaded pair"
        return self._engine.ready

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model: the pair's, and the target's."""
        return tuple(dict.fromkeys((self.pair.pair, self.pair.target)))

    def submit(self, asked: CheckedRequest) -> Ticket:
        """Put a request into the queue.

        Raises:
            ApiError: there is no such model, the queue is full, or there is no engine.
        """
        if asked.model is not None:
            self.check_model(asked.model)
        if (rest_s := self._rest_until - time.monotonic()) > 0:
            raise _unavailable("the engine could not be started again", math.ceil(rest_s))
        if self._stopping:
            raise _unavailable("the server is being stopped", 1)
        waiting = max(0, len(self._waiting) + len(self._running) - self._parallel)
        if len(self._waiting) + len(self._running) >= self._longest + self._parallel:
            raise ApiError(
                429,
                f"{_busy(waiting)}; {_COUNTS[self._parallel]} answered at a time",
                code="queue_full",
                retry_after_s=min(60, max(1, math.ceil(self._reply_s * waiting / self._parallel))),
            )
        ticket = Ticket(asked, self._leave)
        self._waiting.append(ticket)
        self._stirred.set()
        return ticket

    def submit_each(self, asked: CheckedRequest) -> list[Ticket]:
        """Put a request into the queue as often as it asks for replies.

        Raises:
            ApiError: as `submit`; then none of them is in the queue.
        """
        tickets: list[Ticket] = []
        try:
            for one in asked.each(self.pair.settings["seed"]):
                tickets.append(self.submit(one))
        except ApiError:
            for ticket in tickets:
                ticket.leave()
            raise
        return tickets

    async def count(self, asked: CheckedRequest) -> int:
        """How many tokens a request's messages take; waits its turn.

        Raises:
            ApiError: as `submit`, or the engine cannot say.
        """
        ticket = self.submit(asked)
        try:
            await ticket.begun()
        finally:
            ticket.leave()
        assert ticket.counted is not None, "it began with the count"
        return ticket.counted

    def check_model(self, name: str) -> None:
        """Refuse the name of a model that is not served."""
        if name not in self.names:
            why = f"model {short(name)} is not served here{nearest(name, self.names)}"
            raise ApiError(404, why, param="model", code="model_not_found")

    async def run(self) -> None:
        """Answer requests until cancelled. An engine that died is replaced at once, asked for or not."""
        while True:
            self._stirred.clear()
            while (event := self._engine.take_event()) is not None:
                self._take(event)
            if not self._engine.alive and time.monotonic() >= self._rest_until:
                await self._load()
            while self._waiting and self._engine.alive and len(self._running) < self._parallel:
                self._begin(self._waiting.popleft())
            await self._stirred.wait()

    def stop(self) -> None:
        """Refuse everything from now on, what waits and what is being written included."""
        self._stopping = True
        stopped = _unavailable("the server is being stopped", 1)
        for ticket in [*self._waiting, *self._running.values()]:
            ticket.fail(stopped)
            ticket.leave()

    def _begin(self, ticket: Ticket) -> None:
        """Ask the engine for a reply, or for a count."""
        asked = ticket.asked
        self._last_id += 1
        ticket.id, ticket.began_s = self._last_id, time.monotonic()
        self._running[ticket.id] = ticket
        if asked.counts:
            self._engine.send(Count(ticket.id, list(asked.messages), tools=asked.told_tools))
            return
        self._begins(asked)
        servers = {name: self.pair.settings[name] for name in _OWN_OF_A_REQUEST}
        self._engine.send(generate(ticket.id, asked, {**servers, **asked.settings}, watched=self._watched))

    def _take(self, event: events.Event) -> None:
        """Give an event to the request that it is about."""
        if isinstance(event, events.Died):
            self._hear(event)
            _log.warning("the engine died%s", last_words(event))
            self._fail_running("the engine died; it is being started again")
            return
        if isinstance(event, events.Failed) and event.kind in _PAIR_IS_LOST:
            self._hear(event)
            what = event.message.rpartition("; ")[0] or event.message
            _log.warning("%s", what)
            self._fail_running(f"{what}; the pair is being loaded again")
            self._engine.close()
            return
        id: int | None = getattr(event, "id", None)
        if isinstance(event, events.Failed) and id is None:  # a command that could not even be read
            id = next((ticket.id for ticket in self._running.values() if ticket.started is None), None)
        if id is None or (about := self._running.get(id)) is None:
            return
        if not about.asked.counts:
            self._hear(event)
        about.hear(event)
        if isinstance(event, events.Finished | events.Failed | events.Counted):
            del self._running[id]
            self._reply_s += (time.monotonic() - about.began_s - self._reply_s) / 4

    def _fail_running(self, why: str) -> None:
        """End all replies that are being written: they can be asked for again soon."""
        failed, self._running = [*self._running.values()], {}
        for ticket in failed:
            ticket.fail(_unavailable(why, 1))

    async def _load(self) -> None:
        """Load the pair again; where that fails, whoever waits is refused and nothing is tried for a while."""
        try:
            await self._engine.load()
        except SpecchatError as error:
            self._rest_s = min(_LONGEST_REST_S, max(_SHORTEST_REST_S, 2 * self._rest_s))
            self._rest_until = time.monotonic() + self._rest_s
            gone = _unavailable(f"the engine could not be started again: {error}", math.ceil(self._rest_s))
            while self._waiting:
                self._waiting.popleft().fail(gone)
        else:
            self._rest_s = 0.0

    def _leave(self, ticket: Ticket) -> None:
        """The client has left: take the request out of the queue, or stop its reply."""
        if ticket.id in self._running:
            self._engine.send(Cancel(ticket.id))
        elif ticket in self._waiting:
            self._waiting.remove(ticket)


_COUNTS = ("none is", "one is", "two are", "three are", "four are", "five are", "six are", "seven are", "eight are")


def generate(id: int, asked: CheckedRequest, settings: Mapping[str, Any], *, watched: bool = False) -> Generate:
    """The command that has a request's reply written, with all settings that a request may choose.

    Args:
        watched: somebody looks at the trees of its rounds.
    """
    return Generate(
        id,
        list(asked.messages),
        asked.seed,
        text=asked.text,
        reference=asked.reference,
        logprobs=watched,
        constraint=asked.constraint,
        tools=asked.told_tools,
        top_logprobs=asked.top_logprobs,
        prompt_logprobs=asked.echo and asked.top_logprobs is not None,
        logit_bias=dict(asked.logit_bias),
        keep=_KEPT_AS,
        own=dict(settings),
    )


def _unavailable(why: str, retry_after_s: int) -> ApiError:
    return ApiError(503, why, code="engine_unavailable", retry_after_s=retry_after_s)


def _busy(waiting: int) -> str:
    """Why a request finds no place."""
    if waiting < 2:
        return "a request is waiting already" if waiting else "another request is being answered, and none may wait"
    return f"{waiting} requests are waiting already"
