"""UC Merced study: communication fractions with RDMA, IPoIB and TCP/IP.

The poster gives a fraction f of communication in iteration time for each workload,
protocol, number of GPUs and global batch; no times, no GPUs' type, no precision.  With
data parallelism alone and no overlap

    f = x / (x + r(s)),   r(s) = a + c s,   x(n) = k 2 (n-1)/n (n/4)^gamma,

all in units of the workload's own all-reduce between the 2 GPUs of a node: r is compute
for s samples a GPU, its a and c follow from that workload's own two 2-rank cells
(s = 8 and 4, where x = 1); k is how many times slower the network is than the node's
inside; gamma how bandwidth falls with ranks (0: a pure ring).  Gradients' size cancels,
so k and gamma belong to the protocol and are fitted on *other* workloads' cells.

References
----------
H. Qi, L. Dai, W. Chen, X. Lu, "Early Experience in Characterizing Training Large
Language Models on Modern HPC Clusters", poster, UC Merced.  The model is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from moetraffic.data import published
from moetraffic.tables import Table

from .study import Study

Float64 = npt.NDArray[np.float64]

PROTOCOLS = ("RDMA", "IPoIB", "TCP/IP")
FALLING = frozenset({"IPoIB", "TCP/IP"})
"""Protocols whose bandwidth may fall with ranks; RDMA's does not, in any variant."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Published communication fraction of one run of the UC Merced poster."""

    workload: str
    protocol: str
    scaling: str  # "strong", "weak" or "larger_batch"
    gpus: int
    batch: int  # global
    fraction: float  # NaN where the cell says OOM

    @property
    def oom(self) -> bool:
        """Whether the run was out of memory."""
        return bool(np.isnan(self.fraction))

    @property
    def samples(self) -> float:
        """Number of samples per GPU and iteration."""
        return self.batch / self.gpus

    @property
    def name(self) -> str:
        """Column heading of the poster, ``<GPUs,batch>``."""
        return f"<{self.gpus},{self.batch}>"


Chooses = Callable[[Cell], bool]

CELL_SETS: dict[str, Chooses] = {
    "strong and weak, > 2 GPUs": lambda c: c.scaling != "larger_batch" and c.gpus > 2,
    "the same, <4,16> once": lambda c: (
        c.gpus > 2
        and c.scaling != "larger_batch"
        and (c.scaling, c.gpus) != ("weak", 4)
    ),
    "and <8,96>": lambda c: c.gpus > 2 and c.batch <= 96,
    "every cell > 2 GPUs": lambda c: c.gpus > 2,
}
"""What is fitted and compared; the first is the poster's own strong and weak scaling,
in which <4,16> stands twice."""

MAIN = next(iter(CELL_SETS))


@cache
def cells() -> tuple[Cell, ...]:
    """All cells of the poster's table."""
    return tuple(
        Cell(
            workload=row["workload"],
            protocol=row["protocol"],
            scaling=row["scaling"],
            gpus=int(row["gpus"]),
            batch=int(row["batch"]),
            fraction=float(row["fraction"] or "nan"),
        )
        for row in published("ucmerced_comm_fraction")
    )


def workloads() -> tuple[str, ...]:
    """Workloads in the poster's order."""
    return tuple(dict.fromkeys(cell.workload for cell in cells()))


def speedup(protocol: str) -> Float64:
    """Iteration time relative to RDMA for each main cell.

    Compute is the same for both, so T / T_RDMA = (1 - f_RDMA) / (1 - f).

    Returns
    -------
    ndarray
        ``[16]``: 4 workloads, strong then weak scaling, in the table's order.
    """
    main = [c for c in cells() if CELL_SETS[MAIN](c)]
    base = {_place(c): c.fraction for c in main if c.protocol == "RDMA"}
    return np.array(
        [
            (1 - base[_place(c)]) / (1 - c.fraction)
            for c in main
            if c.protocol == protocol
        ]
    )


def _place(cell: Cell) -> tuple[str, str, int, int]:
    return cell.workload, cell.scaling, cell.gpus, cell.batch


# ---- the model ---------------------------------------------------------------------


