"""Rates of the ranks' ports, from all-to-alls in which one rank sends, or receives.

If rank r alone sends, to each other rank q a share of its bytes S in proportion to the
rate at which q can receive, no receiver is busier than the sender: the transfer takes
``S / (rate of r's sending port)``, as long as the receivers together are faster than
r.  Otherwise only a lower bound of r's rate is seen.  The same holds for receiving.
Shares are even first, and follow the rates found so until these no longer grow.

Two sizes are timed, and the rate is the quotient of differences: latency and the burst
of a token bucket are in both times.  Other processes only lengthen times, so the rate
is that of the shortest times of repetitions; its interval has the width of that of the
repetitions' own rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.analysis.intervals import Interval
from moetraffic.analysis.times.runs import mean_of_runs
from moetraffic.arrays import Float64, Int64
from moetraffic.replay.plan.program import Plan
from moetraffic.replay.plan.sizes import Matrices
from moetraffic.tables import Table
from moetraffic.units import byte_rate, byte_size

DIRECTIONS = ("send", "receive")
SLOW = 0.8
"""Share of the other ranks' median rate below which a port is slow."""

SMALL = 0.25
"""Share of the slowest port's rate below which it does not limit an even all-to-all;
half-duplex backends reach 0.5."""

AGREED = 1.02
"""Ratio of two times up to which they agree."""

ENOUGH = 1.3
"""What the others can take together over a rank's rate from which its own port is the
limit: a transfer in which all of them are busy loses up to a fifth of it."""


Pair = tuple[tuple[float, float], tuple[float, float]]
"""Bytes and seconds of a smaller and of a larger transfer."""


@dataclass(frozen=True, kw_only=True)
class PortRate:
    """Payload rate of a rank's port in one direction, bytes/s."""

    rank: int
    direction: str  # of DIRECTIONS
    rate: Interval  # with the interval over repetitions
    at_least: bool  # the other ranks together are not faster: a lower bound


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Rates of all ports, and an even all-to-all measured as nccl-tests does."""

    rates: tuple[PortRate, ...]  # by rank, then by direction
    bench_bytes: int  # of each rank's buffer
    bench_busbw_gbs: float

    def bytes_s(self, direction: str) -> Float64:
        """Return the rate of each rank in one direction, ``[R]`` bytes/s."""
        return np.array([p.rate.value for p in self.rates if p.direction == direction])

    @property
    def slow(self) -> tuple[PortRate, ...]:
        """Ports whose interval lies below SLOW times the median of the other ranks."""
        found = []
        for port in self.rates:
            others = [
                p.rate.value
                for p in self.rates
                if p.direction == port.direction and p.rank != port.rank
            ]
            if port.rate.high < SLOW * float(np.median(others)):
                found.append(port)
        return tuple(found)

    def sentence(self) -> str:
        """Name the slow ports with their rates, and the rates of the others."""
        slow = {id(p) for p in self.slow}
        rest = [p.rate.value for p in self.rates if id(p) not in slow]
        span = (
            dict.fromkeys((byte_rate(min(rest)), byte_rate(max(rest)))) if rest else ()
        )
        named = [
            f"rank {p.rank} {p.direction}s at {byte_rate(p.rate.value)} "
            f"({byte_rate(p.rate.low)} to {byte_rate(p.rate.high)})"
            for p in self.rates
            if id(p) in slow
        ]
        who = "others" if named else "all"
        others = f"{who} at {' to '.join(span)}" if rest else ""
        text = ", ".join(filter(None, [*named, others]))
        title = f"Slow port{'s' * (len(named) > 1)}" if named else "Ports"
        each = self.bench_bytes // len({p.rank for p in self.rates})
        busbw = 1e9 * self.bench_busbw_gbs
        small = busbw < SMALL * min(p.rate.value for p in self.rates)
        limit = ", at this size limited by latency or processors, not by ports" * small
        return (
            f"{title}: {text}; even all-to-all of {byte_size(each)} a pair: busbw "
            f"{byte_rate(busbw)} as nccl-tests measures{limit}"
        )

    def table(self) -> Table:
        """Tabulate the rate of every port."""
        return Table(
            title="ports, measured before the replay (payload)",
            columns={
                **{"rank": "d", "direction": "<", "rate": "GB/s"},
                **{"from": "GB/s", "to": "GB/s", "": "<"},
            },
            rows=[
                (
                    *(p.rank, p.direction, p.rate.value, p.rate.low, p.rate.high),
                    "at least" if p.at_least else "slow" if p in self.slow else "",
                )
                for p in self.rates
            ],
        )


def single_cells(
    rank: int, direction: str, total: int, others_bytes_s: Float64
) -> Int64:
    """Compute the byte matrix in which one rank alone sends, or receives.

    Parameters
    ----------
    rank, direction
        The rank and what it does.
    total
        Its bytes.
    others_bytes_s
        ``[R]`` rates of the opposite direction, to which the shares are proportional.

    Returns
    -------
    ndarray
        ``[R, R]`` int64, row sends.
    """
    weights = others_bytes_s.copy()
    weights[rank] = 0.0
    cells = np.zeros((len(weights), len(weights)), np.int64)
    shares = np.floor(total * weights / weights.sum()).astype(np.int64)
    if direction == "send":
        cells[rank] = shares
    else:
        cells[:, rank] = shares
    return cells


def slope(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Compute bytes/s from (bytes, s) of two sizes, without what both times contain.

    Noise may make the larger size the faster: then its bytes over its time.

    Examples
    --------
    >>> slope((1000.0, 0.5), (3000.0, 1.5))
    2000.0
    """
    longer = large[1] - small[1]
    if longer <= 0:
        return large[0] / large[1]
    return (large[0] - small[0]) / longer


