"""The program ``moetraffic``: its verbs, and the exit code of errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from moetraffic import __version__
from moetraffic.errors import MoetrafficError
from moetraffic.report.console import configuration, terminal
from moetraffic.report.console.command import Command
from moetraffic.report.console.options import option
from moetraffic.spelling import check_choice

app = typer.Typer(
    name="moetraffic",
    help="Record, analyze and replay the AllToAll traffic of mixture-of-experts "
    "training.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
ROOMS = {
    "recording": ("demo", "capture", "run", "watch", "merge", "build", "doctor"),
    "traces": ("info", "import", "export", "generate"),
    "analysis": ("analyze", "compare", "plot", "report"),
    "networks": ("replay", "bench", "fabric", "schedule", "evaluate", "place"),
    "modeling": ("models", "pattern", "estimate"),
}
"""Verbs in the order of the help, by the folder of their modules; each is a function in
a module of its name."""

PANELS = {
    "recording": "Record",
    "traces": "Traces",
    "analysis": "Analyze",
    "networks": "Networks",
    "modeling": "Models",
}
"""Panels of the help, by the folder of the verbs' modules."""

MODULES = {"bench": "replay", "import": "import_"}
"""Modules that have another name than their verb."""

WINGS = ("replay", "bench")
"""Verbs that start another program in this one's place."""


for _room, _verb in ((room, verb) for room, verbs in ROOMS.items() for verb in verbs):
    _name = f"moetraffic.cli.{_room}.{MODULES.get(_verb, _verb)}"
    _module = import_module(_name)
    _function = getattr(_module, "import_" if _verb == "import" else _verb)
    _settings = getattr(_module, "CONTEXT", None)
    app.command(
        _verb,
        cls=Command,
        context_settings=_settings,
        rich_help_panel=PANELS[_room],
    )(_function)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"moetraffic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = option(
        False, "Show the version.", "--version", callback=_version, is_eager=True
    ),
    config: Path | None = option(
        None,
        "TOML file of options.",
        shown="$MOETRAFFIC_CONFIG, or none",
    ),
) -> None:
    """Record, analyze and replay the AllToAll traffic of MoE training.

    Example: moetraffic --config run.toml capture --iterations 200
    """
    verb = context.invoked_subcommand
    # children do not read it again
    path = os.environ.pop(configuration.VARIABLE, "") if config is None else str(config)
    if verb is None:
        typer.echo(context.get_help())
    elif path:
        verbs: dict[str, Any] = context.command.commands  # type: ignore[attr-defined]
        tables = configuration.read(Path(path))
        for name in tables:
            check_choice("a table of the configuration", name, verbs, MoetrafficError)
        if verb in WINGS:  # the other program reads its options itself
            os.environ[configuration.VARIABLE] = path
            return
        own = configuration.defaults(tables.get(verb, {}), verb, verbs[verb].params)
        context.default_map = {verb: own}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with arguments, or the process's own; return its exit code.

    Bad input ends with one sentence and exit code 2.
    """
    logging.basicConfig(format="moetraffic: %(message)s", level=logging.WARNING)
    return terminal.run(app, arguments, "moetraffic")
