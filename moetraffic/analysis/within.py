r"""Forecast later layers of an iteration from its first dispatch, and lead times.

Errors of forecasts from earlier iterations are correlated between layers: the load of
the first layer corrects the forecasts of later ones.  The phases of one layer need no
forecast: combine and dispatch_grad send the transpose of what dispatch sent, and
combine_grad sends the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.trace import ALL_TO_ALL, Trace

from .forecast import (
    NAN,
    TOLERANCE,
    Forecaster,
    Split,
    ends,
    find_period,
    forecasts,
    gain,
    split,
    tuned,
)
from .intervals import UNKNOWN
from .measures import ratio
from .times.calls import step_starts, timed

if TYPE_CHECKING:
    from .exchange import Exchange
    from .rows import Rows

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""Ridges that are tried, relative to the mean eigenvalue of the regressors."""

RECONFIGURATION_S = (1e-6, 1e-5, 1e-3, 0.025)
"""Delays of a fabric's reconfiguration that lead times are compared with, seconds.

Fast optical switching by wavelength (1 us, 10 us), fast mechanical or silicon-photonic
switches (1 ms), and commercial MEMS circuit switches (25 ms).
"""

CALLS = 512
"""Maximum evenly spaced calls per layer and phase whose times are read."""

# ---- later layers --------------------------------------------------------------------


def within_iteration(
    first: npt.NDArray[Any], later: npt.NDArray[Any]
) -> dict[str, Any]:
    r"""Forecast a later load of each iteration from the first one.

    The forecast is :math:`e_t + B (x_t - d_t)`, where d and e are forecasts of both
    loads from the iteration before, each by the forecaster that is best on the
    validation part, and B is a ridge regression of their errors.  The ridge, or no
    correction, is chosen on the validation part, with B of the training part; on the
    test part B is of all before it.

    ``first``, ``later``: ``[T, E]`` and ``[T, F]`` loads of the same iterations.

    Returns
    -------
    dict
        Columns of the table "within".  ``method``: "ridge", or that of the forecast
        from the past, where no correction was better on the validation part;
        ``below_past``: by how much the MSE is below that of the forecast from the past,
        as a share of it; ``within_20`` and ``past_within_20``: share of the load in
        cells that both forecast within 20%; ``equal_share``: of the iterations whose
        two loads are equal.  Figures are NaN in a run that is too short.

    Examples
    --------
    >>> load = np.random.default_rng(0).integers(100, 200, size=(80, 4))
    >>> row = within_iteration(load, load)
    >>> row["method"], round(row["below_past"], 2), row["equal_share"]
    ('ridge', 1.0, 1.0)
    """
    same = first.shape == later.shape and bool(first.size)
    row: dict[str, Any] = {
        **{"method": "", "setting": "", "within_20": NAN, "past_within_20": NAN},
        **ends("below_past", UNKNOWN),
        "equal_share": float((first == later).all(axis=1).mean()) if same else 0.0,
        **{"mse": NAN, "origins": 0},
    }
    parts = split(np.arange(len(first)))
    if not (parts.testable(1) and first.size and later.size):
        return row
    # Step 1: forecasts from the iteration before, and their errors; row 0 has none.
    x, _ = _past_errors(first, parts)
    missed, past = _past_errors(later, parts)
    # Step 2: choose the ridge on the validation part.
    targets = parts.validation(1)[1]
    errors = {0.0: float((missed[targets] ** 2).sum())}
    for ridge in RIDGES:
        left = missed[targets] - x[targets] @ _fit(x, missed, parts.train_end, ridge)
        errors[ridge] = float((left**2).sum())
    best = min(errors, key=lambda ridge: errors[ridge])
    # Step 3: score on the test part.
    targets = parts.test(1)[1]
    before, left = missed[targets], missed[targets]
    if best:
        left = before - x[targets] @ _fit(x, missed, parts.validation_end, best)
    actual = later[targets]
    for name, miss in (("within_20", left), ("past_within_20", before)):
        close = np.abs(miss) <= TOLERANCE * (1 + 1e-12) * actual
        row[name] = float(ratio(actual[close].sum(), actual.sum()))
    error, reference = (left**2).sum(axis=1), (before**2).sum(axis=1)
    return row | {
        "method": "ridge" if best else past.method,
        "setting": f"{best:g}" if best else past.setting,
        **ends("below_past", gain(error, reference)),
        "mse": float(error.sum() / left.size),
        "origins": len(targets),
    }


