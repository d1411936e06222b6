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

from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from moetraffic.arrays import Float64
from moetraffic.data import published
from moetraffic.result import Result

from .study import Rows, compared, recomputed, table

PROTOCOLS = ("RDMA", "IPoIB", "TCP/IP")
FALLING = ("IPoIB", "TCP/IP")
"""Protocols whose bandwidth may fall with ranks; RDMA's does not, in any variant."""

MODELS = ("T5-Large", "BERT-Large", "GPT-2-Large", "GPT-2-Medium")

WITHIN = "scaling != 'larger_batch' and gpus > 2"
CELL_SETS = {
    "strong and weak, > 2 GPUs": WITHIN,
    "every cell > 2 GPUs": "gpus > 2",
}
"""What is fitted and compared; the first is the poster's own strong and weak scaling,
in which <4,16> stands twice."""


@cache
def cells() -> pd.DataFrame:
    """All cells of the poster's table; ``fraction`` is NaN of runs out of memory, and
    ``samples`` those of a GPU and iteration."""
    frame = pd.DataFrame(list(published("ucmerced_comm_fraction")))
    numbers = ["gpus", "batch", "fraction"]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    return frame.assign(samples=frame.batch / frame.gpus)


def speedup(protocol: str) -> Float64:
    """Iteration time relative to RDMA, ``[16]`` main cells in the table's order.

    Compute is the same for both, so T / T_RDMA = (1 - f_RDMA) / (1 - f).
    """
    main = cells().query(WITHIN)
    fraction = {p: main[main.protocol == p].fraction.to_numpy() for p in PROTOCOLS}
    return np.asarray((1 - fraction["RDMA"]) / (1 - fraction[protocol]))


# ---- the model ---------------------------------------------------------------------


@cache
def calibration(workload: str) -> tuple[float, float]:
    """Fit the compute constants (a, c) of a workload to its 2-rank cells.

    The poster's three protocols agree there to 0.01: their mean is taken.
    """
    own = cells().query("workload == @workload and gpus == 2")
    mean = own.groupby("samples").fraction.mean()
    ratio = (1 - mean) / mean
    slope = (ratio[8.0] - ratio[4.0]) / 4.0
    return float(ratio[4.0] - 4.0 * slope), float(slope)


def fractions(of: pd.DataFrame, k: float, gamma: float) -> Float64:
    """Predict the communication fractions of cells, ``[n]``."""
    n, s = of.gpus.to_numpy(float), of.samples.to_numpy()
    a, c = np.array([calibration(name) for name in of.workload]).reshape(-1, 2).T
    x = k * 2 * (n - 1) / n * (n / 4) ** gamma
    return np.asarray(x / (x + a + c * s))


def fitted(of: pd.DataFrame, *, falling: bool) -> dict[str, float]:
    """Fit k and gamma of a protocol to the fractions of its cells by least squares.

    ``falling``: whether gamma is fitted, too, of protocols of :data:`FALLING`.
    """
    falls = falling and of.protocol.iloc[0] in FALLING

    def constants(x: Float64) -> dict[str, float]:
        return {"k": float(np.exp(x[0])), "gamma": float(x[1]) if falls else 0.0}

    def off(x: Float64) -> Float64:
        return np.asarray(fractions(of, **constants(x)) - of.fraction.to_numpy())

    return constants(least_squares(off, [1.0, 0.0][: 1 + falls]).x)


def left_out(chosen: str, *, falling: bool, predicted: str = "") -> pd.DataFrame:
    """Predict each cell with a network fitted to the other workloads, column ``ours``.

    ``chosen`` and ``predicted`` (empty: the same) are queries of :func:`cells`.
    """
    ran, parts = cells().dropna(subset="fraction"), []
    for protocol in PROTOCOLS:
        for workload in MODELS:
            own = ran[(ran.protocol == protocol) & (ran.workload == workload)]
            others = ran[(ran.protocol == protocol) & (ran.workload != workload)]
            network = fitted(others.query(chosen), falling=falling)
            own = own.query(predicted or chosen)
            parts.append(own.assign(ours=fractions(own, **network)))
    return pd.concat(parts)


