"""Some replies at a time, a queue with an end, and an engine that comes back; with an engine that obeys the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from serve.kit import ObedientEngine

from specchat.engine.protocol import commands as co
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Message
from specchat.errors import SpecchatError
from specchat.serve import scheduler as scheduler_module
from specchat.serve.answers import usage
from specchat.serve.api_error import ApiError
from specchat.serve.loaded_engine import LoadedEngine
from specchat.serve.reply_reader import ReplyReader
from specchat.serve.requests import CheckedRequest
from specchat.serve.scheduler import Scheduler, Ticket

ASKED = CheckedRequest("chat.completion", None, (Message("user", "Hello"),), None, {"temperature": 0.5})


class Desk:
    """A scheduler at work, and the engines it started."""

    def __init__(self) -> None:
        self.engines: list[ObedientEngine] = []
        self.broken = ""
        self.informed: list[ev.Loading | ev.Notice] = []
        self.engine = LoadedEngine(self._start, {"pair": "test"}, self.informed.append)
        self.heard: list[ev.Event] = []
        self.scheduler: Scheduler

    @property
    def link(self) -> ObedientEngine:
        return self.engines[-1]

    def _start(self, wake) -> ObedientEngine:
        self.engines.append(ObedientEngine(wake, self.broken))
        return self.link

    def ask(self, asked: CheckedRequest = ASKED) -> Ticket:
        return self.scheduler.submit(asked)


@asynccontextmanager
async def at_work(longest: int = 8, parallel: int = 1, *, watched: bool = True) -> AsyncIterator[Desk]:
    desk = Desk()
    await desk.engine.load()
    desk.scheduler = Scheduler(desk.engine, longest, parallel, desk.heard.append if watched else None)
    working = asyncio.create_task(desk.scheduler.run())
    try:
        async with asyncio.timeout(10):
            yield desk
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def settled() -> None:
    """Let everything happen that can happen now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def accepted(desk: Desk) -> Ticket:
    """Ask until a request is no longer refused; `at_work` has the deadline."""
    while True:
        try:
            return desk.ask()
        except ApiError:
            await asyncio.sleep(0.01)


async def text_of(ticket: Ticket) -> str:
    await ticket.begun()
    return "".join([text async for text in ticket.texts()])


async def test_requests_are_answered_one_after_the_other_in_their_order():
    async with at_work() as desk:
        tickets = [desk.ask() for _ in range(3)]
        for number, ticket in enumerate(tickets):
            await ticket.begun()
            await settled()
            assert [later.started for later in tickets[number + 1 :]] == [None] * (2 - number)
            desk.link.write(f"reply {number}")
            desk.link.finish()
            assert "".join([text async for text in ticket.texts()]) == f"reply {number}"


async def test_each_request_begins_with_the_servers_settings_not_with_the_last_ones():
    async with at_work() as desk:
        for settings in ({"temperature": 0.5, "stop": ["\n"]}, {"max_tokens": 3}):
            ticket = desk.ask(CheckedRequest("chat.completion", None, ASKED.messages, None, settings))
            await ticket.begun()
            desk.link.finish()
        first, second = (command.own for command in desk.link.sent if isinstance(command, co.Generate))
        assert (first["temperature"], first["stop"], first["max_tokens"]) == (0.5, ["\n"], 2048)
        assert (second["temperature"], second["stop"], second["max_tokens"]) == (0.0, [], 3)


async def test_a_full_queue_refuses_and_says_when_to_try_again():
    async with at_work(longest=2) as desk:
        running = desk.ask()
        await running.begun()
        desk.ask()
        waiting = desk.ask()
        with pytest.raises(ApiError) as caught:
            desk.ask()
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        waiting.leave()
        desk.ask()


@pytest.mark.parametrize(
    ("longest", "told"),
    [
        (0, "another request is being answered, and none may wait"),
        (1, "a request is waiting already"),
        (2, "2 requests are waiting already"),
    ],
)
async def test_a_full_queue_says_what_fills_it(longest, told):
    async with at_work(longest) as desk:
        await desk.ask().begun()
        for _ in range(longest):
            desk.ask()
        with pytest.raises(ApiError, match=f"^{told}; one is answered at a time$"):
            desk.ask()


