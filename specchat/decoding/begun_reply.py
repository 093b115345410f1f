"""The tokens of a reply that goes on, from the text of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specchat.decoding.vocabulary import Vocabulary


def tokens_of(vocabulary: Vocabulary, pieces: Sequence[str]) -> list[int]:
    """The tokens that wrote these pieces of text, so that the cache knows them and the reply goes on exactly there.

    To tokenise the whole text again would join what was written apart: a model may write `sp` and `ec` where the
    tokenizer has `spec`. A piece that is not exactly one token's text is tokenised: one whose character took several
    tokens, or a text that the user wrote.
    """
    known = _tokens_by_bytes(vocabulary) if pieces else {}
    tokens: list[int] = []
    for piece in pieces:
        at_start = not tokens and vocabulary.starts_with_space()
        data = piece.encode()
        token = known.get(b" " + data, known.get(data)) if at_start else known.get(data)
        tokens += [token] if token is not None else _spelled(vocabulary, known, piece, at_start)
    return tokens


def _tokens_by_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Of tokens with the same bytes the last: a table lists single bytes before the characters they are."""
    table = {vocabulary.token_bytes(token): token for token in range(vocabulary.size)}
    table.pop(b"", None)
    return table


def _spelled(vocabulary: Vocabulary, known: Mapping[bytes, int], piece: str, at_start: bool) -> list[int]:
    """A piece in several tokens. SentencePiece would put a space before it, unless it is spelled byte by byte."""
    parts = [known.get(bytes([byte])) for byte in piece.encode()]
    if vocabulary.starts_with_space() and not at_start and None not in parts:
        return [part for part in parts if part is not None]
    return vocabulary.encode(piece)
