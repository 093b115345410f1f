"""An edit that breaks a method, with the tests that must notice."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DRAFTER = "tests/contracts/test_drafter_contract.py"


@dataclass(frozen=True)
class Mutation:
    """One edit of one function, class or constant of the package.

    Args:
        method: `family name` of the method it breaks, or what else it breaks.
        what: the edit in words.
        where: the function, `Class.method`, class or constant that is edited, with `folder.module:` before it where the
            package has several of that name; or a C file below the package.
        old, new: an expression or statements inside it, and what replaces them. In Python `old` is compared as a syntax
            tree, and stands there once; in C it is text that occurs once in the file.
        tests: pytest arguments that select the tests of which one must fail.
        quick: whether it is also tried in the short run.
    """

    method: str
    what: str
    where: str
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False

    def edited(self, package: Path) -> tuple[Path, str]:
        """The file that is edited, and its text afterwards."""
        if self.where.endswith((".h", ".c")):
            file = package / self.where
            text = file.read_text()
            assert text.count(self.old) == 1, f"{self.where} holds {self.old!r} {text.count(self.old)} times"
            return file, text.replace(self.old, self.new)
        file, symbol = self._symbol(package)
        places = list(_places(symbol, _parsed(self.old)))
        assert len(places) == 1, f"{self.where} holds {self.old!r} {len(places)} times"
        text = file.read_bytes()
        start, end, column = _span(places[0], text)
        new = textwrap.indent(textwrap.dedent(self.new).strip("\n"), " " * column).strip()
        return file, (text[:start] + new.encode() + text[end:]).decode()

    def _symbol(self, package: Path) -> tuple[Path, ast.stmt]:
        """The file with the edited definition, and the definition."""
        module, _, name = self.where.rpartition(":")
        files = _files_by_name(package).get(name.partition(".")[0], [])
        found = [(file, node) for file in files for node in _definitions_in(file).get(name, [])]
        if module:
            wanted = package / module.replace(".", "/")
            found = [(file, node) for file, node in found if file.with_suffix("") == wanted]
        assert len(found) == 1, f"{len(found)} definitions of {self.where}: {[str(file) for file, _ in found]}"
        return found[0]


@cache
def _files_by_name(package: Path) -> dict[str, list[Path]]:
    """The files that may define a name, by the words of the lines that begin in the first column: few are parsed."""
    found: dict[str, list[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        lines = re.findall(r"^(?!from |import )\w.*", file.read_text(encoding="utf-8"), re.MULTILINE)
        for name in dict.fromkeys(re.findall(r"\w+", "\n".join(lines))):
            found.setdefault(name, []).append(file)
    return found


@cache
def _definitions_in(file: Path) -> dict[str, list[ast.stmt]]:
    """Every definition of a file by its qualified name."""
    found: dict[str, list[ast.stmt]] = {}
    for name, node in _definitions(ast.parse(file.read_bytes()).body):
        found.setdefault(name, []).append(node)
    return found


def _definitions(body: list[ast.stmt], outer: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Functions, classes with their methods, and assigned names, by qualified name."""
    for node in body:
        match node:
            case ast.ClassDef():
                yield outer + node.name, node
                yield from _definitions(node.body, f"{outer}{node.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield outer + node.name, node
            case ast.Assign() | ast.AnnAssign():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    yield from ((outer + name.id, node) for name in ast.walk(target) if isinstance(name, ast.Name))


def _parsed(text: str) -> list[ast.AST]:
    """One expression, or some statements."""
    try:
        return [ast.parse(f"({text.strip()}\n)", mode="eval").body]
    except SyntaxError:
        return list(ast.parse(textwrap.dedent(text)).body)


def _places(symbol: ast.stmt, wanted: list[ast.AST]) -> Iterator[list[ast.AST]]:
    """Nodes of a definition that are equal to these: an expression, or statements in a row."""
    dumps = [ast.dump(node) for node in wanted]
    for node in ast.walk(symbol):
        if isinstance(wanted[0], ast.expr):
            if isinstance(node, ast.expr) and ast.dump(node) == dumps[0]:
                yield [node]
            continue
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for first in range(len(block) - len(dumps) + 1) if isinstance(block, list) else ():
                if [ast.dump(each) for each in block[first : first + len(dumps)]] == dumps:
                    yield block[first : first + len(dumps)]
    if isinstance(wanted[0], ast.stmt) and [ast.dump(symbol)] == dumps:
        yield [symbol]


def _span(nodes: list[ast.AST], text: bytes) -> tuple[int, int, int]:
    """Bytes from the first node's beginning, decorators included, to the last one's end; and the first one's column."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    first, last = nodes[0], nodes[-1]
    line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
    return begins[line - 1] + first.col_offset, begins[last.end_lineno - 1] + last.end_col_offset, first.col_offset
