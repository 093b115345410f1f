"""Vocabularies of pieces that cut one text differently, and models that write it in their own tokens."""

from __future__ import annotations

import torch

from specchat.models.backends.scripted import ScriptedModel

TEXT = "the cat sat on the mat and the hen ran to the fox; "


class Pieces:
    """A vocabulary of pieces, of which the longest that fits is taken. A `TokenTable`."""

    def __init__(self, pieces) -> None:
        letters = sorted(set(TEXT) | set("éß"))
        self.pieces = [piece.encode() for piece in dict.fromkeys([*pieces, *letters])]
        self.eos_ids = frozenset()

    @property
    def size(self):
        return len(self.pieces)

    def token_bytes(self, token):
        return self.pieces[token]

    token_spelling = token_bytes

    def encode(self, text):
        rest, tokens = text.encode(), []
        while rest:
            fitting = [token for token, piece in enumerate(self.pieces) if rest.startswith(piece)]
            tokens.append(max(fitting, key=lambda token: len(self.pieces[token])))
            rest = rest[len(self.pieces[tokens[-1]]) :]
        return tokens


def writer(table, sharpness=6.0, other="") -> ScriptedModel:
    """A model that writes TEXT again and again in its own tokens; `other` is a text that it finds half as likely."""
    written = {}

    def says(tokens):
        spelt = b"".join(map(table.token_bytes, tokens)).decode(errors="ignore")
        key = spelt[-12:]
        if key not in written:
            logits = torch.zeros(table.size)
            for place, text in enumerate((TEXT, other)):
                at = (2 * text).find(key) if text else -1
                if at >= 0:
                    logits[table.encode((3 * text)[at + len(key) : at + len(key) + 12])[0]] += sharpness / (1 + place)
            written[key] = logits
        return written[key]

    return ScriptedModel(table.size, says)


COARSE = Pieces([" the", " cat", " sat", " and", " hen", "; "])
FINE = Pieces([" t", "he", " c", "at", " a", "nd", "x; "])
LETTERS = Pieces([])
PAIRS = [(COARSE, FINE), (FINE, COARSE), (COARSE, LETTERS), (LETTERS, COARSE), (FINE, LETTERS)]
