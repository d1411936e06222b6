"""Run statistics from per-iteration rows: curves, noise floors, forecasts, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.convergence.convergence import Convergence, convergence_of
from moetraffic.analysis.convergence.level_changes import Levels, levels_of
from moetraffic.analysis.forecast.attenuation import Persistence, fit_memory
from moetraffic.analysis.forecast.bounds import PredictabilityBounds, limits
from moetraffic.analysis.forecast.forecasting import Forecasts, forecast
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.analysis.network.complexity import Complexity
from moetraffic.analysis.noise.floors import (
    GRID,
    Floors,
    NoiseFloor,
    matrix_floors,
    skew_floors,
)
from moetraffic.analysis.noise.null_model import NullModel
from moetraffic.analysis.skew.capacity import LoadFigures
from moetraffic.analysis.skew.measures import MEASURES, shares
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import Meta

from .exchange import Rows, Source
from .expert_statistics import ExpertStatistics
from .network_statistics import NetworkStatistics
from .observation import MEASURED, SKEW, samples

PARTS = (
    "claims",
    "skew",
    "forecasts",
    "limits",
    "convergence",
    "complexity",
    "rhythm",
    "within",
    "time-breakdown",
)
"""Names of the parts of an analysis."""

OF_LOADS = (*SKEW, "entropy", "sparsity")
"""Measures computed of expert and rank loads."""

CLAIMED = {True: ("expert_load", "demand"), False: ("received", "wire")}
"""Load and matrix whose forecasts claims are about, by whether routing is known."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure over iterations, with its noise floor."""

    values: Float64  # [T]
    floor: NoiseFloor | None  # arrays [T]; None if unknown


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Statistics of one matrix or load: curves, forecasts and predictability bounds."""

    name: str  # "expert_load", "demand", "wire" or "received"
    about: str  # description of its cells
    unit: str
    cells: int  # C
    followed: int  # cells tracked over time, a sample if fewer than C
    curves: Mapping[str, Curve]  # by measure
    forecasts: Forecasts | None
    limits: PredictabilityBounds | None  # one iteration ahead
    memory: Persistence | None  # of the shares, corrected for sampling noise


@dataclass(frozen=True, kw_only=True)
class ExchangeAnalysis:
    """Statistics of one layer's expert exchange on one process group."""

    layer: int
    group: int
    phase: str  # whose bytes are the wire matrix
    ranks: tuple[int, ...]
    iterations: Int64  # [T] iterations with complete records
    left_out: int  # iterations in which a rank's record is missing
    subjects: tuple[Subject, ...]
    convergence: Convergence | None  # of loads and matrix
    complexity: Complexity | None  # of the packets between ranks
    network: NetworkStatistics | None  # tiers and flows
    claims: tuple[Claim, ...] = ()  # about the load; of the part "claims"
    figures: LoadFigures | None = None  # measured, of the expert load; likewise
    unchanging: tuple[str, ...] = ()  # of "demand" and "wire": equal in all iterations
    experts: ExpertStatistics | None = None  # load tails, EP degrees, correlations


def conclude(
    source: Source,
    rows: Rows,
    meta: Meta,
    notes: list[str],
    *,
    parts: Sequence[str] = PARTS,
    horizons: Sequence[int] | None = None,
    leads: LeadTimes | None = None,
    levels: Levels | None = None,
) -> tuple[Subject, ...]:
    """Compute the statistics of a whole run from the rows of an exchange.

    Parameters
    ----------
    horizons
        Forecast horizons, iterations; None: those that the run is long enough for.
    leads
        Lead times of the trace, for the time at which forecasts are available.
    levels
        Of the load, as of :func:`load_levels`; the part "limits" needs it.

    Returns
    -------
    tuple of Subject
        Expert load and demand, if routing was recorded; wire and bytes received by
        rank, if bytes were.
    """
    tokens = tokens_of(source, rows, meta, notes)
    run = _Run(source, rows, meta, tokens, tuple(parts), horizons, leads, levels)
    subjects: list[Subject] = []
    if "demand.load" in rows:
        subjects += run.of_demand()
    if "wire.sent" in rows:
        subjects += run.of_wire()
    elif len(source.sent):
        notes.append(f"{source.where}: no wire, for one rank sends nothing to another")
    return tuple(subjects)


def load_counts(rows: Rows) -> tuple[Int64 | None, int]:
    """Return the load of an exchange, ``[T, C]``, and the bytes of one count.

    Token copies of experts if the demand is known, of 1; else the rows that ranks
    received; None where neither is.
    """
    if "demand.load" in rows:
        return np.asarray(rows["demand.load"], np.int64), 1
    if "wire.received" not in rows:
        return None, 1
    unit = max(1, int(np.gcd.reduce(np.asarray(rows["wire.unit"], np.int64))))
    return np.asarray(rows["wire.received"], np.int64) // unit, unit


