"""Export a trace as connection matrices (``.cm``) for the htsim simulator.

``Nodes N``, ``Connections M``, ``Triggers T``, then lines ``src->dst id I start PS size
BYTES`` and ``trigger id I barrier count C`` (Broadcom/csg-htsim
``sim/datacenter/connection_matrix.cpp``, ConnectionMatrix::load). Sizes, ids and counts
are read by stoi: at most 2^31 - 1; a flow's and a trigger's id is not 0. Starts are
picoseconds read by stof, with 24 bits of precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import Trace

from .exporter import Exporter, ExportOptions
from .flows import Burst, Flows

MOST = 2**31 - 1


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the flows of all all-to-alls, one node per rank.

    At the pace "asap", a barrier trigger starts an exchange of a group when all flows
    of the group's previous exchange have been received.
    """
    found = Flows(trace, options, MOST)
    head, lost = [f"Nodes {trace.meta.world}"], []
    if options.pace == "asap" and not options.every_ns:
        body, triggers, groups = _chained(found)
        if groups > 1:
            lost.append(f"the {groups} groups do not wait for each other")
        head += [f"Connections {found.number}", f"Triggers {triggers}"]
    else:
        body, moved = _timed(found)
        head += [f"Connections {found.number}"]
        if moved:
            lost.append(
                f"starts are read as 32-bit floats, which moves them by up to {moved} "
                "ps"
            )
    if found.number > MOST:
        raise TraceError(
            f"htsim numbers flows up to {MOST}, but these are {found.number}: export "
            "fewer iterations"
        )
    path.write_text("\n".join([*head, *body]) + "\n")
    return [*lost, *found.lost]


def _timed(found: Iterable[Burst]) -> tuple[list[str], int]:
    """Format flows with start times, and compute the largest rounding error in ps."""
    lines: list[str] = []
    moved = 0
    for burst in found:
        starts = burst.begin_ns * 1000  # ps
        read = starts.astype(np.float32).astype(np.int64)
        moved = max(moved, int(np.abs(read - starts).max(initial=0)))
        lines += _lines(burst, len(lines), [f"start {s}" for s in starts.tolist()])
    return lines, moved


def _chained(found: Iterable[Burst]) -> tuple[list[str], int, int]:
    """Format flows chained by barrier triggers; count triggers and groups."""
    lines: list[str] = []
    last: dict[tuple[int, ...], range] = {}  # group: flows of its last exchange
    barriers: list[str] = []
    for burst in found:
        if not len(burst.source):
            continue
        begin = "start 0"
        if burst.group in last:
            number = len(barriers) + 1
            for at in last[burst.group]:
                lines[at] += f" recv_done_trigger {number}"
            count = len(last[burst.group])
            barriers.append(f"trigger id {number} barrier count {count}")
            begin = f"trigger {number}"
        last[burst.group] = range(len(lines), len(lines) + len(burst.source))
        lines += _lines(burst, len(lines), [begin] * len(burst.source))
    return lines + barriers, len(barriers), len(last)


def _lines(burst: Burst, before: int, begin: list[str]) -> list[str]:
    columns = (burst.source, burst.destination, burst.bytes)
    return [
        f"{source}->{destination} id {number} {when} size {size}"
        for number, (source, destination, size, when) in enumerate(
            zip(*(c.tolist() for c in columns), begin, strict=True), before + 1
        )
    ]


EXPORTER = Exporter(
    name="htsim",
    what="a connection matrix: one flow per pair of ranks and exchange",
    readers="htsim (csg-htsim, UEC's, ndp's)",
    limits="flows up to 2^31 - 1 B are cut into more; starts in ps keep 24 bits",
    suffix=".cm",
    write=write,
)
