"""Effective bandwidth C(collective, ranks, span, size, platform, protocol).

What a collective gets of a network is measured, not computed: it depends on how many
ranks take part, on how many nodes they lie, on the message's size, on the platform and
on the protocol.  A :class:`BandwidthTable` holds measurements and answers in between:

- between two measured sizes, time is the Hockney fit of that curve times the residuals,
  whose logarithm is linear in log(size): measurements are met exactly, and what follows
  the model is exact in between too;
- outside of the measured sizes the outermost residual stays;
- between two measured numbers of ranks, log(bus bandwidth) is linear in log(ranks);
- outside of them, time follows the nearest curve's fit in steps and wire bytes, with
  that curve's residuals.

With fewer than three sizes, or times that do not grow with size, the model is the bus
bandwidth of the largest message.

A span (number of nodes), platform or protocol that was not measured has no answer: one
topology says nothing about another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64
from moetraffic.errors import AnalysisError

from .collective import UNEVEN, convention, wire_bytes
from .hockney import Hockney, HockneyFit, hockney_fit


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A measured collective."""

    collective: str  # of COLLECTIVES
    ranks: int
    span: int  # nodes that the ranks lie on
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

    @cached_property
    def fit(self) -> HockneyFit | None:
        """Hockney's model; None with fewer than three sizes."""
        if len(self.size) < 3:
            return None
        even = self.even(self.size)
        return hockney_fit(self.collective, self.ranks, even, self.time_s)

    @property
    def model(self) -> Hockney:
        """The fit's, or the bandwidth of the largest message where it tells none."""
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


class BandwidthTable:
    """Measured collectives, and what lies between them.

    Parameters
    ----------
    samples
        Any number, of any platforms.
    place
        "out" or "in": which of both kinds of measurement to use where a sample says.

    Raises
    ------
    AnalysisError
        If a size, time, span or number of ranks is not positive.

    Examples
    --------
    >>> def sample(size):
    ...     time_us, what = size / 2, "all_reduce"
    ...     return Sample(
    ...         collective=what, ranks=4, span=1, size_bytes=size, time_us=time_us
    ...     )
    >>> table = BandwidthTable([sample(100), sample(10_000)])
    >>> round(float(table.effective("all_reduce", 4, 1000).time_s) * 1e6, 6)
    500.0
    """

    def __init__(self, samples: Iterable[Sample], *, place: str = "out") -> None:
        every = tuple(samples)
        for s in every:
            convention(s.collective)
            if not min(s.size_bytes, s.time_us, s.span, s.ranks - 1, s.wire) > 0:
                raise AnalysisError(
                    "a measurement has a positive size, time and span, at least 2 "
                    f"ranks and bytes between them, but one is {s}: leave it out"
                )
        self.samples = tuple(s for s in every if s.place == place)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def curves(self) -> Mapping[tuple[str, str, str, int], tuple[Curve, ...]]:
        """By (collective, platform, protocol, span), ascending in ranks."""
        found: dict[tuple[str, str, str, int], dict[int, list[Sample]]] = {}
        for s in self.samples:
            key = (s.collective, s.platform, s.protocol, s.span)
            found.setdefault(key, {}).setdefault(s.ranks, []).append(s)
        return {
            key: tuple(_curve(of[n]) for n in sorted(of)) for key, of in found.items()
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
        """Time and bus bandwidth of collectives.

        Parameters
        ----------
        collective
            One of COLLECTIVES.
        ranks, size_bytes
            Numbers of ranks of 2 or more and positive bytes; arrays are broadcast.
        span, platform, protocol
            Which measurements; None: the only ones there are.

        Raises
        ------
        AnalysisError
            If this was not measured, or more than one kind fits.
        """
        n, size = np.broadcast_arrays(
            np.asarray(ranks, np.float64), np.asarray(size_bytes, np.float64)
        )
        if not ((n >= 2).all() and (size > 0).all()):
            raise AnalysisError(
                "bandwidth is asked for 2 ranks or more and positive sizes, but ranks "
                f"begin at {n.min():g} and sizes at {size.min():g}: leave these out"
            )
        curves = self._chosen(collective, platform, protocol, span)
        shape, n, size = n.shape, n.ravel(), size.ravel()
        at = np.array([c.ranks for c in curves], np.float64)
        high = np.clip(np.searchsorted(at, n), 0, len(at) - 1)
        low = np.where((at[high] > n) & (high > 0), high - 1, high)
        own = np.arange(len(n))
        weight = np.zeros(len(n))
        two = low != high
        weight[two] = np.log(n / at[low])[two] / np.log(at[high] / at[low])[two]
        logs = np.log(np.stack([c.factor * size / c.at(size) for c in curves]))
        rate = np.exp((1 - weight) * logs[low, own] + weight * logs[high, own])
        # the factor is the convention's, or that of an uneven matrix
        factor = convention(collective).factor
        own_factor = np.array([c.factor for c in curves])[low]
        wire = own_factor * factor(n) / factor(at[low]) * size
        time = wire / rate
        beyond = (n < at[0]) | (n > at[-1])
        for which in np.unique(low[beyond]):
            mine = beyond & (low == which)
            curve = curves[which]
            time[mine] = curve.at(size[mine], n[mine])
        inside = ~beyond
        for which in (low, high):
            least = np.array([c.size[0] for c in curves])[which]
            most = np.array([c.size[-1] for c in curves])[which]
            inside &= (size >= least) & (size <= most)
        return Effective(
            time_s=time.reshape(shape),
            bytes_s=(wire / time).reshape(shape),
            inside=inside.reshape(shape),
        )

    def _chosen(
        self,
        collective: str,
        platform: str | None,
        protocol: str | None,
        span: int | None,
    ) -> tuple[Curve, ...]:
        convention(collective)
        asked = (collective, platform, protocol, span)
        fits = [
            key
            for key in self.curves
            if all(a is None or a == k for a, k in zip(asked, key, strict=True))
        ]
        if len(fits) == 1:
            return self.curves[fits[0]]
        there = "; ".join(_words(key) for key in (fits or self.curves)) or "nothing"
        which = "is not measured" if not fits else "fits several measurements"
        raise AnalysisError(
            f"{_words(asked)} {which} ({there}): choose one of these with "
            "--collective, --platform, --protocol and --span, or measure it with "
            "moetraffic bench"
        )


def _curve(samples: list[Sample]) -> Curve:
    size = np.array([s.size_bytes for s in samples], np.float64)
    time = np.array([s.time_us * 1e-6 for s in samples], np.float64)
    factor = np.array([s.wire / s.size_bytes for s in samples], np.float64)
    sizes = np.unique(size)
    return Curve(
        collective=samples[0].collective,
        ranks=samples[0].ranks,
        size=sizes,
        time_s=np.array([np.median(time[size == s]) for s in sizes]),
        factor=float(np.median(factor)),
    )


def _words(key: tuple[str, str | None, str | None, int | None]) -> str:
    collective, platform, protocol, span = key
    said = [collective]
    if span is not None:
        said.append(f"over {span} node{'s' if span > 1 else ''}")
    said += [f"on {platform}"] if platform else []
    said += [f"by {protocol}"] if protocol else []
    return " ".join(said)
