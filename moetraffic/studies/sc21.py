"""Megatron-LM on 3072 A100s: parameters, FLOP, memory and times of ten models.

The table has achieved FLOP/s; with the paper's equation 3 an iteration's time follows.

References
----------
D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM", SC'21, arXiv 2104.04473: tables 1 and 2, equations 2 and 3,
section 5.
"""

from __future__ import annotations

from moetraffic.data import published
from moetraffic.patterns.time_model import MODEL_ERROR, estimate, operations
from moetraffic.tables import Table

from .iteration_times import rows_of
from .measured_times import Measured, sc21_table1, sc21_table2
from .study import Study, compared, rounded


def reproduce() -> Study:
    """Compare tables 1 and 2 with the recomputed values."""
    first, second = sc21_table1(), sc21_table2()
    return Study(
        name="sc21",
        title="Megatron-LM on up to 3072 A100s",
        source="Narayanan et al., SC'21 (arXiv 2104.04473), tables 1 and 2",
        tables=(rows_of(first), rows_of(second), _ranking(second), _sizes(first)),
        not_reproducible=(
            "the iteration times themselves, because the tables print FLOP/s a GPU: "
            "times are F/(n X) with F of equation 3, to the three digits of X",
            "the time of each term, because the paper has no breakdown",
            "all of ZeRO-3's time on many GPUs, because the paper states neither the "
            "version of DeepSpeed nor its settings: with the copies and waits of its "
            "code of 2021 up to a quarter is missing here",
        ),
        notes=(
            "two shares of an A100 are fitted to the even rows of table 1: see "
            "moetraffic reproduce iteration_times",
            "network: 300 GB/s inside a node, 200 GB/s of NICs shared by eight "
            "GPUs; large collectives get 77% inside, and 50% of the NICs (pipelines "
            "37%), which the paper measured (section 5.9)",
        ),
    )


def _ranking(second: Measured) -> Table:
    """Tabulate which of both ways is faster, where the model's error leaves it open."""
    c = second.config
    published_s, ours_s = (
        times * c.world / c.sequences
        for times in (second.times, second.times * (1 + second.errors()))
    )
    half = len(second.labels) // 2  # ZeRO-3's rows, then those of PTD
    rows = []
    for zero, ptd in zip(range(half), range(half, 2 * half), strict=True):
        ratios = [float(of[zero] / of[ptd]) for of in (published_s, ours_s)]
        said = "PTD" if ratios[1] > 1 else "ZeRO-3"
        if abs(ratios[1] - 1) < MODEL_ERROR:
            said = "cannot be ranked"
        faster = "PTD" if ratios[0] > 1 else "ZeRO-3"
        pair = f"{second.labels[zero]}, {second.labels[ptd]}"
        rows.append((pair, *rounded(ratios, 3), faster, said))
    return Table(
        title="GPU time of a sequence, ZeRO-3 over PTD; differences below the model's "
        f"error of {MODEL_ERROR:.0%} are not ranked",
        columns=("rows", "published", "ours", "faster, published", "faster, ours"),
        rows=rows,
    )


def _sizes(first: Measured) -> Table:
    """Tabulate parameters, FLOP and memory of the models, which need no fit."""
    config, rows_ = first.config, list(published("megatron_sc21_table1"))
    column = {
        name: [float(row[name]) for row in rows_]
        for name in ("params_B", "gpus", "tflops_per_gpu")
    }
    work = operations(config).all * config.accumulation * config.world
    flops = work / (first.times * column["gpus"]) / 1e12
    needed = estimate(config, first.system()).memory.total / 1e9
    rows = []
    for at, size in enumerate(column["params_B"]):
        rows.append(
            (
                f"{size:g}B",
                *compared(float(size), config.sizes.parameters[at] / 1e9, 2, 4),
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
