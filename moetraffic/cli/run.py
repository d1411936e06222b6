"""``moetraffic run``: capture a command that knows nothing of it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.launch import foreground_process, hook_environment
from moetraffic.launch.segment_merging import SegmentMerger
from moetraffic.report.overview import tables
from moetraffic.report.terminal import Paper, say
from moetraffic.trace import Trace
from moetraffic.trace.segments.series import clear, make_room

from .output import WIDTH

CONTEXT = {"allow_interspersed_args": False}


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="What to run, best after --."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Trace to write.")
    ] = Path("run.h5"),
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    model: Annotated[str, typer.Option(help="A name for the model.")] = "",
    router: Annotated[str, typer.Option(help="A name for its router.")] = "",
    k: Annotated[
        int, typer.Option(min=0, help="Experts of a token: noise floors need it.")
    ] = 0,
    environment: Annotated[
        bool,
        typer.Option(
            "--env",
            help="Start nothing, but print what a shell must export where the command "
            "runs: in batch scripts, over ssh, in containers.",
        ),
    ] = False,
) -> None:
    """Run a training command as it is, and record every collective of all its ranks.

    Streams, signals and the exit code are the command's own; what there is to say of
    the trace is said on standard error.

    Example: moetraffic run -o run.h5 -- torchrun --nproc-per-node 4 train.py
    """
    if bool(command) == environment:
        raise CaptureError(
            "run takes one command, or --env without a command, but "
            + ("both were given" if command else "there is neither")
            + ": give the command after --"
        )
    make_room(output, force=force)
    hook = hook_environment.variables(
        output, force=force, told={"model": model, "router": router, "k": k}
    )
    if environment:
        print(hook_environment.exports(hook))
        return
    assert command is not None
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as notes:
        began = time.time()
        hook[hook_environment.NOTES] = notes
        try:
            code = foreground_process.run(command, hook_environment.environment(hook))
        except OSError as error:
            clear(output)
            say(f"moetraffic: {command[0]} cannot be run: {error.strerror}")
            raise typer.Exit(
                foreground_process.NOT_FOUND
                if isinstance(error, FileNotFoundError)
                else foreground_process.NOT_EXECUTABLE
            ) from None
        try:
            harvest(output, began, Path(notes), force=force)
        except (MoetrafficError, OSError) as error:
            # the command has its exit code, whatever became of the trace
            say(f"moetraffic: {' '.join(str(error).split())}")
    raise typer.Exit(code)


def harvest(output: Path, began: float, notes: Path, *, force: bool) -> None:
    """Make the command's traces, and show them on standard error."""

    def tell(sentence: str) -> None:
        say(f"moetraffic: {sentence}")

    paper = Paper(stderr=True, highlight=False, width=WIDTH)
    for name in SegmentMerger(output, began, force=force, say=tell).gather(notes):
        with Trace.open(name) as trace:
            paper.print(*tables(trace, name))
