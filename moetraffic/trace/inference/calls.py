"""Ordered calls of one rank, with fingerprints of their split sizes.

Calls are compared by 64-bit fingerprints of their splits, one of the bytes and one of
their proportions, so that thousands of calls are compared as columns of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64, UInt64
from moetraffic.trace.merge.rank_record import Record
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Site,
    Source,
)

CHUNK = 1 << 22  # values processed at a time


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Ordered calls of one rank, as arrays with one element per call."""

    rank: int
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]  # that the rank used; ``group`` indexes ``groups``
    table: npt.NDArray[Any]  # [n] MEMBER_CALL, ``site`` indexes ``sites``
    place: Int64  # [n] index of each call into the record's calls
    volume: UInt64  # [n, 2] fingerprints of the bytes sent and received
    share: UInt64  # [n, 2] fingerprints of their proportions
    size: Int64  # [n] bytes sent and received, all-to-alls only
    even: Bool  # [n] equal bytes to and from all members, all-to-alls only

    def where(self, wanted: Sequence[object]) -> Bool:
        """Return a mask of the calls whose site is true in ``wanted``, ``[n]``."""
        by_site = np.array([bool(w) for w in wanted], bool)
        return np.asarray(by_site[self.table["site"]], bool)

    @cached_property
    def exchange(self) -> Bool:
        """Mask of the all-to-alls, ``[n]``."""
        return self.where([s.operation == ALL_TO_ALL for s in self.sites])

    @cached_property
    def bare(self) -> Bool:
        """Mask of the all-to-alls without an annotated phase or label, ``[n]``."""
        return self.exchange & self.where(
            [not (s.phase or s.label) for s in self.sites]
        )

    @cached_property
    def between_stages(self) -> Bool:
        """Mask of the sends and receives, ``[n]``."""
        return self.where([s.peers != (-1, -1) for s in self.sites])

    @cached_property
    def backward(self) -> Bool:
        """Mask of the backward and recomputed calls, ``[n]``."""
        return self.where([s.direction not in ("forward", "") for s in self.sites])

    @cached_property
    def routing(self) -> Bool:
        """Mask of the routing decisions, ``[n]``."""
        return self.where([s.operation == ROUTING for s in self.sites])

    @cached_property
    def undirected(self) -> Bool:
        """Mask of the calls whose direction is unknown, ``[n]``."""
        return self.where([not s.direction for s in self.sites])

    @cached_property
    def kind(self) -> Int64:
        """Number of the kind of each call, independent of its row size, ``[n]``."""
        plain = [replace(s, row_bytes=0) for s in self.sites]
        numbers = {site: number for number, site in enumerate(dict.fromkeys(plain))}
        by_site = np.array([numbers[site] for site in plain], np.int64)
        return np.asarray(by_site[self.table["site"]], np.int64)


def gather_calls(record: Record, rank: int) -> Calls:
    """Collect the calls of one rank, with fingerprints of their splits."""
    own = record.calls_of[rank]
    table = record.calls[own].copy()
    used, local = np.unique(table["site"], return_inverse=True)
    sites = tuple(record.sites[n] for n in used.tolist())
    table["site"] = local
    volume, share = np.zeros((2, len(table), 2), np.uint64)
    size, even = np.zeros(len(table), np.int64), np.zeros(len(table), bool)
    width = np.array(
        [
            len(record.groups[s.group].ranks) if s.operation == ALL_TO_ALL else 0
            for s in sites
        ],
        np.int64,
    )[local]
    for w, rows in record.ranks[rank].splits.items():
        calls = np.flatnonzero(width == w)
        if not len(calls):
            continue
        payload, swapped = table["payload"][calls], table["transposed"][calls] == 1
        *prints, sizes, evens = _fingerprints(rows)
        for target, values in zip((volume, share), prints, strict=True):
            target[calls] = values[payload]
            target[calls[swapped]] = values[payload[swapped], ::-1]
        size[calls], even[calls] = sizes[payload], evens[payload]
    return Calls(
        rank=rank,
        groups=record.groups,
        sites=sites,
        table=table,
        place=np.arange(own.start, own.stop),
        volume=volume,
        share=share,
        size=size,
        even=even,
    )


def inferred_step(calls: Calls, number: int, kind: str, own: Bool) -> tuple[Any, ...]:
    """Return the RANK_STEP of a rank's calls ``own [n]``, with their time span."""
    times = np.concatenate([calls.table[name][own] for name in ("issue", "end")])
    times = times[times != UNKNOWN_TIME]
    span = (int(times.min()), int(times.max())) if len(times) else (UNKNOWN_TIME,) * 2
    return number, np.nan, -1, *span, Source.INFERRED, kind, calls.rank


def _fingerprints(rows: npt.NDArray[Any]) -> tuple[UInt64, UInt64, Int64, Bool]:
    """Compute fingerprints, totals and evenness of splits ``[m, 2, W]``.

    A fingerprint is the scalar product with fixed random odd numbers modulo 2^64:
    different vectors collide with a probability of about 2^-50.
    """
    count, _, width = rows.shape
    weights = np.random.default_rng(width).integers(
        0, np.iinfo(np.uint64).max, width, np.uint64, endpoint=True
    ) | np.uint64(1)
    volume, share = np.zeros((2, count, 2), np.uint64)
    even = np.zeros(count, bool)
    step = max(1, CHUNK // (2 * width))
    for first in range(0, count, step):
        part = slice(first, first + step)
        numbers = rows[part].astype(np.int64)
        divisor = np.gcd.reduce(numbers.reshape(len(numbers), -1), axis=1)
        scaled = numbers // np.maximum(divisor, 1)[:, None, None]
        for target, values in ((volume, numbers), (share, scaled)):
            target[part] = (values.astype(np.uint64) * weights).sum(
                axis=2, dtype=np.uint64
            )
        even[part] = (numbers == numbers[:, :1, :1]).all(axis=(1, 2))
    return volume, share, rows.sum(axis=(1, 2)), even
