"""Command line ``python -m moetraffic.replay.bench``: start ranks, or run as one.

Without a rank in the environment, the process starts the ranks on this host; under
torchrun or srun it is a rank.  Exit codes: 0, 2 for an error or wrong elements, 130
after Ctrl-C.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Argument, Option

from moetraffic.cli.output import progress
from moetraffic.cli.show import AllTables, AsJson, Force, Only, Output, show
from moetraffic.launch.environment import current_rank
from moetraffic.replay.failure import run_to_exit
from moetraffic.replay.options import check_backend
from moetraffic.replay.results.load import load_now
from moetraffic.replay.run import start_ranks
from moetraffic.report.console.command import Command
from moetraffic.report.console.options import option
from moetraffic.report.console.terminal import announce, run
from moetraffic.result import Result
from moetraffic.units import message_size

from .sweep import DTYPES, MEASURED, START_S, Sweep, size_range

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

RANKS = 2


@app.command(cls=Command)
def bench(
    collectives: Annotated[
        list[str] | None,
        Argument(help=f"{', '.join(MEASURED)}, or all.", show_default="all_reduce"),
    ] = None,
    begin: Annotated[
        str, Option("-b", "--begin", help="Smallest size; K, M, G: powers of 1024.")
    ] = "8",
    end: Annotated[str, Option("-e", "--end", help="Largest size.")] = "1M",
    factor: Annotated[float, Option("-f", "--factor", help="Between sizes.")] = 2.0,
    iterations: int = option(20, "Timed iterations.", "-n", "--iterations", min=1),
    warm_up: int = option(5, "Untimed ones before.", "-w", "--warm-up", min=0),
    check: int = option(
        1, "Iterations whose every element is checked.", "-c", "--check", min=0
    ),
    dtype: str = option(
        "float32", "Type of elements.", "-d", "--dtype", choices=tuple(DTYPES)
    ),
    backend: Annotated[str, Option(help="gloo, nccl, or another of torch.")] = "gloo",
    nproc: int | None = option(None, "Ranks to start on this host.", shown="2", min=2),
    timeout: float = option(60.0, "Seconds that an operation may take.", above=0),
    measured: Annotated[
        str | None,
        Option(
            "--show",
            help="Measure nothing: show a table of measurements (a file, or "
            "big-red-200), and estimate the collectives at -b bytes on --nproc ranks.",
        ),
    ] = None,
    span: int | None = option(
        None, "Hosts of these ranks, for --show.", shown="as measured", min=1
    ),
    tables: AllTables = False,
    only: Only = None,
    as_json: AsJson = False,
    output: Output = None,
    force: Force = False,
) -> int:
    """Measure collectives as nccl-tests does: sizes, algbw, busbw, wrong elements.

    Example: moetraffic bench all_reduce all_to_all -b 1K -e 1M -f 4 -o bench.json
    """
    rank_env = current_rank()

    def work() -> list[Result]:
        if measured is not None:
            from moetraffic.report.views.bandwidth import show_bandwidth

            ranks, size = nproc or RANKS, message_size(begin)
            return [
                show_bandwidth(
                    measured, name or None, ranks=ranks, size=size, span=span
                )
                for name in collectives or [""]
            ]
        names = tuple(dict.fromkeys(collectives or ["all_reduce"]))
        sweep = Sweep(
            collectives=MEASURED if names == ("all",) else names,
            sizes=size_range(begin, end, factor),
            warm_up=warm_up,
            iterations=iterations,
            check=check,
            dtype=dtype,
            backend=backend,
            timeout_s=timeout,
        )
        check_backend(backend, here=True)
        if rank_env is None:
            return [measure(sweep, nproc or RANKS, quiet=as_json)]
        # torch takes seconds to import, and the parent of the ranks needs none
        from .measure import run_rank

        return list(filter(None, [run_rank(sweep, rank_env)]))

    results = run_to_exit(work, rank_env)
    if not results:
        return 0  # rank 0 prints the result
    show(
        *results,
        tables=tables,
        only=only,
        as_json=as_json,
        output=output,
        force=force,
    )
    return 2 if results[0].data.get("wrong") else 0


def measure(sweep: Sweep, ranks: int, *, quiet: bool = False) -> Result:
    """Run a benchmark on ranks that are started on this host.

    Raises
    ------
    MoetrafficError
        If it cannot start, or if a rank fails: names the rank and the operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    calls = sweep.calls(ranks)
    if warning := load_now():
        announce(warning)
    with progress("measuring", len(calls), quiet=quiet) as tick:
        return start_ranks(
            "moetraffic.replay.bench.measure",
            json.dumps(asdict(sweep)),
            ranks=ranks,
            start_s=START_S,
            silence_s=sweep.silence_s,
            on_rows=lambda rows: tick(int(rows["done"].min())),
            namer=lambda _, n: sweep.name(ranks, n),
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the ``moetraffic bench`` command line and return the exit code."""
    return run(app, arguments, "moetraffic bench", verb="bench")


if __name__ == "__main__":
    sys.exit(main())
