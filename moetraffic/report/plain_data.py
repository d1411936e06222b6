"""Convert an analysis to plain data for JSON, and write its records as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moetraffic.analysis import Analysis, Curve, ExchangeAnalysis, Subject, stage_means
from moetraffic.analysis.claim import Claim
from moetraffic.analysis.forecast.accuracy import mean_of_known
from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.analysis.times.time_breakdown import PARTS as TIME_PARTS
from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.errors import AnalysisError, install_command
from moetraffic.files import replacing, validate_output, write_errors
from moetraffic.tables import SCHEMA_VERSION, plain

from .summary.answer import answer

STAGES = ("early", "middle", "late")


def as_dict(analysis: Analysis, *, file: str = "", options: str = "") -> dict[str, Any]:
    """Convert all statistics of an analysis to plain data with units.

    ``file`` is the path of the trace; without, it is left out.  ``options`` are those
    that the recommended commands repeat.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        **({"file": file} if file else {}),
        "summary": plain(answer(analysis, file=file or "run.h5", options=options)),
        "claims": [claim_dict(claim) for claim in analysis.claims],
        "exchanges": [_exchange(e) for e in analysis.exchanges],
        # its claims are among those above
        "rhythm": plain(
            {n: v for n, v in vars(analysis.beats).items() if n != "claims"}
        ),
        "leads": plain(analysis.leads),
        "within_iteration": [
            plain(sight) | {"in_words": sentence(sight.verdict)}
            for sight in analysis.sights
        ],
        "occupation": _occupation(analysis.occupation),
        "notes": list(analysis.notes),
        "omitted_calls": analysis.omitted,
        "unnamed_exchanges": analysis.unnamed,
    }


def claim_dict(claim: Claim) -> dict[str, Any]:
    """Convert a claim to plain data, with its sentence."""
    found: dict[str, Any] = plain(claim)
    return found | {"outcome": claim.outcome.value, "sentence": claim.sentence}


def _occupation(spent: TimeBreakdown | None) -> dict[str, Any] | None:
    """Convert a time breakdown to plain data, with the source of compute time."""
    if spent is None:
        return None
    names = ("collective_fraction", "transfer_fraction", "hidden_fraction")
    return {
        "shares_by_rank": [
            dict(zip(TIME_PARTS, row, strict=True)) for row in spent.shares.tolist()
        ],
        **{name: getattr(spent, name).tolist() for name in names},
        "inferred_from_calls": True,
    }


def _exchange(exchange: ExchangeAnalysis) -> dict[str, Any]:
    where = ("layer", "group", "phase", "ranks", "iterations")
    parts = ("convergence", "complexity", "network", "experts", "figures")
    return {
        **{name: plain(getattr(exchange, name)) for name in where},
        "iterations_left_out": exchange.left_out,
        "statistics": {s.name: _subject(s) for s in exchange.subjects},
        **{name: plain(getattr(exchange, name)) for name in parts},
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
    found: dict[str, Any] = {"mean": mean_of_known(curve.values)}
    found |= dict(zip(STAGES, stage_means(curve.values).tolist(), strict=True))
    if curve.floor is not None:
        found["noise_floor"] = mean_of_known(curve.floor.mean)
        found["noise_floor_std"] = mean_of_known(curve.floor.std)
    return found | {"values": curve.values.tolist()}


FRAMES = (".csv", ".parquet", ".xlsx")
"""File extensions of data frames."""

MOST_ROWS = 1_048_576
"""Maximum number of rows of an XLSX worksheet, with the header."""


def write_records(frame: Any, path: Path, *, force: bool = False) -> None:
    """Write an analysis data frame as CSV, Parquet or XLSX, by the file's extension.

    AnalysisError: the extension is another, the file exists and ``force`` is not set,
    a package is not installed, the rows are too many, or the file cannot be written.
    """
    validate_output(path, force=force, error=AnalysisError)
    if path.suffix not in FRAMES:
        raise AnalysisError(
            f"records are written as {', '.join(FRAMES)}, but {path.name} is none of "
            "these: choose one of these file extensions"
        )
    if path.suffix == ".xlsx" and len(frame) >= MOST_ROWS:
        raise AnalysisError(
            f"a worksheet has at most {MOST_ROWS:,} rows, but the analysis has "
            f"{len(frame):,}: choose a .parquet or .csv, or --only some parts"
        )
    try:
        with write_errors(path, error=AnalysisError), replacing(path) as temporary:
            if path.suffix == ".csv":
                frame.to_csv(temporary, index=False)
            elif path.suffix == ".xlsx":
                with temporary.open("wb") as file:
                    frame.to_excel(file, index=False, engine="openpyxl")
            else:
                frame.to_parquet(temporary, index=False)
    except ImportError:
        package = "openpyxl" if path.suffix == ".xlsx" else "pyarrow"
        raise AnalysisError(
            f"{path.suffix} files are written by {package}, which is not installed: "
            f"{install_command('tables')}, or choose a .csv"
        ) from None
