"""Export all-to-alls as flows or matrices, for network simulators and nccl-tests.

htsim: ``Nodes N``, ``Connections M``, ``Triggers T``, then lines ``src->dst id I start
PS size BYTES`` and ``trigger id I barrier count C`` (Broadcom/csg-htsim
``sim/datacenter/connection_matrix.cpp``, ConnectionMatrix::load).  Sizes, ids and
counts are read by stoi: at most 2^31 - 1; an id is not 0.  Starts are picoseconds read
by stof, with 24 bits of precision.

HPCC: the number of flows, then lines ``src dst priority port bytes seconds`` in
ascending order of start (alibaba-edu/High-Precision-Congestion-Control
``simulation/scratch/third.cc``, FlowInput; also read by the ns-3 of ASTRA-sim, ConWeave
and SimAI).  Sizes are uint32; there are up to 2^16 hosts; each flow of a source takes
another uint16 port, from 10000 on.  Flows begin 2 s after the simulation, like those of
its ``traffic_gen``.

nccl-tests: a square matrix for each call, a row for each source, numbers separated by
whitespace.  Two generations of ``alltoallv_perf`` read it (NVIDIA/nccl-tests
``src/alltoallv.cu``): with NCCL_TESTS_ALLTOALLV_MATRIX_FILE numbers are bytes, rounded
down to multiples of 16; with ALLTOALLV_MATRIX_FILE they are KiB, truncated to integers.
``-b`` and ``-e`` must be equal, and at least the total that a rank sends or receives.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, Trace

from .exporter import Exporter, ExportOptions
from .frames import (
    counted,
    exchange_numbers,
    first_issue,
    in_order,
    pairs,
    select_calls,
    site_name,
)

if TYPE_CHECKING:
    import pandas

HTSIM_BYTES, HPCC_BYTES = 2**31 - 1, 2**32 - 1  # of a flow
HPCC_HOSTS = 1 << 16
HPCC_FLOWS = (1 << 16) - 10000  # of a source
HPCC_PRIORITY, HPCC_PORT, HPCC_BEGIN_NS = 3, 100, 2 * 10**9
UNITS = {"B": (1, 16), "KiB": (1024, 1024)}  # of nccl-tests: bytes, rounded to


def flow_table(
    trace: Trace, options: ExportOptions, most: int
) -> tuple[pandas.DataFrame, list[str]]:
    """Return the flows of the selected all-to-alls, in order of the calls.

    A flow has 1 to ``most`` bytes; larger ones are cut.  The columns are ``call``,
    ``ranks`` (number of the group's ranks), ``source``, ``destination``, ``bytes`` and
    ``begin_ns`` after the first call: when the sender starts the call or, if that is
    unknown, issues it; with ``every_ns``, exchanges begin at that interval.
    """
    import pandas

    chosen, notes = select_calls(trace, options, operation=ALL_TO_ALL, timed=True)
    chosen = in_order(trace, chosen)
    exchange = exchange_numbers(trace, chosen)
    # the calls of an exchange's groups one after another
    chosen = chosen[np.argsort(exchange, kind="stable")]
    exchange = np.sort(exchange)
    first = int(first_issue(trace, chosen).min())
    lost: Counter[str] = Counter()
    tables = []
    for table in pairs(trace, chosen, options.of):
        own = table["source"] == table["destination"]
        kept = "bytes of rank-local (self) traffic are left out"
        lost[kept] += int(table["bytes"][own].sum())
        tables.append(table[~own & (table["bytes"] > 0)])
    flows = pandas.concat(tables, ignore_index=True)
    pieces = -(-flows["bytes"] // most)
    lost[f"flows of more than {most} bytes are cut into more"] = int((pieces > 1).sum())
    rest = flows["bytes"] - (pieces - 1) * most
    flows = flows.loc[np.repeat(flows.index, pieces)]
    last = np.zeros(len(flows), bool)
    last[np.cumsum(pieces) - 1] = True
    flows["bytes"] = np.where(last, rest.loc[flows.index], most)
    call = flows["call"].to_numpy()
    flows["begin_ns"] = flows.pop("begin") - first
    if options.every_ns:
        flows["begin_ns"] = exchange[call] * options.every_ns
    groups: dict[tuple[int, ...], int] = {}
    number = [groups.setdefault(g.ranks, len(groups)) for g in trace.groups]
    of_site = np.array([number[s.group] for s in trace.sites], np.int64)
    flows["ranks"] = of_site[trace.occurrences.site[chosen]][call]
    return flows.reset_index(drop=True), [
        *notes,
        *counted(lost),
        "computation is left out",
    ]


def write_htsim(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the flows of all all-to-alls, one node per rank.

    At the pace "asap", a barrier trigger starts an exchange of a group when all flows
    of the group's previous exchange have been received.
    """
    flows, lost = flow_table(trace, options, HTSIM_BYTES)
    if len(flows) > HTSIM_BYTES:
        raise TraceError(
            f"htsim numbers flows up to {HTSIM_BYTES}, but these are {len(flows)}: "
            "export fewer iterations"
        )
    head = [f"Nodes {trace.meta.world}", f"Connections {len(flows)}"]
    barriers: list[str] = []
    flows["then"] = ""
    if options.pace == "asap" and not options.every_ns:
        # the flows of a call are a burst, which the group's burst before triggers
        bursts = flows.groupby("call", sort=True).agg(
            ranks=("ranks", "first"), size=("bytes", "size")
        )
        before = bursts.groupby("ranks")["size"].shift()
        number = before.notna().cumsum().where(before.notna())
        after = number.groupby(bursts["ranks"]).shift(-1)
        barriers = [
            f"trigger id {int(n)} barrier count {int(size)}"
            for n, size in zip(number.dropna(), before.dropna(), strict=True)
        ]
        begin = number.map(
            lambda n: "start 0" if np.isnan(n) else f"trigger {int(n)}", na_action=None
        )
        then = after.map(
            lambda n: "" if np.isnan(n) else f" recv_done_trigger {int(n)}",
            na_action=None,
        )
        flows["begin"] = flows["call"].map(begin)
        flows["then"] = flows["call"].map(then)
        head.append(f"Triggers {len(barriers)}")
        if (groups := flows["ranks"].nunique()) > 1:
            lost.insert(0, f"the {groups} groups do not wait for each other")
    else:
        starts = flows["begin_ns"].to_numpy() * 1000  # ps
        moved = np.abs(starts.astype(np.float32).astype(np.int64) - starts)
        if most := int(moved.max(initial=0)):
            lost.insert(
                0,
                f"starts are read as 32-bit floats, which moves them by up to {most} "
                "ps",
            )
        flows["begin"] = [f"start {start}" for start in starts.tolist()]
    columns = (flows[n] for n in ("source", "destination", "begin", "bytes", "then"))
    body = [
        f"{source}->{destination} id {number} {begin} size {size}{then}"
        for number, (source, destination, begin, size, then) in enumerate(
            zip(*columns, strict=True), 1
        )
    ]
    path.write_text("\n".join([*head, *body, *barriers]) + "\n")
    return lost


def write_hpcc(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write the flows of all all-to-alls, one host per rank; rank 0 is node 0."""
    if options.pace == "asap" and not options.every_ns:
        raise TraceError(
            "flow.txt has the start time of each flow, so none can wait for another "
            "(--pace asap): give --pace captured, or a time between calls with --every"
        )
    if trace.meta.world > HPCC_HOSTS:
        raise TraceError(
            f"the simulator has up to {HPCC_HOSTS} hosts, but there are "
            f"{trace.meta.world} ranks: place the traffic on fewer"
        )
    flows, lost = flow_table(trace, options, HPCC_BYTES)
    flows = flows.sort_values("begin_ns", kind="stable")
    most = int(flows["source"].value_counts().max()) if len(flows) else 0
    if most > HPCC_FLOWS:
        raise TraceError(
            f"a source has up to {HPCC_FLOWS} flows, for each takes a port, but here "
            f"one has {most}: export fewer iterations"
        )
    columns = (flows[n] for n in ("source", "destination", "bytes", "begin_ns"))
    with path.open("w") as file:
        file.write(f"{len(flows)}\n")
        for source, destination, size, begin in zip(*columns, strict=True):
            seconds, ns = divmod(begin + HPCC_BEGIN_NS, 10**9)
            file.write(
                f"{source} {destination} {HPCC_PRIORITY} {HPCC_PORT} {size} "
                f"{seconds}.{ns:09d}\n"
            )
    return lost


def write_nccl_tests(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write a matrix for each exchange, and an index table.

    Bytes are rounded to the nearest multiple that the program supports.
    """
    import pandas

    if options.unit not in UNITS:
        raise TraceError(
            f"nccl-tests reads matrices in {' or '.join(UNITS)}, not "
            f"{options.unit[:40]!r}: change --unit"
        )
    unit, least = UNITS[options.unit]
    chosen, lost = select_calls(trace, options, operation=ALL_TO_ALL)
    chosen = in_order(trace, chosen)
    exchange = exchange_numbers(trace, chosen)
    sent, written, changed, rows = 0, 0, 0, []
    for number in range(int(exchange.max()) + 1):
        own = chosen[exchange == number]
        matrix = np.zeros((trace.meta.world,) * 2, np.int64)
        for table in pairs(trace, own, options.of):
            np.add.at(matrix, (table["source"], table["destination"]), table["bytes"])
        rounded = nearest(matrix, least)
        sent, written = sent + int(matrix.sum()), written + int(rounded.sum())
        changed += int((rounded != matrix).sum())
        iteration = int(trace.occurrences.iteration[own[0]])
        site = trace.sites[trace.occurrences.site[own[0]]]
        name = f"iteration-{iteration:06d}-{site_name(site)}.txt"
        lines = (" ".join(map(str, row)) for row in (rounded // unit).tolist())
        (folder / name).write_text("\n".join(lines) + "\n")
        size = max(int(rounded.sum(axis=0).max()), int(rounded.sum(axis=1).max()))
        rows.append((name, iteration, site.layer, site.phase, site.slot, size))
    columns = ["file", "iteration", "layer", "phase", "micro_batch", "size"]
    index = pandas.DataFrame(rows, columns=columns)
    index.to_csv(folder / "matrices.csv", index=False, lineterminator="\n")
    if changed:
        lost.append(
            f"{changed} cells are rounded to multiples of {least} bytes: {written} "
            f"bytes in all instead of {sent}"
        )
    return lost


def nearest(values: Int64, least: int) -> Int64:
    """Round byte counts to multiples of ``least``, but positive ones never to 0.

    Examples
    --------
    >>> nearest(np.array([0, 3, 23, 24, 40]), 16).tolist()
    [0, 16, 16, 32, 48]
    """
    rounded = (values + least // 2) // least * least
    return np.asarray(np.where(values > 0, np.maximum(rounded, least), 0), np.int64)


NCCL_TESTS = Exporter(
    name="nccl-tests",
    what="one alltoallv matrix per call; matrices.csv has the sizes for -b and -e",
    readers="nccl-tests' alltoallv_perf",
    limits="multiples of 16 B, or of 1 KiB with --unit KiB for the older program",
    suffix="",
    files=r"matrices\.csv|iteration-\d+-[\w-]+\.txt",
    write=write_nccl_tests,
)
HTSIM = Exporter(
    name="htsim",
    what="a connection matrix: one flow per pair of ranks and exchange",
    readers="htsim (csg-htsim, UEC's, ndp's)",
    limits="flows up to 2^31 - 1 B are cut into more; starts in ps keep 24 bits",
    suffix=".cm",
    write=write_htsim,
)
HPCC = Exporter(
    name="hpcc",
    what="one flow per pair of ranks and exchange, with its start in seconds",
    readers="ns-3 of HPCC, ASTRA-sim, SimAI and ConWeave",
    limits=f"flows up to 2^32 - 1 B are cut into more; {HPCC_FLOWS} flows per source",
    suffix=".txt",
    write=write_hpcc,
)
