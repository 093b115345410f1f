"""What controllers learnt goes from one engine to the next, and not to other weights or past a damaged file."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest
import torch

from specchat.config.trained_drafters import NO_TRAINED
from specchat.decoding.kept_parts import ControllerCache
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.engine.protocol.events import RoundDone
from specchat.engine.server import idle_time
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.idle_time import KeptAccounts
from specchat.engine.server.worker import Worker
from specchat.settings import Settings


def engine():
    """A worker with the scripted pair under `goodput`, and the rounds that it tells of."""
    rounds: list[RoundDone] = []
    worker = Worker(CommandQueue(), lambda event: rounds.append(event) if isinstance(event, RoundDone) else None)
    worker.answer(Load({"pair": "scripted", "controller": "goodput", "max_tokens": 60}))
    return worker, rounds


def reply(worker, id):
    worker.answer(Generate(id, [Message("user", "What are you?")], seed=id))


def planned(rounds):
    return [(one.budget["nodes"], one.budget["depth"]) for one in rounds]


def test_the_first_reply_of_a_second_engine_drafts_from_the_first_round_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    first, rounds = engine()
    reply(first, 1)
    assert planned(rounds)[0] == (1, 1), "nothing is known: a single guess"
    first._pair.close()
    (file,) = tmp_path.rglob("controllers.json")

    second, again = engine()
    reply(second, 1)
    assert planned(again)[0][0] > 1, "as the first engine drafted at its end"
    assert [piece.token for one in again for piece in one.pieces] == [p.token for one in rounds for p in one.pieces]
    second._pair.close()

    file.write_bytes(file.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING):
        third, anew = engine()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "controllers learn anew" in line
    reply(third, 1)
    assert planned(anew)[0] == (1, 1)


def of(state):
    """Controllers of which one learnt this."""
    return SimpleNamespace(states=lambda: [(Settings(), state)])


def accounts(file, sha256="ab" * 32, key="pair"):
    pair = SimpleNamespace(device=torch.device("cpu"), key=key, trained=NO_TRAINED)
    return KeptAccounts(file, pair, lambda: sha256)


def test_an_account_of_other_weights_or_another_machine_is_not_found(tmp_path, monkeypatch):
    file = tmp_path / "controllers.json"
    accounts(file).save(of(b'{"a":1}'))
    assert accounts(file).saved(Settings()) == b'{"a":1}'
    assert accounts(file, "cd" * 32).saved(Settings()) == b""
    assert accounts(file, key="other").saved(Settings()) == b""
    assert accounts(file).saved(Settings(nodes=3)) == b"", "other settings, other rounds"
    assert accounts(file, None).saved(Settings()) == b"", "weights that were not hashed may be any"
    monkeypatch.setattr(idle_time, "processor_name", lambda device: "another")
    assert accounts(file).saved(Settings()) == b""


def test_only_the_newest_accounts_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(idle_time, "_MOST", 2)
    file = tmp_path / "controllers.json"
    for key in ("a", "b", "a", "c"):
        accounts(file, key=key).save(of(b"{}"))
    assert [accounts(file, key=key).saved(Settings()) for key in "abc"] == [b"{}", b"", b"{}"]


@pytest.mark.parametrize("state", [b"null", b"{}", b'{"balance": 3}', json.dumps({"verify": [1e309]}).encode()])
def test_an_account_that_is_none_is_one_line_in_the_log(state, caplog):
    from specchat.controllers.goodput import Goodput
    from specchat.controllers.options import GoodputOptions
    from specchat.core.budget import Budget

    new = Goodput(GoodputOptions(), Budget(4, 4, 1))
    with caplog.at_level(logging.WARNING):
        assert ControllerCache(lambda settings: state).kept(Settings(), new) is new
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