def copied(chosen: str) -> Float64:
    """Compute the errors of predicting a fraction by that of another workload."""
    every = cells().dropna(subset="fraction").query(chosen)
    place = ["protocol", "scaling", "gpus", "batch"]
    pairs = every.merge(every, on=place).query("workload_x != workload_y")
    return np.asarray(pairs.fraction_x - pairs.fraction_y)


# ---- the tables --------------------------------------------------------------------


def reproduce() -> Result:
    """Compare the poster's values with the recomputed ones."""
    constants = [(workload, *calibration(workload)) for workload in MODELS]
    return recomputed(
        "merced",
        "LLM training over RDMA, IPoIB and TCP/IP; Qi, Dai, Chen, Lu, UC Merced",
        {
            "speedups": (
                "times that an iteration takes longer than by RDMA: means over strong "
                "and weak scaling with more than 2 GPUs, <4,16> in both",
                _speedups(),
            ),
            "errors": (
                "of fractions, leaving a workload out: compute is calibrated on its "
                "own 2-rank cells, the network fitted on the other workloads' cells",
                _summary(),
            ),
            "cells": ("<a,b>: <GPUs, global batch>, 2 GPUs a node", _cells()),
            "compute": (
                "in all-reduces of 2 GPUs, from the workload's own 2-rank cells",
                table("workload constant per_sample", constants),
            ),
            "rates": ("Gbps, scaled to RDMA's 60 at 4 ranks; ours: means", _rates()),
        },
        (
            "iteration times and throughput, because the poster has fractions only",
            "the rates 60, 20 and 9 Gbps, because only their ratios follow from "
            "fractions",
            "which runs were out of memory, because GPUs, precision, lengths and "
            "micro-batches are not given: no capacity parts those that ran, by the "
            "memory that estimate states, from the others",
        ),
    )


def _speedups() -> Rows:
    said = published("ucmerced_protocols")
    rows = []
    for protocol, key in (("IPoIB", "IPoIB"), ("TCP/IP", "TCP")):
        each = speedup(protocol)
        claim = said.value(f"RDMA_speedup_over_{key}_iteration_time_avg")
        ends = float(each.min()), float(each.max())
        rows.append((protocol, *compared(claim, each.mean()), *ends, len(each)))
    return table("over published ours error least most cells", rows)


def _summary() -> Rows:
    rows = []
    for name, chosen in CELL_SETS.items():
        ring, falls = (left_out(chosen, falling=falling) for falling in (False, True))
        for model, off in (
            ("pure ring", ring.ours - ring.fraction),
            ("IPoIB, TCP/IP fall with ranks", falls.ours - falls.fraction),
            ("another workload's cell copied", copied(chosen)),
        ):
            away = np.abs(off)
            rows.append((name, model, len(off), float(away.mean()), float(away.max())))
    return table("cells model predictions mean_absolute_error worst", rows)


def _cells() -> Rows:
    # the network of a larger batch is that of the strong and weak scaling
    every = CELL_SETS["every cell > 2 GPUs"]
    ours = left_out(WITHIN, falling=True, predicted=every).ours
    rows = []
    for index, cell in cells().query(every).iterrows():
        head = *cell[["workload", "protocol", "scaling"]], f"<{cell.gpus},{cell.batch}>"
        if np.isnan(cell.fraction):
            rows.append((*head, "OOM", None, None))
        else:
            made = float(ours[index])
            rows.append((*head, cell.fraction, made, made - cell.fraction))
    return table("workload protocol scaling cell published ours difference", rows)


def _rates() -> Rows:
    """Tabulate link rates of the protocols relative to that of RDMA."""
    said = published("ucmerced_protocols")
    rows = []
    rdma = 0.0  # k and rate of RDMA, multiplied
    for protocol in PROTOCOLS:
        own = cells().query(WITHIN).query("protocol == @protocol")
        k, gamma = fitted(own, falling=True).values()
        name = protocol.removesuffix("/IP")
        claim = said.value(f"{name}_max_interconnect_utilization")
        rdma = rdma or claim * k
        how = "given" if protocol == "RDMA" else "predicted"
        link = said.value(f"{protocol}_link")
        rows.append((protocol, link, *compared(claim, rdma / k), k, gamma, how))
    return table("protocol link_gbps published ours error k gamma how", rows)
