"""Measured bandwidths of collectives, their fits, and published systems by name.

What a collective gets of a network is measured, not computed: it depends on ranks,
nodes, size, platform and protocol.  A :class:`BandwidthTable` answers in between:

- between two measured sizes, time is the Hockney fit of that curve times the residuals,
  whose logarithm is linear in log(size): measurements are met exactly; outside of the
  measured sizes the outermost residual stays;
- between two measured numbers of ranks, log(bus bandwidth) is linear in log(ranks);
  outside of them, time follows the nearest curve's fit in steps and wire bytes.

With fewer than three sizes, or times that do not grow with size, the model is the bus
bandwidth of the largest message.  Another number of nodes, platform or protocol than
measured has no answer.  One pair (alpha, beta) fits one topology and number of ranks.

References
----------
R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2",
Parallel Computing 20 (1994) 389.
B. Iglewicz, D. C. Hoaglin, "How to Detect and Handle Outliers" (1993): a value whose
distance from the median exceeds 3.5 x MAD / 0.6745 is one.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64
from moetraffic.data import published
from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.spelling import check_choice

from .collectives import COLLECTIVES, UNEVEN, convention, steps, wire_bytes
from .nccl_tests import is_nccl_tests, measurements

FAR = 3.5 / 0.6745
"""Median absolute deviations from the median from which on a value is an outlier."""

SMALLEST = 0.05
"""Relative deviations below this are scatter, however small the others are."""

USABLE = 0.5
"""Median residual at sizes left out, above which a fit is not to be used."""


# ---- Hockney's model -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hockney:
    """``T = alpha steps + wire / beta``: latency of a step, bus bandwidth."""

    alpha_s: float
    beta_bytes_s: float  # infinity where time does not grow with size

    def time_s(
        self, collective: str, ranks: npt.ArrayLike, size_bytes: npt.ArrayLike
    ) -> Float64:
        """Time of collectives; arrays are broadcast against each other.

        Examples
        --------
        >>> float(Hockney(alpha_s=1e-6, beta_bytes_s=1e9).time_s("all_reduce", 4, 1000))
        7.5e-06
        """
        wire = wire_bytes(collective, ranks, size_bytes)
        return self.alpha_s * steps(collective, ranks) + wire / self.beta_bytes_s


@dataclass(frozen=True, kw_only=True)
class HockneyFit:
    """A fit and how far each measurement is from it."""

    model: Hockney
    residual: Float64  # [k] measured over fitted time - 1
    left_out: Float64  # [k] the same, fitted without measurements of that size
    outlier: Bool  # [k] by the residual that was left out

    @property
    def median(self) -> float:
        """Median of the absolute residuals that were left out."""
        return float(np.median(np.abs(self.left_out)))


def hockney_fit(
    collective: str,
    ranks: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    time_s: npt.ArrayLike,
) -> HockneyFit:
    """Fit alpha and beta to ``[k]`` sizes and times by least relative deviations.

    Not their squares: single slow measurements (another job on the network) must not
    move it.  ``ranks`` is a number, or ``[k]``.  AnalysisError if there are not
    measurements of three sizes or more, all positive.

    Examples
    --------
    >>> size = np.array([1e3, 1e5, 1e6, 1e7])
    >>> fit = hockney_fit("broadcast", 2, size, 5e-6 + size / 2e9)
    >>> round(fit.model.alpha_s * 1e6, 6), round(fit.model.beta_bytes_s / 1e9, 6)
    (5.0, 2.0)
    """
    size, took = np.asarray(size_bytes, np.float64), np.asarray(time_s, np.float64)
    ok = size.shape == took.shape and size.ndim == 1
    if not ok or len(np.unique(size)) < 3 or not (np.minimum(size, took) > 0).all():
        raise AnalysisError(
            f"a fit needs positive times of three sizes or more, but sizes are {size} "
            f"and times {took}: measure more sizes"
        )
    terms = np.empty((len(size), 2))  # of alpha and of 1/beta
    terms[:, 0] = steps(collective, ranks)
    terms[:, 1] = wire_bytes(collective, ranks, size)
    best, without = _least_deviations(terms, took), np.empty(len(size))
    for value in np.unique(size):
        own = size == value
        without[own] = terms[own] @ _least_deviations(terms[~own], took[~own])
    left_out = took / without - 1
    return HockneyFit(
        model=Hockney(
            alpha_s=float(best[0]),
            beta_bytes_s=1 / float(best[1]) if best[1] > 0 else float("inf"),
        ),
        residual=took / (terms @ best) - 1,
        left_out=left_out,
        outlier=outliers(left_out),
    )


def outliers(values: npt.ArrayLike) -> Bool:
    """Which values lie far from the median of all, measured by their usual distance.

    Examples
    --------
    >>> outliers([0.01, -0.02, 0.3, 0.0, 0.02]).tolist()
    [False, False, True, False, False]
    """
    each = np.asarray(values, np.float64)
    away = np.abs(each - np.median(each))
    return np.asarray(away > max(FAR * float(np.median(away)), SMALLEST), bool)


def _least_deviations(terms: Float64, took: Float64) -> Float64:
    """Factors of the terms that minimize the sum of relative deviations."""
    # min sum of (over + under), with over - under = 1 - terms factors / took; columns
    # are scaled to about 1, for seconds are far from what a solver calls zero
    from scipy.optimize import linprog  # half a second: few verbs need it

    columns = terms / took[:, None]
    scale, unit = columns.max(axis=0), np.eye(len(took))
    found: Any = linprog(
        np.repeat([0.0, 1.0], [2, 2 * len(took)]),
        A_eq=np.concatenate([columns / scale, unit, -unit], axis=1),
        b_eq=np.ones(len(took)),
        bounds=(0, None),
        method="highs",
    )
    return np.asarray(found.x[:2] / scale, np.float64)


# ---- tables of measurements ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A measured collective."""

    collective: str  # of COLLECTIVES
    ranks: int
    span: int = 1  # nodes that the ranks lie on
    size_bytes: int  # as nccl-tests counts it
    time_us: float
    platform: str = ""
    protocol: str = ""
    place: str = "out"  # "out": into another buffer, "in": into the same one
    wire_bytes: int = -1  # of an uneven all-to-all; -1: by the convention

    @property
    def wire(self) -> float:
        """Bytes over the busiest link."""
        if self.collective == UNEVEN and self.wire_bytes >= 0:
            return float(self.wire_bytes)
        return float(wire_bytes(self.collective, self.ranks, self.size_bytes))

    @property
    def busbw_gbs(self) -> float:
        """Bus bandwidth, 1e9 bytes/s."""
        return self.wire / (self.time_us * 1e3)


