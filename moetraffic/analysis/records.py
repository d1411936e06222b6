"""Records: the values of an analysis as a tidy table with one row per value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .conclusion import Subject
from .forecast.accuracy import mean_of_known
from .times.time_breakdown import PARTS as TIME_PARTS

if TYPE_CHECKING:
    from .engine import Analysis, ExchangeAnalysis


@dataclass(frozen=True, kw_only=True)
class Record:
    """One value of an analysis: a row of its data frame."""

    file: str = ""
    layer: int = -1  # -1: whole run
    group: int = -1
    phase: str = ""
    subject: str = ""  # expert_load, demand, wire, received, rank 3 ...
    statistic: str
    unit: str = ""
    iteration: int = -1  # -1: all iterations
    horizon: int = -1  # iterations ahead; -1: no forecast
    forecaster: str = ""
    value: float
    low: float = float("nan")  # interval
    high: float = float("nan")
    floor: float = float("nan")  # of a balanced router
    floor_std: float = float("nan")
    z: float = float("nan")  # standard deviations above the floor


COLUMNS = tuple(f.name for f in fields(Record))


def records(analysis: Analysis, *, file: str = "") -> list[Record]:
    """List the rows of an analysis' data frame, one per value.

    Parameters
    ----------
    analysis
        Analysis of a trace.
    file
        Name of the trace, to distinguish several.

    Returns
    -------
    list of Record
        One row per iteration of a curve; one row for any other value.
    """
    found: list[Record] = []
    for exchange in analysis.exchanges:
        here = {
            "file": file,
            "layer": exchange.layer,
            "group": exchange.group,
            "phase": exchange.phase,
        }
        for subject in exchange.subjects:
            found += _of_subject(exchange, subject, here)
        if exchange.network is not None:
            found += _flat(exchange.network, "network", here)
        if exchange.complexity is not None:
            found += _flat(exchange.complexity, "packets", here)
        if exchange.convergence is not None:
            together = exchange.convergence
            for name, part in (
                ("load", together.load),
                ("matrix", together.cells),
                ("hot_experts", together.hot_experts),
                ("hot_pairs", together.hot_cells),
            ):
                found += _flat(part, name, here)
    for source in analysis.beats.found:
        kind, name = source.by, source.name
        subject_name = name if kind in name else f"{kind} {name}"
        found += _flat(source.rhythm, subject_name, {"file": file})
    if analysis.occupation is not None:
        for rank, row in enumerate(analysis.occupation.shares.tolist()):
            found += [
                Record(
                    file=file,
                    subject=f"rank {rank}",
                    statistic=f"share_of_time.{name}",
                    unit="share",
                    value=value,
                )
                for name, value in zip(TIME_PARTS, row, strict=True)
            ]
    for sight in analysis.sights:
        found += _flat(sight, f"{sight.target} from the first dispatch", {"file": file})
    return found


def _of_subject(
    exchange: ExchangeAnalysis, subject: Subject, here: Mapping[str, Any]
) -> Iterator[Record]:
    for name, curve in subject.curves.items():
        floor = curve.floor
        each = np.full((3, len(curve.values)), np.nan)
        if floor is not None:
            each[0], each[1] = floor.mean, floor.std
            each[2] = floor.z_score(curve.values)
        for at, iteration in enumerate(exchange.iterations.tolist()):
            yield Record(
                **here,
                subject=subject.name,
                statistic=name,
                unit=_unit(name),
                iteration=iteration,
                value=float(curve.values[at]),
                floor=float(each[0, at]),
                floor_std=float(each[1, at]),
                z=float(each[2, at]),
            )
        yield Record(
            **here,
            subject=subject.name,
            statistic=f"{name}.slope",
            unit="an iteration",
            value=float(curve.trend.slope),
            low=float(curve.trend.low),
            high=float(curve.trend.high),
        )
    if subject.forecasts is not None:
        yield from _of_forecasts(subject, here)
    if subject.memory is not None:
        yield Record(
            **here,
            subject=subject.name,
            statistic="memory.phi",
            value=subject.memory.phi,
            low=subject.memory.phi_low,
            high=subject.memory.phi_high,
        )
    if subject.limits is not None:
        yield Record(
            **here,
            subject=subject.name,
            statistic="limit.nmse",
            horizon=1,
            value=subject.limits.pooled_nmse,
        )


def _of_forecasts(subject: Subject, here: Mapping[str, Any]) -> Iterator[Record]:
    assert subject.forecasts is not None
    for horizon in subject.forecasts.horizons:
        common = {**here, "subject": subject.name, "horizon": horizon.horizon}
        for score in horizon.scores:
            of = {**common, "forecaster": score.forecaster}
            yield Record(
                **of, statistic="nmse", value=score.nmse, floor=horizon.nmse_floor
            )
            yield Record(
                **of, statistic="mape", value=score.mape, floor=horizon.mape_floor
            )
            yield Record(
                **of,
                statistic="skill",
                value=score.skill,
                low=score.skill_low,
                high=score.skill_high,
            )
            yield Record(**of, statistic="hot_recall", value=score.hot_recall)
        verdict = horizon.verdict
        best = {**common, "forecaster": verdict.forecaster}
        for tolerance, share in zip(verdict.tolerances, verdict.within, strict=True):
            yield Record(
                **best,
                statistic=f"bytes_within_{100 * tolerance:g}_percent",
                unit="share",
                value=share,
            )
        yield Record(**best, statistic="lead", unit="s", value=verdict.lead_s)


def _flat(value: Any, subject: str, here: Mapping[str, Any]) -> Iterator[Record]:
    """Yield a record per numeric field of a dataclass, with arrays averaged."""
    for field in fields(value):
        each = getattr(value, field.name)
        if isinstance(each, bool) or each is None or isinstance(each, str):
            continue
        if isinstance(each, np.ndarray):
            each = mean_of_known(np.asarray(each, np.float64))
        if isinstance(each, int | float | np.number):
            yield Record(
                **here,
                subject=subject,
                statistic=field.name,
                unit=_unit(field.name),
                value=float(each),
            )


UNITS = {"_ns": "ns", "_bits": "bits", "_bytes": "bytes", "_s": "s"}


def _unit(name: str) -> str:
    if name == "entropy" or name.endswith(("information", "conditional_entropy")):
        return "bits"
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
