r"""Moments of statistics of large matrices under a balanced router, from few draws.

Each row of a matrix is one source, and sources are independent.  Few matrices of many
rows therefore contain enough draws of rows.

- Most statistics s are nearly functions of sums over rows.  With the sums
  :math:`x = \sum_r x_r` of some functions of a row's counts, :math:`\beta` and the rest
  of a linear regression of s on x over the drawn matrices,

  .. math:: \operatorname{Var} s = W \beta' \operatorname{Cov}(x_r) \beta
            + \operatorname{Var}(s - \beta' x), \qquad
            \operatorname{E} s = \bar s + \beta' (\operatorname{E} x - \bar x).

  The covariance of rows is estimated from all rows, W times as many as matrices, the
  mean of x is exact, and what regression leaves is small (control variates).  The
  exact standard deviation of CV^2 of all cells corrects those of the others.
- The largest cell has the distribution :math:`F^K` of the largest of K independent
  cells: the correlation of the cells of a row, -1/(C - 1), changes :math:`\log F^K` by
  about :math:`-z^2/2K`, with z the largest cell in standard deviations.
- Statistics of row and column sums are simulated as such, C cells a draw: without the
  diagonal, a column sum has the counts of W - 1 sources, and two of them the
  correlation :math:`-(W - 2)/(W - 1)^2`.

References
----------
P. Glasserman, Monte Carlo Methods in Financial Engineering, 2003, 4.1 (control
variates).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.arrays import Float64, Integer

from .closed_forms import std_cv_squared
from .normal_counts import count_distribution, count_variance, normal_counts
from .null_model import AT_ONCE, LEAST_VARIANCE, Moments, NullModel, correction

Cells = Callable[[Integer], Float64]

LARGE_CELLS, ENOUGH_ROWS = 4096, 16
"""Cells above which, and rows from which on moments are computed this way."""

FEWER, FEWEST = 4, 64
"""Factor by which fewer matrices are drawn than of small ones, and their minimum."""

BINS = 1 << 16
"""Maximum number of counts at which functions of a cell are tabulated."""

ROUNDING = 1e-9
"""Variation of a sum over rows, relative to the largest, that is due to rounding."""

OF_LARGEST = {"max_over_mean": 0.0, "max_violation": 1.0}
"""Statistics of the largest cell, and what they subtract from max over mean."""

OF_LINES = ("line_efficiency",)
"""Statistics of column sums.  The rows of a matrix with a diagonal have equal sums, and
without it row sums vary as one cell does, less than column sums."""


def by_rows(model: NullModel, tokens: int, *, diagonal: bool) -> bool:
    """Return whether matrices are large enough for :func:`row_moments`."""
    of = {"experts": model.experts, "k": model.k, "held": model.held}
    columns = count_variance((model.sources - 1) * tokens, **of)
    return (
        model.sources * model.cells > LARGE_CELLS
        and model.sources >= ENOUGH_ROWS
        and 0 < model.k < model.experts
        and tokens > 1
        and (diagonal or columns >= LEAST_VARIANCE)
    )


def row_moments(
    model: NullModel,
    measures: tuple[str, ...],
    received: tuple[str, ...],
    tokens: int,
    *,
    diagonal: bool,
    seed: int = 0,
) -> Moments:
    """Estimate mean and standard deviation of statistics of a large matrix.

    Parameters
    ----------
    measures
        Properties of :class:`moetraffic.analysis.skew.kernels.MatrixStatistics`.
    received
        Such properties of the column sums, returned as ``received.<measure>``.
    diagonal
        False leaves the diagonal out.
    """
    columns = [name for name in measures if name in OF_LINES]
    smooth = [name for name in measures if name not in {*OF_LARGEST, *OF_LINES}]
    found: dict[str, tuple[float, float]] = {}
    if columns or received:
        found |= _of_columns(model, columns, received, tokens, diagonal, seed)
    if not OF_LARGEST.keys().isdisjoint(measures):
        mean, std = _largest(model, tokens, diagonal)
        found |= {
            name: (mean - less, std)
            for name, less in OF_LARGEST.items()
            if name in measures
        }
    if smooth:
        found |= _regressed(model, smooth, tokens, diagonal, seed)
    return found


def _of_columns(
    model: NullModel,
    measures: list[str],
    received: tuple[str, ...],
    tokens: int,
    diagonal: bool,
    seed: int,
) -> Moments:
    """Estimate moments of statistics of column sums, which are drawn as such."""
    names = {name: name for name in measures}
    names |= {f"received.{name}": name for name in received}
    names |= {"": "cv_squared"}
    single = NullModel(experts=model.experts, k=model.k, ranks=model.ranks)
    total = tokens * (model.sources - (not diagonal))
    draws = single.enough_draws(total)
    at_once = max(1, AT_ONCE // model.cells)
    parts: dict[str, list[Float64]] = {name: [] for name in names}
    for part, first in enumerate(range(0, draws, at_once)):
        some, own = min(at_once, draws - first), seed + part
        if diagonal:
            sums = single.matrices(total, draws=some, seed=own)
        else:
            sums = normal_counts(
                (some, 1, model.cells),
                tokens=total,
                k=model.k,
                held=model.held,
                seed=own,
                sum_variance=1 / (model.cells - 1),
            )
        of = matrix_statistics(sums)
        for name, plain in names.items():
            parts[name].append(np.asarray(getattr(of, plain), np.float64))
    values = {name: np.concatenate(each) for name, each in parts.items()}
    squares = values.pop("")
    factor = _std_of_columns(model, total, diagonal) / float(squares.std(ddof=1))
    return {
        name: (
            float(value.mean()),
            float(value.std(ddof=1)) * correction(value, squares, factor),
        )
        for name, value in values.items()
    }


def _std_of_columns(model: NullModel, total: int, diagonal: bool) -> float:
    """Compute the standard deviation of CV^2 of column sums.

    Without the diagonal they are close to normal: their squares have a chi-square
    distribution.
    """
    of, cells = (total, model.experts, model.k), model.cells
    if diagonal:
        return std_cv_squared(*of, 1, held=model.held)
    spread = count_variance(total, experts=model.experts, k=model.k, held=model.held)
    spread *= (cells - 1 / (cells - 1)) / (cells - 1)  # about their mean
    mean = total * model.k / cells
    return float(spread * np.sqrt(2 * (cells - 1)) / (cells * mean**2))


def _largest(model: NullModel, tokens: int, diagonal: bool) -> tuple[float, float]:
    """Compute mean and standard deviation of the largest over the mean cell."""
    count, chance = count_distribution(
        tokens, experts=model.experts, k=model.k, held=model.held
    )
    cells = model.sources * (model.cells - (not diagonal))
    below = np.minimum(np.cumsum(chance), 1.0) ** cells
    weight = np.diff(below, prepend=0.0) / below[-1]
    share = count / (tokens * model.k / model.cells)
    mean = float(weight @ share)
    return mean, float(np.sqrt(weight @ (share - mean) ** 2))


def _regressed(
    model: NullModel, measures: list[str], tokens: int, diagonal: bool, seed: int
) -> Moments:
    """Estimate moments of statistics by regression on sums over rows."""
    count, chance = count_distribution(
        tokens, experts=model.experts, k=model.k, held=model.held
    )
    first, step = int(count[0]), 1 + int(count[-1] - count[0]) // BINS
    last = int(count[-1] - first) // step

    def bins(counts: Integer) -> npt.NDArray[np.intp]:
        found = (counts - first) // step if step > 1 else counts - first
        return found.astype(np.intp)

    weight = np.asarray(np.bincount(bins(count), chance), np.float64)
    level = (first + step * np.arange(last + 1)).astype(np.float64)
    mean = tokens * model.k / model.cells
    table = _of_cell(level, weight, mean)
    at, cells = np.arange(model.sources), model.sources * model.cells

    def statistics(counts: Integer) -> dict[str, npt.ArrayLike]:
        of = matrix_statistics(counts, diagonal=diagonal)
        found: dict[str, npt.ArrayLike] = {n: getattr(of, n) for n in measures}
        entry = bins(counts)
        # counts beyond the tails of their distribution are taken for its ends
        sums = [f.take(entry, mode="clip").sum(axis=2) for f in table]
        total = np.asarray(counts.sum(axis=(1, 2)), np.float64)
        apart = cells * sums[0].sum(axis=1) - (total - cells * mean) ** 2
        found["whole"] = apart / total**2
        if not diagonal:
            own = np.clip(entry[:, at, at], 0, last)
            lines = level[own] - mean
            sums = [total - f[own] for total, f in zip(sums, table, strict=True)]
            sums += [lines, lines**2]
        return found | {"rows": np.stack(sums, axis=2)}

    draws = max(FEWEST, model.enough_draws(tokens) // FEWER)
    values = model.simulate(statistics, tokens, draws=draws, seed=seed)
    rows = values.pop("rows")
    expected = table @ weight * (model.cells - (not diagonal))
    if not diagonal:
        lines = level - mean
        expected = np.append(expected, [lines @ weight, lines**2 @ weight])
    # of the order of 1, as least squares are solved to a relative precision, without
    # what varies by rounding alone
    rows = rows - expected
    spread = rows.std(axis=(0, 1))
    varies = spread > ROUNDING * spread.max()
    rows = rows[..., varies] / spread[varies]
    covariance = model.sources * np.cov(rows.reshape(-1, rows.shape[2]).T)
    sums = rows.sum(axis=1)
    bias = sums.mean(axis=0)
    found = {}
    for name, value in values.items():
        around = float(value.mean())
        slope, _, rank, _ = np.linalg.lstsq(sums - bias, value - around)
        rest = value - around - (sums - bias) @ slope
        variance = float(slope @ covariance @ slope)
        variance += float(rest @ rest) / (draws - 1 - int(rank))
        found[name] = around - float(slope @ bias), float(np.sqrt(variance))
    # CV^2 of all cells, the diagonal included
    reference, (_, std) = values["whole"], found.pop("whole")
    law = (tokens, model.experts, model.k, model.sources)
    factor = std_cv_squared(*law, held=model.held) / std
    return {
        name: (value, std * correction(values[name], reference, factor))
        for name, (value, std) in found.items()
    }


def _of_cell(n: Float64, weight: Float64, mean: float) -> Float64:
    """Tabulate functions of a count whose sums determine statistics, ``[4, counts]``.

    The squared deviation (CV), n log n (entropies), both without their linear part,
    the mean distance from another cell (Gini), and the count: the sums of counts drawn
    from normal variates vary a little.
    """
    slope = 2 * np.cumsum(weight) - 1
    apart = np.cumsum(slope) - slope
    bits = n * np.log2(np.maximum(n, 1) / mean) - (n - mean) / np.log(2)
    return np.array([(n - mean) ** 2, bits, apart, n - mean])