def least_rate(pairs: Sequence[Pair]) -> float:
    """Compute a rate that neither a delay nor a token bucket's burst raises, bytes/s.

    A delay of the smaller transfer raises :func:`slope`, a burst the rate of the larger
    one.  Shares in proportion to such a rate would make one receiver the limit of all
    senders.
    """
    larger = max(nbytes / seconds for _, (nbytes, seconds) in pairs)
    return min(larger, best_rate(pairs).value)


def settled(pairs: Sequence[Pair]) -> bool:
    """Whether the two shortest times of each size agree, so that one has no delay."""
    sizes = [sorted(pair[at][1] for pair in pairs) for at in (0, 1)]
    return all(times[1] <= AGREED * times[0] for times in sizes)


def best_rate(pairs: Sequence[Pair]) -> Interval:
    """Compute the rate of a port, bytes/s, from (bytes, s) of two sizes, repeatedly."""
    small, large = (min((p[at] for p in pairs), key=lambda m: m[1]) for at in (0, 1))
    value, spread = slope(small, large), mean_of_runs([slope(*p) for p in pairs])
    wide = spread.high / spread.value
    return Interval(value=value, low=value / wide, high=value * wide)


def port_rates(
    samples: Mapping[tuple[int, str], Sequence[Pair]], weights: Float64
) -> tuple[PortRate, ...]:
    """Compute rates with intervals from repeated measurements of each port.

    A rate is a lower bound if the other ranks' ports, each with its share of the bytes,
    would not take ENOUGH times as much.

    Parameters
    ----------
    samples
        (bytes, s) of two sizes, repeatedly, of each rank and direction.
    weights
        ``[2, R]`` by direction, to which shares of the bytes were proportional.
    """
    found = {key: best_rate(pairs) for key, pairs in samples.items()}
    made = []
    for rank, number in np.ndindex(weights.shape[::-1]):
        shares, opposite = np.delete(weights[1 - number], rank), DIRECTIONS[1 - number]
        of = [found[r, opposite].value for r in range(weights.shape[1]) if r != rank]
        most = float(np.min(of / shares)) * shares.sum()
        rate = found[rank, DIRECTIONS[number]]
        made.append(
            PortRate(
                rank=rank,
                direction=DIRECTIONS[number],
                rate=rate,
                at_least=bool(most < ENOUGH * rate.value),
            )
        )
    return tuple(made)


def port_bounds(plan: Plan, matrices: Matrices, ports: Ports) -> Float64:
    """Compute the time of the slowest port in each operation, ``[n]`` s."""
    send, receive = (ports.bytes_s(direction) for direction in DIRECTIONS)
    out = np.full(len(plan), np.nan)
    for at, members, wire in matrices:
        off = wire * ~np.eye(wire.shape[1], dtype=bool)
        leaving = (off.sum(axis=2) / send[members]).max(axis=1)
        arriving = (off.sum(axis=1) / receive[members]).max(axis=1)
        out[at] = np.maximum(leaving, arriving)
    return out
