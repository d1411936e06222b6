"""``moetraffic replay``: put a trace's traffic on a network again."""

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
    """Put a trace's traffic on a network again, on any ranks, verified and timed.

    Example: moetraffic replay run.h5 -o replayed.h5 --nproc 4
    """
    # the wing reads the arguments, also those for help: the core imports no wing
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "moetraffic.replay", *context.args])
