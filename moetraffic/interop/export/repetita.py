"""Export a trace as REPETITA demands: mean rates between ranks.

A file has ``DEMANDS n``, a header, then lines ``label src dest bw``; source and
destination are node numbers of the topology file, rates are kbit/s as in its data sets
(svissicchio/Repetita wiki "Adding Problem Instances"; ``RepetitaParser.parseDemands``
splits lines at single spaces and ends at an empty line).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .call_selection import counted, exchanges, select_calls, without_rank_local
from .exporter import Exporter, ExportOptions


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the mean rate of each pair of ranks over the selected iterations.

    The duration of an iteration is that of its step on the slowest rank, or
    ``every_ns``.
    """
    chosen = select_calls(trace, options, only=ALL_TO_ALL)
    iterations = np.unique(trace.occurrences.iteration[chosen.occurrences])
    lasted = options.every_ns * len(iterations) or _length_ns(trace, iterations)
    left_out = Counter[str]()
    total = np.zeros((trace.meta.world,) * 2, np.int64)
    for one in exchanges(trace, options, chosen):
        total += without_rank_local(one.bytes, left_out)
    lines = [
        f"demand_{n} {s} {d} {total[s, d] * 8 * 1e6 / lasted:.3f}"
        for n, (s, d) in enumerate(
            zip(*(a.tolist() for a in total.nonzero()), strict=True)
        )
    ]
    path.write_text(
        "\n".join([f"DEMANDS {len(lines)}", "label src dest bw", *lines]) + "\n"
    )
    return [
        *chosen.lost,
        f"rates are means over {lasted / 1e9:.6g} s of {len(iterations)} iterations, "
        "in kbit/s: bursts are left out",
        *counted(left_out),
    ]


def _length_ns(trace: Trace, iterations: np.ndarray) -> int:
    """Return the total duration of the iterations, in ns."""
    steps = trace.steps
    mine = np.isin(steps.iteration, iterations)
    start, end = steps.start[mine], steps.end[mine]
    known = ((start != UNKNOWN_TIME) & (end != UNKNOWN_TIME)).all(axis=1)
    if not len(known) or not known.all():
        raise TraceError(
            "a rate needs how long an iteration lasts, but of "
            f"{int((~known).sum())} it is not known: say it with --every"
        )
    return max(1, int((end - start).max(axis=1).sum()))


EXPORTER = Exporter(
    name="repetita",
    what="the mean rate of each pair of ranks, in kbit/s",
    readers="REPETITA and its traffic-engineering solvers",
    limits="one matrix for all chosen iterations; a rank is the node of its number",
    suffix=".demands",
    write=write,
)
