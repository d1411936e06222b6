"""Results as plain data: JSON, data frames, CSV and Parquet.

Dataclasses become mappings with their fields' names, which carry the units; arrays
become lists; what is not known stays NaN, which JSON has as null.  An analysis is also
listed as *records*: flat rows with one value each, for data frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.analysis import Analysis, Curve, ExchangeAnalysis, Subject, stage_means
from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.errors import AnalysisError
from moetraffic.trace.hdf5.durable import remedy, replacing, validate_output

if TYPE_CHECKING:
    import pandas as pd

STAGES = ("early", "middle", "late")


def plain(value: Any) -> Any:
    """Convert a result to mappings, lists, numbers and text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _key(key: Any) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """All statistics as plain data, with units in the names or beside them."""
    return {
        "exchanges": [_exchange(e) for e in analysis.exchanges],
        "rhythm": plain(analysis.beats),
        "leads": plain(analysis.leads),
        "within_iteration": [
            plain(sight) | {"in_words": sentence(sight.verdict)}
            for sight in analysis.sights
        ],
        "occupation": _occupation(analysis.occupation),
        "notes": list(analysis.notes),
    }


SPENT = ("compute", "communication", "overlapped", "idle")


def _occupation(spent: TimeBreakdown | None) -> dict[str, Any] | None:
    """Shares of each rank's steps, and whether compute was inferred from calls."""
    if spent is None:
        return None
    return {
        "shares_by_rank": [
            dict(zip(SPENT, row, strict=True)) for row in spent.shares.tolist()
        ],
        "communication_fraction": spent.communication_fraction.tolist(),
        "hidden_fraction": spent.hidden_fraction.tolist(),
        "inferred_from_calls": spent.inferred,
    }


def _exchange(exchange: ExchangeAnalysis) -> dict[str, Any]:
    return {
        "layer": exchange.layer,
        "group": exchange.group,
        "phase": exchange.phase,
        "ranks": list(exchange.ranks),
        "iterations": exchange.iterations.tolist(),
        "iterations_left_out": exchange.left_out,
        "statistics": {s.name: _subject(s) for s in exchange.subjects},
        "convergence": plain(exchange.convergence),
        "complexity": plain(exchange.complexity),
        "network": plain(exchange.network),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    forecasts = plain(subject.forecasts)
    if subject.forecasts is not None:
        forecasts["in_words"] = [sentence(v) for v in subject.forecasts.verdicts]
    return {
        "of": subject.about,
        "unit": subject.unit,
        "cells": subject.cells,
        "cells_followed": subject.followed,
        "skew": {name: _curve(curve) for name, curve in subject.curves.items()},
        "forecasts": forecasts,
        "limits": plain(subject.limits),
        "memory": plain(subject.memory),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": mean(curve.values)}
    found |= dict(zip(STAGES, stage_means(curve.values).tolist(), strict=True))
    if curve.floor is not None:
        found["noise_floor"] = mean(curve.floor.mean)
        found["noise_floor_std"] = mean(curve.floor.std)
        found["z_score"] = mean(curve.floor.z_score(curve.values))
    found["trend"] = {
        "slope_per_iteration": float(curve.trend.slope),
        "slope_low": float(curve.trend.low),
        "slope_high": float(curve.trend.high),
        "kendall_tau": float(curve.trend.tau),
        "mann_kendall_p": float(curve.trend.p),
    }
    found["settled"] = bool(curve.settling.settled)
    found["settled_at_index"] = int(curve.settling.step)
    found["values"] = curve.values.tolist()
    return found


def mean(values: Any) -> float:
    """Mean of what is known; NaN of nothing."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")


# ---- records -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Record:
    """One value of an analysis."""

    file: str = ""
    layer: int = -1  # -1: of the whole run
    group: int = -1
    phase: str = ""
    subject: str = ""  # expert_load, demand, wire, received, rank 3 ...
    statistic: str
    unit: str = ""
    iteration: int = -1  # -1: of all of them
    horizon: int = -1  # iterations ahead; -1: no forecast
    forecaster: str = ""
    value: float
    low: float = float("nan")  # interval
    high: float = float("nan")
    floor: float = float("nan")  # of a balanced router
    floor_std: float = float("nan")
    z: float = float("nan")  # standard deviations above the floor


def records(analysis: Analysis, *, file: str = "") -> list[Record]:
    """List an analysis as flat records, one value each.

    Parameters
    ----------
    analysis
        Of a trace.
    file
        Its name, where several are put together.

    Returns
    -------
    list of Record
        Curves have a record an iteration; all else one.
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
    for beat in analysis.beats.found:
        subject_name = (
            f"{beat.by} {beat.name}" if beat.by not in beat.name else beat.name
        )
        found += _flat(beat.rhythm, subject_name, {"file": file})
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
                for name, value in zip(SPENT, row, strict=True)
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
    """The numbers of a dataclass; of arrays their mean."""
    for field in fields(value):
        each = getattr(value, field.name)
        if isinstance(each, bool) or each is None or isinstance(each, str):
            continue
        if isinstance(each, np.ndarray):
            each = mean(each)
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


def frame(analysis: Analysis, *, file: str = "") -> pd.DataFrame:
    """An analysis as a ``pandas.DataFrame`` with the columns of :class:`Record`."""
    return table(records(analysis, file=file))


def table(rows: list[Record]) -> pd.DataFrame:
    """Records as a data frame, a column for each field."""
    import pandas as pd

    names = [f.name for f in fields(Record)]
    return pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})


def write_records(rows: list[Record], path: Path, *, force: bool = False) -> None:
    """Write records as CSV or Parquet, as the file's ending says.

    Raises
    ------
    AnalysisError
        If the ending is another, the file exists and ``force`` is not given, pyarrow is
        not installed, or the disk refuses.
    """
    validate_output(path, force=force, error=AnalysisError)
    if path.suffix not in (".csv", ".parquet"):
        raise AnalysisError(
            f"records are written as .csv or .parquet, but {path.name} is neither: "
            "choose an ending"
        )
    try:
        with replacing(path) as temporary:
            if path.suffix == ".csv":
                table(rows).to_csv(temporary, index=False, lineterminator="\r\n")
            else:
                table(rows).to_parquet(temporary, engine="pyarrow", index=False)
    except ImportError:
        raise AnalysisError(
            "Parquet is written by pyarrow, which is not installed: pip install "
            "'moetraffic[tables]', or choose a .csv"
        ) from None
    except OSError as error:
        raise AnalysisError(
            f"{path} cannot be written ({error.strerror or error}): {remedy(error)}"
        ) from None
