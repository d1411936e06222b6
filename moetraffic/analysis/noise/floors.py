r"""Noise floors: mean and standard deviation of statistics under a balanced router.

Noise floors depend on the number of *tokens* N (with ``k N`` token copies), never on
bytes.  They are simulated with :class:`moetraffic.analysis.noise.null_model.NullModel`;
those of sparsity are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.analysis.skew.measures import MEASURES
from moetraffic.arrays import Float64, Int64, Integer
from moetraffic.errors import AnalysisError

from .null_model import Moments, NullModel, token_counts

GRID = 8
"""Maximum numbers of tokens at which floors are simulated; others are interpolated."""

LARGE, FEW = 1024, 4
"""Cells of a matrix from which on floors are simulated at no more than FEW numbers."""

SPACING = 1.25
"""Largest ratio of neighboring numbers of tokens, unless there are too many."""


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """Mean and standard deviation of a statistic under a balanced router.

    Both arrays have the shape of the token counts; NaN where there are no tokens.
    """

    mean: Float64  # expectation, in the statistic's unit
    std: Float64  # standard deviation from one draw to the next


Floors = dict[str, NoiseFloor]

_SIMULATING = Lock()


def noise_floor(
    measure: str,
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    ranks: int | None = None,
    sources: int = 1,
    diagonal: bool = True,
    draws: int | None = None,
    seed: int = 0,
) -> NoiseFloor:
    """Compute the noise floor of a skew measure under a balanced router.

    Expert loads are one distribution over E cells (``sources=1``); a demand matrix
    is one over W x E cells, whose W rows have N tokens each.

    Parameters
    ----------
    measure
        A name of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    tokens
        Tokens N per source, any shape, one floor each.  Each distinct number costs one
        simulation, cached per process.
    experts, k, ranks, sources
        E, distinct experts per token, R ranks to merge experts into, and W.
    diagonal
        False excludes rank-local traffic; R and W are then equal.
    draws, seed
        As in :meth:`NullModel.moments`.

    Returns
    -------
    NoiseFloor
        Arrays of the shape of ``tokens``.

    Raises
    ------
    AnalysisError
        If the measure is unknown, or no balanced router has these numbers.

    Examples
    --------
    >>> floor = noise_floor("normalized_entropy", [100, 10000], experts=8, k=2)
    >>> floor.mean.round(3).tolist()
    [0.993, 1.0]
    """
    if measure not in MEASURES:
        raise AnalysisError(
            f"the measure is one of {', '.join(MEASURES)}, not {measure!r}: use "
            f"NullModel.moments for other statistics"
        )
    if not diagonal and ranks != sources:
        raise AnalysisError(
            f"only a square matrix has a diagonal to leave out, but ranks is {ranks} "
            f"and sources {sources}: make them equal"
        )
    model = NullModel(experts=experts, k=k, sources=sources, ranks=ranks)
    return skew_floors(
        (measure,),
        token_counts(tokens),
        model,
        diagonal=diagonal,
        draws=draws,
        seed=seed,
    )[measure]


def skew_floors(
    measures: tuple[str, ...],
    tokens: Int64,
    model: NullModel,
    *,
    received: tuple[str, ...] = (),
    diagonal: bool = True,
    draws: int | None = None,
    seed: int = 0,
    most: int | None = None,
) -> Floors:
    """Compute the noise floors of statistics of a matrix and of its column sums.

    Parameters
    ----------
    measures
        Properties of :class:`moetraffic.analysis.skew.kernels.MatrixStatistics`.
    tokens
        Tokens per source, any shape.
    received
        Names of :data:`moetraffic.analysis.skew.measures.MEASURES` for the column sums,
        returned as ``received.<measure>``.
    most
        Maximum numbers of tokens to simulate; others are interpolated.  None: all.

    Returns
    -------
    dict of str to NoiseFloor
        Arrays of the shape of ``tokens``.
    """
    return _at_tokens(
        lambda number: _moments(
            model, measures, received, diagonal, number, draws, seed
        ),
        lambda number: model.sparsity(number, diagonal=diagonal),
        tokens,
        most,
    )


def matrix_floors(
    measures: tuple[str, ...],
    tokens: Int64,
    model: NullModel,
    *,
    received: tuple[str, ...] = (),
) -> Floors:
    """Compute :func:`skew_floors` of an exchange's matrix over iterations.

    The matrix between ranks, of a model with ranks, has no diagonal.  Floors are
    interpolated between at most :data:`GRID` numbers of tokens, of large matrices
    :data:`FEW`.
    """
    return skew_floors(
        measures,
        tokens,
        model,
        received=received,
        diagonal=model.ranks is None,
        most=GRID if model.sources * model.cells <= LARGE else FEW,
    )


@lru_cache(maxsize=4096)
def _moments(
    model: NullModel,
    measures: tuple[str, ...],
    received: tuple[str, ...],
    diagonal: bool,
    tokens: int,
    draws: int | None,
    seed: int,
) -> Moments:
    """Simulate moments of matrix statistics and of measures of column sums."""

    def statistics(counts: Integer) -> dict[str, npt.ArrayLike]:
        of = matrix_statistics(counts, diagonal=diagonal)
        found = {name: getattr(of, name) for name in measures}
        if received:
            sums = matrix_statistics(of.received[:, None, :])
            found |= {f"received.{name}": getattr(sums, name) for name in received}
        return found

    # exchanges that are analyzed at the same time have the same floors
    with _SIMULATING:
        return model.moments(statistics, tokens, draws=draws, seed=seed)


def _at_tokens(
    moments: Callable[[int], Moments],
    sparsity: Callable[[int], tuple[float, float]],
    tokens: Int64,
    most: int | None,
) -> Floors:
    """Evaluate floors at each number of tokens, interpolated if there are too many.

    Moments are smooth functions of :math:`N^{-1/2}`, nearly linear or quadratic.
    Sparsity, which falls exponentially with N, is exact at every number of tokens.
    """
    distinct, inverse = np.unique(tokens, return_inverse=True)
    at = distinct
    if coarse := most is not None and len(distinct) > 3:
        # 0 tokens have no floor
        some = distinct[distinct > 0].astype(np.float64)
        number = 1 + int(np.ceil(np.log(some[-1] / some[0]) / np.log(SPACING)))
        number = int(np.clip(number, 3, most))
        at = np.unique(np.geomspace(some[0], some[-1], number).round().astype(np.int64))
        # numbers that are close to each other need no interpolation
        coarse = 3 <= len(at) < len(distinct)
        at = at if coarse else distinct
    found = [moments(number) for number in at.tolist()]

    def expand(values: list[float]) -> Float64:
        if coarse:
            known = distinct > 0
            by = np.full(len(distinct), np.nan)
            x, nodes = (n.astype(np.float64) ** -0.5 for n in (distinct[known], at))
            by[known] = _quadratic(x[::-1], nodes[::-1], np.array(values[::-1]))[::-1]
            values = by.tolist()
        return np.asarray(np.array(values)[inverse.reshape(tokens.shape)][()])

    floors = {
        name: NoiseFloor(
            mean=expand([f[name][0] for f in found]),
            std=np.maximum(expand([f[name][1] for f in found]), 0.0),
        )
        for name in found[0]
    }
    if "sparsity" in floors:
        exact = np.array([sparsity(number) for number in distinct.tolist()])
        mean, std = exact[inverse.reshape(tokens.shape)].T
        floors["sparsity"] = NoiseFloor(mean=mean.T[()], std=std.T[()])
    return floors


def _quadratic(x: Float64, nodes: Float64, values: Float64) -> Float64:
    """Interpolate by the parabola through three neighboring of at least three nodes.

    Written out, because the import of scipy.interpolate takes longer than all floors.
    """
    at = np.clip(np.searchsorted(nodes, x) - 1, 0, len(nodes) - 3)
    a, b, c = (nodes[at + i] for i in range(3))
    first, second, third = (values[at + i] for i in range(3))
    return np.asarray(
        first * (x - b) * (x - c) / ((a - b) * (a - c))
        + second * (x - a) * (x - c) / ((b - a) * (b - c))
        + third * (x - a) * (x - b) / ((c - a) * (c - b))
    )
