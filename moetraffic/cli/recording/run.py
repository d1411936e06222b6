"""``moetraffic run``: capture the collectives of any training command."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from moetraffic.capture import command as training_command
from moetraffic.capture.log_merging import merge_logs
from moetraffic.errors import CaptureError, MoetrafficError
from moetraffic.report.console.options import (
    Every,
    Force,
    MaxSize,
    TokenSample,
    option,
    trace_output,
)
from moetraffic.report.console.terminal import Paper, announce
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.choices import NO_SAMPLE
from moetraffic.trace.merge.log_folder import clear, make_room
from moetraffic.trace.routed import contradiction_of_k

CHECKED = 64
"""Routing records whose counts are compared with k."""

CONTEXT = {"allow_interspersed_args": False}


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="Command to run, best after --."),
    ] = None,
    output: Path = trace_output(Path("run.h5")),
    force: Force = False,
    model: str = option("", "Name of the model, for the metadata."),
    router: str = option(
        "", "Name of the router, for the metadata.", shown="the routers' classes"
    ),
    k: int | None = option(
        None,
        "Experts per token (top-k), for noise floors.",
        min=1,
        max=1 << 16,
        shown="unknown",
    ),
    every: Every = 1,
    most_bytes: MaxSize = None,
    token_sample: TokenSample = 0,
    environment: bool = option(
        False,
        "Print the environment variables that the command needs, and start "
        "nothing: for batch scripts, ssh and containers.",
        "--env",
    ),
) -> None:
    """Run a training command unchanged and record every collective of all its ranks.

    Streams, signals and the exit code are the command's own; messages about the trace
    go to standard error.

    Example: moetraffic run -o run.h5 -- torchrun --nproc-per-node 4 train.py
    """
    if bool(command) == environment:
        raise CaptureError(
            "run takes one command, or --env without a command, but "
            + ("both were given" if command else "there is neither")
            + ": give the command after --"
        )
    if command and Path(command[0]).suffix in (".h5", ".hdf5"):
        raise CaptureError(
            f"the command to run comes after --, but {command[0]} is named as one: "
            f"name the trace to write with -o {command[0]}"
        )
    names = {"model": model, "router": router, "k": k, "most_bytes": most_bytes}
    names["token_sample"] = token_sample
    if every > 1:
        names["every"] = every
    hook = training_command.variables(output, force=force, names=names)
    make_room(output, force=force)
    if environment:
        print(training_command.exports(hook))
        return
    assert command is not None
    if Path(command[0]).suffix == ".py" and not os.access(command[0], os.X_OK):
        command = [sys.executable, *command]
    # torch takes a second to import
    from moetraffic.capture.hook import native

    native.build_if_possible(announce)
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as notes:
        began = time.time()
        hook[training_command.NOTES] = notes
        try:
            code = training_command.run(command, training_command.environment(hook))
        except OSError as error:
            clear(output)
            announce(f"{command[0]} cannot be run: {error.strerror}")
            raise typer.Exit(
                training_command.NOT_FOUND
                if isinstance(error, FileNotFoundError)
                else training_command.NOT_EXECUTABLE
            ) from None
        try:
            harvest(output, began, Path(notes), force=force, token_sample=token_sample)
        except (MoetrafficError, OSError) as error:
            # the command has its exit code, whatever became of the trace
            announce(" ".join(str(error).split()))
    raise typer.Exit(code)


def _contradiction_of_k(trace: Trace) -> str:
    """Say where the first counts of a trace contradict its k; "" nowhere."""
    for at in trace.find(operation=ROUTING)[:CHECKED]:
        if wrong := contradiction_of_k(trace.demand(at[None]), trace.meta.k):
            return (
                f"{wrong}: give the k of the model with --k, or leave it out, unless "
                "its router chooses another number for each token"
            )
    return ""


def harvest(
    output: Path, began: float, notes: Path, *, force: bool, token_sample: int = 0
) -> None:
    """Write the command's traces, and show them on standard error.

    A trace without the experts of ``token_sample`` tokens is reported.
    """
    from moetraffic.report.views.info import info

    paper = Paper(stderr=True)
    made = merge_logs(output, began, notes, force=force, say=announce)
    for name in made:
        with Trace.open(name) as trace:
            if contradiction := _contradiction_of_k(trace):
                announce(contradiction)
            file = shlex.quote(str(name))
            following = (
                f"Next: moetraffic analyze {file} (claims); moetraffic info {file} "
                "--tables (calls)"
            )
            paper.print(info(trace, name))
            paper.say(following)
            if token_sample and not any(site.token_sample for site in trace.sites):
                announce(NO_SAMPLE)
