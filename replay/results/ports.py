"""Rates of all ranks' ports, from ring shifts in which half of them send at once.

In a shift each rank sends to one other rank and receives from one.  It has two or three
rounds, in each of which a rank either sends or receives, so that the time of a receiver
is that of one pair.  A pair is as fast as the slower of its two ports: a port's rate is
the largest over its pairs, of which several are measured, and a port that is faster
than all others is seen as fast as these.  Of several hosts, pairs are between two.

Two sizes are timed.  The quotient of differences contains no latency, and no burst of a
token bucket; a delay of the smaller transfer raises it, but no further than to LEAP
times the rate of the larger one.  Other processes only lengthen times: the rate is of
the shortest times of repetitions, and its interval has the width of that of their own
rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.analysis.times.runs import mean_of_runs
from moetraffic.arrays import Float64, Int64
from moetraffic.launch.board import own
from moetraffic.replay.plan.operations import Plan
from moetraffic.units import byte_rate, three_digits

if TYPE_CHECKING:
    from moetraffic.replay.transport import Transport

SLOW = 0.8
"""Share of the other ranks' median rate below which a port is slow."""

LONG_S = 0.1
"""Time that the slowest transfer of the larger size aims at, s; with less, TCP's slow
start lowers rates."""

LEAP = 1.5

REPETITIONS, SHIFTS = 5, 4
LEAST, MOST = 1 << 16, 1 << 28
"""Bytes of the first size that is tried, and of the largest."""


