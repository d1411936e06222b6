"""Megatron-LM on 3072 A100s: iteration times of ten models, from half of them.

The table has achieved FLOP/s; with the paper's equation 3 an iteration's time follows.
The model's network is what the paper says of its nodes; utilization and overheads are
fitted to five of the ten rows, in all 252 ways, and judged on the five others.

References
----------
D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM", SC'21, arXiv 2104.04473: table 1, equations 2 and 3, section 5.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from moetraffic.data import published
from moetraffic.patterns.time_model import (
    Architecture,
    Calibration,
    Configuration,
    NodeLinks,
    System,
    calibrate,
    estimate,
    half_splits,
    operations,
)
from moetraffic.tables import Table

from .study import Study, compared, rounded

Float64 = npt.NDArray[np.float64]

FITTED = ("utilization", "layer_overhead_s", "iteration_overhead_s")

TARGET = 0.06
"""Median relative error that the model has to stay below."""


def table() -> tuple[Configuration, Float64, dict[str, Float64]]:
    """Return configurations, iteration times and columns of table 1 of SC'21."""
    rows = list(published("megatron_sc21_table1"))
    column = {
        name: np.array([float(row[name]) for row in rows])
        for name in rows[0]
        if name != "recompute"
    }
    model = Architecture.gpt(
        layers=column["layers"],
        hidden=column["hidden"],
        heads=column["heads"],
        sequence=column["seq"],
        vocabulary=column["vocab"],
    )
    config = Configuration(
        model=model,
        tp=column["t"],
        pp=column["p"],
        dp=column["d"],
        virtual=column["v_interleave"],
        micro_batch=column["microbatch"],
        global_batch=column["batch"],
        recompute=[row["recompute"] for row in rows],
        scatter_gather=True,  # section 4.1
    )
    return config, column["iter_time_s_derived"], column


def system() -> System:
    """Create the model of the A100 nodes with nominal rates, without fitted values."""
    return System(
        peak_flops=312e12,  # A100, fp16: section 5.1
        bandwidth=NodeLinks(
            gpus=8,
            # NVLink and NVSwitch each way: 600 GB/s both ways (A100's datasheet)
            inside_bytes_s=300e9,
            # eight 200 Gb/s HDR adapters a node: section 5
            nic_bytes_s=8 * 25e9,
        ),
        memory_bytes=80e9,
        memory_bytes_s=2.039e12,  # A100 80GB's datasheet
    )


def reproduce() -> Study:
    """Compare table 1 with the recomputed values."""
    config, times, column = table()
    fit = calibrate(config, times, system(), FITTED)
    return Study(
        name="sc21",
        title="Megatron-LM on up to 3072 A100s",
        source="Narayanan et al., SC'21 (arXiv 2104.04473), table 1",
        tables=(
            _iterations(config, times, column, fit),
            _splits(config, times),
            _sizes(config, column),
        ),
        not_reproducible=(
            "the iteration times themselves, because the table prints FLOP/s a GPU: "
            "times are F/(n X) with F of equation 3, to the three digits of X",
            "the time of each term, because the paper has no breakdown: how the rest "
            "is divided between computing and overheads is the fit's, not measured",
        ),
        notes=(
            f"fitted to all ten rows: u = {fit.fitted['utilization']:.3f}, "
            f"{fit.fitted['layer_overhead_s'] * 1e3:.2f} ms a layer and micro-batch, "
            f"{fit.fitted['iteration_overhead_s']:.2f} s an iteration",
            "the column 'held out' is the median over the 126 splits whose other half "
            "the row is in",
            "the worst errors are those of the smallest models where large ones alone "
            "were fitted: overheads, a quarter of their time, are then undetermined",
            "network: 300 GB/s inside a node, 200 GB/s of NICs shared by its eight "
            "GPUs, both nominal rates: nothing of it is fitted",
        ),
    )


def _iterations(
    config: Configuration, times: Float64, column: dict[str, Float64], fit: Calibration
) -> Table:
    splits = half_splits(config, times, system(), FITTED)
    # the held-out rows of each split, in its order
    every = set(range(len(times)))
    fits = combinations(range(len(times)), len(times) // 2)
    unseen = np.array([sorted(every - set(rows)) for rows in fits])
    rows = []
    for at, time in enumerate(times):
        middle = np.median(splits.errors[unseen == at])
        rows.append(
            (
                f"{column['params_B'][at]:g}B on {column['gpus'][at]:g}",
                *rounded((time, fit.predicted[at]), 3),
                *rounded((fit.residuals[at],), 4),
                *rounded((time * (1 + middle),), 3),
                *rounded((middle,), 4),
            )
        )
    return Table(
        title="Iteration time: fitted to all rows, and held out",
        columns=(
            *("model", "published", "ours, fitted", "error"),
            *("ours, held out", "its error"),
        ),
        rows=rows,
        unit="s",
    )


def _splits(config: Configuration, times: Float64) -> Table:
    rows = []
    for unknowns in (FITTED[:1], FITTED[:2], FITTED[::2], FITTED):
        found = half_splits(config, times, system(), unknowns)
        ninth = np.quantile(np.abs(found.errors), 0.9)
        words = (name.removesuffix("_s").replace("_", " ") for name in unknowns)
        rows.append(
            (
                ", ".join(words),
                found.splits,
                *rounded((found.median, ninth, found.worst), 4),
                found.median <= TARGET,
            )
        )
    return Table(
        title="Error of the half that was not fitted, over all splits",
        columns=("fitted", "splits", "median", "90%", "worst", f"median <= {TARGET}"),
        rows=rows,
        unit="relative",
    )


def _sizes(config: Configuration, column: dict[str, Float64]) -> Table:
    """Tabulate parameters, FLOP and memory of the models, which need no fit."""
    work = operations(config).all * config.micro_batches * config.world
    flops = work / (column["iter_time_s_derived"] * column["gpus"]) / 1e12
    needed = estimate(config, system()).memory.total / 1e9
    rows = []
    for at, size in enumerate(column["params_B"]):
        rows.append(
            (
                f"{size:g}B",
                *compared(float(size), config.model.parameters[at] / 1e9, 2, 4),
                *compared(float(column["tflops_per_gpu"][at]), flops[at], 2, 5),
                *rounded((needed[at],), 1),
            )
        )
    return Table(
        title="Parameters (equation 2), FLOP (equation 3), memory of the first stage",
        columns=(
            *("model", "published B", "ours B", "error", "TFLOP/s a GPU"),
            "by equation 3",
            *("its error", "memory GB of 80"),
        ),
        rows=rows,
    )
