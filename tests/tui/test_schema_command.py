"""`/schema` holds the replies that follow to a JSON schema, says so in the status line, and refuses what is none."""

from __future__ import annotations

from pathlib import Path

from driving import driving
from fake import stats_of

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, ReplyConstraint

SCHEMA = '{"type": "object"}'


async def test_replies_are_held_to_a_schema_until_that_is_turned_off(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "person.json").write_text(SCHEMA)
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text('{"type": ')
    (tmp_path / "latin.json").write_bytes(b'{"\xe9": 1}')
    async with driving() as d:
        for name, why in [
            ("list.json", "not a JSON object"), ("broken.json", "not JSON"), ("latin.json", "not UTF-8"),
            ("no\x1b[2Jsuch.json", "cannot be read"),
        ]:  # fmt: skip
            await d.say(f"/schema {name}")
            await d.settle()
            assert why in d.drawn(d.view.notice)
            assert "held to" not in d.drawn(d.view.status)
            d.view.prompt.clear()
        await d.say("/schema person.json")
        await d.until("held to person.json")
        held = ReplyConstraint("json_schema", SCHEMA)
        await d.say("Who?")
        rounds = await d.reply(upto=2, finish=False)
        assert d.link.last(Generate).constraint == held
        await d.hear(ev.Finished(d.link.last(Generate).id, "length", "", stats_of(rounds[:2]), 1.0))
        await d.say("/schema off")
        assert "held to" not in d.drawn(d.view.status)
        await d.say("/continue")
        assert d.link.last(Generate).constraint == held, "what was begun under it goes on under it"
        await d.hear(ev.Finished(d.link.last(Generate).id, "end", "", stats_of([]), 1.0))
        await d.say("And now?")
        assert d.link.last(Generate).constraint is None
        await d.reply()
        await d.say("/schema json")
        await d.say("Any object")
        assert d.link.last(Generate).constraint == ReplyConstraint("json_object")
        await d.hear(ev.Failed("ConstraintError", "cannot be used", id=d.link.last(Generate).id, during="generate"))
        assert "cannot be used" in d.drawn(d.view.notice)
        await d.say("/schema")
        assert "held to JSON" in d.drawn(d.view.notice)
