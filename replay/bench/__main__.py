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
from typing import Annotated

import typer

from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat, RankEnvironment, current_rank
from moetraffic.patterns.collective import COLLECTIVES, UNEVEN
from moetraffic.replay.process_exit import run_to_exit
from moetraffic.replay.results.records import from_json
from moetraffic.report.console.terminal import refuse, run, say
from moetraffic.trace.hdf5.durable import validate_output

from .local import measure
from .result import ENDINGS, Bench, lines
from .sweep import Sweep, matrix_rows, size_range, validate_sweep

_RANKS = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    collectives: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(COLLECTIVES)}, or all.", show_default="all_reduce"
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("-b", "--begin", help="Smallest size.", show_default="8"),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("-e", "--end", help="Largest size.", show_default="1M"),
    ] = None,
    factor: Annotated[
        float | None,
        typer.Option("-f", "--factor", help="Between sizes.", show_default="2"),
    ] = None,
    step: Annotated[
        str | None, typer.Option("-i", "--step", help="Between sizes, instead of -f.")
    ] = None,
    iterations: Annotated[int, typer.Option("-n", "--iterations", help="Timed.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warm-up", help="Not timed.")] = 5,
    check: Annotated[
        int, typer.Option("-c", "--check", help="Checked to the last element.")
    ] = 1,
    dtype: Annotated[
        str, typer.Option("-d", "--dtype", help="float32, float64, int32 or int64.")
    ] = "float32",
    nproc: Annotated[
        int | None,
        typer.Option(help="Ranks to start here.", show_default="2, or the matrix's"),
    ] = None,
    backend: Annotated[str, typer.Option(help="gloo or nccl.")] = "gloo",
    matrix: Annotated[
        Path | None,
        typer.Option(help="CSV of bytes a pair, for all_to_all_v: row sends."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace whose all-to-alls are the matrix, with --iteration."),
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(help="Of the trace.", show_default="its first")
    ] = None,
    platform: Annotated[str, typer.Option(help="What to call this system.")] = "",
    protocol: Annotated[str, typer.Option(help="What to call its protocol.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="CSV or JSON to write.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds that an operation may take.")
    ] = 60.0,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    asked: Annotated[Path | None, typer.Option("--sweep", hidden=True)] = None,
    result: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> int:
    """Measure collectives as nccl-tests does: sizes, algbw, busbw, wrong elements.

    Example: moetraffic bench all_reduce all_to_all -b 1K -e 1M -f 4 -o bench.csv
    """
    rank_env = current_rank()

    def work() -> Bench | None:
        if output is not None:
            _refuse(output, force, rank_env)
        if asked is not None:
            sweep = from_json(Sweep, asked.read_text())
        else:
            cells = _matrix(matrix, trace, iteration)
            sweep = Sweep(
                collectives=_collectives(collectives, bool(cells)),
                sizes=_sizes(begin, end, factor, step, bool(cells)),
                warmup=warmup,
                iterations=iterations,
                check=check,
                dtype=dtype,
                backend=backend,
                timeout_s=timeout,
                matrix=cells,
                platform=platform,
                protocol=protocol,
            )
        if rank_env is None:
            ranks = nproc if nproc is not None else len(sweep.matrix) or _RANKS
            validate_sweep(sweep, ranks)
            return measure(sweep, ranks, on_event=_progress(as_json))
        # torch takes seconds to import, and the parent of the ranks needs none
        from .rank import run_rank

        return run_rank(sweep, rank_env)

    told = run_to_exit(work, rank_env)
    if told is None:
        return 0  # rank 0 prints the result
    if result is not None:
        result.write_text(told.to_json())
        return 0
    if output is not None:
        told.save(output)
    print(told.to_json() if as_json else "\n".join(lines(told)))
    if output is not None and not as_json:
        print(f"{output}: written")
    if told.wrong:
        sys.stdout.flush()
        return refuse(
            f"every element must arrive right, but {told.wrong} did not: check the "
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
                f"{path} is no CSV of numbers ({why}): give n rows of n bytes"
            ) from None
        return matrix_rows(cells, str(path))
    if trace is None:
        return ()
    from moetraffic.analysis.times.iteration_traffic import world_matrices
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
            "neither: choose an ending"
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
