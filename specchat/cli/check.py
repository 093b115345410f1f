"""`specchat check`: checks on this machine that speculation changes the speed and nothing else."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.cli.flags import Output, takes_settings

if TYPE_CHECKING:
    from specchat.bench.check import Proof


class CheckBudget(StrEnum):
    """How much is tried: under a minute for a small model, or a few minutes."""

    small = "small"
    full = "full"


@takes_settings
def check(
    settings: dict[str, Any],
    budget: Annotated[CheckBudget, typer.Option(help="small: under a minute for a small model; full: minutes.")] = (
        CheckBudget.small
    ),
    output: Annotated[
        Output, typer.Option(help="text; json, one object; or jsonl, the same on one line.")
    ] = Output.text,
) -> None:
    """Test on this machine that guesses do not change the text: that it is the model's own, whatever guesses for it.

    Two checks of the combination that is set: the text at temperature 0, and what it draws above that. Under the rule
    `follow` that is the text of a seed, under others the distribution of the first two tokens. Three of its acceptance
    rule, with small trees of draft models made for the purpose: one that is always right, one that is always wrong, and
    one whose samples must be distributed as the target's. Where a check could pass by not looking, a planted fault must
    be caught. A check that had nothing to test, as where no guess was made, is skipped and says why. Exit code 0 if
    none failed, 1 if one did.
    """
    from specchat.bench.configurations import prepare_environment, settings_in_force

    chosen = settings_in_force(settings)
    prepare_environment(chosen.threads)

    import msgspec

    from specchat.bench.check import prove
    from specchat.bench.checked_combination import EFFORTS
    from specchat.bench.report_tables import plain_data

    shown = sys.stderr.isatty()

    def say(what: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[K{what}")
            sys.stderr.flush()

    try:
        proof = prove(chosen, EFFORTS[budget.value], say)
    finally:
        say("")
    if output is Output.text:
        _print(proof)
    else:
        data = msgspec.json.encode({**plain_data(proof), "ok": proof.ok})
        print((data if output is Output.jsonl else msgspec.json.format(data)).decode())
    raise typer.Exit(0 if proof.ok else 1)


def _print(proof: Proof) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    glyphs = {"passed": ("✓", "green"), "failed": ("✗", "bold red"), "skipped": ("–", "dim")}
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 100)
    s = proof.settings
    draft = f" + {proof.draft}" if proof.draft else ""
    console.print(Text(f"{proof.pair}: {proof.target}{draft} · {proof.precision} · {proof.device}", "bold"))
    shape = f"width {s['width']}, depth {s['depth']}, nodes {s['nodes']}"
    console.print(Text(f"{s['drafter']} × {s['policy']} × {s['rule']} × {s['controller']}, {shape}\n"))
    for finding in proof.findings:
        glyph, style = glyphs[finding.status]
        console.print(Text.assemble((f"{glyph} ", style), (finding.claim, "bold"), f": {finding.status}"))
        console.print(Padding(Text(finding.detail, "dim"), (0, 0, 0, 2)))
    about = proof.circumstances
    console.print(Text(f"\n{proof.summary}", "" if proof.ok else "bold red"))
    versions = " · ".join(f"{name} {version}" for name, version in about.versions.items())
    console.print(Text(f"{about.accelerator or about.processor} · {versions} · {about.made}", "dim"))
