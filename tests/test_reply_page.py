"""A reply as a page: what is in it, that nothing a model wrote is more than text, and how large it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from specchat.cli.run_output import write_recording_page
from specchat.engine.client.replay import Recording
from specchat.engine.protocol.events import RoundDone, Started
from specchat.engine.protocol.round_parts import Draw, LayerTop, Lens, Piece, Timings, Tree, Verdict
from specchat.errors import UsageError
from specchat.reply_page import MOST_BYTES, PageTurn, in_notebook, in_rounds, page, turns_of

ASSETS = Path(__file__).parents[1] / "assets"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e&amp;{{SAID}}<!--"


def round_of(*texts: str, kept: int = 1, bonus: str = "!", proposer: str = "suffix", index: int = 0) -> RoundDone:
    """A round whose guesses are all children of the root or of the path; the first ones were kept."""
    parents = [-1, *(min(node - 1, kept) for node in range(1, len(texts)))]
    path = list(range(1, kept + 1))
    reasons = ["accepted" if node <= kept else "rejected" for node in range(len(texts))]
    draws = [Draw(node, "point", proposer, -0.5) for node in range(1, len(texts))]
    pieces = [*(Piece(node, texts[node], "drafted") for node in path), Piece(9, bonus, "target")]
    return RoundDone(
        1, index, 0.5 * (index + 1), 3, {"nodes": len(texts) - 1},
        Tree(list(range(len(texts))), parents, list(texts), draws, [None, *(-0.1 for _ in texts[1:])]),
        Verdict(path, 9, bonus, -0.2, reasons), pieces, Timings(0.1, 0.2, 0.0),
    )  # fmt: skip


def reply(*rounds: RoundDone, text: str | None = None) -> PageTurn:
    pieces = [(piece.text, piece.origin) for round in rounds for piece in round.pieces]
    return PageTurn("smol", "", pieces if text is None else [(text, "target")], rounds)


class Parsed(HTMLParser):
    """The tags of a page, its scripts, and the rounds that it holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.said = ""
        self.feed(text)
        self.rounds = json.loads(self.scripts[0]) if self.scripts else None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts += [data] if data.strip() else []
        else:
            self.said += data


def test_whatever_is_written_is_only_text():
    hostile = round_of(HOSTILE, HOSTILE, HOSTILE, bonus=HOSTILE, proposer=HOSTILE)
    turns = [PageTurn(HOSTILE, HOSTILE), reply(hostile)]
    text = page(HOSTILE, HOSTILE, turns, HOSTILE)
    parsed, plain = Parsed(text), Parsed(page("t", "a", [PageTurn("you", "hi"), reply(round_of("a", "b", "c"))], "s"))
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    assert not any(key.startswith("on") or key == "src" for _, given in parsed.tags for key in given)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    assert parsed.scripts[1:] == plain.scripts[1:]
    assert parsed.said.count("</script><script>alert(1)</script>") >= 6
    (packed,) = parsed.rounds["replies"][0]
    assert packed[3][0] == HOSTILE.replace("\x1b", "␛").replace("\u202e", "⟨202e⟩")
    assert in_notebook(100, *turns).count("<") == 2, "a frame, whose page is an attribute"


def test_only_the_script_of_the_page_may_run_and_only_where_there_are_rounds():
    parsed = Parsed(page("t", "a", [reply(round_of("a", "b"))]))
    (policy,) = [given["content"] for tag, given in parsed.tags if tag == "meta" and "http-equiv" in given]
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-\S{44}'", policy or "")
    without = page("t", "a", [PageTurn("smol", "", [("a", "target")])])
    assert "script" not in without
    assert "{{" not in without
    assert "<!--" not in without


def test_a_round_says_of_each_node_what_became_of_it():
    packed = Parsed(page("t", "a", [reply(round_of("a", "b", "c", "d", kept=2))])).rounds
    assert packed["names"] == ["suffix"]
    _, hidden, parents, texts, states, target, draft, by = packed["replies"][0][0]
    assert (hidden, parents, texts) == (0, [-1, 0, 1, 2, 2], ["a", "b", "c", "d", "!"])
    assert (states, target) == ("Raaxb", [-1, 905, 905, 905, 819])
    assert (draft, by) == ([-1, 607, 607, 607, -1], [-1, 0, 0, 0, -1])


def seen_from(layer: int, choice: int, text: str, layers: int = 30) -> Lens:
    """The last token before this layer was another; it was the likeliest once before, at the fourth."""
    early = [LayerTop(1, 5, HOSTILE), LayerTop(4, choice, text), LayerTop(5, 6, " so")]
    return Lens(layers, [*early, LayerTop(layer, choice, text)])


