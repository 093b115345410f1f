"""Characters as Textual names their keys."""

from __future__ import annotations

import unicodedata

from textual.keys import KEY_NAME_REPLACEMENTS

from specchat.tui.textual_patches.version import tested


def key_of_character(character: str) -> str:
    """`full_stop` for `.`; letters and digits are their own names."""
    if tested():
        from textual.keys import _character_to_key

        return _character_to_key(character)
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)