@dataclass(frozen=True, kw_only=True)
class Effective:
    """Answers of a table, arrays of one shape."""

    time_s: Float64
    bytes_s: Float64  # bus bandwidth: wire bytes over time
    inside: Bool  # between measurements; elsewhere a fit carried it on


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Time over size, at one number of ranks."""

    collective: str
    ranks: int
    size: Float64  # [k] bytes, increasing
    time_s: Float64  # [k] median of what was measured at that size
    factor: float  # wire bytes of a byte of size

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Curve:
        """Make the curve of samples of one collective and number of ranks."""
        size = np.array([s.size_bytes for s in samples], np.float64)
        time = np.array([s.time_us * 1e-6 for s in samples], np.float64)
        sizes = np.unique(size)
        return cls(
            collective=samples[0].collective,
            ranks=samples[0].ranks,
            size=sizes,
            time_s=np.array([np.median(time[size == s]) for s in sizes]),
            factor=float(np.median([s.wire / s.size_bytes for s in samples])),
        )

    @cached_property
    def fit(self) -> HockneyFit | None:
        """Hockney's model; None with fewer than three sizes."""
        if len(self.size) < 3:
            return None
        even = self.even(self.size)
        return hockney_fit(self.collective, self.ranks, even, self.time_s)

    @property
    def model(self) -> Hockney:
        """The fit's, or the bandwidth of the largest message where it has none."""
        if self.fit is not None and np.isfinite(self.fit.model.beta_bytes_s):
            return self.fit.model
        wire = self.factor * float(self.size[-1])
        return Hockney(alpha_s=0.0, beta_bytes_s=wire / float(self.time_s[-1]))

    def even(self, size: Float64) -> Float64:
        """Sizes at which the convention gives the wire bytes of an uneven matrix."""
        own = float(wire_bytes(self.collective, self.ranks, 1.0))
        return np.asarray(size * (self.factor / own), np.float64)

    def at(self, size: Float64, ranks: npt.ArrayLike | None = None) -> Float64:
        """Time of messages of any positive size, s; on other ranks by the model."""
        of, model = self.collective, self.model
        fitted = model.time_s(of, self.ranks, self.even(self.size))
        log = np.log(self.time_s / fitted)
        residual = np.exp(np.interp(np.log(size), np.log(self.size), log))
        n = self.ranks if ranks is None else ranks
        return np.asarray(residual * model.time_s(of, n, self.even(size)), np.float64)


Key = tuple[str, str, str, int]
"""Collective, platform, protocol and span of measurements."""


