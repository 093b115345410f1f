"""Streaming Markdown piece by piece gives what one-shot Markdown gives."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.tui.text.markdown_blocks import BlockSplitter, reply_parser

LINES = [
    "", "", "plain words", "# heading", "## two", "- item", "* star", "1. one", "2. two", "  continued", "    code",
    "```", "```python", "~~~", "  ```", "> quote", "> - in quote", "| a | b |", "|---|---|", "| 1 | 2 |", "---",
    "<div>", "</div>", "<!-- x", "[foo]: /url", "see [foo]", "**bold", "text**", "\t- tab", "- ", "10) ten", "\\",
    "`x`", "===",
]  # fmt: skip
documents = st.builds(lambda count, seed: document_by_chance(count, seed), st.integers(0, 24), st.integers(0, 2**32))


def document_by_chance(count: int, seed: int) -> str:
    """So many lines, of those above or of a few characters that mean something."""
    chance = random.Random(seed)
    odd = ("".join(chance.choices("ab#-*>`~ \t|1.", k=chance.randint(0, 6))) for _ in range(count))
    return "\n".join(chance.choice([chance.choice(LINES), line]) for line in odd)


PARSER = reply_parser()


def shape(text: str) -> list[tuple[object, ...]]:
    return [
        (t.type, t.tag, t.level, t.markup, t.info, t.content, tuple((c.type, c.content) for c in t.children or []))
        for t in PARSER.parse(text)
    ]


@settings(max_examples=600, deadline=None)
@given(documents, st.integers(0, 2**32))
def test_any_chunking_draws_the_same_blocks_as_the_whole_text(text, seed):
    splitter, committed, rest, chance = BlockSplitter(), [], text, random.Random(seed)
    while rest:
        size = chance.randint(1, chance.choice([3, 30, len(rest)]))
        if done := splitter.feed(rest[:size]):
            committed.append(done)
        rest = rest[size:]
    committed.append(splitter.finish())
    assert "".join(committed) == text
    assert [token for block in committed for token in shape(block)] == shape(text)


def test_a_paragraph_is_finished_by_its_blank_line():
    splitter = BlockSplitter()
    assert splitter.feed("one\n") == ""
    assert splitter.feed("\n") == "one\n\n"
    assert splitter.open == ""


def test_an_open_fence_is_never_cut_and_a_closed_one_is():
    splitter = BlockSplitter()
    assert splitter.feed("```\na\n\nb\n\nc\n") == ""
    assert splitter.feed("```\n\n") == "```\na\n\nb\n\nc\n```\n\n"


def test_a_loose_list_stays_whole_until_something_else_begins():
    splitter = BlockSplitter()
    assert splitter.feed("1. a\n\n2. b\n\n") == ""
    assert splitter.feed("after\n") == "1. a\n\n2. b\n\n"
    assert splitter.open == "after\n"


def plain(text: str) -> str:
    return "".join(part.content for token in reply_parser().parse(text) for part in token.children or ())


def test_backslashes_of_formulas_and_paths_are_kept_and_those_before_marks_are_not():
    assert plain(r"\(x^2\) and \[y\] in C:\.config") == r"\(x^2\) and \[y\] in C:\.config"
    assert plain(r"\*no emphasis\* a\_b \`c\`") == "*no emphasis* a_b `c`"
