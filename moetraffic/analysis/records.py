"""Records: the values of an analysis as a tidy table with one row per value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .claim import Claim, Outcome
from .conclusion import ExchangeAnalysis, Subject
from .forecast.accuracy import mean_of_known
from .noise.floors import NoiseFloor
from .times.time_breakdown import PARTS as TIME_PARTS

if TYPE_CHECKING:
    import pandas

    from .expert_statistics import ExpertStatistics
    from .forecast.bounds import PredictabilityBounds
    from .forecast.judging import HorizonScores
    from .forecast.origins import Ratio
    from .forecast.within_iteration import WithinIteration
    from .rhythm.source_statistics import OnOffStatistics
    from .skew.capacity import LoadFigures
    from .times.time_breakdown import TimeBreakdown


@dataclass(frozen=True, kw_only=True)
class Record:
    """One value of an analysis: a row of its data frame.

    The first and last columns are those that a narrow terminal shows.
    """

    layer: int = -1  # -1: whole run
    statistic: str
    subject: str = ""  # expert_load, demand, wire, received, rank 3 ...
    horizon: int = -1  # iterations ahead; -1: no forecast
    iteration: int = -1  # -1: all iterations
    forecaster: str = ""
    chosen: bool = False  # the forecaster that was the best on the validation part
    phase: str = ""
    group: int = -1
    file: str = ""
    floor: float = float("nan")  # of a balanced router
    floor_std: float = float("nan")
    unit: str = ""
    low: float = float("nan")  # interval
    high: float = float("nan")
    value: float


COLUMNS = tuple(f.name for f in fields(Record))


def records(
    exchanges: Sequence[ExchangeAnalysis],
    beats: OnOffStatistics,
    occupation: TimeBreakdown | None,
    sights: Sequence[WithinIteration],
    *,
    file: str = "",
) -> list[Record]:
    """List the rows of an analysis' data frame, one per value.

    ``file``: Name of the trace, to distinguish several.

    A curve has one row per iteration, any other value one row.
    """
    found: list[Record] = []
    for exchange in exchanges:
        here = {
            "file": file,
            "layer": exchange.layer,
            "group": exchange.group,
            "phase": exchange.phase,
        }
        found += _of_claims(exchange.claims, here)
        for subject in exchange.subjects:
            found += _of_subject(exchange, subject, here)
        if exchange.figures is not None:
            found += _of_run(exchange.figures, here)
        if exchange.network is not None:
            found += _flat(exchange.network, "network", here)
        if exchange.experts is not None:
            found += _of_experts(exchange.experts, here)
        if exchange.complexity is not None:
            found += _flat(exchange.complexity, "packets", here)
        if (converged := exchange.convergence) is not None:
            found += _flat(converged.load, "load", here)
            found += _flat(converged.cells, "matrix", here)
            found += _flat(converged.hot_experts, "hot_experts", here)
            found += _flat(converged.hot_cells, "hot_pairs", here)
    run = {"file": file}
    found += _of_claims(beats.claims, run)
    for source in beats.found:
        kind, name = source.by, source.name
        found += _flat(source.rhythm, name if kind in name else f"{kind} {name}", run)
    if occupation is not None:
        found += [
            Record(
                file=file,
                subject=f"rank {rank}",
                statistic=f"share_of_time.{name}",
                unit="share",
                value=value,
            )
            for rank, row in enumerate(occupation.shares.tolist())
            for name, value in zip(TIME_PARTS, row, strict=True)
        ]
    for later in sights:
        found += _flat(later, f"{later.target} from the first dispatch", run)
    return found


def frame(rows: Sequence[Record], notes: Sequence[str]) -> pandas.DataFrame:
    """Tabulate an analysis; a frame without rows warns, with the reason."""
    import pandas

    found = pandas.DataFrame(map(vars, rows), columns=COLUMNS)
    found.attrs["notes"] = list(notes)
    if found.empty:
        why = "; ".join(notes) or "no part of the analysis has values"
        warnings.warn(f"the data frame is empty: {why}", stacklevel=3)
    return found


def _of_claims(claims: tuple[Claim, ...], here: Mapping[str, Any]) -> Iterator[Record]:
    """Yield three records per claim: figure, p-value and whether it is stated."""
    stated = {Outcome.STATED.value: 1.0, Outcome.NO_EVIDENCE.value: 0.0}
    for claim in claims:
        row = partial(
            Record,
            **here,
            subject=claim.subject or claim.about,
            horizon=claim.horizon,
        )
        name = f"claim.{claim.name}"
        yield row(
            statistic=name,
            unit=claim.unit,
            value=claim.figure,
            low=claim.low,
            high=claim.high,
        )
        yield row(statistic=f"{name}.p", value=claim.p)
        # undefined where nothing was tested, or too few data
        yield row(
            statistic=f"{name}.stated", value=stated.get(claim.result, float("nan"))
        )


def _of_subject(
    exchange: ExchangeAnalysis, subject: Subject, here: Mapping[str, Any]
) -> Iterator[Record]:
    row = partial(Record, **here, subject=subject.name)
    unknown = np.full(len(exchange.iterations), np.nan)
    for name, curve in subject.curves.items():
        floor = curve.floor or NoiseFloor(mean=unknown, std=unknown)
        columns = (exchange.iterations, curve.values, floor.mean, floor.std)
        for iteration, value, mean, std in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            yield row(
                statistic=name,
                unit=_unit(name),
                iteration=iteration,
                value=value,
                floor=mean,
                floor_std=std,
            )
    if subject.forecasts is not None:
        for horizon in subject.forecasts.horizons:
            of = partial(row, horizon=horizon.horizon)
            yield from _of_horizon(horizon, of, unit=f"{subject.unit}²")
    if (memory := subject.memory) is not None:
        yield row(
            statistic="memory.phi",
            value=memory.phi,
            low=memory.phi_low,
            high=memory.phi_high,
        )
    if subject.limits is not None:
        yield row(
            statistic="limit.nmse",
            horizon=1,
            **_interval(subject.limits, subject.limits.nmse),
        )


def _of_run(figures: LoadFigures, here: Mapping[str, Any]) -> Iterator[Record]:
    row = partial(Record, **here, subject="expert_load")
    yield row(statistic="run.max_over_mean", value=figures.max_over_mean)
    yield row(statistic="run.starved", unit="experts", value=figures.starved)
    yield row(statistic="run.dropped", unit="share", value=figures.dropped)
    for rule, factor in figures.needed.items():
        yield row(statistic=f"run.dropless_capacity_factor_{rule}", value=factor)
    yield row(statistic="run.capacity_factor_of_drops", value=figures.factor)


def _of_experts(experts: ExpertStatistics, here: Mapping[str, Any]) -> Iterator[Record]:
    yield from _flat(experts, "experts", here)
    for name in ("load", "bottleneck_bytes"):
        if (found := getattr(experts, name)) is not None:
            yield from _flat(found, f"experts.{name}", here)
    for degree in experts.ep_degrees:
        yield Record(
            **here,
            subject=f"experts at EP {degree.ep}",
            statistic="max_over_mean",
            value=degree.max_over_mean,
            floor=degree.noise_floor,
        )
    for hosts in experts.contiguous:
        yield Record(
            **here,
            subject=f"experts on {hosts.hosts} hosts",
            statistic="hosts_per_token",
            value=hosts.mean,
            low=hosts.low,
            high=hosts.high,
            floor=hosts.balanced,
        )
    for pair in experts.co_activation.pairs if experts.co_activation else ():
        yield Record(
            **here,
            subject="experts {} and {}".format(*pair.experts),
            statistic="co_activation_lift",
            value=pair.lift,
            low=pair.low,
            high=pair.high,
        )


def _of_horizon(
    horizon: HorizonScores, row: Callable[..., Record], *, unit: str
) -> Iterator[Record]:
    verdict = horizon.verdict
    for score in horizon.scores:
        chosen = score.forecaster == verdict.forecaster
        of = partial(row, forecaster=score.forecaster, chosen=chosen)
        yield of(statistic="mse", unit=unit, value=score.mse)
        nmse = 1 - score.skill.high, 1 - score.skill.low
        yield of(
            statistic="nmse",
            value=score.nmse,
            low=nmse[0],
            high=nmse[1],
            floor=horizon.nmse_floor,
            floor_std=horizon.nmse_floor_error,
        )
        yield of(
            statistic="mape",
            value=score.mape,
            floor=horizon.mape_floor,
            floor_std=horizon.mape_floor_error,
        )
        yield of(statistic="skill", **_interval(score.skill, score.skill.value))
        yield of(
            statistic="mse_below_persistence",
            **_interval(score.reduction, score.reduction.value),
        )
        yield of(statistic="hot_recall", value=score.hot_recall)
    best = partial(row, forecaster=verdict.forecaster, chosen=True)
    for tolerance, share in zip(verdict.tolerances, verdict.within, strict=True):
        name = f"bytes_within_{100 * tolerance:g}_percent"
        yield best(statistic=name, unit="share", value=share)
    yield best(statistic="lead", unit="s", value=verdict.lead_s)


def _interval(found: Ratio | PredictabilityBounds, value: float) -> dict[str, Any]:
    return {"value": value, "low": found.low, "high": found.high}


def _flat(value: Any, subject: str, here: Mapping[str, Any]) -> Iterator[Record]:
    """Yield a record per numeric field of a dataclass, with arrays averaged."""
    for name, each in vars(value).items():
        if isinstance(each, np.ndarray):
            each = mean_of_known(np.asarray(each, np.float64))
        if isinstance(each, int | float | np.number) and not isinstance(each, bool):
            yield Record(
                **here,
                subject=subject,
                statistic=name,
                unit=_unit(name),
                value=float(each),
            )


UNITS = {"_ns": "ns", "_bits": "bits", "_bytes": "bytes", "_s": "s"}


def _unit(name: str) -> str:
    if name == "entropy" or name.endswith(("information", "conditional_entropy")):
        return "bits"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
