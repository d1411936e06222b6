"""What the rows of a run say: curves beside their noise floors, and forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace import Meta

from .convergence import Settling, Trend, settling, trend
from .exchange import Source
from .floors import NoiseFloor, noise_floor
from .observation import SKEW, Rows
from .predictability import Scores, evaluate, mape_floor
from .skew import MEASURES, shares

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure in every iteration, beside what a balanced gate shows by chance."""

    values: Float64  # [T]
    floor: NoiseFloor | None  # arrays [T]; None where there is none to compare with
    trend: Trend  # slope an iteration
    settling: Settling  # where it has become steady


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What statistics were computed of, and these."""

    name: str  # "expert_load", "demand" or "wire"
    about: str  # what its cells are, in words
    unit: str
    curves: Mapping[str, Curve]  # by measure
    scores: Mapping[str, Scores]  # one-step forecasts of its shares, by forecaster
    mape_floor: float = float("nan")  # of the best forecaster of a balanced gate


def conclude(
    source: Source, rows: Rows, meta: Meta, notes: list[str]
) -> tuple[Subject, ...]:
    """Compute what needs the whole run from the rows of an exchange.

    Parameters
    ----------
    source
        The exchange.
    rows
        Of all its iterations.
    meta
        Of the trace.
    notes
        What cannot be computed is added, and why.
    """
    subjects: list[Subject] = []
    tokens: Int64 | None = None
    if "demand.load" in rows:
        sent = np.asarray(rows["demand.sent"], np.int64)
        if meta.k < 1:
            notes.append(
                f"{source.where}: no noise floors, for the trace does not tell k"
            )
        else:
            # of a rank; ranks differ by few where batches are even
            tokens = np.rint(sent.mean(axis=1) / meta.k).astype(np.int64)
        subjects += _of_demand(source, rows, meta.k, tokens, notes)
    if "wire.sent" in rows:
        subjects.append(_of_wire(source, rows, meta, tokens, notes))
    elif len(source.sent):
        notes.append(f"{source.where}: no wire, for one rank sends nothing to another")
    return tuple(subjects)


def _of_demand(
    source: Source, rows: Rows, k: int, tokens: Int64 | None, notes: list[str]
) -> list[Subject]:
    """Statistics of the load of each expert and of the ranks' demand."""
    ranks, experts = len(source.ranks), source.experts
    load = np.asarray(rows["demand.load"], np.int64)
    every = None if tokens is None else tokens * ranks
    best = float("nan")
    if every is not None:
        best = float(np.mean(mape_floor(every, experts=experts, k=k)))
    skew = {m: np.asarray(MEASURES[m](load, axis=-1), np.float64) for m in SKEW}
    cells = np.asarray(rows["demand.cells"])
    return [
        Subject(
            name="expert_load",
            about="token copies that each expert was given by all ranks",
            unit="token copies",
            curves=_curves(skew, source, every, {"experts": experts, "k": k}),
            scores=_scores(load, source, notes),
            mape_floor=best,
        ),
        Subject(
            name="demand",
            about="token copies that each rank routed to each expert",
            unit="token copies",
            curves=_curves(
                {m: np.asarray(rows[f"demand.{m}"], np.float64) for m in SKEW},
                source,
                tokens,
                {"experts": experts, "k": k, "sources": ranks},
            ),
            scores=_scores(cells, source, notes),
        ),
    ]


def _of_wire(
    source: Source, rows: Rows, meta: Meta, tokens: Int64 | None, notes: list[str]
) -> Subject:
    """Statistics of the bytes between different ranks."""
    ranks = len(source.ranks)
    # chance moves bytes only where bytes follow the tokens
    follows = tokens is not None and meta.dispatch != "padded"
    floors = {
        "experts": source.experts,
        "k": meta.k,
        "ranks": ranks,
        "sources": ranks,
        "diagonal": False,
    }
    return Subject(
        name="wire",
        about=f"bytes that {source.phase} sent from each rank to each other rank",
        unit="bytes",
        curves=_curves(
            {m: np.asarray(rows[f"wire.{m}"], np.float64) for m in SKEW},
            source,
            tokens if follows else None,
            floors,
        ),
        scores=_scores(np.asarray(rows["wire.cells"]), source, notes),
    )


def _curves(
    skew: Mapping[str, Float64],
    source: Source,
    tokens: Int64 | None,
    floors: Mapping[str, Any],
) -> dict[str, Curve]:
    return {
        name: Curve(
            values=values,
            floor=None if tokens is None else noise_floor(name, tokens, **floors),
            trend=trend(values, at=source.iterations),
            settling=settling(values),
        )
        for name, values in skew.items()
    }


def _scores(
    cells: npt.NDArray[np.generic], source: Source, notes: list[str]
) -> dict[str, Scores]:
    """How well the shares of the cells are forecast a step ahead."""
    warm_up = 8
    if len(cells) < 2 * warm_up:
        notes.append(
            f"{source.where}: no predictability, for {len(cells)} iterations are fewer "
            f"than {2 * warm_up}"
        )
        return {}
    return evaluate(shares(cells, axis=-1), warm_up=warm_up, axis=(0, -1))