async def test_without_a_queue_one_request_is_answered_and_another_refused():
    async with at_work(longest=0) as desk:
        running = desk.ask()
        with pytest.raises(ApiError):
            desk.ask()
        await running.begun()
        with pytest.raises(ApiError):
            desk.ask()
        desk.link.finish()
        await settled()
        await desk.ask().begun()


async def test_requests_are_answered_at_a_time_and_each_hears_of_its_own_reply():
    async with at_work(longest=1, parallel=2) as desk:
        first, second, third = desk.ask(), desk.ask(), desk.ask()
        with pytest.raises(ApiError, match="a request is waiting already; two are answered at a time"):
            desk.ask()
        await first.begun()
        await second.begun()
        await settled()
        assert third.started is None
        desk.link.write("a", id=1)
        desk.link.write("b", id=2)
        desk.link.write("c", id=1)
        desk.link.finish(id=2)
        await third.begun()
        assert [text async for text in second.texts()] == ["b"]
        desk.link.finish(id=1)
        assert [text async for text in first.texts()] == ["a", "c"]


async def test_an_error_or_a_client_that_leaves_is_no_matter_of_the_others():
    async with at_work(parallel=3) as desk:
        left, wrong, last = desk.ask(), desk.ask(), desk.ask()
        for ticket in (left, wrong, last):
            await ticket.begun()
        left.leave()
        desk.link.say(ev.Failed("UsageError", "no", 2, 2, "generate"))
        desk.link.write("a", id=3)
        desk.link.finish(id=3)
        with pytest.raises(ApiError):
            await text_of(wrong)
        assert [text async for text in last.texts()] == ["a"]
        assert [command for command in desk.link.sent if isinstance(command, co.Cancel)] == [co.Cancel(1)]


async def test_a_command_that_the_engine_cannot_read_is_an_error_of_its_request():
    async with at_work() as desk:
        desk.link.silent = True
        ticket = desk.ask()
        await settled()
        desk.link.say(ev.Failed("UsageError", "a line is not a command", 2, None, "protocol"))
        with pytest.raises(ApiError):
            await ticket.begun()


async def test_told_to_stop_it_refuses_who_waits_and_who_is_being_answered():
    async with at_work() as desk:
        tickets = [desk.ask(), desk.ask()]
        await tickets[0].begun()
        desk.scheduler.stop()
        for ticket in tickets:
            with pytest.raises(ApiError, match="being stopped"):
                _ = [text async for text in ticket.texts()]
        assert co.Cancel(1) in desk.link.sent
        with pytest.raises(ApiError, match="being stopped"):
            desk.ask()


async def test_who_leaves_the_queue_is_never_asked_of_the_engine():
    async with at_work() as desk:
        running, gone, last = desk.ask(), desk.ask(), desk.ask()
        await running.begun()
        gone.leave()
        desk.link.finish()
        await last.begun()
        assert [c.id for c in desk.link.sent if isinstance(c, co.Generate)] == [1, 2]
        assert gone.started is None


async def test_who_leaves_while_being_answered_is_cancelled_and_the_next_is_answered():
    async with at_work() as desk:
        running, last = desk.ask(), desk.ask()
        await running.begun()
        running.leave()
        await last.begun()
        assert co.Cancel(1) in desk.link.sent
        assert desk.link.sent.index(co.Cancel(1)) < desk.link.sent.index(desk.link.running)


async def test_a_dead_engine_is_an_error_of_its_reply_alone_and_a_new_one_answers_the_next():
    async with at_work() as desk:
        running, last = desk.ask(), desk.ask()
        await running.begun()
        desk.link.die()
        with pytest.raises(ApiError) as caught:
            await text_of(running)
        assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
        await last.begun()
        assert len(desk.engines) == 2
        assert desk.engines[0].closed


@pytest.mark.parametrize("kind", ["RanksLost", "TargetLost", "PackedWeightsError"])
async def test_a_pair_that_is_lost_is_loaded_anew(kind):
    async with at_work(parallel=2) as desk:
        running = [desk.ask(), desk.ask()]
        for ticket in running:
            await ticket.begun()
        desk.link.say(ev.Failed(kind, "rank 1 was ended by SIGKILL; load the pair again", 2, 1, "generate"))
        for ticket in running:
            with pytest.raises(ApiError, match="by SIGKILL; the pair is being loaded again") as caught:
                await text_of(ticket)
            assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
        last = desk.ask()
        await last.begun()
        assert len(desk.engines) == 2
        assert desk.engines[0].closed