class BandwidthTable:
    """Measured collectives, and what lies between them.

    Those into the same buffer are left out.  AnalysisError if a size, time, span or
    number of ranks is not positive.

    Examples
    --------
    >>> def sample(size):
    ...     time_us, what = size / 2, "all_reduce"
    ...     return Sample(collective=what, ranks=4, size_bytes=size, time_us=time_us)
    >>> table = BandwidthTable([sample(100), sample(10_000)])
    >>> round(float(table.effective("all_reduce", 4, 1000).time_s) * 1e6, 6)
    500.0
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        every = tuple(samples)
        for s in every:
            convention(s.collective)
            if not min(s.size_bytes, s.time_us, s.span, s.ranks - 1, s.wire) > 0:
                raise AnalysisError(
                    "a measurement has a positive size, time and span, at least 2 "
                    f"ranks and bytes between them, but one is {s}: leave it out"
                )
        self.samples = tuple(s for s in every if s.place == "out")

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def curves(self) -> Mapping[Key, tuple[Curve, ...]]:
        """By collective, platform, protocol and span, ascending in ranks."""
        found: dict[Key, dict[int, list[Sample]]] = {}
        for s in self.samples:
            key = (s.collective, s.platform, s.protocol, s.span)
            found.setdefault(key, {}).setdefault(s.ranks, []).append(s)
        return {
            key: tuple(Curve.of(of[n]) for n in sorted(of)) for key, of in found.items()
        }

    def effective(
        self,
        collective: str,
        ranks: npt.ArrayLike,
        size_bytes: npt.ArrayLike,
        *,
        span: int | None = None,
        platform: str | None = None,
        protocol: str | None = None,
    ) -> Effective:
        """Time and bus bandwidth of collectives of 2 ranks or more.

        Arrays are broadcast; ``span``, ``platform`` and ``protocol`` choose
        measurements (None: the only ones).  AnalysisError if this was not measured, or
        more than one kind fits.
        """
        n, size = np.broadcast_arrays(
            np.asarray(ranks, np.float64), np.asarray(size_bytes, np.float64)
        )
        if not ((n >= 2).all() and (size > 0).all()):
            raise AnalysisError(
                "bandwidth is of 2 ranks or more and positive sizes, but ranks begin "
                f"at {n.min():g} and sizes at {size.min():g}: leave these out"
            )
        curves = self._chosen((collective, platform, protocol, span))
        shape, n, size = n.shape, n.ravel(), size.ravel()
        at = np.array([c.ranks for c in curves], np.float64)
        own_factor = np.array([c.factor for c in curves])
        # Step 1: between the curves of fewer and of more ranks.
        high = np.clip(np.searchsorted(at, n), 0, len(at) - 1)
        low = np.where((at[high] > n) & (high > 0), high - 1, high)
        apart = np.where(low != high, np.log(at[high] / at[low]), np.inf)
        weight, own = np.log(n / at[low]) / apart, np.arange(len(n))
        logs = np.log(np.stack([c.factor * size / c.at(size) for c in curves]))
        rate = np.exp((1 - weight) * logs[low, own] + weight * logs[high, own])
        # the factor is the convention's, or that of an uneven matrix
        factor = convention(collective).factor
        wire = own_factor[low] * factor(n) / factor(at[low]) * size
        time = wire / rate
        # Step 2: beyond them by the nearest one's model.
        beyond = (n < at[0]) | (n > at[-1])
        for which in np.unique(low[beyond]):
            some = beyond & (low == which)
            time[some] = curves[which].at(size[some], n[some])
        least = np.array([c.size[0] for c in curves])
        most = np.array([c.size[-1] for c in curves])
        inside = ~beyond & (size >= np.maximum(least[low], least[high]))
        inside &= size <= np.minimum(most[low], most[high])
        return Effective(
            time_s=time.reshape(shape),
            bytes_s=(wire / time).reshape(shape),
            inside=inside.reshape(shape),
        )

    def _chosen(self, asked: tuple[str | int | None, ...]) -> tuple[Curve, ...]:
        convention(str(asked[0]))
        fits = [
            key
            for key in self.curves
            if all(a is None or a == k for a, k in zip(asked, key, strict=True))
        ]
        if len(fits) == 1:
            return self.curves[fits[0]]
        measured = "; ".join(_words(*key) for key in (fits or self.curves)) or "nothing"
        which = "is not measured" if not fits else "fits several measurements"
        raise AnalysisError(
            f"{_words(*asked)} {which} ({measured}): choose one of these with "
            "--collective, --platform, --protocol and --span, or measure it with "
            "moetraffic bench"
        )


def _words(collective: Any, platform: Any, protocol: Any, span: Any) -> str:
    nodes = f" over {span} node{'s' if span != 1 else ''}" if span is not None else ""
    by = f" by {protocol}" if protocol else ""
    return f"{collective}{nodes}{f' on {platform}' if platform else ''}{by}"


# ---- files ---------------------------------------------------------------------------

PUBLISHED_AS = {"gpus": "ranks", "nodes": "span"}
"""Columns of published tables, and what they are called here."""

TYPES: Mapping[str, Any] = {"float": float, "int": int, "str": str}
"""Of fields."""


def read_table(path: str | Path) -> BandwidthTable:
    """Read a file of measurements, as ``moetraffic bench`` writes it.

    A CSV has a line a measurement and columns as the fields of :class:`Sample`, of
    which collective, ranks, size_bytes and time_us are needed; a JSON document has
    objects in a list ``rows``, or in the table of a result.  Other columns are passed
    over.  The text that nccl-tests prints is read, too.  AnalysisError if the file
    cannot be read or is none of these.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        if str(path).endswith(".json"):
            document = json.loads(text)
            rows = document.get("rows") or document["tables"]["measurements"]
        elif is_nccl_tests(text):
            rows = measurements(text.splitlines(), Path(path).name)
        else:
            lines = [ln for ln in text.splitlines() if ln and not ln.startswith("#")]
            rows = list(csv.DictReader(lines))
        rows = [dict(row.items()) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or error
        raise AnalysisError(
            f"{path} has no measurements ({why}): give a file that moetraffic bench "
            "or nccl-tests wrote"
        ) from None
    return BandwidthTable(samples(rows, str(path)))


def samples(rows: Sequence[Mapping[str, Any]], name: str) -> list[Sample]:
    """Make samples of rows; what moves wrong bytes has no bandwidth.

    AnalysisError if there are none, a column is missing, or a value is none of its
    kind.
    """
    rows = [{PUBLISHED_AS.get(c, c): row[c] for c in row} | {**row} for row in rows]
    needed = ("collective", "ranks", "size_bytes", "time_us")
    if missing := [c for c in needed if not rows or c not in rows[0]]:
        raise AnalysisError(
            f"{name} has no measurements with the columns {', '.join(missing)}: add "
            "them (gpus are ranks, too), or give a file that moetraffic bench wrote"
        )
    measured = []
    for number, row in enumerate(rows, 1):
        given = [f for f in fields(Sample) if row.get(f.name)]
        try:
            made = Sample(**{f.name: TYPES[str(f.type)](row[f.name]) for f in given})
            wrong = int(row.get("wrong") or 0)
        except (TypeError, ValueError) as error:
            raise AnalysisError(
                f"measurement {number} of {name} is none ({error}): correct the file"
            ) from None
        if wrong > 0 or made.collective not in COLLECTIVES:
            what = f"{wrong} wrong" if wrong > 0 else repr(made.collective)
            raise AnalysisError(
                f"measurements are of {', '.join(COLLECTIVES)} that moved every byte "
                f"right, but number {number} of {name} has {what}: leave it out"
            )
        measured.append(made)
    return measured


def big_red_200() -> BandwidthTable:
    """All-reduces of 4 and 8 A100s of Big Red 200, as Jia measured them in 2024."""
    rows = samples(published("jia_nccl_tests").rows, "jia_nccl_tests.csv")
    links = {1: "NVLink", 2: "RDMA"}
    return BandwidthTable(
        replace(s, platform="big-red-200", protocol=links[s.span]) for s in rows
    )


# ---- published systems ---------------------------------------------------------------


@cache
def published_systems(table: str) -> dict[str, dict[str, Any]]:
    """Rows of the tables "platforms" or "protocols" by name.

    Rates are one way, GB is 1e9 bytes; what its source does not state is None.
    """

    def cell(text: str) -> float | str | None:
        try:
            return float(text)
        except ValueError:
            return text or None

    rows = [{c: cell(text) for c, text in row.items()} for row in published(table)]
    return {str(row[table.removesuffix("s")]): row for row in rows}


def platform(name: str) -> dict[str, Any]:
    """The platform of a name; LayoutError if there is none."""
    known = published_systems("platforms")
    check_choice("a platform", name, known, LayoutError)
    return known[name]


def protocol_share(name: str) -> float:
    """Share of a link's nominal rate that a protocol reached, as published;
    LayoutError if there is none of that name."""
    known = published_systems("protocols")
    check_choice("a protocol", name, known, LayoutError)
    return float(known[name]["achieved_gbps"] / known[name]["link_gbps"])