def load_levels(rows: Rows) -> Levels | None:
    """Compute the levels of the load of an exchange; None where it is unknown."""
    counts, _ = load_counts(rows)
    return None if counts is None else levels_of(counts)


def unchanging(source: Source, rows: Rows) -> tuple[str, ...]:
    """Name the matrices that are equal in all iterations: "demand", "wire".

    Of a matrix of which only a sample of cells is followed nothing is concluded.
    """
    if len(source.iterations) < 2:
        return ()
    found = {"wire"} if source.constant else set()
    for name, followed in samples(source).items():
        cells = rows.get(f"{name}.cells", np.zeros((1, 0)))
        if 0 < cells.shape[1] == followed.of and (cells == cells[0]).all():
            found.add(name)
    return tuple(sorted(found))


def tokens_of(source: Source, rows: Rows, meta: Meta, notes: list[str]) -> Int64 | None:
    """Compute the tokens per rank in each iteration, ``[T]``; None if unknown."""
    if "demand.sent" not in rows:
        stated = rows.get("step.tokens")
        usable = stated is not None and 1 <= meta.k <= _experts(source, meta)
        return np.asarray(stated, np.int64) if usable else None
    if not 1 <= meta.k <= source.experts:
        notes.append(f"{source.where}: no noise floors, as the trace has no top-k")
        return None
    # token counts of ranks differ slightly even with equal batches
    sent = np.asarray(rows["demand.sent"], np.float64)
    number: Int64 = np.rint(sent.mean(axis=1) / meta.k).astype(np.int64)
    return number


def _experts(source: Source, meta: Meta) -> int:
    """Return the number of experts of an exchange, 0 if unknown."""
    return source.experts or meta.experts


def sent_tokens(source: Source, rows: Rows, meta: Meta) -> Int64 | None:
    """Compute the tokens per rank behind the wire bytes, ``[T]``; None if unrelated.

    With padded dispatch, bytes do not depend on routing.
    """
    return None if meta.dispatch == "padded" else tokens_of(source, rows, meta, [])


def converged(source: Source, rows: Rows, meta: Meta) -> Convergence | None:
    """Compute convergence of the loads and the matrix of an exchange.

    Computed from the demand if known, else from the wire.
    """
    tokens = tokens_of(source, rows, meta, [])
    name, load, unit = "demand", "demand.load", 1.0
    if load not in rows:
        name, load = "wire", "wire.received"
        if load not in rows:
            return None
        unit = float(np.gcd.reduce(np.asarray(rows["wire.unit"], np.int64)))
    return convergence_of(
        np.asarray(rows[load], np.float64),
        np.asarray(rows[f"{name}.cells"], np.float64),
        at=source.iterations,
        elapsed=source.elapsed,
        tokens=None if tokens is None else tokens * len(source.ranks),
        k=max(1, meta.k),
        copy_size=unit,
    )


