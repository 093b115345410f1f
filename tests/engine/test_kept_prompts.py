"""What an engine read of a chat is used by the next one, where it may be kept."""

from __future__ import annotations

import pytest
from tiny_models import add_tiny_pair

from specchat.config import state_dir
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load, Message
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker
from specchat.errors import UsageError
from specchat.settings import Settings

LONG = "Say what this is about, and be brief. " * 12
BLOCKS = "prompts/blocks"


@pytest.fixture
def pair(tmp_path, away_from_home):
    add_tiny_pair(tmp_path)


class Engine:
    """A worker that was asked things, and does its idle work after each reply."""

    def __init__(self, **settings):
        self.heard = []
        self.commands = CommandQueue()
        self.worker = Worker(self.commands, self.heard.append)
        self.worker.answer(
            Load(
                {"pair": "tiny", "max_tokens": 6, "temperature": 0.0, "dtype": "float32", "kernels": "torch"} | settings
            )
        )

    def reply(self, text, keep="", idle=True):
        self.heard.clear()
        self.worker.answer(Generate(1, [Message("user", text)], 7, keep=keep))
        started, finished = (next(e for e in self.heard if isinstance(e, kind)) for kind in (ev.Started, ev.Finished))
        assert started.reused_tokens == finished.stats.reused_tokens
        while idle and self.worker._pair.open.prompts.due:
            self.worker._work_idle()
        tokens = [piece.token for event in self.heard if isinstance(event, ev.RoundDone) for piece in event.pieces]
        return tokens, started.prompt_tokens, started.reused_tokens


def blocks():
    return sorted((state_dir() / BLOCKS).glob("*"))


def test_the_next_engine_goes_on_where_a_chat_was_left(pair):
    first = Engine()
    plain, count, _ = first.reply(LONG, keep="chat1")
    assert len(blocks()) == count // 64, "whole blocks of what was read, all that is new once"
    tokens, _, reused = Engine().reply(LONG)
    assert (tokens, reused) == (plain, len(blocks()) * 64)
    tokens, _, reused = Engine(drafter="suffix").reply(LONG + "Now.", keep="chat2")
    assert reused >= 384
    assert Engine(prompt_cache="off").reply(LONG)[::2] == (plain, 0)


def test_a_reply_from_a_rounded_cache_is_not_told_to_be_exact(pair):
    def loss(engine):
        return next(event.loss for event in engine.heard if isinstance(event, ev.Started))

    first = Engine(prompt_cache_8bit=True)
    first.reply(LONG, keep="chat1")
    assert loss(first).lossless, "it was read"
    again = Engine(prompt_cache_8bit=True)
    assert again.reply(LONG)[2] >= 384
    assert not loss(again).lossless
    assert "8 bits" in loss(again).reason
    exact = Engine()
    assert exact.reply(LONG)[2] == 0
    assert loss(exact).lossless


def test_nothing_is_written_where_it_is_not_to_be(pair):
    engine = Engine()
    engine.reply(LONG)
    engine.reply("short", keep="chat1")
    engine.worker.answer(Change({"prompt_cache": "off"}))
    engine.reply(LONG, keep="chat1")
    Engine(prompt_cache="off").reply(LONG, keep="chat1")
    assert not (state_dir() / "prompts").exists()
    engine.worker.answer(Change({"prompt_cache": "1MB"}))
    engine.reply(LONG, keep="chat1")
    assert blocks()


def test_chats_by_turns_without_a_pause_are_all_written(pair):
    engine = Engine()
    engine.reply(LONG, keep="chat1")
    for keep in ("chat1", "chat2", "chat3"):
        engine.reply(keep + LONG, keep=keep, idle=False)
    engine.worker._pair.close()
    for keep in ("chat1", "chat2", "chat3"):
        assert Engine().reply(keep + LONG)[2] >= 384
        assert (state_dir() / "prompts/texts" / keep).exists()


def test_replies_that_are_written_together_share_what_one_of_them_read(pair):
    engine = Engine()
    texts = [LONG + end for end in ("a", "b", "c")]
    alone = [Engine().reply(text)[0] for text in texts]
    first, *others = (
        Generate(id, [Message("user", text)], 7, own={}, keep=f"chat{id}") for id, text in enumerate(texts)
    )
    engine.reply(LONG)
    engine.heard.clear()
    for command in others:
        engine.commands.receive(command)
    engine.worker.answer(first)
    tokens = [[], [], []]
    for event in engine.heard:
        if isinstance(event, ev.RoundDone):
            tokens[event.id] += [piece.token for piece in event.pieces]
    assert tokens == alone
    assert all(event.reused_tokens >= 384 for event in engine.heard if isinstance(event, ev.Started))
    while engine.worker._pair.open.prompts.due:
        engine.worker._work_idle()
    assert sorted(file.name for file in (state_dir() / "prompts/texts").iterdir()) == ["chat0", "chat1", "chat2"]


def test_a_disk_that_takes_nothing_costs_a_line_in_the_log(pair, caplog):
    state_dir().mkdir(parents=True, exist_ok=True)
    (state_dir() / "prompts").write_text("no folder")
    engine = Engine()
    assert engine.reply(LONG, keep="chat1")[0] == Engine(prompt_cache="off").reply(LONG)[0]
    assert [record.getMessage() for record in caplog.records] == ["prompt cache: nothing is written: Not a directory"]


@pytest.mark.parametrize("size", ["", "0", "much", "-1GB"])
def test_a_size_that_is_none_is_refused_by_name(size):
    with pytest.raises(UsageError, match=r"prompt_cache = .* write it like 2GB, 800MB or off"):
        Settings().but({"prompt_cache": size})
    for fine in ("off", "OFF", "1.5 GiB"):
        assert Settings().but({"prompt_cache": fine})
