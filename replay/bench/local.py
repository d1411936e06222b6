"""Run a benchmark on this host: start and supervise ranks, return the result.

This process does not import torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from moetraffic.launch import Heartbeat
from moetraffic.replay.local import start_ranks
from moetraffic.replay.results.output import to_json

from .result import Bench
from .sweep import Sweep

_START_S = 120.0  # to import torch and connect, on a busy host


def measure(
    sweep: Sweep, ranks: int, *, on_event: Callable[[Heartbeat], None] | None = None
) -> Bench:
    """Run a benchmark on ranks that are started on this host.

    Parameters
    ----------
    sweep
        Settings of the benchmark.
    ranks
        Number of ranks to start.
    on_event
        Called with each of their heartbeats.

    Raises
    ------
    MoetrafficError
        If it cannot start, or if a rank fails: names the rank and the operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    each = sweep.check + sweep.warmup + sweep.iterations
    names = [str(call) for call in sweep.calls(ranks)]
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        settings = Path(folder) / "sweep.json"
        settings.write_text(to_json("moetraffic sweep", sweep))
        return start_ranks(
            Bench,
            ["moetraffic.replay.bench", "--sweep", str(settings)],
            ranks=ranks,
            start_s=max(_START_S, 2 * sweep.timeout_s),
            timeout_s=sweep.timeout_s,
            on_event=on_event,
            namer=lambda _, n: names[min(n // each, len(names) - 1)],
        )
