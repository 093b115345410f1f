"""`specchat config`: read and write defaults of your own, for every pair or for one."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from specchat.cli.flags import setting_names
from specchat.errors import UsageError

app = typer.Typer(help="Read and write defaults of your own.", no_args_is_help=True)

_NAMES = "a setting, METHOD.OPTION, app.OPTION or keys.BINDING"
Name = Annotated[str, typer.Argument(help=_NAMES, autocompletion=setting_names)]
Pair = Annotated[str | None, typer.Option("--pair", help="for this pair only", show_default=False)]


@app.command("get")
def get_setting(
    name: Annotated[
        str | None,
        typer.Argument(help=f"{_NAMES}; if left out, everything that you wrote", autocompletion=setting_names),
    ] = None,
    pair: Pair = None,
) -> None:
    """Print what a setting starts as, or everything you wrote and where."""
    if name is None:
        lines = list(_written(pair))
        width = max((len(left) for left, _ in lines), default=0)
        for left, where in lines:
            typer.echo(f"{left:<{width}}   {where}")
        if not lines:
            typer.echo("you wrote no defaults of your own" + (f" for {pair}" if pair is not None else ""))
        return
    from specchat.cli.config_entries import entry
    from specchat.config import load_catalog, starting_pair

    found = entry(name)
    chosen = load_catalog().pair(starting_pair({"pair": pair}))
    value = found.start(chosen)
    typer.echo(", ".join(value) if isinstance(value, tuple) else _toml(value))


@app.command("set")
def set_setting(
    name: Name,
    value: Annotated[list[str], typer.Argument(help="its value; `stop` takes several")],
    pair: Pair = None,
) -> None:
    """Write a default: for every pair into config.toml, or with --pair into that pair's entry of models.toml."""
    from specchat.cli.config_entries import entry

    found = entry(name)
    typer.echo(f"wrote {found.write(found.parse(value), pair).line()}")


@app.command("unset")
def unset_setting(name: Name, pair: Pair = None) -> None:
    """Forget a default that you wrote."""
    from specchat.cli.config_entries import entry

    saved = entry(name).forget(pair)
    if saved is None:
        typer.echo(f"{name} was not set{f' for {pair}' if pair is not None else ''}")
    else:
        typer.echo(f"removed {name} from {saved.file} [{saved.table}]")


@app.command()
def path() -> None:
    """Print where your defaults, and your models and pairs, are looked for."""
    from specchat.config import users_config, users_models

    typer.echo(users_config())
    typer.echo(users_models())


@app.command()
def edit(
    models: Annotated[bool, typer.Option("--models", help="open models.toml instead of config.toml")] = False,
) -> None:
    """Open config.toml in your editor and check what you wrote."""
    from specchat.config import private_dir, users_config, users_models

    file = users_models() if models else users_config()
    private_dir(file.parent)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ("notepad" if os.name == "nt" else "vi")
    try:
        code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
        problem = f"it ended with exit code {code}" if code else ""
    except (OSError, ValueError) as error:
        problem = str(getattr(error, "strerror", None) or error)
    if problem:
        raise UsageError(f"the editor {editor!r} failed: {problem}; set EDITOR to another")
    from specchat.config import load_catalog, user_app, user_keys, user_settings
    from specchat.tui.services.key_bindings import problems
    from specchat.tui.text.theme import unknown_theme

    load_catalog()
    user_settings()
    user_keys(problems)
    user_app(unknown_theme)
    typer.echo(f"{file} can be read")


def _written(pair: str | None) -> Iterator[tuple[str, str]]:
    from specchat.config import AppOptions, load_catalog, user_app, user_keys, user_settings, users_config, users_models

    catalog = load_catalog()
    chosen = [catalog.pair(pair)] if pair is not None else list(catalog.pairs.values())
    if pair is None:
        yield from _lines(user_settings(), f"{users_config().name} [settings]")
        app, plain = user_app(), AppOptions()
        names = [f.name for f in dataclasses.fields(AppOptions) if getattr(app, f.name) != getattr(plain, f.name)]
        yield from _lines({f"app.{name}": getattr(app, name) for name in names}, f"{users_config().name} [app]")
        yield from _lines({f"keys.{id}": keys for id, keys in user_keys().items()}, f"{users_config().name} [keys]")
    for one in chosen:
        yield from _lines(one.own, f"{users_models().name} [pairs.{one.name}.defaults]")


def _lines(given: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    named = {name: value for name, value in given.items() if name != "method_options"}
    for name, value in {**named, **given.get("method_options", {})}.items():
        yield f"{name} = {_toml(value)}", where


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return value
    import tomlkit

    return str(tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string())
