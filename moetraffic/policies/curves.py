"""Conditions that one quantity of an evaluation is changed to: tokens, progress."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError

from .exchange_series import FEWEST_ITERATIONS, ExchangeSeries, LayerKey, MatrixWindow


def thinned(
    series: ExchangeSeries, share: float, *, unit: str, seed: int = 0
) -> ExchangeSeries:
    """Draw the exchanges of a run with fewer tokens: each copy is kept independently.

    Parameters
    ----------
    series
        Of a run whose bytes of a token copy are known.
    share
        Probability that a copy is kept.
    unit
        Of the series: "bytes" or "tokens".

    Raises
    ------
    AnalysisError
        If the share is not between 0 and 1, or a copy's bytes are not known.
    """
    if not 0 < share < 1:
        raise AnalysisError(
            f"a share of the tokens is above 0 and below 1, but is {share}: give "
            "--token-shares 0.5,0.1"
        )
    if not series.row_bytes:
        raise AnalysisError(
            "fewer tokens need the bytes of a token copy, which the trace does not "
            "state: leave out --token-shares"
        )
    size = series.row_bytes if unit == "bytes" else 1
    layers: dict[LayerKey, Float64 | MatrixWindow] = {}
    for number, (layer, truth) in enumerate(series.layers.items()):
        draw = partial(_drawn, truth, size, share, (seed, number))
        drawn = MatrixWindow(draw, truth.shape)
        held = isinstance(truth, np.ndarray)
        layers[layer] = drawn[:] if held else drawn
    mean = {layer: share * one for layer, one in series.expected.items()}
    return replace(series, layers=layers, expected=mean)


def _drawn(
    truth: Float64 | MatrixWindow,
    size: int,
    share: float,
    seed: tuple[int, int],
    at: int,
) -> Float64:
    rng = np.random.default_rng((*seed, at))
    copies = np.rint(truth[at] / size).astype(np.int64)
    return rng.binomial(copies, share).astype(np.float64) * size


def halves(series: ExchangeSeries) -> dict[str, ExchangeSeries]:
    """Split a run into an early and a late half; of each, the second half is served.

    Raises
    ------
    AnalysisError
        If a half is too short.
    """
    total = len(series.iterations)
    if total < 2 * FEWEST_ITERATIONS:
        raise AnalysisError(
            f"progress compares two halves of at least {FEWEST_ITERATIONS} iterations, "
            f"but {series.name} has {total}: leave out --progress"
        )
    middle = total // 2
    return {
        "early": _between(series, 0, middle),
        "late": _between(series, middle, total),
    }


def _between(series: ExchangeSeries, begin: int, end: int) -> ExchangeSeries:
    layers: dict[LayerKey, Float64 | MatrixWindow] = {}
    for layer, truth in series.layers.items():
        if isinstance(truth, np.ndarray):
            layers[layer] = truth[begin:end]
        else:
            shape = (end - begin, *truth.shape[1:])
            layers[layer] = MatrixWindow(partial(_shifted, truth, begin), shape)
    mean = {layer: one[begin:end] for layer, one in series.expected.items()}
    when = series.iterations[begin:end]
    return replace(series, layers=layers, iterations=when, expected=mean)


def _shifted(truth: MatrixWindow, begin: int, at: int) -> Float64:
    return truth[begin + at]