def looked_into(round: RoundDone) -> RoundDone:
    """The round with what its layers said of each kept token; in place of the bonus another was likelier."""
    *kept, bonus = round.pieces
    seen = [msgspec.structs.replace(piece, lens=seen_from(21, piece.token, piece.text)) for piece in kept]
    drawn = msgspec.structs.replace(bonus, lens=seen_from(30, 77, " likelier"))
    return msgspec.structs.replace(round, pieces=[*seen, drawn])


def test_a_round_says_where_its_tokens_were_decided_if_layers_were_looked_at():
    round = looked_into(round_of("a", "b", "c", "d", kept=2))
    text = page("t", "a", [reply(round)])
    packed = Parsed(text)
    assert packed.rounds["replies"][0][0][8] == [
        [30, [4, 5, 21], "b", " so", 0], [30, [4, 5, 21], "c", " so", 0], [30, [4, 5, 30], " likelier", " so", 1]
    ]  # fmt: skip
    assert "▆▆█ decided at layer 24 of 30 on average · low is early, each a token" in packed.said
    assert len(text.encode()) - len(page("t", "a", [reply(round_of("a", "b", "c", "d", kept=2))]).encode()) < 400
    many = [looked_into(round_of(*(f"token {n}" for n in range(64)), kept=3, index=index)) for index in range(600)]
    long = page("t", "a", [reply(*many)])
    plain = page("t", "a", [replace(reply(*many), rounds=())])
    assert len(long.encode()) - len(plain.encode()) < 300_000


def test_text_that_was_taken_over_is_not_called_the_models_own():
    recording = Recording.read(ASSETS / "demo.jsonl").events
    first = next(at for at, event in enumerate(recording) if isinstance(event, Started))
    begun = [
        *recording[:first],
        msgspec.structs.replace(recording[first], begun=["Well", ", "]),
        *recording[first + 1 :],
    ]
    text, other = (page("t", "a", turns_of(events)) for events in (begun, recording))
    assert '<span class="given">Well, </span><span class="round">' in text
    assert '<span class="given">there before the model went on</span>' in text
    assert '<span class="given">' not in other


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("b!c!", "", ""),
        ("so b!c!", "so ", ""),
        ("b!c! .", "", " ."),
        ("b!c! b!c!x", "b!c! ", "x"),
        ("edited", "edited", ""),
    ],
)
def test_text_that_no_round_wrote_stands_around_them(text, before, after):
    rounds = [round_of("a", "b"), round_of("a", "c", index=1)]
    found = in_rounds([(text[:2], "drafted"), (text[2:], "target")], rounds)
    assert "".join(text for text, _ in found[0]) == before
    assert "".join(text for text, _ in found[2]) == after
    assert len(found[1]) == (0 if before == "edited" else 2)


def test_a_page_of_large_trees_leaves_out_guesses_and_says_how_many():
    rounds = [round_of(*(f"token {node}" for node in range(200)), kept=3, index=index) for index in range(120)]
    packed = Parsed(text := page("t", "a", [reply(*rounds)]))
    assert MOST_BYTES * 0.5 < len(packed.scripts[0].encode()) <= MOST_BYTES
    for _, hidden, parents, texts, states, *_ in packed.rounds["replies"][0]:
        assert states.count("a") == 3
        assert hidden + len(texts) == 201
        assert hidden > 0
        assert all(parent < node for node, parent in enumerate(parents))
    assert "token 199" not in text


def test_a_page_of_a_very_long_reply_keeps_its_last_rounds_and_all_of_its_text():
    rounds = [round_of("so", " it", " goes", " on", kept=3, bonus=" ", index=index) for index in range(4000)]
    text = page("t", "a", [reply(*rounds)])
    parsed = Parsed(text)
    assert parsed.said.count(" it goes on ") == 4000
    assert len(text.encode()) - len(page("t", "a", [replace(reply(*rounds), rounds=())]).encode()) < 300_000
    assert parsed.rounds["skipped"][0] + len(parsed.rounds["replies"][0]) == 4000
    assert len(parsed.rounds["replies"][0]) > 500
    assert text.count('class="round"') == len(parsed.rounds["replies"][0])


def test_replies_stand_below_what_they_answer():
    turns = turns_of(Recording.read(ASSETS / "demo.jsonl").events)
    assert [turn.who for turn in turns] == ["You", "qwen-coder"] * 2
    assert all(turn.rounds and "tok/s" in turn.figures for turn in turns[1::2])
    assert turns[0].text != turns[2].text


def test_the_page_of_the_demo_is_what_its_recording_gives_and_small(tmp_path: Path):
    write_recording_page(ASSETS / "demo.jsonl", tmp_path / "demo.html")
    written = (tmp_path / "demo.html").read_bytes()
    assert written == (ASSETS / "demo.html").read_bytes(), "run: python assets/make_readme_pictures.py"
    assert len(written) < 300_000
    with pytest.raises(UsageError, match="there already"):
        write_recording_page(ASSETS / "demo.jsonl", tmp_path / "demo.html")