def destinations(nodes: Sequence[str]) -> Int64:
    """List to which rank each rank sends in each round, ``[S, R]``; -1: to none.

    Ranks are in an order that alternates between hosts, so that pairs of most shifts
    are on two of them.  No rank both sends and receives in a round.
    """
    world, hosts = len(nodes), list(dict.fromkeys(nodes))
    local = [nodes[:rank].count(node) for rank, node in enumerate(nodes)]
    order = np.lexsort(([hosts.index(node) for node in nodes], local))
    even = all(nodes.count(node) * len(hosts) == world for node in hosts)
    usable = [
        s for s in range(1, world) if not even or len(hosts) == 1 or s % len(hosts)
    ]
    few = np.linspace(0, len(usable) - 1, min(SHIFTS, len(usable))).astype(int)
    rounds = []
    for shift in np.array(usable)[few].tolist():
        length = world // math.gcd(world, shift)  # of the cycles of the shift
        steps = np.empty(world, np.int64)  # of a rank from the start of its cycle
        for start in range(world // length):
            steps[(start + shift * np.arange(length)) % world] = np.arange(length)
        turn = np.where((steps == length - 1) & (length % 2 == 1), 2, steps % 2)
        for number in range(turn.max() + 1):
            to = np.full(world, -1, np.int64)
            to[order] = np.where(turn == number, np.roll(order, -shift), -1)
            rounds.append(to)
    return np.array(rounds)


def measure_ports(moves: Transport, nodes: Sequence[str]) -> list[dict[str, Any]]:
    """Measure all ports; every rank does it at the same time."""
    rank, shifts = moves.rank, destinations(nodes)

    def timed(shift: Int64, size: int) -> float:
        sends, receives = np.zeros((2, len(nodes)), np.int64)
        if shift[rank] >= 0:
            sends[shift[rank]] = size
        receives[np.flatnonzero(shift == rank)] = size
        own().note()
        return moves.exchange(sends, receives)

    def slowest(size: int) -> float:
        return float(moves.gathered([timed(s, size) for s in shifts]).max())

    size = LEAST
    while (took := slowest(size)) < LONG_S / 4 and size < MOST:
        size *= 2
    size = int(min(MOST, max(LEAST, size * LONG_S / took)))
    sizes = size // 4, size
    took_s = [timed(s, n) for s in shifts for _ in range(REPETITIONS) for n in sizes]
    shape = (len(nodes), len(shifts), REPETITIONS, 2)
    every = moves.gathered(took_s).reshape(shape)
    return port_rows(nodes, shifts, sizes, np.moveaxis(every, 0, -1))


def port_rows(
    nodes: Sequence[str], shifts: Int64, sizes: tuple[int, int], times: Float64
) -> list[dict[str, Any]]:
    """List the rates of each rank's port, bytes/s, with intervals, and which are slow.

    ``shifts`` ``[S, R]`` are :func:`destinations`, ``times`` ``[S, K, 2, R]`` s are
    those of the ranks for K repetitions of both ``sizes``.
    """
    world = len(nodes)
    host = np.array([nodes.index(node) for node in nodes])
    sends = (shifts >= 0) & ((host != host[shifts]) | (len(set(nodes)) == 1))
    # the receiver's time: a sender has ended when its bytes are in a socket's buffer
    pairs = np.array([t[..., s] for t, s in zip(times, shifts, strict=True)])

    def rates(small: Float64, large: Float64) -> Float64:
        longer = np.where(large > small, large - small, np.nan)
        return np.fmin((sizes[1] - sizes[0]) / longer, LEAP * sizes[1] / large)

    best = rates(pairs[:, :, 0].min(axis=1), pairs[:, :, 1].min(axis=1))  # [S, R]
    each = rates(pairs[:, :, 0], pairs[:, :, 1])  # [S, K, R]
    rows: list[dict[str, Any]] = [
        {"rank": rank, "host": node} for rank, node in enumerate(nodes)
    ]
    for way in ("send", "receive"):
        for row in rows:
            ends = shifts == row["rank"]
            if way == "send":
                ends = np.broadcast_to(np.arange(world) == row["rank"], shifts.shape)
            rate = np.where(ends & sends, best, -1.0)
            shift, sender = np.unravel_index(int(rate.argmax()), rate.shape)
            spread = mean_of_runs(each[shift, :, sender])
            wide = spread.high / spread.value
            value = float(rate[shift, sender]) if rate.max() > 0 else math.nan
            row |= {way: value, f"{way}_low": value / wide, f"{way}_high": value * wide}
    for row in rows:
        slow = []
        for way in ("send", "receive"):
            others = [r[way] for r in rows if r is not row]
            if row[f"{way}_high"] < SLOW * float(np.median(others)):
                slow.append(way)
        row["slow"] = " and ".join(slow)
    return rows


def port_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the slow ports with their hosts and rates, and the rates of the others."""
    slow, rest = [], []
    for row in rows:
        for way in ("send", "receive"):
            if way not in row["slow"]:
                rest.append(row[way])
                continue
            ends = (three_digits(row[f"{way}_{e}"] / 1e9) for e in ("low", "high"))
            slow.append(
                f"rank {row['rank']} on {row['host']} {way}s at {byte_rate(row[way])} "
                f"({' to '.join(ends)})"
            )
    span = " to ".join(dict.fromkeys(map(byte_rate, (min(rest), max(rest)))))
    if not slow:
        return f"No slow port: all send and receive at {span}."
    return f"Slow port{'s' * (len(slow) > 1)}: {', '.join(slow)}; others at {span}."


def port_bounds_s(
    plan: Plan, matrices: Iterable[tuple[Int64, Int64, Int64]], rows: Sequence[Any]
) -> Float64:
    """Compute the time of the slowest measured port in each operation, ``[n]`` s.

    ``matrices`` are blocks of operations, members and byte matrices.
    """
    send, receive = (
        np.array([row[way] for row in rows]) for way in ("send", "receive")
    )
    out = np.full(len(plan), np.nan)
    for at, members, wire in matrices:
        between = wire * ~np.eye(wire.shape[1], dtype=bool)
        leaving = (between.sum(axis=2) / send[members]).max(axis=1)
        arriving = (between.sum(axis=1) / receive[members]).max(axis=1)
        out[at] = np.maximum(leaving, arriving)
    return out
