"""Forecast loads and bytes from earlier iterations, and test the forecasts.

The first half of a run is for training, the next quarter for validation and the last
for the test.  An *origin* is the newest iteration that a forecast uses; its *target*
comes ``horizon`` training steps later.  Forecasters are

- persistence: the value of the origin;
- mean: the mean of all values up to the origin;
- ema: an exponential moving average of them;
- seasonal: the mean of values whole periods before the target.

Settings, and the forecaster that is chosen, have the least squared error on the
validation part.  A choice must not cost accuracy where a run changes after that:
persistence replaces one that has a larger error on the test part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .intervals import Interval
from .measures import ratio

if TYPE_CHECKING:
    from .claims import Claim
    from .exchange import Exchange
    from .rows import Rows

METHODS = ("persistence", "mean", "ema", "seasonal")
"""Methods of forecasting, the simplest first."""

HORIZONS = (1, 2, 5, 10, 20, 50, 100)
"""Default forecast horizons, iterations, where a run is long enough to test them."""

ALPHAS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Weights of the newest value that are tried for the moving average."""

CYCLES = (1, 2, 4, 8)
"""Numbers of periods whose mean is tried for the seasonal forecast."""

FEWEST = 4
"""Minimum number of origins of a part, and of blocks of an interval."""

TOLERANCE = 0.2
"""Relative error up to which bytes count for ``within_20``."""

SCORED = 1 << 21
"""Maximum forecasts of single cells per forecaster and horizon."""

CLAIMED = ("expert_load", "wire")
"""Subjects of which it is tested whether forecasts help."""

NAN = float("nan")


class Forecaster(NamedTuple):
    """A method of forecasting with its setting."""

    method: str  # one of METHODS
    alpha: float = 1.0  # weight of the newest value
    period: int = 0  # training steps
    cycles: int = 1  # periods that are averaged

    @property
    def setting(self) -> str:
        """Describe the setting; empty where there is none."""
        if self.method == "ema":
            return f"alpha {self.alpha:g}"
        several = f", mean of {self.cycles}" * (self.cycles > 1)
        return f"period {self.period}{several}" * (self.method == "seasonal")


PERSISTENCE, MEAN = Forecaster("persistence"), Forecaster("mean")


# ---- parts of a run ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Split:
    """Training, validation and test part of T rows, in this order."""

    times: Int64  # [T] training steps of the rows, increasing
    train_end: int  # rows before it are for training
    validation_end: int  # rows from it on are for the test
    stride: int = 1  # every row is an origin, or every second ...

    def validation(self, horizon: int) -> tuple[Int64, Int64]:
        """Find origins and targets ``[n]``, the targets in the validation part."""
        return self._pairs(self.train_end, self.validation_end, horizon)

    def test(self, horizon: int) -> tuple[Int64, Int64]:
        """Find origins and targets ``[n]``, the targets in the test part."""
        return self._pairs(self.validation_end, len(self.times), horizon)

    def testable(self, horizon: int) -> bool:
        """Return whether all parts are long enough for a horizon."""
        fewest = min(len(self.validation(horizon)[0]), len(self.test(horizon)[0]))
        return self.train_end >= 2 and fewest >= FEWEST

    def _pairs(self, begin: int, end: int, horizon: int) -> tuple[Int64, Int64]:
        origins = np.arange(max(begin - 1, 0), end, self.stride)
        wanted = self.times[origins] + horizon
        targets = np.searchsorted(self.times[:end], wanted)
        exact = targets < end
        exact[exact] = self.times[targets[exact]] == wanted[exact]
        return origins[exact], targets[exact]


