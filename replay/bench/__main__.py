"""Command line ``python -m moetraffic.replay.bench``: start ranks, or run as one.

Without a rank in the environment, the process starts the ranks on this host; under
torchrun, srun or the launcher of moetraffic, it is a rank.  Exit codes: 0, 2 for an
error or wrong bytes, 130 after Ctrl-C.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import ReplayError
from moetraffic.files import validate_output
from moetraffic.launch import Heartbeat, RankEnvironment, current_rank
from moetraffic.patterns.collectives import COLLECTIVES, UNEVEN
from moetraffic.replay.backends.requirements import validate_device
from moetraffic.replay.failure import run_to_exit
from moetraffic.replay.results.console import print_result
from moetraffic.replay.results.machine_load import load_now
from moetraffic.replay.results.output import from_json
from moetraffic.report.console.command import Command
from moetraffic.report.console.options import (
    AllTables,
    AsJson,
    Force,
    Setting,
    field_options,
    only_option,
    option,
    parts_of,
    takes,
)
from moetraffic.report.console.terminal import announce, refuse, run, say

from .result import ENDINGS, Bench, sentences
from .result import tables as measurements
from .sweep import Sweep, matrix_rows, measure, size_range, validate_sweep

_RANKS = 2
PARTS = ("measurements",)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


SETTINGS = field_options(
    Sweep,
    "Measurement",
    {
        "iterations": Setting("Number of timed iterations.", "-n --iterations"),
        "warmup": Setting("Number of untimed iterations before.", "-w --warm-up"),
        "check": Setting(
            "Number of iterations whose every element is checked.", "-c --check"
        ),
        "dtype": Setting(
            "Type of elements: float32, float64, int32 or int64.", "-d --dtype"
        ),
        "backend": "Communication backend: gloo or nccl.",
        "timeout_s": Setting("Seconds that an operation may take.", "--timeout"),
        "platform": "Name of this system in the results.",
        "protocol": "Name of its network protocol in the results.",
    },
)


@app.command(cls=Command)
@takes(settings=SETTINGS)
def command(
    collectives: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(COLLECTIVES)}, or all.", show_default="all_reduce"
        ),
    ] = None,
    begin: str | None = option(
        None,
        "Smallest size in bytes; K, M, G: powers of 1024.",
        "-b",
        "--begin",
        shown="8",
    ),
    end: str | None = option(
        None, "Largest size in bytes: 64K, 1M.", "-e", "--end", shown="1M"
    ),
    factor: float | None = option(
        None, "Factor between sizes.", "-f", "--factor", shown="2"
    ),
    step: str | None = option(
        None, "Step between sizes, instead of -f.", "-i", "--step"
    ),
    nproc: int | None = option(
        None, "Ranks to start on this host.", shown="2, or the matrix's"
    ),
    matrix: Path | None = option(
        None, "CSV of bytes per pair, for all_to_all_v: rows send."
    ),
    trace: Path | None = option(
        None, "Trace whose all-to-alls of --iteration are the matrix."
    ),
    iteration: int | None = option(None, "Iteration of the trace.", shown="its first"),
    output: Path | None = option(None, "CSV or JSON file to write.", "-o", "--output"),
    force: Force = False,
    tables: AllTables = False,
    only: str | None = only_option(None, PARTS),
    as_json: AsJson = False,
    given: Annotated[Path | None, typer.Option("--sweep", hidden=True)] = None,
    summary: Annotated[Path | None, typer.Option(hidden=True)] = None,
    *,
    settings: dict[str, Any],
) -> int:
    """Measure collectives as nccl-tests does: sizes, algbw, busbw, wrong elements.

    Example: moetraffic bench all_reduce all_to_all -b 1K -e 1M -f 4 -o bench.csv
    """
    rank_env = current_rank()
    names = parts_of(only, PARTS)

    def work() -> Bench | None:
        if output is not None:
            _refuse(output, force, rank_env)
        if given is not None:
            sweep = from_json(Sweep, given.read_text())
        else:
            cells = _matrix(matrix, trace, iteration)
            sweep = Sweep(
                collectives=_collectives(collectives, bool(cells)),
                sizes=_sizes(begin, end, factor, step, bool(cells)),
                matrix=cells,
                **settings,
            )
        if rank_env is None:
            ranks = nproc if nproc is not None else len(sweep.matrix) or _RANKS
            validate_sweep(sweep, ranks)
            validate_device(sweep.backend)
            before = load_now()
            if before is not None and before.busy:
                announce(before.warning("measurement"))
            return measure(sweep, ranks, on_event=_progress(as_json))
        # torch takes seconds to import, and the parent of the ranks needs none
        from .rank import run_rank

        return run_rank(sweep, rank_env)

    result = run_to_exit(work, rank_env)
    if result is None:
        return 0  # rank 0 prints the result
    if summary is not None:
        summary.write_text(result.to_json())
        return 0
    if output is not None:
        result.save(output)
    if as_json:
        print(result.to_json())
    else:
        parts = {"measurements": measurements(result)}
        print_result(sentences(result), parts, names, tables=tables)
        if output is not None:
            print(f"written: {output}")
    if result.wrong:
        sys.stdout.flush()
        return refuse(
            f"every element must arrive right, but {result.wrong} did not: check the "
            "network and the backend"
        )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the ``moetraffic bench`` command line and return the exit code."""
    return run(app, arguments, "moetraffic bench", verb="bench")


