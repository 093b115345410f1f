"""How finished Markdown looks: rules, alignment, colours of a diff, long code, headings, tables."""

from __future__ import annotations

from driving import Driver, driving, in_one_app
from textual.widgets import Markdown

from specchat.tui.widgets.reply_view import CodeBlock, diff

TABLE = "| name | right | mid |\n|:---|---:|:--:|\n| a | 1 | x |\n| bb | 22 | yy |\n"


async def lines_of(d: Driver, text: str) -> list[str]:
    """The lines of the chat's left half that show this reply."""
    await d.say("hi")
    await d.reply(text)
    return [line[:50].strip() for line in d.screen().splitlines()]


async def the_lines_of_a_poem_stay_lines(d: Driver) -> None:
    lines = await lines_of(d, "In twilight's hush,\nwhere shadows play,\n\n- one\n  and more\n\nThe sea.\n")
    at = lines.index("In twilight's hush,")
    assert lines[at + 1] == "where shadows play,"
    assert "and more" in lines


async def a_rule_is_a_line(d: Driver) -> None:
    screen_lines = await lines_of(d, "above\n\n---\n\nbelow\n")
    line = next(
        screen_line
        for screen_line in screen_lines[screen_lines.index("above") + 1 : screen_lines.index("below")]
        if screen_line
    )
    assert set(line) == {"─"}
    assert len(line) > 30


async def columns_are_aligned_as_the_text_says_and_rows_follow_each_other(d: Driver) -> None:
    await lines_of(d, TABLE)
    lines = [line[:50] for line in d.screen().splitlines()]
    at = next(i for i, line in enumerate(lines) if "name" in line)
    head, one, two = lines[at : at + 3]
    assert head.index("name") == one.index("a") == two.index("bb")
    assert head.index("right") + 5 == one.index("1") + 1 == two.index("22") + 2
    assert abs((head.index("mid") + 1) - one.index("x")) <= 1
    assert not any("─" in line for line in lines[at : at + 3])


async def test_a_diff_has_colours_and_keeps_its_signs():
    shown = diff("--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n same\n")
    styles = {shown.plain[span.start : span.end]: str(span.style) for span in shown.spans}
    assert styles == {
        "--- a": "bold", "+++ b": "bold", "@@ -1 +1 @@": "$text-accent", "-old": "$text-error", "+new": "$text-success",
    }  # fmt: skip
    async with driving((100, 40)) as d:
        lines = await lines_of(d, "```diff\n-old\n+new\n```\n")
        assert "-old" in lines
        assert "+new" in lines
        drawn = d.app.query_one(CodeBlock)
        colours = {segment.text.strip(): segment.style.color for y in range(2)
                   for segment in d.app.screen._compositor.render_strips()[drawn.region.y + y]
                   if segment.text.strip() in ("-old", "+new") and segment.style}  # fmt: skip
        assert len(set(colours.values())) == 2


async def code_that_is_too_wide_can_be_scrolled_and_shows_it(d: Driver) -> None:
    await lines_of(d, "```python\nx = 1\n```\n\n```python\n" + "word " * 30 + "\n```\n")
    short, wide = d.app.query(CodeBlock)
    assert not short.show_horizontal_scrollbar
    assert wide.show_horizontal_scrollbar
    assert wide.max_scroll_x > 0
    assert (short.size.height, wide.size.height) == (1, 2), "the bar has a line of its own"


async def headings_of_different_levels_look_different(d: Driver) -> None:
    await lines_of(d, "# one\n\n## two\n\n### three\n\n#### four\n")
    looks = [d.app.query_one(Markdown.BLOCKS[f"h{level}"]).styles for level in range(1, 5)]
    assert len({(str(look.text_style), str(look.color)) for look in looks}) == 4


async def test_finished_markdown_looks_like_what_it_says():
    await in_one_app(
        the_lines_of_a_poem_stay_lines,
        a_rule_is_a_line,
        columns_are_aligned_as_the_text_says_and_rows_follow_each_other,
        code_that_is_too_wide_can_be_scrolled_and_shows_it,
        headings_of_different_levels_look_different,
        size=(100, 40),
    )
