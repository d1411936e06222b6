"""Floors of an exchange: what a balanced gate makes of all its measures, drawn once.

:mod:`.noise_floors` gives the floor of one measure; an exchange has a dozen, of
matrices that may be large.  Here a set of balanced matrices is drawn once for each
number of tokens, and all measures are taken of it.  Where steps differ in their tokens,
floors are drawn at a few numbers and read between them: they are smooth in the number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.analysis.skew.measures import MEASURES

from .balanced_router import balanced_counts
from .noise_floors import NoiseFloor, noise_floor

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Floors = dict[str, NoiseFloor]

DRAWN_CELLS = 1 << 23
"""Of the matrices that are drawn for a number of tokens."""

AT_ONCE = 1 << 21
"""Of these, in memory at a time."""

FEWEST, MOST = 16, 400
"""Matrices that are drawn."""

GRID = 8
"""Numbers of tokens at which floors are drawn; between them they are interpolated."""


def load_floors(
    tokens: Int64, measures: Sequence[str], *, experts: int, k: int
) -> Floors:
    """Floors of the load of each expert.

    Parameters
    ----------
    tokens
        ``[T]`` of all ranks together.
    measures
        Names of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    experts, k
        E, and how many distinct experts a token has.

    Returns
    -------
    dict of str to NoiseFloor
        Arrays ``[T]``.
    """

    def at(numbers: Int64) -> Floors:
        return {m: noise_floor(m, numbers, experts=experts, k=k) for m in measures}

    return _on_grid(at, tokens)


def matrix_floors(
    tokens: Int64,
    measures: Sequence[str],
    *,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None = None,
    received: Sequence[str] = (),
) -> Floors:
    """Floors of a matrix, and of what its columns add up to.

    Parameters
    ----------
    tokens
        ``[T]`` of each source.
    measures
        Properties of :class:`moetraffic.analysis.skew.kernels.MatrixStatistics`.
    experts, k, sources
        E, k and W.
    ranks
        None: the matrix is W x E.  R, equal to W: the matrix between ranks that hold
        E/R experts each, without its diagonal.
    received
        Names of :data:`moetraffic.analysis.skew.measures.MEASURES`, of the column sums:
        in the result as ``received.<measure>``.

    Returns
    -------
    dict of str to NoiseFloor
        Arrays ``[T]``; drawn, always the same.
    """

    def at(numbers: Int64) -> Floors:
        each = [
            _drawn(int(n), measures, received, experts, k, sources, ranks)
            for n in numbers
        ]
        return {
            name: NoiseFloor(
                mean=np.array([e[name][0] for e in each]),
                std=np.array([e[name][1] for e in each]),
            )
            for name in each[0]
        }

    return _on_grid(at, tokens)


def _on_grid(at: Callable[[Int64], Floors], tokens: Int64) -> Floors:
    """Floors at every number of tokens, from those at a few."""
    distinct, inverse = np.unique(tokens, return_inverse=True)
    if len(distinct) <= GRID:
        found = at(distinct)
        return {
            name: NoiseFloor(mean=f.mean[inverse], std=f.std[inverse])
            for name, f in found.items()
        }
    # without tokens there is no floor, and no logarithm
    some = distinct[distinct > 0]
    grid = np.unique(np.geomspace(some[0], some[-1], GRID).round().astype(np.int64))
    found = at(grid)
    where = np.log(np.maximum(tokens, 1))
    there = np.log(grid)

    def between(values: Float64) -> Float64:
        told = np.interp(where, there, values)
        return np.where(tokens > 0, told, np.nan)

    return {
        name: NoiseFloor(mean=between(f.mean), std=between(f.std))
        for name, f in found.items()
    }


def _drawn(
    tokens: int,
    measures: Sequence[str],
    received: Sequence[str],
    experts: int,
    k: int,
    sources: int,
    ranks: int | None,
) -> Mapping[str, tuple[float, float]]:
    """Mean and standard deviation of each measure, of balanced matrices."""
    names = [*measures, *(f"received.{name}" for name in received)]
    if tokens == 0:
        return dict.fromkeys(names, (np.nan, np.nan))
    draws = int(np.clip(DRAWN_CELLS // (sources * experts), FEWEST, MOST))
    at_once = max(1, AT_ONCE // (sources * experts))
    values: dict[str, list[Float64]] = {name: [] for name in names}
    for part, first in enumerate(range(0, draws, at_once)):
        counts = balanced_counts(
            np.full(sources, tokens),
            experts=experts,
            k=k,
            draws=min(at_once, draws - first),
            seed=part,
        )
        if ranks is not None:
            counts = counts.reshape(*counts.shape[:2], ranks, -1).sum(axis=-1)
        told = matrix_statistics(counts, diagonal=ranks is None)
        for name in measures:
            values[name].append(getattr(told, name))
        for name in received:
            of = np.asarray(MEASURES[name](told.received, axis=-1), np.float64)
            values[f"received.{name}"].append(of)
    joined = {name: np.concatenate(parts) for name, parts in values.items()}
    return {name: (float(v.mean()), float(v.std(ddof=1))) for name, v in joined.items()}
