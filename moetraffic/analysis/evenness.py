"""How evenly the load was spread over experts and ranks, and how that changed.

The run is divided into thirds of its training steps: early, middle and late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.trace import Meta

from . import noise
from .claims import Claim, Outcome, change_over, movement, steady, uneven
from .exchange import Exchange
from .measures import MEASURES, entropy
from .rows import Rows

WORST = 10
"""Iterations whose mean is the worst of a run."""

STAGES = ("early", "middle", "late")

Curve = tuple[str, str, Float64, Float64 | None]
"""Subject, measure, and its values ``[T]`` and those of a balanced router."""


def curves(exchange: Exchange, rows: Rows, meta: Meta) -> Iterator[Curve]:
    """Yield each measure of each load and matrix of an exchange, by iteration."""
    balanced = noise.balanced_values(exchange, rows, meta)
    for subject, load in (("expert_load", rows.load), ("received", rows.received)):
        if load is not None:
            for measure, function in MEASURES.items():
                own = balanced.get((subject, measure))
                yield subject, measure, function(load), own
    for subject, matrix in (("demand", rows.demand), ("wire", rows.wire)):
        for measure, values in matrix.items():
            yield subject, measure, values, balanced.get((subject, measure))


def measure_rows(exchange: Exchange, measured: list[Curve]) -> list[dict[str, Any]]:
    """List the table ``measures``: a row per subject, measure and iteration."""
    nothing = np.full(len(exchange.iterations), np.nan)
    return [
        {
            **exchange.key,
            "subject": subject,
            "measure": measure,
            "iteration": iteration,
            "value": value,
            "balanced": floor,
        }
        for subject, measure, values, balanced in measured
        for iteration, value, floor in zip(
            exchange.iterations.tolist(),
            values.tolist(),
            (nothing if balanced is None else balanced).tolist(),
            strict=True,
        )
    ]


def stage_means(steps: Any, values: Float64) -> dict[str, float]:
    """Average values ``[T]`` over the thirds of the training steps ``[T]``."""
    edges = np.linspace(steps[0], steps[-1] + 1, len(STAGES) + 1)
    third = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, 2)
    means = {}
    for number, name in enumerate(STAGES):
        own = values[(third == number) & np.isfinite(values)]
        means[name] = float(own.mean()) if len(own) else float("nan")
    return means


def worst_stretch(values: Float64, *, highest: bool) -> tuple[float, int]:
    """Return the worst mean of ten consecutive values ``[T]``, and its first index."""
    if len(values) < 2 * WORST or not np.isfinite(values).all():
        return float("nan"), -1
    means = np.convolve(values, np.full(WORST, 1 / WORST), "valid")
    first = int(means.argmax() if highest else means.argmin())
    return float(means[first]), first


SHOWN = {
    "entropy": ("expert_load", "entropy"),
    "busiest_expert": ("expert_load", "max_mean"),
    "busiest_receiver": ("received", "max_mean"),
}
"""Measures of the first screen: subject and measure."""


def stage_rows(exchange: Exchange, measured: list[Curve]) -> list[dict[str, Any]]:
    """List the table ``stages`` of an exchange: measures early, in the middle, late."""
    by_name = {(curve[0], curve[1]): curve for curve in measured}
    if ("expert_load", "entropy") not in by_name and ("received", "entropy") in by_name:
        by_name["expert_load", "entropy"] = by_name["received", "entropy"]
    stages = []
    for name, key in SHOWN.items():
        if key not in by_name:
            continue
        _, _, values, balanced = by_name[key]
        worst, first = worst_stretch(values, highest=name != "entropy")
        stages.append(
            {
                **exchange.key,
                "measure": name,
                **stage_means(exchange.steps, values),
                "balanced": np.nan if balanced is None else float(np.mean(balanced)),
                "worst": worst,
                "worst_at": int(exchange.iterations[first]) if first >= 0 else -1,
            }
        )
    return stages


def evenness_claims(exchange: Exchange, rows: Rows, meta: Meta) -> list[Claim]:
    """Test whether the load was uneven, became more or less even, and was steady."""
    load, subject = rows.balance
    if load is None or load.shape[1] < 2:
        return []
    values = entropy(load)
    moved = movement(values, exchange.steps)
    if moved.outcome is Outcome.STATED:
        over = change_over(values, exchange.steps)
        moved = replace(moved, since=-1 if over is None else over)
    claims = [moved, steady(values, exchange.steps)]
    if rows.load is not None:  # bytes received have no sampling noise of their own
        claims.insert(0, uneven(rows.load, k=max(1, meta.k)))
    return [
        claim.placed(**exchange.key, subject=subject, iterations=exchange.iterations)
        for claim in claims
    ]
