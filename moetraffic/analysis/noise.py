r"""Values that a balanced router has by sampling noise alone.

A balanced router gives each token k distinct experts of E, every set of k with the same
probability and tokens independent.  Its loads are uneven nevertheless, and the less
the more tokens N there are: what :math:`1 - H` of the normalized entropy is falls as
:math:`1/N`, other measures approach those of an even load as :math:`N^{-1/2}`.  They
are simulated at one number of tokens and scaled to others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.trace import Meta

from .measures import MEASURES, max_mean, ratio

if TYPE_CHECKING:
    from .exchange import Exchange
    from .rows import Rows

MOST_DRAWS, DRAWN_CELLS = 2000, 1 << 20
"""Matrices drawn, and their cells together; the standard error of a mean is the
standard deviation from draw to draw over the square root of the number of draws."""

EXACT_COST = 4096
"""Binomial variates of a draw up to which it is exact."""


def balanced_values(
    exchange: Exchange, rows: Rows, meta: Meta
) -> dict[tuple[str, str], Float64]:
    """Compute the expected measures of a balanced router by subject and measure.

    Returns
    -------
    dict
        From ``("expert_load", "cv")`` to ``[T]``; without what is unknown.
    """
    width, k, tokens = len(exchange.ranks), meta.k, rows.tokens
    experts = exchange.experts or meta.experts
    if tokens is None or not 1 <= k <= experts:
        return {}
    subjects: dict[str, tuple[str, int]] = {}
    if rows.load is not None:
        subjects |= {"expert_load": ("cells", 1), "demand": ("cells", width)}
    if rows.wire and experts % width == 0 and meta.dispatch != "padded":
        subjects |= {"wire": ("pairs", width), "received": ("received", width)}
    return {
        (subject, measure): values
        for subject, (of, sources) in subjects.items()
        for measure, values in balanced(
            tokens * (width // sources), experts=experts, k=k, sources=sources, of=of
        ).items()
    }


def balanced(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    sources: int = 1,
    of: str = "cells",
    deviation: bool = False,
) -> dict[str, Float64]:
    """Compute the expected measures of a balanced router.

    Parameters
    ----------
    tokens
        N of each source, any shape.
    experts, k, sources
        E, distinct experts of a token, and W.
    of
        "cells": token copies ``[W, E]`` by expert, of one source the load.  "pairs":
        what W ranks that hold E/W experts each send to each other, "received": what
        each receives from the others.
    deviation
        Return standard deviations instead of means.

    Returns
    -------
    dict
        Measure to float64 of the shape of ``tokens``; NaN where there are none.

    Raises
    ------
    AnalysisError
        If no balanced router has these numbers.

    Examples
    --------
    >>> balanced([100, 10000], experts=8, k=2)["entropy"].round(3).tolist()
    [0.993, 1.0]
    """
    cells = experts if of == "cells" else sources
    if not 1 <= k <= experts or sources < 1 or experts % cells:
        raise AnalysisError(
            "a token has k of E experts, and E is a multiple of the ranks, but k is "
            f"{k}, E {experts} and ranks are {sources}: give numbers of the model"
        )
    number = np.asarray(tokens, np.float64)
    some = number[number > 0]
    # few distinct numbers, so that simulations are cached
    drawn = int(float(f"{np.median(some):.2g}")) if some.size else 1
    scale = ratio(drawn, number)
    values = {}
    for name, moments in _moments(drawn, experts, k, sources, cells)[of].items():
        even, mean, std = moments
        power = scale if "entropy" in name else np.sqrt(scale)
        value = power * std if deviation else even + power * (mean - even)
        values[name] = np.maximum(value, 0.0)
    if not deviation:
        # a token misses h experts with probability C(E - h, k) / C(E, k)
        taken, held = np.arange(k), experts // cells
        miss = np.prod(np.maximum(experts - held - taken, 0) / (experts - taken))
        number = number * (sources - 1 if of == "received" else 1)
        values["zero"] = np.where(number > 0, miss**number, np.nan)
    return values


@lru_cache(maxsize=256)
def rank_max_mean(tokens: int, *, experts: int, k: int, ranks: int) -> float:
    """Compute the expected max/mean of the loads of R ranks that hold E/R experts.

    ``tokens``: N, of all ranks.
    """
    if not tokens:
        return float("nan")
    loads = draw(tokens, experts=experts, k=k, cells=ranks, draws=MOST_DRAWS)
    return float(max_mean(loads).mean())


@lru_cache(maxsize=1024)
def _moments(
    tokens: int, experts: int, k: int, sources: int, cells: int
) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Simulate measures: value of an even load, mean and standard deviation."""
    draws = int(np.clip(DRAWN_CELLS // (sources * cells), 32, MOST_DRAWS))
    counts = draw(
        tokens, experts=experts, k=k, cells=cells, sources=sources, draws=draws
    )

    def measured(x: Float64, diagonal: bool) -> dict[str, tuple[float, float, float]]:
        number = max(1, x[0].size if diagonal else sources * (sources - 1))
        even = {"entropy": 1.0, "max_mean": 1.0, "line_efficiency": 1.0}
        even["entropy_bits"] = float(np.log2(number))
        rows, columns = x.sum(axis=2), x.sum(axis=1)
        most = np.maximum(
            rows.max(axis=1) * rows.shape[1], columns.max(axis=1) * columns.shape[1]
        )
        values = {"line_efficiency": ratio(rows.sum(axis=1), most)}
        for name, measure in MEASURES.items():
            values[name] = measure(x, axis=(-2, -1), diagonal=diagonal)
        del values["zero"]  # known exactly
        moments = {}
        for name, value in values.items():
            value = value[np.isfinite(value)] if np.isfinite(value).any() else value
            moments[name] = even.get(name, 0.0), float(value.mean()), float(value.std())
        return moments

    measures = {"cells": measured(counts, True)} if cells == experts else {}
    if cells == sources:
        counts = counts * ~np.eye(sources, dtype=bool)
        received = counts.sum(axis=1, keepdims=True)
        measures["pairs"] = measured(counts, False)
        measures["received"] = measured(received, True)
    return measures


def draw(
    tokens: int,
    *,
    experts: int,
    k: int,
    cells: int = 0,
    sources: int = 1,
    draws: int,
    seed: int = 0,
) -> Float64:
    r"""Draw token copies of a balanced router, ``[draws, sources, cells]``.

    Experts are taken in turn: a token that needs j more of the m experts left has the
    next one with probability j/m.  Where that takes too long, counts of experts are
    independent binomial variates, multiplied so that a source has k N copies, and those
    of ranks multinomial; deviations from the mean are multiplied so that variances and
    covariances are exact.

    ``cells``: Ranks that hold E/R experts each; 0: experts.
    """
    rng, cells = np.random.default_rng(seed), cells or experts
    shape = (draws, sources)
    mean = tokens * k / cells
    if k == 1:
        one = rng.multinomial(np.full(shape, tokens), np.full(cells, 1 / cells))
        return one.astype(np.float64)
    if sources * experts * k > EXACT_COST:
        if cells == experts:
            copies = rng.binomial(tokens, k / experts, (*shape, cells)).astype(float)
            copies *= tokens * k / np.maximum(copies.sum(axis=-1, keepdims=True), 1)
            spread = np.sqrt(experts / (experts - 1))
        else:
            even = np.full(cells, 1 / cells)
            copies = rng.multinomial(np.full(shape, tokens * k), even)
            spread = np.sqrt((experts - k) / (experts - 1))
        return np.asarray(np.maximum(mean + spread * (copies - mean), 0.0))
    needing = [np.zeros(shape, np.int64) for _ in range(k)]
    needing.append(np.full(shape, tokens))
    counts = np.zeros((*shape, experts))
    for expert in range(experts):
        left = experts - expert
        for need in range(1, min(k, left) + 1):
            taking = rng.binomial(needing[need], need / left)
            counts[..., expert] += taking
            needing[need] -= taking
            needing[need - 1] += taking
    return np.asarray(counts.reshape(*shape, cells, -1).sum(axis=-1))