async def test_an_engine_that_dies_unasked_is_replaced_before_the_next_request():
    async with at_work() as desk:
        desk.link.die()
        await settled()
        assert len(desk.engines) == 2
        ticket = desk.ask()
        await ticket.begun()


async def test_an_engine_that_cannot_come_back_refuses_all_and_is_tried_again_later(monkeypatch):
    monkeypatch.setattr(scheduler_module, "_SHORTEST_REST_S", 0.05)
    async with at_work() as desk:
        running, last = desk.ask(), desk.ask()
        await running.begun()
        desk.broken = "the disk is gone"
        desk.link.die()
        for ticket in (running, last):
            with pytest.raises(ApiError) as caught:
                await text_of(ticket)
            assert caught.value.status == 503
        with pytest.raises(ApiError, match="could not be started again"):
            desk.ask()
        desk.broken = ""
        await (await accepted(desk)).begun()


async def test_a_pair_that_cannot_be_loaded_is_the_engines_own_error():
    desk = Desk()
    desk.broken = "there are no weights"
    with pytest.raises(SpecchatError, match="there are no weights"):
        await desk.engine.load()
    assert desk.link.closed


@pytest.mark.parametrize(
    ("kind", "code"), [("PromptTooLong", "context_length_exceeded"), ("PromptEmpty", "invalid_value")]
)
@pytest.mark.parametrize(
    ("request_", "param"), [(ASKED, "messages"), (CheckedRequest("text_completion", None, (), "Once", {}), "prompt")]
)
async def test_the_engines_refusal_is_the_requests_error(kind, code, request_, param):
    async with at_work() as desk:
        ticket = desk.ask(request_)
        await ticket.begun()
        desk.link.say(ev.Failed(kind, "it does not do", 2, 1, "generate"))
        with pytest.raises(ApiError) as caught:
            _ = [text async for text in ticket.texts()]
        assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


async def test_a_model_of_another_name_is_refused():
    async with at_work() as desk:
        with pytest.raises(ApiError) as caught:
            desk.ask(CheckedRequest("chat.completion", "tset", ASKED.messages, None, {}))
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")
        assert "'test'" in caught.value.message


async def test_only_what_the_prediction_proposed_counts_as_predicted():
    async with at_work() as desk:
        ticket = desk.ask()
        await ticket.begun()
        desk.link.write("a", proposer="reference")
        desk.link.finish()
        await settled()
        figures = usage([ticket])
        assert figures["completion_tokens_details"]["accepted_prediction_tokens"] == 1
        assert (figures["acceptance_length"], figures["speedup"]) == (1.5, 1.25)
        both = usage([ticket, ticket])
        assert (both["prompt_tokens"], both["completion_tokens"]) == (
            figures["prompt_tokens"],
            2 * figures["completion_tokens"],
        )
        assert both["speedup"] is None, "one number says nothing of two replies"
        assert ReplyReader(ticket).end == "end"


async def test_what_the_engine_wants_the_user_to_know_is_told_at_once_and_to_no_client():
    async with at_work() as desk:
        notice = ev.Notice("drafter hydra: nothing was kept")
        desk.link.say(notice)
        await settled()
        assert desk.informed == [notice]
        ticket = desk.ask()
        await ticket.begun()
        desk.link.say(notice)
        desk.link.finish()
        await settled()
        assert desk.informed == [notice, notice]
        assert notice not in desk.heard


async def test_everything_is_told_to_its_watcher():
    async with at_work() as desk:
        ticket = desk.ask()
        await ticket.begun()
        desk.link.write("a")
        desk.link.finish()
        await settled()
        assert [type(event) for event in desk.heard] == [ev.Started, ev.RoundDone, ev.Finished]


async def test_what_was_held_back_until_the_end_is_sent():
    async with at_work() as desk:
        ticket = desk.ask()
        await ticket.begun()
        desk.link.write("a")
        desk.link.finish(tail="é")
        assert [text async for text in ticket.texts()] == ["a", "é"]


@pytest.mark.parametrize("watched", [True, False])
async def test_the_probabilities_of_nodes_are_asked_for_where_somebody_looks_at_trees(watched):
    async with at_work(watched=watched) as desk:
        await desk.ask().begun()
        assert desk.link.running.logprobs == watched