def split(times: npt.ArrayLike, *, max_origins: int = 2048) -> Split:
    """Split rows into 50% training, 25% validation and 25% test.

    Parameters
    ----------
    times
        ``[T]`` training steps of the rows, increasing; missing ones are gaps.
    max_origins
        Of a part, at least 1: more are thinned to every second, third ...

    Examples
    --------
    >>> parts = split(range(60))
    >>> parts.train_end, parts.validation_end, parts.test(10)[0].tolist()
    (30, 45, [44, 45, 46, 47, 48, 49])
    """
    steps = np.asarray(times, np.int64)
    train = round(len(steps) * 0.5)
    validation = train + round(len(steps) * 0.25)
    longest = max(validation - train, len(steps) - validation)
    stride = max(1, -(-longest // max_origins))
    return Split(times=steps, train_end=train, validation_end=validation, stride=stride)


def rows_needed(horizon: int) -> int:
    """Return the rows of a run for which a horizon, in rows, can be tested.

    The last quarter then has :data:`FEWEST` blocks of forecasts, each as long as the
    horizon.
    """
    return 4 * (max(FEWEST * horizon, 2 * FEWEST) + horizon - 1)


def default_horizons(rows: int, spacing: int = 1) -> tuple[int, ...]:
    """Return the default horizons that a number of rows is enough for.

    ``spacing``: training steps from one row to the next.

    Examples
    --------
    >>> default_horizons(300), default_horizons(300, spacing=5)
    ((1, 2, 5, 10), (5, 10, 25, 50))
    """
    return tuple(h * spacing for h in HORIZONS if h == 1 or rows_needed(h) <= rows)


# ---- forecasters ---------------------------------------------------------------------


def find_period(series: npt.NDArray[Any]) -> int:
    """Find the common period of the cells of a training part, at most a quarter of it.

    It is the lag at which the mean autocorrelation of the cells rises most above its
    lowest value before, or the first lag that rises nearly as much.  One that is of no
    use does no harm: the validation part decides.

    ``series``: ``[n, C]`` rows without a gap; of many cells, 256 are used.

    Returns
    -------
    int
        Rows; 0 where nothing rises by more than chance.

    Examples
    --------
    >>> find_period(np.sin(2 * np.pi * np.arange(60)[:, None] / 6))
    6
    """
    cells = series.shape[1]
    chosen = np.linspace(0, cells - 1, min(cells, 256)).astype(np.int64)
    x = np.asarray(series[:, chosen], np.float64)
    rows, most = len(x), len(x) // 4
    x = x[:, (x != x[:1]).any(axis=0)]
    if most < 2 or not x.size:
        return 0
    power = np.abs(np.fft.rfft(x - x.mean(axis=0), 2 * rows, axis=0)) ** 2
    covariance = np.fft.irfft(power, axis=0)[: most + 2]
    pairs = rows - np.arange(most + 2)
    acf = (covariance / covariance[0]).mean(axis=1) * rows / pairs
    lags = np.arange(2, most + 1)
    peak = (acf[lags] >= acf[lags - 1]) & (acf[lags] > acf[lags + 1]) & (acf[lags] > 0)
    rise = np.where(peak, acf[lags] - np.minimum.accumulate(acf)[lags], 0.0)
    if rise.max() < 4 / np.sqrt(rows):  # standard errors of white noise
        return 0
    return int(lags[np.argmax(rise >= 0.8 * rise.max())])


def candidates(parts: Split, *, period: int = 0) -> list[Forecaster]:
    """List the forecasters and settings to try, the simplest first.

    ``period``: Of the seasonal forecaster, training steps; 0: it is not tried.
    """
    averages = [Forecaster("ema", a) for a in ALPHAS if a * parts.train_end >= 1]
    training = int(parts.times[parts.train_end] - parts.times[0])
    seasonal = [
        Forecaster("seasonal", period=period, cycles=cycles)
        for cycles in CYCLES
        if 1 < period <= training // cycles
    ]
    return [PERSISTENCE, MEAN, *averages, *seasonal]


def forecasts(
    series: Float64,
    times: Int64,
    forecaster: Forecaster,
    origins: Mapping[int, Int64],
) -> Iterator[Float64]:
    """Forecast series at several horizons, from rows up to the origins alone.

    Parameters
    ----------
    series, times
        ``[T, C]`` values, and the training steps ``[T]`` of their rows.
    origins
        Rows ``[n]`` that forecasts are made at, by horizon.

    Yields
    ------
    float64 array ``[n, C]``
        For each horizon, in order.
    """
    level = series
    if forecaster.method == "mean":
        # a series' own first value keeps the sums small
        sums = np.cumsum(series - series[0], axis=0)
        level = series[0] + sums / np.arange(1, len(series) + 1)[:, None]
    elif forecaster.method == "ema":
        from scipy.linalg import solve_banded

        # level[t] - (1 - alpha) level[t - 1] = alpha series[t]
        bands = np.ones((2, len(series)))
        bands[1] = forecaster.alpha - 1
        level = forecaster.alpha * series
        level[0] = series[0]
        level = solve_banded((1, 0), bands, level, overwrite_b=True)
    for horizon, rows in origins.items():
        if forecaster.method != "seasonal":
            yield level[rows]
            continue
        period = forecaster.period
        newest = times[rows] + horizon - period * -(-horizon // period)
        total, count = np.zeros((len(rows), series.shape[1])), np.zeros((len(rows), 1))
        for cycle in range(forecaster.cycles):
            before = np.searchsorted(times, newest - cycle * period)
            recorded = (times[before] == newest - cycle * period)[:, None]
            total += np.where(recorded, series[before], 0.0)
            count += recorded
        yield np.where(count > 0, total / np.maximum(count, 1), series[rows])


def tuned(
    series: Float64,
    parts: Split,
    horizons: Sequence[int],
    *,
    period: int = 0,
    methods: Sequence[str] = METHODS,
) -> dict[int, list[Forecaster]]:
    """Choose the best setting of each method on the validation part.

    Parameters
    ----------
    series
        ``[T, C]`` finite values of the rows of ``parts``.
    horizons
        Training steps; settings are chosen separately for each.
    period
        Of the seasonal forecaster, training steps; 0: it is not tried.
    methods
        Some of :data:`METHODS`.

    Returns
    -------
    dict of int to list of Forecaster
        By horizon: the best, then the best of each method, simplest first.
    """
    pairs = {h: parts.validation(h) for h in horizons}
    origins = {h: rows for h, (rows, _) in pairs.items()}
    errors: dict[int, dict[Forecaster, float]] = {h: {} for h in horizons}
    for tried in candidates(parts, period=period):
        if tried.method in methods:
            made = forecasts(series, parts.times, tried, origins)
            for h, values in zip(horizons, made, strict=True):
                errors[h][tried] = float(((values - series[pairs[h][1]]) ** 2).sum())
    ranked = {}
    for h, total in errors.items():
        ranking = sorted(total, key=total.__getitem__)  # of equals, the simplest first
        best = {f.method: f for f in reversed(ranking)}
        ranked[h] = [ranking[0], *(best[m] for m in METHODS if m in best)]
    return ranked


# ---- scores --------------------------------------------------------------------------


def gain(error: Float64, reference: Float64, *, span: float = 1.0) -> Interval:
    r"""Compute ``1 - sum(error) / sum(reference)`` with a block-jackknife interval.

    Errors of nearby origins are alike.  They are cut into at most 20 blocks, each of
    ``span`` origins or more, and of at least the third root of their number.  Leaving
    out a block at a time gives the variance of the logarithm of the ratio, and a
    Student interval (H. R. Künsch, Ann. Stat. 17 (1989) 1217).

    ``error``, ``reference``: ``[n]`` squared errors of each origin, in time order, of a
    forecast and of what it is compared with.  ``span``: origins over which errors are
    correlated, the horizon.

    Returns
    -------
    Interval
        NaN if the reference has no error; its ends are NaN with fewer than 4 blocks,
        and where a forecast is compared with itself.

    Examples
    --------
    >>> gain(np.full(27, 1.0), np.full(27, 2.0))
    Interval(value=0.5, low=0.5, high=0.5)
    """
    from scipy.special import stdtrit

    total, base = float(error.sum()), float(reference.sum())
    value = 1 - total / base if base > 0 else NAN
    alone = Interval(value=value, low=NAN, high=NAN)
    size = max(span, len(error) / 20, len(error) ** (1 / 3))
    blocks = int(len(error) / size) if len(error) else 0
    if not base > 0 or blocks < FEWEST or np.array_equal(error, reference):
        return alone
    edges = np.linspace(0, len(error), blocks + 1).astype(np.int64)[:-1]
    above = total - np.add.reduceat(error, edges)
    below = base - np.add.reduceat(reference, edges)
    if total == 0 and (below > 0).all():
        return Interval(value=1.0, low=1.0, high=1.0)
    if not ((above > 0) & (below > 0)).all():  # all error is in one block
        return alone
    # the logarithm is nearer to normal, and its interval keeps the gain below 1
    left = np.log(above / below)
    spread = np.sqrt((blocks - 1) / blocks * ((left - left.mean()) ** 2).sum())
    reach = float(stdtrit(blocks - 1, 0.975) * spread)
    low, high = 1 - total / base * np.exp([reach, -reach])
    return Interval(value=value, low=float(low), high=float(high))


def ends(name: str, interval: Interval) -> dict[str, float]:
    """Return value and ends of an interval as columns of a row."""
    low, high = f"{name}_low", f"{name}_high"
    return {name: interval.value, low: interval.low, high: interval.high}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of the tuned forecasters of a series at one horizon."""

    horizon: int  # training steps
    rows: list[dict[str, Any]]  # one per method; none: the series is too short
    # [n] squared errors at the test origins: of the chosen forecaster, of persistence
    # and of the mean of the past
    errors: tuple[Float64, Float64, Float64]


def score(
    series: npt.NDArray[Any],
    times: Int64 | None = None,
    *,
    horizons: Sequence[int] | None = None,
    spacing: int = 1,
    period: int | None = None,
    tokens: npt.ArrayLike = NAN,
) -> list[Scores]:
    """Tune forecasters on series and score them on the test part.

    Parameters
    ----------
    series
        ``[T, C]`` finite values, 0 and above: loads, bytes or shares of C cells.
    times
        ``[T]`` training steps of the rows, increasing; None: no gaps.
    horizons
        Training steps, 1 and above; None: :func:`default_horizons`.
    spacing
        Usual number of training steps from one row to the next.
    period
        Of the seasonal forecaster; None: sought in the training part, 0: not tried.
    tokens
        Tokens that can choose a cell, one number or ``[T]``, where the series counts
        the token copies of single experts.

    Returns
    -------
    list of Scores
        One per horizon.  ``within_20``: share of the sum in cells forecast within 20%;
        ``nmse``: MSE over that of the mean of the past; ``below_mean``, ``below_last``:
        1 - MSE / MSE of the mean of the past, and of persistence; ``oracle_nmse``: NMSE
        of the true probabilities q, whose error is the sampling noise N q (1 - q) of N
        tokens; ``mape``: mean relative error of the cells above zero.

    Raises
    ------
    AnalysisError
        If a horizon is below 1, or no multiple of the spacing.

    Examples
    --------
    >>> wave = 100 + 50 * np.sin(2 * np.pi * np.arange(96)[:, None] / 8 + np.arange(4))
    >>> best, = (row for row in score(wave, horizons=[1])[0].rows if row["chosen"])
    >>> best["method"], round(best["within_20"], 6)
    ('seasonal', 1.0)
    """
    length, cells = series.shape
    times = np.arange(length) if times is None else times
    horizons = default_horizons(length, spacing) if horizons is None else horizons
    if wrong := [h for h in horizons if h < 1 or h % spacing]:
        raise AnalysisError(
            f"horizons are {spacing} iteration{'s' * (spacing > 1)} or a multiple, but "
            f"one is {wrong[0]}: correct it"
        )
    parts = split(times, max_origins=min(2048, max(64, SCORED // max(cells, 1))))
    usable = [h for h in horizons if cells and parts.testable(h)]
    too_short = (np.zeros(0),) * 3
    scores = {h: Scores(horizon=h, rows=[], errors=too_short) for h in horizons}
    if usable:
        x = np.asarray(series, np.float64)
        if period is None:  # in the training part, last values in its gaps
            first, last = times[0], times[parts.train_end - 1]
            grid = np.arange(max(first, last - 4095 * spacing), last + 1, spacing)
            held = np.searchsorted(times, grid, side="right") - 1
            period = find_period(x[held]) * spacing
        counted = np.broadcast_to(np.asarray(tokens, np.float64), length)
        for h, ranked in tuned(x, parts, usable, period=period).items():
            scores[h] = _scores(x, parts, h, ranked, counted)
    return list(scores.values())


def _scores(
    series: Float64,
    parts: Split,
    horizon: int,
    ranked: Sequence[Forecaster],
    tokens: Float64,
) -> Scores:
    """Score tuned forecasters, the best first, on the test part."""
    origins, targets = parts.test(horizon)
    actual = series[targets]
    best, *methods = ranked
    misses: dict[Forecaster, Float64] = {}
    for forecaster in methods:
        (made,) = forecasts(series, parts.times, forecaster, {horizon: origins})
        miss = np.abs(made - actual)
        misses[forecaster] = np.where(miss <= 1e-12 * actual, 0.0, miss)  # rounding
    errors = {f: (miss**2).sum(axis=1) for f, miss in misses.items()}
    if errors[best].sum() > errors[PERSISTENCE].sum():
        best = PERSISTENCE
    of_last, of_mean = errors[PERSISTENCE], errors[MEAN]
    q = ratio(actual.mean(axis=0), tokens[targets].mean())
    noise = float(actual.sum(axis=0) @ (1 - q))
    span = horizon / float(np.median(np.diff(parts.times[origins])))
    rows = []
    for forecaster, miss in misses.items():
        error, relative = errors[forecaster], ratio(miss, actual)
        close = relative <= TOLERANCE * (1 + 1e-12)
        rows.append(
            {
                "horizon": horizon,
                "method": forecaster.method,
                "setting": forecaster.setting,
                "chosen": forecaster == best,
                "within_20": float(ratio(actual[close].sum(), actual.sum())),
                "nmse": float(ratio(error.sum(), of_mean.sum())),
                **ends("below_mean", gain(error, of_mean, span=span)),
                **ends("below_last", gain(error, of_last, span=span)),
                "oracle_nmse": float(ratio(noise, of_mean.sum())),
                "mse": float(error.sum() / miss.size),
                "mape": float(relative[actual > 0].mean()) if actual.any() else NAN,
                "origins": len(origins),
            }
        )
    return Scores(horizon=horizon, rows=rows, errors=(errors[best], of_last, of_mean))


# ---- tables --------------------------------------------------------------------------


def forecast_tables(
    exchange: Exchange, rows: Rows, *, horizons: Sequence[int] | None = None
) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Score forecasts of loads and bytes of an exchange, and test whether they help.

    Subjects are the load of experts in token copies, its shares and its total, token
    copies of rank and expert, bytes between two ranks, and bytes that a rank receives.
    A total that never changes is left out.

    ``horizons``: Iterations; None: those that the run is long enough for.

    Returns
    -------
    list of dict, list of Claim
        Rows of the table "forecasts", and a claim for each of :data:`CLAIMED` and each
        horizon.

    Raises
    ------
    AnalysisError
        If a horizon is between the recorded iterations.
    """
    from .claims import forecast_helps

    spacing = exchange.regular[1]
    tokens: npt.ArrayLike = NAN if rows.tokens is None else rows.tokens
    series: dict[str, tuple[npt.NDArray[Any] | None, npt.ArrayLike]] = {}
    if rows.load is not None:
        total = rows.load.sum(axis=1, keepdims=True)
        series["expert_load"] = rows.load, np.multiply(tokens, len(exchange.ranks))
        series["load_shares"] = rows.load / np.maximum(total, 1), NAN
        series["total_load"] = total if np.ptp(total) else None, NAN
    series["demand"] = rows.demand_cells, tokens
    series["wire"] = rows.pairs, NAN
    series["received"] = rows.received, NAN
    table: list[dict[str, Any]] = []
    claims: list[Claim] = []
    for subject, (values, counted) in series.items():
        if values is None:
            continue
        for scores in score(
            values, exchange.steps, horizons=horizons, spacing=spacing, tokens=counted
        ):
            place: dict[str, Any] = exchange.key | {"subject": subject}
            table += [place | row for row in scores.rows]
            if subject in CLAIMED:
                claim = forecast_helps(*scores.errors, horizon=scores.horizon)
                if not scores.rows:
                    place["needs"] = rows_needed(scores.horizon // spacing)
                claims.append(replace(claim, **place))
    return table, claims