@cache
def calibration(workload: str) -> tuple[float, float]:
    """Fit the compute constants (a, c) of a workload to its 2-rank cells.

    The poster's three protocols agree there to 0.01: their mean is taken.
    """
    own = [c for c in cells() if c.workload == workload and c.gpus == 2]
    ratio = {}
    for samples in (8.0, 4.0):
        f = float(np.mean([c.fraction for c in own if c.samples == samples]))
        ratio[samples] = (1 - f) / f
    slope = (ratio[8.0] - ratio[4.0]) / 4.0
    return ratio[4.0] - 4.0 * slope, slope


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Network cost of a protocol relative to the links within a node."""

    k: float  # all-reduce over the network takes k times the node's time a byte
    gamma: float  # 0: a pure ring

    def time(self, gpus: npt.ArrayLike) -> Float64:
        """Compute the all-reduce time in units of that of 2 GPUs of a node."""
        n = np.asarray(gpus, np.float64)
        return np.asarray(self.k * 2 * (n - 1) / n * (n / 4) ** self.gamma)


def fraction(of: Sequence[Cell], wire: Wire, *, affine: bool = True) -> Float64:
    """Predict the communication fractions of cells, ``[n]``.

    Parameters
    ----------
    of
        Cells of any workloads, each calibrated on its own 2-rank cells.
    wire
        Of the cells' protocol.
    affine
        Compute has a part that does not grow with the batch; without it (tried, and
        much worse) it is proportional to the samples.
    """
    x = wire.time([c.gpus for c in of])
    return np.asarray(x / (x + _compute(of, affine)), np.float64)


def _compute(of: Sequence[Cell], affine: bool) -> Float64:
    """Compute of each cell in units of its workload's all-reduce of 2 GPUs."""
    samples = np.array([c.samples for c in of])
    part = np.array([calibration(c.workload) for c in of]).reshape(-1, 2)
    if affine:
        return np.asarray(part[:, 0] + part[:, 1] * samples)
    # the mean of both 2-rank cells' compute a sample
    return np.asarray(samples * (part[:, 1] + part[:, 0] * (1 / 8 + 1 / 4) / 2))


def fitted(of: Sequence[Cell], *, falling: bool, affine: bool = True) -> Wire:
    """Fit the constants of a protocol to the fractions of its cells by least squares.

    Parameters
    ----------
    of
        Cells of one protocol that have a fraction.
    falling
        Whether gamma is fitted too, or 0.
    affine
        As :func:`fraction` has it.
    """
    seen = np.array([c.fraction for c in of])
    gpus = np.array([c.gpus for c in of])
    compute = _compute(of, affine)

    def made(constants: Float64) -> Wire:
        gamma = float(constants[1]) if falling else 0.0
        return Wire(k=float(np.exp(constants[0])), gamma=gamma)

    def off(constants: Float64) -> Float64:
        x = made(constants).time(gpus)
        return np.asarray(x / (x + compute) - seen, np.float64)

    return made(least_squares(off, [1.0, 0.0][: 1 + falling]).x)


def left_out(
    chosen: Chooses, *, falling: bool, affine: bool = True
) -> tuple[tuple[Cell, float], ...]:
    """Predict each cell with a network fitted to the other workloads.

    Parameters
    ----------
    chosen
        Cells that are fitted and predicted.
    falling
        Whether the bandwidth of :data:`FALLING` falls with ranks.
    affine
        As :func:`fraction` has it.
    """
    found = []
    every = [c for c in cells() if chosen(c) and not c.oom]
    for protocol in PROTOCOLS:
        mine = [c for c in every if c.protocol == protocol]
        for workload in workloads():
            others = [c for c in mine if c.workload != workload]
            own = [c for c in mine if c.workload == workload]
            wire = fitted(
                others, falling=falling and protocol in FALLING, affine=affine
            )
            predicted = fraction(own, wire, affine=affine)
            found += list(zip(own, predicted.tolist(), strict=True))
    return tuple(found)


def copied(chosen: Chooses) -> Float64:
    """Compute the errors of predicting a fraction by that of another workload."""
    every = [c for c in cells() if chosen(c) and not c.oom]
    return np.array(
        [
            a.fraction - b.fraction
            for a in every
            for b in every
            if a.workload != b.workload
            and (a.protocol, a.scaling, a.name) == (b.protocol, b.scaling, b.name)
        ]
    )


# ---- the tables --------------------------------------------------------------------


def reproduce() -> Study:
    """Compare the poster's values with the recomputed ones."""
    from .merced_memory import memory_table

    table, verdict = memory_table(cells())
    return Study(
        name="merced",
        title="LLM training over RDMA, IPoIB and TCP/IP",
        source="Qi, Dai, Chen, Lu, poster, UC Merced",
        tables=(
            _speedups(),
            _summary(),
            _cells(),
            _calibrations(),
            _utilization(),
            table,
        ),
        not_reproducible=(
            "absolute iteration times and throughput, because the poster gives "
            "fractions only and neither GPUs, precision nor sequence lengths",
            "the rates 60, 20 and 9 Gbps themselves, because they need a time or a "
            "volume: only their ratios follow from the fractions",
            verdict,
        ),
        notes=(
            "<a,b> is read as <GPUs, global batch> with 2 GPUs a node: the 2-rank "
            "cells do not depend on the protocol, and weak scaling keeps b/a = 4",
            "each workload's compute is calibrated on its own 2-rank cells, the "
            "network is fitted on the other three workloads' cells: no cell that is "
            "predicted was seen",
            "the speed-ups 2.49 and 4.68 are means over the 16 cells of strong and "
            "weak scaling with more than 2 GPUs, <4,16> in both; the poster does not "
            "say over which cells its 2.51 and 4.79 are",
            "<8,96> and <8,256> are predicted with the network of the strong and weak "
            "cells, at up to 4 times the samples that calibrated compute; BERT-Large "
            "<8,256> by RDMA, 0.30, does not go with the same cell's 0.49 and 0.70 by "
            "the other protocols, and is our worst",
            "the ratio of IPoIB's to RDMA's rate comes out 24% lower than 20 to 60: "
            "those are the highest rates that were seen, ours are means",
        ),
    )