def _past_errors(load: npt.NDArray[Any], parts: Split) -> tuple[Float64, Forecaster]:
    """Forecast a load ``[T, E]`` from the iteration before: errors, and by what."""
    series = np.asarray(load, np.float64)
    period = find_period(series[: parts.train_end])
    best = tuned(series, parts, [1], period=period)[1][0]
    origins = np.arange(len(series) - 1)
    (made,) = forecasts(series, parts.times, best, {1: origins})
    return np.concatenate([np.zeros_like(series[:1]), series[1:] - made]), best


def _fit(x: Float64, y: Float64, end: int, ridge: float) -> Float64:
    """Regress y ``[T, F]`` on x ``[T, E]`` of the rows before ``end``: ``[E, F]``."""
    x, y = x[1:end], y[1:end]
    products = x.T @ x
    size = float(np.trace(products)) / min(x.shape)
    if not size > 0:
        return np.zeros((x.shape[1], y.shape[1]))
    fitted = np.linalg.solve(products + ridge * size * np.eye(len(products)), x.T @ y)
    return np.asarray(fitted, np.float64)


def within_tables(
    loads: Sequence[tuple[Exchange, Rows]],
) -> dict[str, list[dict[str, Any]]]:
    """Forecast the loads of later layers from that of the first layer of their group.

    ``loads``: Exchanges with their rows, by layer.  Loads are of experts, or bytes
    received where the routing is unknown.

    Returns
    -------
    dict
        Rows of the table "within", one per later layer and group.
    """
    firsts: dict[int, tuple[Exchange, Rows]] = {}
    table = []
    for exchange, rows in loads:
        first, of_first = firsts.setdefault(exchange.group, (exchange, rows))
        (x, _), (y, subject) = of_first.balance, rows.balance
        if first is exchange or x is None or y is None:
            continue
        if np.array_equal(first.iterations, exchange.iterations):
            place = exchange.key | {"first_layer": first.layer, "subject": subject}
            table.append(place | within_iteration(x, y))
    return {"within": table}


# ---- lead times ----------------------------------------------------------------------


def lead_time_rows(
    trace: Trace, iterations: range | None = None
) -> list[dict[str, Any]]:
    """Compute when exchanges begin, and how long after the first dispatch.

    A scheduler can use what the first dispatch shows only for transfers that begin
    later than a reconfiguration takes.

    Returns
    -------
    list of dict
        Rows of the table "lead_times", by time; none without times or marked steps, as
        of a virtual trace, whose times are those of one process.  ``offset_s``: from
        the start of the step, median over iterations of the ranks that begin first;
        ``lead_s``: from the begin of the first dispatch; ``reconfiguration_s``: longest
        of :data:`RECONFIGURATION_S` that fits, NaN if none does.
    """
    starts = step_starts(trace, 0, iterations)
    if trace.meta.virtual or not len(starts):
        return []
    calls = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[calls]
    late = np.iinfo(np.int64).max
    offsets: dict[tuple[int, str], float] = {}
    for layer, phase in sorted({(s.layer, s.phase) for s in trace.sites if s.phase}):
        # the first micro-batch: the others are known later
        key = (layer, phase, 0)
        own = np.array([(s.layer, s.phase, s.slot) == key for s in trace.sites], bool)
        chosen = calls[own[site]]
        if len(chosen) > CALLS:
            chosen = chosen[np.linspace(0, len(chosen) - 1, CALLS).astype(np.int64)]
        begins = [
            np.where(block.known, block.begin, late).min(axis=1)
            for block in timed(trace, chosen, with_wire=False)
        ]
        begin = np.concatenate([np.zeros(0, np.int64), *begins])
        begin = begin[begin < late]
        step = np.searchsorted(starts, begin, side="right") - 1
        inside = step >= 0
        if inside.any():
            since = begin[inside] - starts[step[inside]]
            offsets[layer, phase] = float(np.median(since)) / 1e9
    first = min((t for (_, p), t in offsets.items() if p == "dispatch"), default=NAN)
    return [
        {
            "layer": layer,
            "phase": phase,
            "offset_s": offset,
            "lead_s": offset - first,
            "reconfiguration_s": max(
                (delay for delay in RECONFIGURATION_S if delay <= offset - first),
                default=NAN,
            ),
        }
        for (layer, phase), offset in sorted(offsets.items(), key=lambda item: item[1])
    ]
