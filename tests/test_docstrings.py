"""Docstrings below the engine say where a method is from, and the shapes of tensors."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rows import each_row

import specchat
from specchat.decoding.families import methods
from specchat.registry import Method

PACKAGE = Path(specchat.__file__).parent
FAMILIES = ("drafters", "trees", "acceptance", "controllers")
BELOW_THE_ENGINE = (*FAMILIES, "core", "indexes", "decoding", "models/decoder")
SHAPE = re.compile(r"\((?:[^()]*,[^()]*|≤ [^()]*)\)")
"""(N, V), (C,), (…, 1) and their like."""

Definition = ast.FunctionDef | ast.ClassDef


def public(packages: tuple[str, ...]) -> Iterator[tuple[str, Definition]]:
    """Every public class, method and function of these packages, with the place where it is defined."""
    for package in packages:
        assert (PACKAGE / package).is_dir(), f"there is no package {package}"
        for file in sorted((PACKAGE / package).glob("*.py")):
            yield from below(ast.parse(file.read_text(encoding="utf-8")), file.relative_to(PACKAGE))


def below(node: ast.Module | ast.ClassDef, file: Path) -> Iterator[tuple[str, Definition]]:
    for inner in node.body:
        if isinstance(inner, Definition) and not inner.name.startswith("_"):
            yield f"{file}:{inner.lineno} {inner.name}", inner
            if isinstance(inner, ast.ClassDef):
                yield from below(inner, file)


def says_it_elsewhere(packages: tuple[str, ...]) -> set[str]:
    """Names of methods that a class of these packages documents: another class that has them need not repeat it."""
    return {one.name for _, one in public(packages) if isinstance(one, ast.FunctionDef) and ast.get_docstring(one)}


def handles_tensors(function: ast.FunctionDef) -> bool:
    annotations = [argument.annotation for argument in function.args.args] + [function.returns]
    return any(re.search(r"\bTensor\b", ast.unparse(one)) for one in annotations if one is not None)


def names_its_source(text: str) -> bool:
    return "Reference:" in text or "specchat's own" in text


@each_row(("family", "method"), list(methods()), ids=lambda value: getattr(value, "name", value))
def test_every_method_names_its_reference_or_says_it_is_specchats_own(family: str, method: Method) -> None:
    loaded = method.load()
    module = sys.modules[loaded.__module__]
    assert names_its_source(f"{inspect.getdoc(loaded)}\n{inspect.getdoc(module)}"), f"{family} {method.name}"


def test_public_functions_of_tensors_give_shapes() -> None:
    functions = [(place, one) for place, one in public(BELOW_THE_ENGINE) if isinstance(one, ast.FunctionDef)]
    about_tensors = [(place, one) for place, one in functions if handles_tensors(one)]
    assert len(about_tensors) > 20, "there are functions of tensors to look at"
    wanting = [(place, one) for place, one in about_tensors if not SHAPE.search(ast.get_docstring(one) or "")]
    said = says_it_elsewhere((*BELOW_THE_ENGINE, "models/weights"))
    assert [place for place, one in wanting if ast.get_docstring(one) or one.name not in said] == []
