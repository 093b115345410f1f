"""The commands: the only reader of argv and the only caller of sys.exit."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import typer.main

from specchat import __version__
from specchat.cli.arguments import UNREADABLE, in_one_line, one_prompt, prepared, refuse_options_before_command
from specchat.cli.bench import bench
from specchat.cli.chats import app as chats_app
from specchat.cli.chats import chat_ids, reading
from specchat.cli.check import check
from specchat.cli.config import app as config_app
from specchat.cli.datastore import app as datastore_app
from specchat.cli.fill import fill
from specchat.cli.find_models import add, find, forget
from specchat.cli.flags import Output, takes_settings
from specchat.cli.models import app as models_app
from specchat.cli.serve import serve, web
from specchat.cli.streams import (
    drop_output,
    flush_output,
    guard_terminals,
    open_missing_streams,
    output_error,
    plain_table,
    table_width,
)
from specchat.cli.train import train
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.text import one_line
from specchat.errors import InstallationError, SpecchatError, UsageError

if TYPE_CHECKING:
    from specchat.engine.protocol.events import MethodInfo

app = typer.Typer(
    name="specchat",
    help="Chat with a language model on your own machine. Something quick guesses how the text goes on, and the model "
    "checks all guesses at once: its own text, usually sooner.",
    add_completion=True,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app.command()(find)
models_app.command()(add)
models_app.command()(forget)
app.add_typer(models_app, name="models", help="Weights: what is here, what can be fetched.")
app.add_typer(chats_app, name="chats", help="Chats that were kept: list, read, search, export, import, remove.")
app.add_typer(datastore_app, name="datastore", help="Stores of text to look guesses up in: build, list, remove.")
app.add_typer(config_app, name="config", help="Defaults of your own: read them, write them.")

EngineCommand = Annotated[
    str,
    typer.Option(
        "--engine",
        envvar="SPECCHAT_ENGINE",
        help="Command that starts the engine, such as 'ssh box specchat engine'.",
        show_default=False,
    ),
]

NoMouse = Annotated[
    bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal: it then selects text by itself.")
]

PlainMarks = Annotated[
    bool,
    typer.Option("--ascii", help="Draw with ASCII characters only; also chosen where the locale is not UTF-8."),
]

System = Annotated[
    str | None,
    typer.Option(
        "--system", help="System message, or the name of one that /system save NAME saved.", show_default=False
    ),
]

_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""Within a paragraph of a docstring: typer keeps it, also where the terminal is narrower than the code."""