@dataclass(frozen=True)
class _Run:
    """Rows of an exchange and the options of the statistics computed from them."""

    source: Source
    rows: Rows
    meta: Meta
    tokens: Int64 | None
    parts: tuple[str, ...]
    horizons: Sequence[int] | None
    leads: LeadTimes | None
    levels: Levels | None

    def of_demand(self) -> list[Subject]:
        """Compute the statistics of expert load and of the demand matrix."""
        ranks, experts, k = len(self.source.ranks), self.source.experts, self.meta.k
        load = np.asarray(self.rows["demand.load"], np.int64)
        every = None if self.tokens is None else self.tokens * ranks
        floors: Floors = {}
        of_matrix: Floors = {}
        if every is not None and self.tokens is not None and "skew" in self.parts:
            floors = skew_floors(
                OF_LOADS, every, NullModel(experts=experts, k=k), most=GRID
            )
            of_matrix = matrix_floors(
                MEASURED, self.tokens, NullModel(experts=experts, k=k, sources=ranks)
            )
        counted = {"k": max(1, k), "experts": experts}
        return [
            self.subject(
                "expert_load",
                "token copies that each expert was given by all ranks",
                load,
                _skew(load, OF_LOADS),
                floors,
                of="expert load",
                tokens=every,
                **counted,
            ),
            self.subject(
                "demand",
                "token copies that each rank routed to each expert",
                np.asarray(self.rows["demand.cells"]),
                self.measured("demand"),
                of_matrix,
                of="demand matrix",
                tokens=self.tokens,
                **counted,
            ),
        ]

    def of_wire(self) -> list[Subject]:
        """Compute the statistics of the wire matrix and of bytes received by rank."""
        ranks, k = len(self.source.ranks), self.meta.k
        experts = _experts(self.source, self.meta)
        phase = self.source.phase
        tokens = sent_tokens(self.source, self.rows, self.meta)
        unit = int(np.gcd.reduce(np.asarray(self.rows["wire.unit"], np.int64)))
        cells = np.asarray(self.rows["wire.cells"], np.int64) // unit
        received = np.asarray(self.rows["wire.received"], np.int64)
        even = experts > 0 and experts % ranks == 0
        floors: Floors = {}
        if tokens is not None and even and "skew" in self.parts:
            model = NullModel(experts=experts, k=k, sources=ranks, ranks=ranks)
            floors = matrix_floors(MEASURED, tokens, model, received=SKEW)
        counted = {
            "k": max(1, k),
            "experts": experts or None,
            "held": experts // ranks if even else 1,
            "weights": unit,
        }
        counts = tokens if even and unit > 1 else None
        return [
            self.subject(
                "wire",
                f"bytes that {phase} sent from each rank to each other rank",
                cells,
                self.measured("wire"),
                floors,
                of="wire matrix",
                tokens=counts,
                **counted,
            ),
            self.subject(
                "received",
                f"bytes that each rank received in {phase} from other ranks",
                received // unit,
                _skew(received, SKEW),
                {name: floors[f"received.{name}"] for name in SKEW if floors},
                of="bytes received",
                tokens=None if counts is None else counts * (ranks - 1),
                **counted,
            ),
        ]

    def _claims_of(self, name: str) -> bool:
        """Return whether claims are about forecasts of this load or matrix."""
        routed = "demand.load" in self.rows
        return "claims" in self.parts and name in CLAIMED[routed]

    def _changed(self, name: str, cells: npt.NDArray[np.generic]) -> str:
        """Say where the level of shares changes, as claims do; "" if nowhere."""
        load, _ = CLAIMED["demand.load" in self.rows]
        # before its own level does, a matrix shows that of the load in its sums
        levels = self.levels
        if levels is None or not (levels.changes or name == load):
            levels = levels_of(cells)
        when = ", ".join(map(str, self.source.iterations[levels.changed_at]))
        return f"the level changes at iteration {when}" if when else ""

    def measured(self, name: str) -> dict[str, Float64]:
        """Return the observed measures of each matrix by name, ``[T]`` each."""
        if "skew" not in self.parts:
            return {}
        return {m: np.asarray(self.rows[f"{name}.{m}"], np.float64) for m in MEASURED}

    def subject(
        self,
        name: str,
        about: str,
        cells: npt.NDArray[np.generic],
        skew: Mapping[str, Float64],
        floors: Mapping[str, NoiseFloor],
        **counted: Any,
    ) -> Subject:
        """Compute curves of measures, forecasts and predictability bounds of cells."""
        curves, forecasts, bounds, memory = {}, None, None, None
        cut, spacing = self.source.regular
        if "skew" in self.parts:
            curves = {
                measure: Curve(values=values, floor=floors.get(measure))
                for measure, values in skew.items()
            }
        if "forecasts" in self.parts or self._claims_of(name):
            own = (self.source.layer, self.source.phase)
            at = self.leads.offset_s.get(own, 0.0) if self.leads else 0.0
            horizons = self.horizons
            if name in ("demand", "wire") and "forecasts" not in self.parts:
                # all that the claim about the matrix needs
                horizons = (min(horizons or (spacing,)),)
            if (tokens := counted.get("tokens")) is not None and np.ndim(tokens):
                counted = {**counted, "tokens": tokens[cut]}
            forecasts = forecast(
                cells[cut],
                horizons=horizons,
                spacing=spacing,
                iteration_s=self.leads.iteration_s if self.leads else float("nan"),
                # a matrix is known once it is sent
                known_s=at,
                transfer_s=at,
                **counted,
            )
        if "limits" in self.parts:
            changed = self._changed(name, cells)
            bounds = PredictabilityBounds(reason=changed)
            # two levels look like one autoregression near a unit root
            memory = Persistence(steps=len(cells), reason=changed)
            if not changed:
                weights = counted.get("weights", 1.0)
                one = forecasts
                if one is None or not any(h.horizon == 1 for h in one.horizons):
                    one = forecast(cells[cut], horizons=(1,), weights=weights)
                bounds = limits(cells[cut], weights=weights, reached=one.lowest_nmse(1))
                memory = fit_memory(shares(cells[cut]))
        sample = samples(self.source).get(name)
        return Subject(
            name=name,
            about=about,
            unit="token copies" if name in ("expert_load", "demand") else "bytes",
            cells=sample.of if sample else cells.shape[1],
            followed=len(sample.index) if sample else cells.shape[1],
            curves=curves,
            forecasts=forecasts,
            limits=bounds,
            memory=memory,
        )


def _skew(load: Int64, names: Sequence[str]) -> dict[str, Float64]:
    """Compute measures of loads ``[T, C]`` by name, ``[T]`` each."""
    return {name: MEASURES[name](load) for name in names}
