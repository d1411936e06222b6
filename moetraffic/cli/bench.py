"""``moetraffic bench``: what collectives get of this network."""

from __future__ import annotations

import os
import sys

import typer

CONTEXT = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def bench(context: typer.Context) -> None:
    """Measure collectives as nccl-tests does, on gloo or NCCL, checked and fitted.

    Example: moetraffic bench all_reduce all_to_all -b 1K -e 1M -f 4 -o bench.csv
    """
    # the wing reads the arguments, also those for help: the core imports no wing
    sys.stdout.flush()
    wing = "moetraffic.replay.bench"
    os.execv(sys.executable, [sys.executable, "-m", wing, *context.args])
