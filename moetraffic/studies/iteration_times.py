"""Published iteration times beside the time model.

Two shares of an A100 are fitted to the even rows of table 1 of SC'21, the host's time a
kernel to the models with experts on H100; everything else is from data sheets, from the
tables' own layouts, or a named fact about the software.  For each table the error of a
fit of all three to all *other* A100 tables stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.time_model import A100, H100, Gpu
from moetraffic.tables import Table

from .measured_times import TABLES, UNSEEN, Measured, korthikanti_table4
from .study import Study, compared, rounded

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
    """Fit a GPU to measured times.

    Parameters
    ----------
    tables
        Of this GPU; each table has the same weight, whatever its number of rows.
    gpu
        Data sheet.
    names
        What is fitted: :data:`SHARES`, :data:`HOST` or both.

    Returns
    -------
    Gpu
        With the values of least mean squared relative error.
    """
    from scipy.optimize import least_squares  # a second: not every verb needs it

    def of(values: Float64) -> Gpu:
        units = zip(names.items(), values, strict=True)
        new: dict[str, Any] = {n: unit * float(x) for (n, (_, unit)), x in units}
        return replace(gpu, **new)

    def residuals(values: Float64) -> Float64:
        parts = [table.errors(of(values)) for table in tables]
        return np.concatenate([part / np.sqrt(len(part)) for part in parts])

    start = [first for first, _ in names.values()]
    return of(least_squares(residuals, start, bounds=(0.01, 1.0)).x)


def reproduce() -> Study:
    """Compare published iteration times with estimates."""
    measured = [table() for table in TABLES]
    mine = [each for each in measured if each.gpu.name == "A100"]
    even = fit_gpu([measured[0].part(slice(1, None, 2))])
    experts = fit_gpu(measured[-1:], H100, HOST)
    single = fit_gpu(measured[3:4], names=HOST)
    rows, fits = [], []
    for each in measured:
        error = np.abs(each.errors())
        others = [one for one in mine if one is not each]
        fit = fit_gpu(others, names={**SHARES, **HOST})
        fitted = {name: getattr(fit, name) for name in (*SHARES, *HOST)}
        away = replace(each.gpu, **fitted)
        left = np.abs(each.errors(away))
        used = np.mean([np.median(one.utilization) for one in others])
        plain = np.abs(each.utilization / used - 1)
        rows.append(
            (
                each.name,
                len(error),
                *rounded((error.mean(), np.median(error), error.max()), 3),
                *rounded((left.mean(), left.max()), 3),
                *rounded((plain.mean(), plain.max()), 3),
            )
        )
        host = fit.dispatch_s * 1e6
        shares = rounded((fit.matmul_share, fit.memory_share), 3)
        fits.append((each.name, *shares, *rounded((host,), 1)))
    return Study(
        name="iteration_times",
        title="Published iteration times and the time model",
        source="the CSV files in moetraffic/data name the source of each table",
        tables=(
            Table(
                title="Relative errors of estimated iteration times",
                columns=(
                    *("table", "rows", "mean", "median", "worst"),
                    *("mean, fitted to the others", "worst, fitted to the others"),
                    *("mean, constant utilization", "worst, constant utilization"),
                ),
                rows=rows,
            ),
            Table(
                title="Fits to all A100 tables but one",
                columns=(
                    *("without", "share of the peak", "share of the memory's rate"),
                    "host, us a kernel",
                ),
                rows=fits,
            ),
            _unseen([table() for table in UNSEEN], mine),
            Table(
                title="Korthikanti et al. 2022, table 4: passes of one layer",
                columns=("configuration", "published ms", "ours ms", "error"),
                rows=[
                    (name, *compared(float(time), ours, 1, 3))
                    for name, time, ours in zip(*korthikanti_table4(), strict=True)
                ],
            ),
            *(rows_of(each) for each in measured if len(each.labels) < 20),
        ),
        not_reproducible=(
            "the time of each term, because the tables have none",
            "what releases of the same software changed, because they are not named: "
            "the same layout of Qwen3-30B-A3B differs by a factor of 2 between two",
        ),
        notes=(
            f"fitted to the even rows of SC'21, table 1: {even.matmul_share:.3f} of "
            f"the peak in matrix products, {even.memory_share:.3f} of the memory's "
            f"rate; used: {A100.matmul_share:.3f} and {A100.memory_share:.3f}, for "
            "H100 too",
            f"host: {A100.dispatch_s * 1e6:.0f} us a kernel, fitted to models with "
            f"experts on H100 ({experts.dispatch_s * 1e6:.1f}); vTrain's single-node "
            f"table alone gives {single.dispatch_s * 1e6:.1f}",
            "SC'21, table 2: pipelines without virtual stages are assumed",
            "constant utilization: FLOP over the peak and the mean utilization of the "
            "other A100 tables",
        ),
    )


def _unseen(tables: Sequence[Measured], known: Sequence[Measured]) -> Table:
    """Tabulate errors of tables that entered no fit, by length of the sequence."""
    used = np.mean([np.median(one.utilization) for one in known])
    rows = []
    for each in tables:
        tokens = np.broadcast_to(each.config.sizes.sequence, each.times.shape)
        for words, some in (
            ("all rows", tokens > 0),
            ("up to 4,096 tokens", tokens <= 4096),
            ("from 8,192 tokens", tokens >= 8192),
        ):
            error, plain = each.errors()[some], each.utilization[some] / used - 1
            mean, worst = np.abs(error).mean(), np.abs(error).max()
            figures = (mean, np.median(np.abs(error)), worst, error.mean())
            rows.append(
                (
                    *(each.name, words, int(some.sum())),
                    *rounded((*figures, np.abs(plain).mean()), 3),
                )
            )
    return Table(
        title="Tables that were not fitted, but looked at",
        columns=(
            *("table", "sequences", "rows", "mean", "median", "worst"),
            *("mean with sign", "mean, constant utilization"),
        ),
        rows=rows,
    )


def rows_of(each: Measured) -> Table:
    """Tabulate published and estimated times row by row."""
    error = each.errors()
    cells = zip(each.labels, each.times, error, strict=True)
    return Table(
        title=each.name,
        columns=("row", "published s", "ours s", "error"),
        rows=[
            (name, *rounded((time, time * (1 + off)), 2), *rounded((off,), 3))
            for name, time, off in cells
        ],
    )
