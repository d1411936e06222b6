"""``python -m moetraffic.replay``: the parent of the ranks, or one of them.

Without a rank in the environment it starts the ranks on this host; under torchrun,
srun or our own launcher it is one.  Exit codes: 0, 2 for an error (told in one
sentence), 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from moetraffic.errors import Interrupted, MoetrafficError
from moetraffic.launch import current_rank, heartbeat
from moetraffic.trace.iterations import iteration_range

from .console import say, show, watching
from .failure import RankError, first_line
from .local import replay
from .request import Request
from .result import Summary

_FAILED = 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="moetraffic replay",
        description="Put a trace's all-to-alls on the network again, and time them.",
    )
    line.add_argument("trace", type=Path, help="trace file to replay")
    line.add_argument(
        "-o", dest="out", type=Path, help="trace to write, with the new times"
    )
    line.add_argument(
        "--nproc", type=int, help="ranks to start here; as many as the trace has"
    )
    line.add_argument(
        "--backend", default="gloo", help="gloo, nccl, or an installed one"
    )
    line.add_argument(
        "--iterations", metavar="A:B", help="only iterations A up to, not with, B"
    )
    line.add_argument(
        "--verify",
        choices=("full", "off"),
        default="full",
        help="check every size and every byte in a pass before the timed one",
    )
    line.add_argument("--force", action="store_true", help="overwrite the output")
    line.add_argument("--json", action="store_true", help="print the summary as JSON")
    line.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that an operation may take (default 60)",
    )
    line.add_argument("--summary", type=Path, help=argparse.SUPPRESS)
    return line


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    seat = None
    try:
        seat = current_rank()
        request = Request(
            trace=options.trace,
            out=options.out,
            backend=options.backend,
            iterations=iteration_range(options.iterations),
            verify=options.verify == "full",
            timeout_s=options.timeout,
            force=options.force,
        )
        if seat is None:
            summary: Summary | None = _start_ranks(request, options.nproc)
        else:
            # torch takes seconds to import, and the parent of the ranks needs none
            from .rank import run_rank

            summary = run_rank(request, seat)
    except Interrupted as error:
        say(f"moetraffic: {error}")
        return 128 + error.signal
    except MoetrafficError as error:
        heartbeat.beat("error", *_place(error), **_fields(error))
        say(f"moetraffic: {error}")
        return _FAILED if seat is None else _leave(_FAILED)
    except KeyboardInterrupt:
        return _leave(128 + signal.SIGINT)
    except Exception as error:
        text = f"{type(error).__name__}: {first_line(error)}"
        heartbeat.beat("error", message=text, cause="own")
        if seat is None:
            raise
        traceback.print_exc()
        return _leave(1)
    if summary is None:
        return 0  # rank 0 tells
    if options.summary is not None:
        options.summary.write_text(summary.to_json())
    elif options.json:
        print(summary.to_json())
    else:
        show(summary)
    return 0


def _start_ranks(request: Request, nproc: int | None) -> Summary:
    with watching() as watcher:
        return replay(
            request, nproc=nproc, on_plan=watcher.plan, on_event=watcher.event
        )


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
