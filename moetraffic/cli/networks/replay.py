"""``moetraffic replay`` and ``bench``: programs that start in place of this one."""

from __future__ import annotations

import os
import sys

import typer

CONTEXT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def replay(context: typer.Context) -> None:
    """Replay a trace's traffic on a network, on any ranks, verified and timed.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    _start("moetraffic.replay", context)


def bench(context: typer.Context) -> None:
    """Benchmark collectives as nccl-tests does, on gloo or NCCL, checked and fitted.

    Example: moetraffic bench all_reduce all_to_all -b 1K -e 1M -f 4 -o bench.csv
    """
    _start("moetraffic.replay.bench", context)


def _start(program: str, context: typer.Context) -> None:
    # the program parses the arguments, also --help: the command line does not import it
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", program, *context.args])