def _collectives(given: list[str] | None, uneven: bool) -> tuple[str, ...]:
    if not given:
        return (UNEVEN,) if uneven else ("all_reduce",)
    if given == ["all"]:
        return tuple(c for c in COLLECTIVES if uneven or c != UNEVEN)
    return tuple(dict.fromkeys(given))


def _sizes(
    begin: str | None,
    end: str | None,
    factor: float | None,
    step: str | None,
    uneven: bool,
) -> tuple[int, ...]:
    if uneven and begin is None and end is None:
        return ()  # the matrix without scaling
    first = begin or "8"
    return size_range(
        first, end or (first if begin else "1M"), factor=factor, step=step
    )


def _matrix(
    path: Path | None, trace: Path | None, iteration: int | None
) -> tuple[tuple[int, ...], ...]:
    if path is not None and trace is not None:
        raise ReplayError(
            "the matrix is one file's, but --matrix and --trace name two: give one"
        )
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
            rows = [r for r in csv.reader(text.splitlines()) if r and r[0][:1] != "#"]
            cells = [[float(cell) for cell in row] for row in rows]
        except (OSError, UnicodeDecodeError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ReplayError(
                f"{path} cannot be read as a CSV of numbers ({why}): give n rows of n "
                "byte counts"
            ) from None
        return matrix_rows(cells, str(path))
    if trace is None:
        return ()
    from moetraffic.analysis.times.traffic import world_matrices
    from moetraffic.trace import Trace

    with Trace.open(trace) as opened:
        steps = opened.steps.iteration.tolist()
        if iteration is None and steps:
            iteration = steps[0]
        found = world_matrices(opened, [iteration or 0], operations=("all_to_all",))
    return matrix_rows(found[0].tolist(), f"iteration {iteration} of {trace}")


def _refuse(output: Path, force: bool, rank_env: RankEnvironment | None) -> None:
    """Check, before the measurement, that the output file can be written."""
    if output.suffix not in ENDINGS:
        raise ReplayError(
            f"a benchmark is written as {' or '.join(ENDINGS)}, but {output.name} is "
            "neither: choose one of these file extensions"
        )
    if rank_env is None or rank_env.rank == 0:
        validate_output(output, force=force, error=ReplayError)


def _progress(quiet: bool) -> Callable[[Heartbeat], None] | None:
    """Return a callback that prints about ten lines of rank 0's progress on stderr."""

    def note(event: Heartbeat) -> None:
        done, of = event.fields.get("done"), event.fields.get("of")
        if event.rank or not isinstance(done, int) or not isinstance(of, int):
            return
        if of >= 10 and done % (of // 10) == 0:
            say(f"measured {done} of {of}")

    return None if quiet else note


if __name__ == "__main__":
    sys.exit(main())
