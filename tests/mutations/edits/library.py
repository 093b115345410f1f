"""Edits that break the library: when a reply is stopped, whose answer an event is."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

LIBRARY = "tests/test_library.py"

EDITS = (
    Mutation(
        "library",
        "goes on writing a reply whose loop was left",
        "ReplyStream._follow",
        "self.cancel()",
        "pass",
        (LIBRARY, "-k", "error_in_the_loop"),
    ),
    Mutation(
        "library",
        "waits for the rest of a reply that nobody holds",
        "Pair.stream",
        "self._session.send(Cancel(forgotten))",
        "pass",
        (LIBRARY, "-k", "nobody_holds"),
    ),
    Mutation(
        "library",
        "takes the answer of an interrupted loading for its own",
        "library.session:Session.load",
        "_answers_load(event := self.next()) and self._loads == 0",
        "_answers_load(event := self.next())",
        (LIBRARY, "-k", "leaves_nothing_behind"),
    ),
    Mutation(
        "library",
        "lets a model's text end the page's script",
        "reply_page.__init__:_json",
        '"<>&"',
        '"&"',
        ("tests/test_reply_page.py", "-k", "only_text"),
    ),
)
