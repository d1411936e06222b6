"""The program ``moetraffic``: its verbs, and the exit code of errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic import __version__
from moetraffic.report.console import configuration, terminal
from moetraffic.spelling import current_name

from . import (
    analyze,
    bandwidth,
    build,
    capture,
    compare,
    demo,
    doctor,
    estimate,
    export,
    fabric,
    generate,
    import_,
    info,
    merge,
    models,
    pattern,
    place,
    plot,
    replay,
    report,
    reproduce,
    run,
    schedule,
    tolerance,
    validate,
)

app = typer.Typer(
    name="moetraffic",
    help="Record, analyze and replay the AllToAll traffic of mixture-of-experts "
    "training.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": current_name},
)
VERBS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "capture": capture.capture,
    "run": run.run,
    "info": info.info,
    "analyze": analyze.analyze,
    "compare": compare.compare,
    "validate": validate.validate,
    "replay": replay.replay,
    "bench": replay.bench,
    "bandwidth": bandwidth.bandwidth,
    "reproduce": reproduce.reproduce,
    "import": import_.import_,
    "export": export.export,
    "merge": merge.merge,
    "build": build.build,
    "plot": plot.plot,
    "report": report.report,
    "place": place.place,
    "generate": generate.generate,
    "fabric": fabric.fabric,
    "estimate": estimate.estimate,
    "schedule": schedule.schedule,
    "tolerance": tolerance.tolerance,
    "doctor": doctor.doctor,
    "models": models.models,
    "pattern": pattern.pattern,
}
WINGS = {"replay": replay.CONTEXT, "bench": replay.CONTEXT}
"""Verbs that start another program in this one's place."""

for _name, _verb in VERBS.items():
    _settings: dict[str, Any] = {"run": run.CONTEXT, **WINGS}
    app.command(_name, context_settings=_settings.get(_name))(_verb)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"moetraffic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of options, or a folder with moetraffic.toml.",
            show_default="$MOETRAFFIC_CONFIG, or none",
        ),
    ] = None,
) -> None:
    """Record, analyze and replay the AllToAll traffic of MoE training.

    Example: moetraffic --config run.toml capture --iterations 200
    """
    verb = context.invoked_subcommand
    named = configuration.asked()  # children do not read it again
    if verb is None:
        typer.echo(context.get_help())
    elif config is not None or named:
        _configure(context, verb, Path(named) if config is None else config)


def _configure(context: typer.Context, verb: str, path: Path) -> None:
    """Take the verb's options from a file where the command line does not give them."""
    verbs: dict[str, Any] = context.command.commands  # type: ignore[attr-defined]
    tables = configuration.read(path, verbs)
    if verb in WINGS:
        # the other program reads its options itself
        os.environ[configuration.VARIABLE] = str(path)
        return
    own = configuration.defaults(tables.get(verb, {}), verb, verbs[verb].params, path)
    context.default_map = {verb: own}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; bad input ends with one sentence and exit code 2.

    Parameters
    ----------
    arguments
        What follows the program's name; the process's own arguments if not given.

    Returns
    -------
    int
        The exit code.
    """
    logging.basicConfig(format="moetraffic: %(message)s", level=logging.WARNING)
    return terminal.run(app, arguments, "moetraffic")
