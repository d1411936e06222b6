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

The poster names no GPU for the runs that were out of memory, so the question is
reversed: with the memory that a run of a workload needs, is there a capacity that fits
every run that ran and none that did not?  A rank of data parallelism holds 16 B a
parameter (fp16 weight and gradient, fp32 weight and Adam's two moments), and
activations as the time model counts them.

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

from moetraffic.arrays import Float64
from moetraffic.data import published
from moetraffic.patterns.presets import preset
from moetraffic.patterns.time_model import Configuration, memory
from moetraffic.tables import Table

from .study import Study, compared

PROTOCOLS = ("RDMA", "IPoIB", "TCP/IP")
FALLING = frozenset({"IPoIB", "TCP/IP"})
"""Protocols whose bandwidth may fall with ranks; RDMA's does not, in any variant."""


MODELS = {
    "T5-Large": "t5-large",
    "BERT-Large": "bert-large",
    "GPT-2-Large": "gpt2-large",
    "GPT-2-Medium": "gpt2-medium",
}
"""The poster's names and our presets, whose sequence lengths are assumed."""


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
        c.gpus > 2 and c.scaling != "larger_batch" and _place(c)[1:3] != ("weak", 4)
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

    ``[16]``: 4 workloads, strong then weak scaling, in the table's order.
    """
    main = [c for c in cells() if CELL_SETS[MAIN](c)]
    base = {_place(c): c.fraction for c in main if c.protocol == "RDMA"}
    mine = [c for c in main if c.protocol == protocol]
    return np.array([(1 - base[_place(c)]) / (1 - c.fraction) for c in mine])


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


def _compute(of: Sequence[Cell], affine: bool) -> Float64:
    """Compute of each cell in units of its workload's all-reduce of 2 GPUs."""
    samples = np.array([c.samples for c in of])
    part = np.array([calibration(c.workload) for c in of]).reshape(-1, 2)
    if affine:
        return np.asarray(part[:, 0] + part[:, 1] * samples)
    # the mean of both 2-rank cells' compute a sample
    return np.asarray(samples * (part[:, 1] + part[:, 0] * (1 / 8 + 1 / 4) / 2))


def _fractions(of: Sequence[Cell], wire: Wire, compute: Float64) -> Float64:
    """Predict the communication fractions of cells, ``[n]``."""
    x = wire.time([c.gpus for c in of])
    return np.asarray(x / (x + compute), np.float64)


def fitted(of: Sequence[Cell], *, falling: bool, affine: bool = True) -> Wire:
    """Fit the constants of a protocol to the fractions of its cells by least squares.

    Parameters
    ----------
    of
        Cells of one protocol that have a fraction.
    falling
        Whether gamma is fitted too, for protocols of :data:`FALLING`; otherwise 0.
    affine
        Whether compute has a part that does not grow with the batch; without it (much
        worse) it is proportional to the samples.
    """
    seen = np.array([c.fraction for c in of])
    compute = _compute(of, affine)
    falls = falling and of[0].protocol in FALLING

    def made(constants: Float64) -> Wire:
        gamma = float(constants[1]) if falls else 0.0
        return Wire(k=float(np.exp(constants[0])), gamma=gamma)

    def off(constants: Float64) -> Float64:
        return np.asarray(_fractions(of, made(constants), compute) - seen)

    return made(least_squares(off, [1.0, 0.0][: 1 + falls]).x)


def left_out(
    chosen: Chooses,
    *,
    falling: bool,
    affine: bool = True,
    predicted: Chooses | None = None,
) -> tuple[tuple[Cell, float], ...]:
    """Predict each cell with a network fitted to the other workloads: see
    :func:`fitted`; ``predicted`` None predicts the cells that are fitted."""
    predicted, found = predicted or chosen, []
    for protocol in PROTOCOLS:
        mine = [c for c in cells() if c.protocol == protocol and not c.oom]
        for workload in workloads():
            others = [c for c in mine if c.workload != workload and chosen(c)]
            own = [c for c in mine if c.workload == workload and predicted(c)]
            wire = fitted(others, falling=falling, affine=affine)
            values = _fractions(own, wire, _compute(own, affine))
            found += list(zip(own, values.tolist(), strict=True))
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
            and (a.protocol, *_place(a)[1:]) == (b.protocol, *_place(b)[1:])
        ]
    )


# ---- the tables --------------------------------------------------------------------


def reproduce() -> Study:
    """Compare the poster's values with the recomputed ones."""
    table, verdict = _memory()
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
    for protocol, key in (("IPoIB", "IPoIB"), ("TCP/IP", "TCP")):
        each = speedup(protocol)
        claim = said.value(f"RDMA_speedup_over_{key}_iteration_time_avg")
        ends = float(each.min()), float(each.max())
        rows.append((protocol, *compared(claim, each.mean()), *ends, len(each)))
    return Table(
        title="How many times longer an iteration takes than by RDMA",
        columns=("over", "published", "ours", "error", "least", "most", "cells"),
        rows=rows,
        unit="x",
    )


