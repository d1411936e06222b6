"""A benchmark on this host: start the ranks, watch them, bring back the result.

Nothing here imports torch, which takes seconds: only the ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from moetraffic.launch import Heartbeat, launch
from moetraffic.replay.local import raise_failure

from .result import Bench
from .sweep import Sweep

_START_S = 120.0  # to import torch and meet, on a busy host


def measure(
    sweep: Sweep, ranks: int, *, on_event: Callable[[Heartbeat], None] | None = None
) -> Bench:
    """Measure on ranks that are started here.

    Parameters
    ----------
    sweep
        What.
    ranks
        How many to start.
    on_event
        Called with each of their heartbeats.

    Raises
    ------
    MoetrafficError
        If it cannot start; or naming the rank and the operation that failed.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    each = sweep.check + sweep.warmup + sweep.iterations
    names = [str(call) for call in sweep.calls(ranks)]
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        asked, told = Path(folder) / "sweep.json", Path(folder) / "result.json"
        asked.write_text(sweep.to_json())
        outcome = launch(
            [
                *(sys.executable, "-m", "moetraffic.replay.bench"),
                *("--sweep", str(asked), "--result", str(told)),
            ],
            ranks=ranks,
            start_deadline_s=max(_START_S, 2 * sweep.timeout_s),
            operation_deadline_s=1.5 * sweep.timeout_s + 2.0,
            grace_s=min(3.0, sweep.timeout_s),
            on_event=on_event,
            namer=lambda _, n: names[min(n // each, len(names) - 1)],
        )
        raise_failure(outcome)
        return Bench.from_json(told.read_text())
