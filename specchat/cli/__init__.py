"""The commands. The only reader of argv and the only caller of sys.exit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specchat.cli.bench import bench
from specchat.cli.check import check
from specchat.cli.flags import Output, takes_settings
from specchat.cli.models import app as models_app
from specchat.errors import SpecchatError

app = typer.Typer(
    name="specchat",
    help="Chat with a model on your own machine and watch it speculate: the target's own text, only sooner.",
    add_completion=True,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models_app, name="models", help="Weights: what is here, what can be fetched.")

EngineCommand = Annotated[
    str,
    typer.Option(
        "--engine",
        envvar="SPECCHAT_ENGINE",
        help="Command that starts the engine, such as 'ssh box specchat engine'.",
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True)
@takes_settings
def chat(context: typer.Context, settings: dict[str, Any], engine: EngineCommand = "") -> None:
    """Open the chat."""
    if context.invoked_subcommand is None:
        from specchat.cli.chat import open_chat

        open_chat(settings, engine)


@app.command()
@takes_settings
def run(
    settings: dict[str, Any],
    prompt: Annotated[str | None, typer.Argument(help="What to ask; standard input is read when piped.")] = None,
    output: Annotated[
        Output, typer.Option(help="text; one JSON object; or the event stream as JSON lines.")
    ] = Output.text,
    record: Annotated[
        Path | None, typer.Option(help="Write the event stream to this file.", show_default=False)
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default=False)] = None,
    engine: EngineCommand = "",
) -> None:
    """Write one reply, without the app."""
    from specchat.cli.run import run_once

    raise typer.Exit(run_once(prompt, settings, output, record, system, engine))


@app.command()
def replay(file: Annotated[Path, typer.Argument(help="A recording: a .jsonl file that `run --record` wrote.")]) -> None:
    """Watch a recording in the app, without a model."""
    from specchat.cli.chat import open_replay

    open_replay(file)


@app.command()
def methods(
    output: Annotated[Output, typer.Option(help="text, or a JSON list of objects.")] = Output.text,
) -> None:
    """List every drafter, tree policy, acceptance rule and controller."""
    from specchat.cli.methods import print_methods

    print_methods(output)


@app.command()
@takes_settings
def doctor(
    settings: dict[str, Any],
    costs: Annotated[bool, typer.Option("--costs", help="Load the pair and measure what its passes cost.")] = False,
) -> None:
    """Say what this machine offers, which pairs are ready, and what would be slow and why."""
    from specchat.cli.doctor import print_costs, print_report

    if costs:
        print_costs(settings)
    else:
        print_report()


app.command()(bench)
app.command()(check)


@app.command(hidden=True)
def engine() -> None:
    """Run an engine that speaks its protocol over standard input and output."""
    from specchat.engine.host import serve

    serve()


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 usage, 130 interrupted."""
    try:
        app()
    except SpecchatError as error:
        print(f"specchat: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone: nothing to say to them
        sys.exit(1)