def _summary() -> Table:
    rows = []
    for name, chosen in CELL_SETS.items():
        errors = {}
        for model, falling, affine in (
            ("pure ring", False, True),
            ("IPoIB, TCP/IP fall with ranks", True, True),
            ("the same, compute proportional", True, False),
        ):
            found = left_out(chosen, falling=falling, affine=affine)
            errors[model] = np.array([ours - cell.fraction for cell, ours in found])
        errors["another workload's cell copied"] = copied(chosen)
        for model, off in errors.items():
            away = np.abs(off)
            rows.append((name, model, len(off), float(away.mean()), float(away.max())))
    return Table(
        title="Communication fraction, leaving a workload out: how wrong",
        columns=("cells", "model", "predictions", "mean absolute error", "worst"),
        rows=rows,
        unit="fraction of iteration time",
    )


def _cells() -> Table:
    # the network of a larger batch is that of the strong and weak scaling
    network, every = CELL_SETS[MAIN], CELL_SETS["every cell > 2 GPUs"]
    ring = dict(left_out(network, falling=False, predicted=every))
    falls = dict(left_out(network, falling=True, predicted=every))
    rows: list[tuple[object, ...]] = []
    for cell in filter(every, cells()):
        head = cell.workload, cell.protocol, cell.scaling, cell.name
        if cell.oom:
            rows.append((*head, "OOM", None, None, None, None))
            continue
        f, one, two = cell.fraction, ring[cell], falls[cell]
        rows.append((*head, f, one, one - f, two, two - f))
    return Table(
        title="Communication fraction, cell by cell, the workload left out",
        columns=(
            *("workload", "protocol", "scaling", "cell", "published"),
            *("ours, ring", "difference", "ours, falling", "difference "),
        ),
        rows=rows,
        unit="fraction of iteration time",
    )


def _calibrations() -> Table:
    return Table(
        title="Compute of each workload, from its own 2-rank cells",
        columns=("workload", "constant", "a sample"),
        rows=[(workload, *calibration(workload)) for workload in workloads()],
        unit="all-reduces of 2 GPUs",
    )


def _utilization() -> Table:
    """Tabulate link rates of the protocols relative to that of RDMA."""
    said = published("ucmerced_protocols")
    rows = []
    rdma = 0.0  # k and rate of RDMA, multiplied
    for protocol in PROTOCOLS:
        mine = [c for c in cells() if CELL_SETS[MAIN](c) and c.protocol == protocol]
        wire = fitted(mine, falling=True)
        name = protocol.removesuffix("/IP")
        claim = said.value(f"{name}_max_interconnect_utilization")
        rdma = rdma or claim * wire.k
        rows.append(
            (
                protocol,
                said.value(f"{protocol}_link"),
                *compared(claim, rdma / wire.k),
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
        rows=rows,
        unit="Gbps",
    )


def needed_bytes(workload: str, samples: float, *, scores: bool) -> float:
    """Estimate the peak memory of a data-parallel rank, bytes.

    ``scores``: whether attention keeps its scores for backward.
    """
    config = Configuration(
        model=preset(MODELS[workload]).model,
        micro_batch=samples,
        global_batch=samples,
        dtype="float16",
        fused_attention=not scores,
    )
    return float(memory(config).total)


def _memory() -> tuple[Table, str]:
    """Compare estimated memory with the runs published as out of memory."""
    chosen = [
        c for c in cells() if c.scaling == "larger_batch" and c.protocol == "RDMA"
    ]
    needed = [
        [needed_bytes(c.workload, c.samples, scores=kept) / 1e9 for c in chosen]
        for kept in (True, False)
    ]
    said = []
    for sizes, name in zip(
        needed, ("that keeps its scores", "that does not"), strict=True
    ):
        pairs = list(zip(chosen, sizes, strict=True))
        low = max(size for cell, size in pairs if not cell.oom)
        high = min(size for cell, size in pairs if cell.oom)
        said.append(
            f"with an attention {name} the largest run that ran needs {low:.0f} GB and "
            f"the smallest that did not {high:.0f} GB"
            + (", which no capacity parts" if low >= high else "")
        )
    table = Table(
        title="The larger batches: what a GPU would have to hold",
        columns=("workload", "cell", "published", "scores kept", "scores not kept"),
        rows=[
            (cell.workload, cell.name, "OOM" if cell.oom else "ran", kept, not_kept)
            for cell, kept, not_kept in zip(chosen, *needed, strict=True)
        ],
        unit="GB",
    )
    return table, (
        "which runs were out of memory, because GPUs, precision, sequence lengths and "
        "micro-batches are not published; assuming our presets' lengths, the whole "
        f"share of a GPU as one micro-batch and fp16 with Adam, {said[0]}; {said[1]}"
    )
