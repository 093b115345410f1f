"""What stands on the command line acts or is refused, for every command."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import typer
from rows import each_row

from specchat import __version__, cli
from specchat.cli import app, main
from specchat.cli.arguments import prepared

USELESS = {
    "--pair": "nosuch", "--width": "3", "--stop": "x", "--set": "suffix.depth=3", "--engine": "nosuch", "--resume": "x",
    "--serve": "9000",
}  # fmt: skip


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that name each command, those of groups included."""
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield (*path, name)
        yield from commands(inner, (*path, name))


EVERY = list(commands(typer.main.get_command(app)))


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that says why this command line is refused."""
    monkeypatch.setattr("sys.argv", ["specchat", *words])
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, ""), said
    (line,) = said.err.splitlines()
    assert line.startswith("specchat: ")
    return line


@each_row("flag", USELESS)
@each_row("command", EVERY, ids=" ".join)
def test_an_option_of_the_chat_before_a_command_is_refused_and_never_dropped(command, flag, monkeypatch, capsys):
    line = refused([flag, USELESS[flag], *command], monkeypatch, capsys)
    assert flag in line
    assert command[0] in line


def test_the_refusal_says_where_the_option_belongs_if_anywhere(monkeypatch, capsys):
    line = refused(["--pair", "nosuch", "run", "hi"], monkeypatch, capsys)
    assert line.endswith("write it after the command: specchat run --pair …")
    line = refused(["--pair", "smol", "config", "get"], monkeypatch, capsys)
    assert line.endswith("write it after the command: specchat config COMMAND --pair …")
    assert refused(["--pair", "smol", "methods"], monkeypatch, capsys) == "specchat: specchat methods takes no --pair"


@each_row("command", EVERY, ids=" ".join)
def test_an_argument_that_is_no_text_is_refused_by_its_number_and_byte(command, monkeypatch, capsys):
    line = refused([*command, "caf\udce9"], monkeypatch, capsys)
    assert f"argument {len(command) + 1} is not UTF-8: after 'caf' comes the byte 0xe9" in line


def test_an_engine_of_the_environment_is_no_option_that_was_typed(monkeypatch, capsys):
    monkeypatch.setenv("SPECCHAT_ENGINE", "ssh box specchat engine")
    monkeypatch.setattr("sys.argv", ["specchat", "config", "path"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["run", "hi", "--threads", "100000"],
        ["run", "hi", "--seed", "9" * 20],
        ["run", "hi", "--seed", "9" * 5000],
        ["run", "hi", "--width", "x" * 5000],
        ["run", "hi", "--record", "/nonexistent/x"],
        ["replay", "/nonexistent"],
        ["chats", "import", "/nonexistent"],
        ["chats", "import", "/"],
        ["models", "check", "nosuch"],
        ["config", "set", "width", "x"],
        ["doctor", "--plot", "/nonexistent/x.png"],
        ["bench", "--save", "/nonexistent/x", "--pair", "scripted"],
    ],
    ids=lambda words: " ".join(words)[:50],
)
def test_what_cannot_be_meant_is_one_line_that_is_not_long(words, monkeypatch, capsys):
    assert len(refused(words, monkeypatch, capsys)) < 900


@each_row("path", ["~nobody-here/x", "l" * 300, f"{'l' * 300}/x.png"], ids=lambda path: path[:5])
@each_row(
    "words",
    [
        ["bench", "--pair", "scripted", "--prompts"],
        ["bench", "--pair", "scripted", "--save"],
        ["bench", "--pair", "scripted", "--plot"],
        ["bench", "gpu", "--save"],
        ["doctor", "--plot"],
        ["models", "add", "mine", "--target"],
        ["models", "add", "mine", "--target", "smollm2-135m-instruct", "--draft"],
        ["models", "add", "mine", "--target", "smollm2-135m-instruct", "--drafter"],
        ["datastore", "build", "mine", "--pair", "scripted"],
        ["train", "smol", "--prompts"],
        ["replay"],
        ["chats", "import"],
        ["run", "hi", "--pair", "scripted", "--record"],
    ],
    ids=lambda words: " ".join(words),
)
def test_a_path_that_cannot_be_one_is_refused_in_one_short_line(words, path, monkeypatch, capsys):
    assert len(refused([*words, path], monkeypatch, capsys)) < 900


@pytest.mark.parametrize("port", ["0", "65536", "x", "9" * 5000, "²", "run"])
def test_a_port_that_is_none_is_refused_before_the_screen_is_taken(port, monkeypatch, capsys):
    line = refused(["--serve", port], monkeypatch, capsys)
    assert line.startswith("specchat: --serve ")
    assert line.endswith(": give a port from 1 to 65535")


def test_options_that_may_stand_alone_have_an_empty_value():
    assert prepared(["--serve", "-r"]) == ["--serve", "", "-r", ""]
    assert prepared(["-r", "ab", "--serve", "9000"]) == ["-r", "ab", "--serve", "9000"]


def test_a_question_in_place_of_a_command_is_what_the_chat_begins_with():
    assert prepared(["Why is it so?"]) == ["--ask=Why is it so?"]
    assert prepared(["--model", "smol", "--ascii", "Why so?  No?"])[2:] == ["--ascii", "--ask=Why so?  No?"]
    assert prepared(["--system", "Be brief."]) == ["--system", "Be brief."]
    assert prepared(["run", "Why is it so?"]) == ["run", "Why is it so?"]


def test_the_version_is_said(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["specchat", "--version"])
    with pytest.raises(SystemExit) as left:
        main()
    assert (left.value.code, capsys.readouterr().out) == (0, f"specchat {__version__}\n")


def test_help_names_no_default_where_there_is_none():
    helps = {p.opts[0]: p.help for p in typer.main.get_command(app).params}
    assert helps["--memory"].endswith("empty: no limit")
    assert helps["--learn"].endswith("(default false)")


@pytest.mark.parametrize(("target", "join"), [(True, ""), (False, "localhost:1")])
def test_an_engine_that_another_one_asks_sets_what_torch_reads_before_it_serves(target, join, monkeypatch):
    set_before = []

    def serve(*_: str) -> None:
        set_before.append(os.environ["OMP_WAIT_POLICY"])

    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.setattr(cli, "engine_environment", lambda: {"OMP_WAIT_POLICY": "passive"})
    monkeypatch.setattr("specchat.engine.server.target_host.serve_target", serve)
    monkeypatch.setattr("specchat.models.rank_process.join", serve)
    cli.engine(join=join, target=target)
    assert set_before == ["passive"]


def test_a_prompt_without_quotes_is_answered_with_the_quoted_one(monkeypatch, capsys):
    said = refused(["run", "why", "is", "the", "sky", "--max-tokens", "8", "blue?"], monkeypatch, capsys)
    assert said.endswith("put the prompt in quotes (found 5 arguments): specchat run 'why is the sky blue?'")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["modles", "list"], "no such command 'modles'; did you mean 'models', 'methods'?"),
        (["why", "is", "it"], "no such command 'why'; to ask a question: specchat run 'why is it'"),
        (["frobnicate"], "no such command 'frobnicate'; specchat -h shows what exists"),
        (["models", "frobnicate"], "no such command 'frobnicate'; specchat models -h shows what exists"),
        (["run", "--nodse", "5", "hi"], "no such option: --nodse; did you mean '--nodes'?"),
        (["run", "--nodes"], "option '--nodes' requires an argument"),
        (
            ["serve", "--port", "x"],
            "invalid value for '--port': 'x' is not a whole number; specchat serve -h shows what exists",
        ),
        (
            ["train", "p", "--seed", "x"],
            "invalid value for '--seed': 'x' is not a whole number; specchat train -h shows what exists",
        ),
        (["train"], "missing argument 'pair'; specchat train -h shows what exists"),
        (["bench", "ui", "b"], "got unexpected extra argument(s) (b); specchat bench -h shows what exists"),
    ],
)
def test_what_the_parser_refuses_is_one_line(words, line, monkeypatch, capsys):
    assert refused(words, monkeypatch, capsys) == f"specchat: {line}"


@pytest.mark.parametrize("words", [["--" + "a" * 5000], ["a" * 5000], ["a" * 5000, "b"], ["bench", "ui", "a" * 5000]])
def test_what_the_parser_refuses_is_cut_where_it_is_long(words, monkeypatch, capsys):
    assert len(refused(words, monkeypatch, capsys)) < 600


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("config set seed -1", "config set seed -- -1"),
        ("config set temperature -.5 --pair smol", "config set temperature --pair smol -- -.5"),
        ("config set seed -- -1", "config set seed -- -1"),
        ("config set width -x", "config set width -x"),
        ("config get -1", "config get -1"),
    ],
)
def test_a_negative_value_of_a_setting_is_no_option(typed, parsed):
    assert prepared(typed.split()) == parsed.split()


def test_commands_are_built_one_by_one_and_are_those_of_the_whole_program():
    built, whole = cli._command(), typer.main.get_command(app)
    assert list(built.commands) == list(whole.commands)
    for one, other in ((built, whole), *((built.commands[name], whole.commands[name]) for name in whole.commands)):
        assert type(one) is type(other)
        assert described(one) == described(other)
        assert one is built or list(getattr(one, "commands", ())) == list(getattr(other, "commands", ()))


def described(command):
    names = ("name", "hidden", "context_settings", "no_args_is_help", "invoke_without_command")
    help = [paragraph.split() for paragraph in (command.help or "").split("\n\n")]  # lines are the terminal's matter
    return help, [getattr(command, name, None) for name in names], [parameter.opts for parameter in command.params]
