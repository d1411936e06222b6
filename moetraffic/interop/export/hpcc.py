"""Export a trace as flow files (``flow.txt``) for HPCC's ns-3 and its descendants.

A file has the number of flows, then lines ``src dst priority port bytes seconds`` in
ascending order of start (alibaba-edu/High-Precision-Congestion-Control
``simulation/scratch/third.cc``, FlowInput, and ``simulation/mix/flow.txt``; also read
by the ns-3 of ASTRA-sim, ConWeave and SimAI). Sizes are uint32; there are up to 2^16
hosts; each flow of a source takes another uint16 port, from 10000 on. Flows begin 2 s
after the simulation, like those of its ``traffic_gen``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import Trace

from .exporter import Exporter, ExportOptions
from .flows import Flows

MOST = 2**32 - 1
MOST_HOSTS = 1 << 16
MOST_FLOWS = (1 << 16) - 10000  # per source
PRIORITY = 3
PORT = 100
BEGIN_NS = 2 * 10**9


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the flows of all all-to-alls, one host per rank; rank 0 is node 0."""
    if options.pace == "asap" and not options.every_ns:
        raise TraceError(
            "flow.txt has the start time of each flow, so none can wait for another "
            "(--pace asap): give --pace captured, or a time between calls with --every"
        )
    if trace.meta.world > MOST_HOSTS:
        raise TraceError(
            f"the simulator has up to {MOST_HOSTS} hosts, but there are "
            f"{trace.meta.world} ranks: place the traffic on fewer"
        )
    found = Flows(trace, options, MOST)
    flows = np.concatenate(
        [
            np.stack([b.begin_ns + BEGIN_NS, b.source, b.destination, b.bytes], axis=1)
            for b in found
        ]
    )
    flows = flows[np.argsort(flows[:, 0], kind="stable")]
    most = int(np.bincount(flows[:, 1], minlength=1).max())
    if most > MOST_FLOWS:
        raise TraceError(
            f"a source has up to {MOST_FLOWS} flows, for each takes a port, but here "
            f"one has {most}: export fewer iterations"
        )
    with path.open("w") as file:
        file.write(f"{len(flows)}\n")
        file.writelines(
            f"{source} {destination} {PRIORITY} {PORT} {size} "
            f"{when // 10**9}.{when % 10**9:09d}\n"
            for when, source, destination, size in flows.tolist()
        )
    return found.lost


EXPORTER = Exporter(
    name="hpcc",
    what="one flow per pair of ranks and exchange, with its start in seconds",
    readers="ns-3 of HPCC, ASTRA-sim, SimAI and ConWeave",
    limits=f"flows up to 2^32 - 1 B are cut into more; {MOST_FLOWS} flows per source",
    suffix=".txt",
    write=write,
)
