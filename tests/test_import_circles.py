"""No import circle of more than two files: what imports each other can only be understood together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grimp

LARGEST = 2

KNOWN = {
    frozenset(f"specchat.bench.peers.{name}" for name in ("llama_cpp", "run_peers", "transformers_generate")),
    frozenset(f"specchat.bench.proof.{name}" for name in ("check", "check_law", "check_text", "subject")),
}
"""Larger circles that are still to be broken; one that is gone must leave this table."""


def circles(imports: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """The sets of modules that reach each other, each of two or more (Tarjan, SIAM J. Comput. 1(2), 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in imports.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                found.append(frozenset(members))

    for module in imports:
        if module not in number:
            visit(module)
    return found


def test_a_circle_is_found_and_what_only_leads_to_it_is_no_part_of_it():
    imports = {"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b", "e"], "e": []}
    assert circles(imports) == [frozenset("bcd")]


def test_no_more_than_two_files_import_each_other():
    graph = grimp.build_graph("specchat", include_external_packages=False)
    imports = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}
    large = {circle for circle in circles(imports) if len(circle) > LARGEST}
    assert [sorted(circle) for circle in large - KNOWN] == []
    assert [sorted(circle) for circle in KNOWN - large] == [], "this circle is gone: take it out of the table"
