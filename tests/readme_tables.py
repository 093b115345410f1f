"""The tables in docs, made from what the program itself lists. `python tests/readme_tables.py` rewrites them.

Each stands between `<!-- NAME -->` and `<!-- end NAME -->`; the text around them is written by hand.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specchat.config import Catalog, PairSpec, load_catalog, shipped_settings
from specchat.decoding.families import FAMILIES, methods
from specchat.decoding.systems import SYSTEMS, System
from specchat.drafters.choice import drafts_used
from specchat.registry import Option, options_of
from specchat.settings import OPTIONS
from specchat.tui.commands.registry import help_sections
from specchat.tui.services.key_bindings import every_key
from specchat.tui.text.key_names import names_of

ROOT = Path(__file__).parents[1]


def methods_table() -> str:
    """Every method of every family."""
    rows = [
        (family, f"`{m.name}`", _with_papers(m.summary), _with_papers(m.source), m.lossless) for family, m in methods()
    ]
    return _table(("family", "name", "what it does", "source", "lossless"), rows)


def method_options_table() -> str:
    """Every option that a method has for itself."""
    rows = [
        (f"`{m.name}.{o.name}`", _default(o), _values(o), o.help) for _, m in methods() for o in options_of(m.options)
    ]
    return _table(("option", "default", "values", "meaning"), rows)


def systems_table() -> str:
    """Every published system: where it is, how one sees that it is the real one, and what differs from its paper."""
    rows = [
        (_system_name(s), f"{s.group}-centric", _where(s), "<br>".join(map(_test, s.tests)) or "–", s.differs or "–")
        for s in SYSTEMS
    ]
    return _table(("system", "group", "here", "tests", "missing or different here"), rows)


def _system_name(system: System) -> str:
    numbered = re.fullmatch(r"\d{4}\.\d{5}", system.paper)
    return f"{system.name} {_with_papers(f'arXiv:{system.paper}')}" if numbered else system.name


def _where(system: System) -> str:
    names = ", ".join(f"`{name}`" for name in system.methods())
    return "; ".join(filter(None, (names, system.also))) or "absent"


def _test(test: str) -> str:
    file, name = test.split("::")
    return f"[{file}](../tests/{file}): `{name}`"


def settings_table() -> str:
    """Every setting with a single value."""
    rows = [
        (f"`{o.name}`", _default(o), _values(o), o.help, "at once" if o.live else "after a reload")
        for o in OPTIONS.values()
    ]
    return _table(("setting", "default", "values", "meaning", "acts"), rows)


def pairs_table() -> str:
    """Every pair that comes with specchat."""
    catalog = load_catalog()
    rows = [
        (f"`{p.name}`", p.target, _drafts(p), _size(catalog, p), _tried(p), p.summary) for p in catalog.pairs.values()
    ]
    return _table(("pair", "target", "draft model", "to fetch", "tried", "in words"), rows)


def keys_table() -> str:
    """Every key, with the name it has in config.toml."""
    rows = [(f"`{names_of(key.keys)}`".replace(", ", "`, `"), key.help, f"`{key.id}`") for key in every_key().values()]
    return _table(("key", "does", "name"), rows)


def commands_table() -> str:
    """Every slash command, as the app's own help page lists them."""
    return _table(("command", "does"), [(f"`{command}`", help) for command, help in _help("Commands")])


def floors_table() -> str:
    """Every package by its floor, as the import-linter's first contract has them, the highest floor first."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ][0]
    floors = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    numbered = zip(range(len(floors) - 1, -1, -1), floors, strict=True)
    rows = [(str(floor), f"`{name}`", _first_sentence(name)) for floor, names in numbered for name in names]
    return _table(("floor", "package", "in one sentence"), rows)


SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/design.md": {"floors": floors_table},
    "docs/keys.md": {"keys": keys_table, "commands": commands_table},
    "docs/models.md": {"pairs": pairs_table},
    "docs/methods.md": {"methods": methods_table, "method options": method_options_table, "systems": systems_table},
    "docs/settings.md": {"settings": settings_table},
}
"""The tables of every page that has some, by their names."""


def up_to_date(page: str, text: str) -> str:
    """The page's text with every table made anew."""
    for name, table in SECTIONS[page].items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        assert text.count(begin) == text.count(end) == 1, f"{page} must hold {begin} … {end} once"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}"
    return text


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _with_papers(text: str) -> str:
    """The text with every arXiv number as a link."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _default(option: Option) -> str:
    default = str(option.default).lower() if option.kind == "bool" else option.default
    return f"`{default}`" if default != "" else "empty"


def _values(option: Option) -> str:
    table = next((table for table in FAMILIES if table.family == option.name), None)
    if table is not None:
        return f"a [{option.name}](methods.md)"
    return "true, false" if option.kind == "bool" else option.range_text()


def _first_sentence(name: str) -> str:
    """What a package or a module of specchat says of itself first."""
    place = ROOT / "specchat" / name
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.\s", said + " ")[0]


def _used(pair: PairSpec) -> tuple[str, ...]:
    return drafts_used(shipped_settings(pair), pair.drafts)


def _drafts(pair: PairSpec) -> str:
    """Its draft models, with a remark on those that its settings do not use."""
    names = (name if name in _used(pair) else f"{name}, not used" for name in pair.drafts)
    return " + ".join(names) or "none"


def _size(catalog: Catalog, pair: PairSpec) -> str:
    """What the weights that its settings use take to fetch, where models.toml knows it."""
    specs = [catalog.model(name) for name in (pair.target, *_used(pair))]
    if all(spec.scripted for spec in specs):
        return "nothing"
    sizes = [file.size for spec in specs for file in spec.files]
    if not all(spec.files for spec in specs) or None in sizes:
        return "the hub says"
    total = sum(size or 0 for size in sizes)
    return f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"


def _tried(pair: PairSpec) -> str:
    return "no" if pair.notes.startswith("untested") else "yes"


def _help(title: str) -> list[tuple[str, str]]:
    return next(entries for name, entries in help_sections() if name == title)


if __name__ == "__main__":
    for page in SECTIONS:
        file = ROOT / page
        file.write_text(up_to_date(page, file.read_text(encoding="utf-8")), encoding="utf-8")
