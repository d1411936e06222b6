"""The program ``moetraffic``: its verbs, and how errors end it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import typer

from moetraffic import __version__
from moetraffic.report import terminal

from . import (
    analyze,
    bandwidth,
    bench,
    build,
    capture,
    compare,
    demo,
    estimate,
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
    reproduce,
    run,
    schedule,
    tolerance,
    validate,
)

app = typer.Typer(
    name="moetraffic",
    help="Record, analyse and replay the AllToAll traffic of mixture-of-experts "
    "training.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
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
app.command("merge")(merge.merge)
app.command("build")(build.build)
app.command("plot")(plot.plot)
app.command("place")(place.place)
app.command("generate")(generate.generate)
app.command("fabric")(fabric.fabric)
app.command("estimate")(estimate.estimate)
app.command("schedule")(schedule.schedule)
app.command("tolerance")(tolerance.tolerance)
app.command("models")(models.models)
app.command("pattern")(pattern.pattern)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"moetraffic {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Record, analyse and replay the AllToAll traffic of MoE training."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
