from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from moetraffic.policies.policy import View
from moetraffic.policies.series import ExchangeSeries
from moetraffic.result import Result

A = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
A_LATER = [[0, 5, 2, 3], [2, 0, 8, 0], [2, 3, 0, 5], [6, 2, 0, 0]]
B = [[0, 8, 2], [2, 0, 8], [8, 2, 0]]
H = [[0, 9, 1, 0], [9, 0, 0, 1], [0, 1, 0, 9], [1, 0, 9, 0]]


def view_of(forecast: object, network: object, past: object = None) -> View:
    known = np.asarray(forecast, np.float64)
    return View(
        iteration=1,
        layer=0,
        phase="dispatch",
        age=1,
        hold=1,
        past=known[None] if past is None else np.asarray(past, np.float64),
        earlier=np.zeros((0, *known.shape)),
        forecast=known,
        network=network,
    )


def counts(
    rng: np.random.Generator,
    *,
    steps: int,
    stay: float,
    spread: float,
    ranks: int = 4,
    tokens: int = 2048,
) -> np.ndarray:
    """Multinomial rows whose log shares are an AR(1) process, ``[T, W, W]``."""
    sd = spread * np.sqrt(1 - stay**2)
    log = spread * rng.normal(size=(ranks, ranks))
    made = []
    for _ in range(steps):
        log = stay * log + sd * rng.normal(size=log.shape)
        share = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
        made.append(rng.multinomial(tokens, share))
    return np.array(made, np.float64) * 8192


def series(layers: dict[int, np.ndarray]) -> ExchangeSeries:
    steps = len(next(iter(layers.values())))
    return ExchangeSeries(
        name="drawn", phase="dispatch", iterations=np.arange(steps), layers=layers
    )


def rows_of(result: Result) -> list[SimpleNamespace]:
    """Return the scores of an evaluation with their times by iteration."""
    times = result.data["by_iteration_s"]
    return [
        SimpleNamespace(**row, by_iteration_s=sums)
        for row, sums in zip(result.rows("scores"), times, strict=True)
    ]


def by_name(result: Result) -> dict[tuple[str, str], SimpleNamespace]:
    return {(s.policy, s.forecaster): s for s in rows_of(result)}
