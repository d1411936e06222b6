"""``python -m moetraffic.replay``: the parent of the ranks, or one of them.

Without a rank in the environment it starts the ranks on this host; under torchrun,
srun or our own launcher it is one.  Exit codes: 0, 2 for an error (told in one
sentence), 130 after Ctrl-C.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from moetraffic.errors import Interrupted, MoetrafficError
from moetraffic.launch import Seat, current_rank, heartbeat
from moetraffic.report.terminal import refuse, run, say
from moetraffic.trace.iterations import iteration_range

from .console import show, watching
from .failure import RankError, first_line
from .local import replay
from .request import Request
from .result import Summary

_FAILED = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Verify(str, enum.Enum):
    """Whether a pass before the timed one checks what arrives."""

    FULL = "full"
    OFF = "off"


@app.command()
def command(
    trace: Annotated[Path, typer.Argument(help="Trace file to replay.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Trace to write, with the new times."),
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(help="Ranks to start here.", show_default="the trace's"),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="gloo, nccl, or an installed one.")
    ] = "gloo",
    iterations: Annotated[
        str | None, typer.Option(help="Only iterations A:B, A up to, not with, B.")
    ] = None,
    verify: Annotated[
        Verify,
        typer.Option(help="Check every size and every byte in a pass before."),
    ] = Verify.FULL,
    timeout: Annotated[
        float, typer.Option(help="Seconds that an operation may take.")
    ] = 60.0,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    summary: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> int:
    """Put a trace's all-to-alls on the network again, and time them.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    seat = current_rank()
    try:
        request = Request(
            trace=trace,
            out=out,
            backend=backend,
            iterations=iteration_range(iterations),
            verify=verify is Verify.FULL,
            timeout_s=timeout,
            force=force,
        )
        if seat is None:
            told: Summary | None = _start_ranks(request, nproc)
        else:
            # torch takes seconds to import, and the parent of the ranks needs none
            from .rank import run_rank

            told = run_rank(request, seat)
    except Interrupted:
        raise  # nobody failed
    except MoetrafficError as error:
        heartbeat.beat("error", *_place(error), **_fields(error))
        if seat is None:
            raise
        return _give_up(error, seat)
    except KeyboardInterrupt:
        return _leave(128 + signal.SIGINT)
    except Exception as error:
        text = f"{type(error).__name__}: {first_line(error)}"
        heartbeat.beat("error", message=text, cause="own")
        if seat is None:
            raise
        traceback.print_exc()
        return _leave(1)
    if told is None:
        return 0  # rank 0 tells
    if summary is not None:
        summary.write_text(told.to_json())
    elif as_json:
        print(told.to_json())
    else:
        show(told)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return run(app, arguments, "moetraffic replay")


def _start_ranks(request: Request, nproc: int | None) -> Summary:
    with watching() as watcher:
        return replay(
            request, nproc=nproc, on_plan=watcher.plan, on_event=watcher.event
        )


def _give_up(error: MoetrafficError, seat: Seat) -> int:
    """Say what this rank alone knows; what all ranks meet, the first of a host says."""
    if not isinstance(error, RankError):
        refuse(str(error))
    elif error.cause != "peer" or seat.rank == 0:
        say(f"moetraffic: {error}")
    return _leave(_FAILED)


def _place(error: MoetrafficError) -> tuple[str, ...]:
    return (error.operation,) if isinstance(error, RankError) else ()


def _fields(error: MoetrafficError) -> dict[str, Any]:
    """What the supervisor needs to know of an error."""
    if isinstance(error, RankError):
        return {"message": error.reason, "cause": error.cause, "blames": error.rank}
    return {"message": str(error), "cause": "own"}


def _leave(code: int) -> NoReturn:
    """End at once: torch may abort or hang where it takes down groups of lost ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
