"""What goes in comes out, and is found again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from kit import FACTS, WHEN, answered, chat, said, talk

from specchat.errors import StoreError, UsageError
from specchat.store.chats import Chats
from specchat.store.records import StoredMessage, title_of


def test_a_chat_comes_back_as_it_was(chats: Chats) -> None:
    messages = [said("a", "hi\x00 \x1b[31m 你好"), answered("b", "hello", "a"), answered("c", "hey", "a")]
    with chats.transaction():
        chats.save(chat(system="be brief", leaf="c", sent_from="c"))
        for message in messages:
            chats.add("first", message)
    assert chats.chat("first") == (chat(system="be brief", leaf="c", sent_from="c"), messages)


def test_a_reply_grows_and_is_finished_with_how_it_was_made(chats: Chats) -> None:
    with chats.transaction():
        chats.save(chat())
        chats.add("first", said("a", "hi"))
        chats.add("first", answered("b", "", "a", "streaming"), owner="me")
        chats.update("first", StoredMessage("b", "a", "assistant", "so fa", WHEN, "streaming", [2, -3]))
    assert chats.chat("first")[1][1].content == "so fa"
    assert chats.chat("first")[1][1].pieces == [2, -3]
    assert chats.owners() == ["me"]
    done = answered("b", "so far", "a")
    with chats.transaction():
        chats.update("first", done)
    assert chats.chat("first")[1][1] == done
    assert done.facts == FACTS
    assert chats.owners() == []


def test_only_replies_of_writers_that_are_gone_become_interrupted(chats: Chats) -> None:
    with chats.transaction():
        chats.save(chat())
        chats.add("first", answered("a", "one", None, "streaming"), owner="gone")
        chats.add("first", answered("b", "two", None, "streaming"), owner="alive")
        chats.interrupt(["gone"])
    assert [message.status for message in chats.chat("first")[1]] == ["interrupted", "streaming"]


def test_the_list_shows_the_newest_chat_first_with_its_last_message(chats: Chats) -> None:
    talk(chats, "old", "question", "answer", updated="2026-01-01T00:00:00.000Z")
    talk(chats, "new", "anything", "something", "more")
    summaries = chats.summaries()
    assert [(s.id, s.messages, s.preview) for s in summaries] == [("new", 3, "more"), ("old", 2, "answer")]
    assert chats.last() == "new"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("specul", {"a"}),  # the beginning of a word
        ("DRAFT tree", {"a"}),  # both words in one message, any case
        ("tree nowhere", set()),
        ("cafe", {"b"}),  # accents are not needed
        ("你好", {"c"}),  # no spaces between words
        ("好世", {"c"}),
        ("french", {"b"}),  # the title
        ('" OR *', set()),  # nothing of the query language
        ("?!", set()),  # no word at all
        ("100%", {"d"}),
        ("  ", {"a", "b", "c", "d"}),
    ],
)
def test_words_are_found_in_messages_and_titles(chats: Chats, words: str, found: set[str]) -> None:
    talk(chats, "a", "how does speculation work?", "a draft tree is verified")
    talk(chats, "b", "au café", title="a French lesson")
    talk(chats, "c", "你好世界")
    talk(chats, "d", "100% sure", title="100% sure")
    assert {summary.id for summary in chats.summaries(words)} == found


def test_exact_titles_come_first_then_titles_then_messages(chats: Chats) -> None:
    talk(chats, "exact", "one", "two", title="Trees")
    talk(chats, "titled", "one", "two", title="about trees")
    talk(chats, "said", "trees are tall", "so they are")
    assert [summary.id for summary in chats.summaries("trees")] == ["exact", "titled", "said"]


def test_a_search_shows_the_place_it_found(chats: Chats) -> None:
    talk(chats, "a", "word " * 300 + "needle" + " word" * 300, "the last message")
    assert "needle" in chats.summaries("needle")[0].preview


def test_text_that_is_written_over_is_no_longer_found(chats: Chats) -> None:
    talk(chats, "a", "question", "wrong")
    with chats.transaction():
        chats.update("a", answered("m1", "right", "m0"))
    assert chats.summaries("wrong") == []
    assert len(chats.summaries("right")) == 1


def test_a_deleted_chat_is_gone_from_every_list_and_comes_back_until_it_is_purged(chats: Chats) -> None:
    talk(chats, "a", "needle")
    chats.delete("a")
    assert chats.summaries() == chats.summaries("needle") == []
    with pytest.raises(UsageError, match="no chat"):
        chats.find("a")
    chats.delete("a", False)
    assert len(chats.summaries("needle")) == 1
    chats.delete("a")
    chats.purge()
    assert chats.holds("a")
    chats.purge(datetime(2100, 1, 1, tzinfo=UTC))
    assert not chats.holds("a")


def test_purging_a_long_chat_leaves_nothing_behind(chats: Chats) -> None:
    talk(chats, "a", *["needle"] * 3000)
    chats.delete("a")
    with chats.transaction():
        chats.purge(datetime(2100, 1, 1, tzinfo=UTC))
    assert chats._sql.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert chats._sql.execute("SELECT count(*) FROM words WHERE words MATCH 'needle'").fetchone() == (0,)


def test_an_id_may_be_shortened_as_long_as_one_chat_is_meant(chats: Chats) -> None:
    for id in ("abc", "abd", "xyz"):
        talk(chats, id, "hi")
    assert chats.find("x") == "xyz"
    assert chats.find("abc") == "abc"
    with pytest.raises(UsageError, match="several chats begin with 'ab'"):
        chats.find("ab")
    with pytest.raises(UsageError, match="did you mean 'xyz'"):
        chats.find("xyy")


def test_a_name_of_the_users_own_stays(chats: Chats) -> None:
    talk(chats, "a", "hi")
    chats.rename("a", "100 ways to say hi")
    assert chats.chat("a")[0].title == "100 ways to say hi"
    assert chats.chat("a")[0].renamed


def test_an_empty_store_says_so(chats: Chats) -> None:
    assert chats.summaries() == []
    with pytest.raises(StoreError, match="no chats have been kept yet"):
        chats.last()


def test_half_a_surrogate_pair_does_not_keep_a_message_from_being_saved(chats: Chats) -> None:
    talk(chats, "a", "one \ud83d two")
    assert chats.chat("a")[1][0].content == "one ? two"


def test_a_title_is_the_first_words_on_one_line() -> None:
    assert title_of("  How does\n\nit work? ") == "How does it work?"
    assert title_of("word " * 40) == ("word " * 12)[:59].rstrip() + "…"
