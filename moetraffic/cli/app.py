"""The program ``moetraffic``: its verbs, and how errors end it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic import __version__
from moetraffic.report import configuration, terminal
from moetraffic.spelling import current_name

from . import (
    analyze,
    bandwidth,
    bench,
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
app.command("demo")(demo.demo)
app.command("capture")(capture.capture)
app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("info")(info.info)
app.command("analyze")(analyze.analyze)
app.command("compare")(compare.compare)
app.command("validate")(validate.validate)
app.command("replay", context_settings=replay.CONTEXT)(replay.replay)
app.command("bench", context_settings=bench.CONTEXT)(bench.bench)
app.command("bandwidth")(bandwidth.bandwidth)
app.command("reproduce")(reproduce.reproduce)
app.command("import")(import_.import_)
app.command("export")(export.export)
app.command("merge")(merge.merge)
app.command("build")(build.build)
app.command("plot")(plot.plot)
app.command("report")(report.report)
app.command("place")(place.place)
app.command("generate")(generate.generate)
app.command("fabric")(fabric.fabric)
app.command("estimate")(estimate.estimate)
app.command("schedule")(schedule.schedule)
app.command("tolerance")(tolerance.tolerance)
app.command("doctor")(doctor.doctor)
app.command("models")(models.models)
app.command("pattern")(pattern.pattern)


WINGS = ("replay", "bench")
"""Verbs that start another program in this one's place."""


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
            help="TOML file with a verb's options, or a folder's moetraffic.toml.",
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
    """Let a file say what the verb's options are, where the command line does not."""
    verbs: dict[str, Any] = context.command.commands  # type: ignore[attr-defined]
    told = configuration.read(path, verbs)
    if verb in WINGS:
        # it reads its options itself
        os.environ[configuration.VARIABLE] = str(path)
        return
    table = told.get(verb, {})
    own = configuration.defaults(table, verb, verbs[verb].params, path)
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
