"""`specchat methods`: every method, from the tables alone; imports no torch."""

from __future__ import annotations

import sys

import msgspec

from specchat.cli.flags import Output
from specchat.cli.streams import table_width
from specchat.engine.protocol.describe import method_list


def print_methods(output: Output) -> None:
    """The methods as a table, or as JSON (one list, or one object per line)."""
    listed = method_list()
    if output is Output.json:
        print(msgspec.json.format(msgspec.json.encode(listed)).decode())
    elif output is Output.jsonl:
        for method in listed:
            print(msgspec.json.encode(method).decode())
    else:
        _print_table()


def _print_table() -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("family", "name", "what it does", "source", "lossless"):
        table.add_column(column, no_wrap=column in ("family", "name"), overflow="fold")
    for method in method_list():
        table.add_row(method.family, method.name, method.summary, method.source, method.lossless)
    Console(file=sys.stdout, highlight=False, width=table_width()).print(table)
