"""Modules import one another in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import specchat

PACKAGE = Path(specchat.__file__).parent

Graph = Mapping[str, set[str]]


@cache
def imports(package: Path) -> Graph:
    """What every module of a package imports from it: in functions and for type checkers too."""
    files = {_name(file, package): file for file in package.rglob("*.py")}
    return {name: {found for found in _imported(file, files) if found != name} for name, file in files.items()}


def _name(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in _statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & known.keys()
            if names - known.keys() and node.module in known:
                yield node.module


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement below this one. (Nothing inside of expressions imports: they are three quarters of all nodes.)"""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, part, ()):
            yield node
            yield from _statements(node)


def circles(graph: Graph) -> list[set[str]]:
    """The sets of modules that reach one another, of two and more (Tarjan)."""
    found: list[set[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            place = stack.index(module)
            if len(stack) - place > 1:
                found.append(set(stack[place:]))
            del stack[place:]

    for module in graph:
        if module not in order:
            visit(module)
    return found


def test_there_is_no_import_circle() -> None:
    assert [sorted(circle) for circle in circles(imports(PACKAGE))] == []


def test_a_circle_through_a_function_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from house.b import thing\n")
    (package / "b.py").write_text("import house.c\nthing = 1\n")
    (package / "c.py").write_text("def late():\n    from house import a\n")
    (package / "d.py").write_text("from house import a\n")
    assert circles(imports(package)) == [{"house.a", "house.b", "house.c"}]