def _speedups() -> Table:
    said = published("ucmerced_protocols")
    rows = []
    for protocol, key in (
        ("IPoIB", "RDMA_speedup_over_IPoIB_iteration_time_avg"),
        ("TCP/IP", "RDMA_speedup_over_TCP_iteration_time_avg"),
    ):
        each, told = speedup(protocol), said.value(key)
        ours = float(each.mean())
        rows.append(
            (
                protocol,
                told,
                ours,
                ours / told - 1,
                float(each.min()),
                float(each.max()),
                len(each),
            )
        )
    return Table(
        title="How many times longer an iteration takes than by RDMA",
        columns=("over", "published", "ours", "error", "least", "most", "cells"),
        rows=tuple(rows),
        unit="x",
    )


def _summary() -> Table:
    rows: list[tuple[object, ...]] = []
    for name, chosen in CELL_SETS.items():
        for model, falling, affine in (
            ("pure ring", False, True),
            ("IPoIB, TCP/IP fall with ranks", True, True),
            ("the same, compute proportional", True, False),
        ):
            found = left_out(chosen, falling=falling, affine=affine)
            off = np.array([ours - cell.fraction for cell, ours in found])
            rows.append(_errors(name, model, off, len(found)))
        off = copied(chosen)
        rows.append(_errors(name, "another workload's cell copied", off, len(off)))
    return Table(
        title="Communication fraction, leaving a workload out: how wrong",
        columns=("cells", "model", "predictions", "mean absolute error", "worst"),
        rows=tuple(rows),
        unit="fraction of iteration time",
    )


def _errors(name: str, model: str, off: Float64, count: int) -> tuple[object, ...]:
    away = np.abs(off)
    return name, model, count, float(away.mean()), float(away.max())


def _cells() -> Table:
    ring = dict(left_out(CELL_SETS[MAIN], falling=False))
    falls = dict(left_out(CELL_SETS[MAIN], falling=True))
    rows: list[tuple[object, ...]] = []
    for cell in cells():
        if cell.gpus <= 2:
            continue
        one = ring.get(cell)
        two = falls.get(cell)
        if not cell.oom and one is None:  # a larger batch: the network of the others
            one, two = (_outside(cell, falling=fall) for fall in (False, True))
        head = cell.workload, cell.protocol, cell.scaling, cell.name
        if cell.oom or one is None or two is None:
            rows.append((*head, "OOM", None, None, None, None))
        else:
            f = cell.fraction
            rows.append((*head, f, one, one - f, two, two - f))
    return Table(
        title="Communication fraction, cell by cell, the workload left out",
        columns=(
            *("workload", "protocol", "scaling", "cell", "published"),
            *("ours, ring", "error", "ours, falling", "error "),
        ),
        rows=tuple(rows),
        unit="fraction of iteration time",
    )


def _outside(cell: Cell, *, falling: bool) -> float:
    """Predict a cell outside the fitted set, from the other workloads in the set."""
    others = [
        c
        for c in cells()
        if CELL_SETS[MAIN](c)
        and (c.protocol, c.workload != cell.workload) == (cell.protocol, True)
    ]
    wire = fitted(others, falling=falling and cell.protocol in FALLING)
    return float(fraction([cell], wire)[0])


def _calibrations() -> Table:
    rows = []
    for workload in workloads():
        constant, slope = calibration(workload)
        rows.append((workload, constant, slope))
    return Table(
        title="Compute of each workload, from its own 2-rank cells",
        columns=("workload", "constant", "a sample"),
        rows=tuple(rows),
        unit="all-reduces of 2 GPUs",
    )


def _utilization() -> Table:
    """Tabulate link rates of the protocols relative to that of RDMA."""
    said = published("ucmerced_protocols")
    told = {
        "RDMA": said.value("RDMA_max_interconnect_utilization"),
        "IPoIB": said.value("IPoIB_max_interconnect_utilization"),
        "TCP/IP": said.value("TCP_max_interconnect_utilization"),
    }
    main = [c for c in cells() if CELL_SETS[MAIN](c)]
    rows = []
    base: Wire | None = None
    for protocol in PROTOCOLS:
        mine = [c for c in main if c.protocol == protocol]
        wire = fitted(mine, falling=protocol in FALLING)
        base = base or wire
        ours = told["RDMA"] * base.k / wire.k
        link = said.value(f"{protocol}_link")
        rows.append(
            (
                protocol,
                link,
                told[protocol],
                ours,
                ours / told[protocol] - 1,
                wire.k,
                wire.gamma,
                "given" if protocol == "RDMA" else "predicted",
            )
        )
    return Table(
        title="Interconnect utilization, ours scaled to RDMA's 60 Gbps at 4 ranks",
        columns=(
            *("protocol", "link", "published", "ours", "error", "k", "gamma"),
            "RDMA's is",
        ),
        rows=tuple(rows),
        unit="Gbps",
    )
