"""Published iteration times beside the time model, and SC'21's tables 1 and 2.

Two shares of an A100 are fitted to the even rows of table 1 of SC'21, the host's time a
kernel to the models with experts on H100; everything else is from data sheets, from the
tables' own layouts, or a named fact about the software.  For each table the error of a
fit of all three to all *other* A100 tables stands beside it.

References
----------
D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM", SC'21, arXiv 2104.04473: tables 1 and 2, section
5.  ``moetraffic/data`` names the sources of the other tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from moetraffic.arrays import Float64
from moetraffic.result import Result
from moetraffic.timemodel import A100, H100, MODEL_ERROR, Gpu

from .published_times import TABLES, UNSEEN, Measured, sc21_table1
from .study import Rows, recomputed, rounded, table

SHARES: Mapping[str, tuple[float, float]] = {
    "matmul_share": (0.7, 1.0),
    "memory_share": (0.8, 1.0),
}
HOST: Mapping[str, tuple[float, float]] = {"dispatch_s": (0.4, 1e-4)}
"""Fitted fields of a GPU: where a fit starts, and in which unit; up to 1 of it."""


def fit_gpu(
    tables: Sequence[Measured],
    gpu: Gpu = A100,
    names: Mapping[str, tuple[float, float]] = SHARES,
) -> Gpu:
    """Fit fields of a GPU, :data:`SHARES`, :data:`HOST` or both, to measured times by
    least mean squared relative errors; each table has the same weight."""

    def of(values: Float64) -> Gpu:
        units = zip(names.items(), values, strict=True)
        new: dict[str, Any] = {n: unit * float(x) for (n, (_, unit)), x in units}
        return replace(gpu, **new)

    def residuals(values: Float64) -> Float64:
        parts = [measured.errors(of(values)) for measured in tables]
        return np.concatenate([part / np.sqrt(len(part)) for part in parts])

    start = [first for first, _ in names.values()]
    return of(least_squares(residuals, start, bounds=(0.01, 1.0)).x)


def reproduce() -> Result:
    """Compare published iteration times with estimates."""
    measured = [make() for make in TABLES]
    a100 = [m for m in measured if m.gpu.name == "A100"]
    even = fit_gpu([sc21_table1(slice(1, None, 2))])
    experts = fit_gpu(measured[-1:], H100, HOST)
    single = fit_gpu(measured[3:4], names=HOST)
    shown = (m for m in measured if len(m.labels) < 20)
    return recomputed(
        "iteration_times",
        "published iteration times and the time model; moetraffic/data has the sources",
        {
            "errors": (
                "left out: constants fitted to the other A100 tables (peak share, "
                "memory share, us of the host for a kernel); constant: FLOP over the "
                "peak and those tables' mean utilization. Used: "
                f"{A100.matmul_share:.3f}, {A100.memory_share:.3f}, from even rows of "
                f"SC'21, table 1 ({even.matmul_share:.3f}, {even.memory_share:.3f}), "
                f"and {A100.dispatch_s * 1e6:.0f} us, from experts on H100 "
                f"({experts.dispatch_s * 1e6:.1f}); vTrain's single node alone gives "
                f"{single.dispatch_s * 1e6:.1f}",
                _errors(measured, a100),
            ),
            "not_fitted": (
                "tables that were not fitted, but looked at",
                _unseen([make() for make in UNSEEN], a100),
            ),
            **{
                key: (f"s of an iteration: {m.name}", _times(m))
                for key, m in zip(SHOWN, shown, strict=True)
            },
            "sc21_ranking": (
                "GPU time of a sequence, ZeRO-3 over PTD; differences below the "
                f"model's error of {MODEL_ERROR:.0%} are not ranked",
                _ranking(measured[4]),
            ),
        },
        (
            "the time of each term, because the tables have none",
            "what releases of the same software changed, because they are not named: "
            "the same layout of Qwen3-30B-A3B differs by a factor of 2 between two",
            "SC'21's times themselves, because its tables have FLOP/s of a GPU: times "
            "are F/(n X) with F of equation 3, to the three digits of X",
            "all of ZeRO-3's time on many GPUs, because SC'21 does not state version "
            "and settings of DeepSpeed: up to a quarter is missing here",
        ),
    )


SHOWN = ("sc21_table1", "table5", "sc21_table2", "h100_dense", "h100_experts")
"""Names of the tables that are short enough to be shown row by row."""


def _errors(measured: list[Measured], a100: list[Measured]) -> Rows:
    """Tabulate errors of each table, and the constants fitted without it."""
    rows = []
    for m in measured:
        others = [other for other in a100 if other is not m]
        fit = fit_gpu(others, names={**SHARES, **HOST})
        fitted = {name: getattr(fit, name) for name in (*SHARES, *HOST)}
        used = np.mean([np.median(other.utilization) for other in others])
        error, left, plain = (
            np.abs(of)
            for of in (
                m.errors(),
                m.errors(replace(m.gpu, **fitted)),
                m.utilization / used - 1,
            )
        )
        cells = (
            *(error.mean(), np.median(error), error.max(), left.mean(), left.max()),
            *(plain.mean(), plain.max(), fit.matmul_share, fit.memory_share),
            fit.dispatch_s * 1e6,
        )
        rows.append((m.name, len(error), *rounded(cells, 3)))
    names = "of rows mean_error median_error largest_error mean_error_left_out"
    names += " largest_error_left_out mean_error_constant largest_error_constant"
    return table(f"{names} peak_share memory_share host_us", rows)


def _unseen(tables: Sequence[Measured], known: Sequence[Measured]) -> Rows:
    """Tabulate errors of tables that entered no fit, by length of the sequence."""
    used = np.mean([np.median(m.utilization) for m in known])
    rows = []
    for m in tables:
        tokens = np.broadcast_to(m.config.sizes.sequence, m.times.shape)
        for words, some in (
            ("all rows", tokens > 0),
            ("up to 4,096 tokens", tokens <= 4096),
            ("from 8,192 tokens", tokens >= 8192),
        ):
            error, plain = m.errors()[some], m.utilization[some] / used - 1
            away = np.abs(error)
            cells = (
                *(away.mean(), np.median(away), away.max(), error.mean()),
                np.abs(plain).mean(),
            )
            rows.append((m.name, words, int(some.sum()), *rounded(cells, 3)))
    names = "of sequences rows mean_error median_error largest_error mean_with_sign"
    return table(f"{names} mean_error_constant", rows)


def _times(m: Measured) -> Rows:
    """Tabulate published and estimated times row by row."""
    cells = zip(m.labels, m.times, m.errors(), strict=True)
    return table(
        "of published ours error",
        (
            (name, *rounded((time, time * (1 + off)), 2), *rounded((off,), 3))
            for name, time, off in cells
        ),
    )


def _ranking(second: Measured) -> Rows:
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
        faster, ours = ("PTD" if ratio > 1 else "ZeRO-3" for ratio in ratios)
        if abs(ratios[1] - 1) < MODEL_ERROR:
            ours = "cannot be ranked"
        pair = f"{second.labels[zero]}, {second.labels[ptd]}"
        rows.append((pair, *rounded(ratios, 3), faster, ours))
    return table("of published ours faster faster_ours", rows)
