"""Tune forecasters: choose each one's setting on the validation part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .candidates import FLAT, Candidate, SeriesBlock
from .origins import Split

Float64 = npt.NDArray[np.float64]

AT_ONCE = 1 << 22
"""Values of series and of their moments in memory at a time."""


def slices(cut: Split, cells: int, max_order: int) -> list[slice]:
    """Split cells into blocks that fit into memory.

    Parameters
    ----------
    cut
        Of the series.
    cells
        C.
    max_order
        Of the autoregressions.

    Returns
    -------
    list of slice
    """
    moments = (3 * len(cut.refits()) + 8) * (max_order + 2) ** 2
    width = max(1, min(AT_ONCE // max(cut.steps, 1), AT_ONCE // moments))
    return [slice(a, min(a + width, cells)) for a in range(0, cells, width)]


def block_of(
    series: npt.NDArray[np.generic], part: slice, cut: Split, max_order: int
) -> SeriesBlock:
    """Copy a block of cells of series ``[T, C]`` to contiguous memory.

    Parameters
    ----------
    series
        ``[T, C]``.
    part
        Of the cells.
    cut, max_order
        As in :class:`SeriesBlock`.

    Returns
    -------
    SeriesBlock
    """
    values = np.ascontiguousarray(np.asarray(series[:, part]).T, np.float64)
    return SeriesBlock(values, cut, max_order=max_order)


def tune(
    series: npt.NDArray[np.generic],
    scale: Float64,
    cut: Split,
    tried: Sequence[Candidate],
    horizons: Sequence[int],
    *,
    max_order: int = 8,
    whole: SeriesBlock | None = None,
) -> dict[int, list[tuple[Candidate, float]]]:
    """Choose the best setting of each forecaster on the validation part.

    Parameters
    ----------
    series
        ``[T, C]``.
    scale
        ``[C]`` what errors are multiplied by.
    cut
        Of the series.
    tried
        Forecasters and settings, the simplest first: of two that are as good, the
        first is taken.
    horizons
        Iterations ahead, for each of which is chosen apart.
    max_order
        Of the autoregressions.
    whole
        All cells as one block, where they fit into one: what it computes serves again.

    Returns
    -------
    dict of int to list
        By horizon: the best setting of each family and its mean squared error, the best
        family first.
    """
    errors = np.zeros((len(tried), len(horizons)))
    values = np.zeros(len(horizons))
    parts = slices(cut, series.shape[1], max_order) if horizons else []
    origins = [cut.validation(h) for h in horizons]
    longest = max(origins, key=len, default=np.zeros(0, np.int64))
    for part in parts:
        block = whole or block_of(series, part, cut, max_order)
        square = scale[part] ** 2
        reach = zip(origins, horizons, strict=True)
        targets = [block.series[:, o + h] for o, h in reach]
        known = [
            np.isfinite(t) & np.isfinite(block.held[:, o])
            for o, t in zip(origins, targets, strict=True)
        ]
        values += [k.sum() for k in known]
        for row, candidate in enumerate(tried):
            flat = candidate.family in FLAT
            level = block.forecast(candidate, longest, 1) if flat else None
            for column, h in enumerate(horizons):
                o = origins[column]
                # origins of a longer horizon are the first of those of a shorter one
                made = (
                    level[:, : len(o)]
                    if level is not None
                    else block.forecast(candidate, o, h)
                )
                miss = made - targets[column]
                if not known[column].all():
                    miss[~known[column]] = 0.0
                own = np.einsum("cn,cn->c", miss, miss)
                errors[row, column] += float((own * square).sum())
    return {
        h: _ranked(tried, errors[:, column], float(values[column]))
        for column, h in enumerate(horizons)
    }


def _ranked(
    tried: Sequence[Candidate], errors: Float64, values: float
) -> list[tuple[Candidate, float]]:
    """Rank the families of forecasters, each with its best setting."""
    best: dict[str, tuple[Candidate, float]] = {}
    for candidate, error in zip(tried, errors.tolist(), strict=True):
        mse = error / values if values else float("nan")
        held = best.get(candidate.family)
        # what is better by rounding alone is not better
        if held is None or mse < held[1] * (1 - 1e-9):
            best[candidate.family] = (candidate, mse)
    first = next(iter(best.values()))
    for entry in best.values():
        if entry[1] < first[1] * (1 - 1e-9):
            first = entry
    return [first, *(e for e in best.values() if e is not first)]