_OUTPUT_NOT_READ = 128 + 13
"""The exit code of a program that SIGPIPE ended, as it ends most whose output is piped into `head`.

The signal itself is not used: what a command has begun is put in order first, and an engine is ended.
"""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specchat {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
@takes_settings
def chat(
    context: typer.Context,
    settings: dict[str, Any],
    engine: EngineCommand = "",
    no_mouse: NoMouse = False,
    ascii: PlainMarks = False,
    print_transcript: Annotated[
        bool, typer.Option("--print-transcript", help="On leaving, print the conversation to the terminal.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "-r",
            metavar="[ID]",
            help="Go on with this chat; without an ID, choose one.",
            autocompletion=chat_ids,
        ),
    ] = None,
    last: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last chat.")] = False,
    serve_on: Annotated[
        str | None,
        typer.Option(
            "--serve",
            metavar="[PORT]",
            help="Let other programs use the chat's engine over HTTP, as /serve does; without a PORT, on 8000.",
        ),
    ] = None,
    system: System = None,
    ask: Annotated[str | None, typer.Option("--ask", hidden=True)] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Open the chat."""
    if context.invoked_subcommand is not None:
        gc.enable()
        refuse_options_before_command(context)
    else:
        from specchat.cli.chat import open_chat

        start = "" if resume is None and not last else _chosen_chat(resume, last)
        raise typer.Exit(
            open_chat(
                settings,
                engine,
                mouse=not no_mouse,
                print_transcript=print_transcript,
                ascii=ascii,
                chat=start,
                serve_on=serve_on,
                system=system or "",
                question=ask or "",
            )
        )


@app.command()
@takes_settings
def run(
    settings: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]", help="What to ask, in quotes; standard input is read when piped."),
    ] = None,
    output: Annotated[
        Output, typer.Option(help="text; one JSON object; or the event stream as JSON lines.")
    ] = Output.text,
    record: Annotated[
        Path | None, typer.Option(help="Write the event stream to this file.", show_default=False)
    ] = None,
    system: System = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold the reply to this JSON schema.", show_default=False),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Hold the reply to this regular expression.", show_default=False)
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold the reply to this grammar, in Lark's notation.", show_default=False),
    ] = None,
    race: Annotated[
        bool,
        typer.Option(
            "--race",
            help="Write the reply twice with one seed and compare: plain first, then with these settings; each has the "
            "engine to itself and starts from the same cached prompt, after a few tokens that are not counted.",
        ),
    ] = False,
    against: Annotated[
        str,
        typer.Option(
            metavar="PAIR",
            help="A race of two models: this pair writes a reply too, on an engine of its own, by turns with the first "
            "one, and with its own way of guessing.",
            show_default=False,
        ),
    ] = "",
    engine: EngineCommand = "",
) -> None:
    """Write one reply, without the app."""
    from specchat.cli.run import Asked, constraint_of, run_once

    asked = Asked(one_prompt(words or []), settings, output, record, system, engine)
    constraint = constraint_of(json_schema, regex, grammar)
    if not race and not against:
        raise typer.Exit(run_once(asked, constraint))
    from specchat.cli.run_race import race_models_once, race_once

    if constraint is not None:
        raise UsageError("--race compares free replies: leave out --json-schema, --regex and --grammar")
    if against:
        raise typer.Exit(race_models_once(asked, against))
    raise typer.Exit(race_once(asked))


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recording: a .jsonl file that `run --record` wrote.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page that plays it to this new file.", show_default=False)
    ] = None,
    no_mouse: NoMouse = False,
    ascii: PlainMarks = False,
) -> None:
    """Watch a recording in the app, without a model; or write a page that plays it in a browser."""
    if html is not None:
        from specchat.cli.run_output import write_recording_page

        write_recording_page(file, html)
        raise typer.Exit(0)
    from specchat.cli.chat import open_replay

    raise typer.Exit(open_replay(file, mouse=not no_mouse, ascii=ascii))


@app.command()
def methods(
    output: Annotated[
        Output, typer.Option(help="text; json, a list of objects; or jsonl, one object per line.")
    ] = Output.text,
) -> None:
    """List every drafter, tree policy, acceptance rule and controller."""
    import msgspec

    from specchat.engine.protocol.describe import method_list

    listed = method_list()
    if output is Output.json:
        print(msgspec.json.format(msgspec.json.encode(listed)).decode())
    elif output is Output.jsonl:
        for method in listed:
            print(msgspec.json.encode(method).decode())
    else:
        _print_methods(listed)


def _print_methods(methods: list[MethodInfo]) -> None:
    from rich.console import Console

    table = plain_table("family", "name", "what it does", "source", "lossless", whole=2)
    for method in methods:
        table.add_row(method.family, method.name, method.summary, method.source, method.lossless)
    Console(file=sys.stdout, highlight=False, width=table_width()).print(table)


@app.command()
@takes_settings
def doctor(
    settings: dict[str, Any],
    costs: Annotated[bool, typer.Option("--costs", help="Load the pair and measure what its passes cost.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the costs into a PNG, SVG or PDF.")] = None,
) -> None:
    """Say what this machine offers, which pairs are ready, and what would be slow and why."""
    from specchat.cli.doctor import print_costs, print_report

    if costs or plot is not None:
        print_costs(settings, plot)
    else:
        print_report()


app.command()(bench)
app.command()(check)
app.command()(fill)
app.command()(serve)
app.command()(train)
app.command()(web)


@app.command(hidden=True)
def engine(
    join: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Hold a part of the target of an engine there, and compute with it."),
    ] = "",
    target: Annotated[
        bool, typer.Option("--target", help="Run targets alone, for a specchat elsewhere that drafts (--target-at).")
    ] = False,
) -> None:
    """Run an engine that speaks its protocol over standard input and output."""
    launched = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
    if target or join or launched:
        os.environ.update(engine_environment())  # before torch is imported
    if target:
        from specchat.engine.server.target_host import serve_target

        serve_target()
    elif join or launched:
        from specchat.models import rank_process

        rank_process.join(join) if join else rank_process.join_launched_engine()
    else:
        from specchat.engine.server.host import serve

        serve()


def _chosen_chat(resume: str | None, last: bool) -> str | None:
    """The id of the chat to go on with; None where the user wants to choose in the app."""
    if resume is not None and last:
        raise UsageError("--continue is the last chat, --resume another: use one of them")
    with reading() as chats:
        if last:
            return chats.last()
        return chats.find(resume) if resume else None


def main() -> None:
    """Run the command line: exit code 0 done, 1 failed, 2 usage, 130 interrupted, 141 its output is read no longer."""
    gc.disable()  # until the first picture stands: collecting what was only just imported takes a tenth of a second
    open_missing_streams()
    guard_terminals()
    try:
        try:
            _parse_and_run(prepared(sys.argv[1:]))
        except SystemExit as ended:
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None  # typer makes a failure of it
            flush_output()
            sys.exit(ended.code)
        except ImportError as error:
            if (error.name or "").startswith("specchat"):
                raise
            raise InstallationError.of(error) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError) or error.filename is not None:
                raise
            if error.errno is None:  # a shared library that the system cannot load
                raise InstallationError.of(error) from None
            raise output_error(error) from None
    except SpecchatError as error:
        print(one_line(f"specchat: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        drop_output()
        sys.exit(_OUTPUT_NOT_READ)


class _Commands(Mapping[str, Any]):
    """The commands by name, each built when it is asked for: typer takes 40 ms for all of them."""

    def __init__(self) -> None:
        self._parts = {
            info.name or typer.main.get_command_name(getattr(info.callback, "__name__", "")): _part(**{kind: [info]})
            for kind in ("registered_commands", "registered_groups")
            for info in getattr(app, kind)
        }
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            built = typer.main.get_group(self._parts[name]).commands[name]
            for command in (built, *getattr(built, "commands", {}).values()):
                command.help = _LINE_BREAK.sub(" ", command.help or "")
            self._built[name] = built
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _part(**parts: Any) -> typer.Typer:
    """The app with a part of what is registered with it alone."""
    part = copy(app)
    part.registered_callback, part.registered_commands, part.registered_groups = None, [], []
    vars(part).update(parts)
    return part


@cache
def _command() -> Any:
    """What parses the command line."""
    group: Any = typer.main.get_command(_part(registered_callback=app.registered_callback))
    group.commands = _Commands()
    return group


def _parse_and_run(arguments: list[str]) -> NoReturn:
    try:
        ended = _command()(args=arguments, prog_name="specchat", standalone_mode=False)
    except UNREADABLE as error:
        refused = in_one_line(error, arguments)
        if refused is None:
            sys.exit(2)  # the help of a group was printed
        raise refused from None
    except typer.Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(1)
    sys.exit(ended if isinstance(ended, int) else 0)
