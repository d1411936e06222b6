"""Recompute a trace for other ranks, or for other bytes.

In this order: missing records are completed, a rank's bytes are shared by several new
ranks, bytes of ranks that meet on one are summed, rank-local bytes are left out, and
bytes are multiplied.  All is computed when it is read: a trace may exceed memory.

If rank i becomes f ranks and rank j becomes g, each of the g gets as much of cell
``[i, j]``, and each of the f sends as much: phases remain transposes of each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, UInt8
from moetraffic.errors import ReplayError
from moetraffic.spelling import check_choice
from moetraffic.trace.model import (
    MOST_BYTES,
    ROUTING,
    TRANSPOSED_PHASES,
    Group,
    Presence,
    Site,
)
from moetraffic.trace.order import merged
from moetraffic.trace.panel import ComputedPanel, Panel
from moetraffic.trace.trace import TIMES, Trace
from moetraffic.units import byte_size

from .dispatchers import redispatch
from .missing import RULES, completed, known_rows
from .rank_map import RankMap, rank_map

MESSAGE = "send_recv"
SUMMED = ("all_gather", "gather")
"""Operations in which each member has a part of its own: parts are added where ranks
meet, and shared where they part.  In others all members have a buffer of one size."""

ALIGNMENT = 16  # bytes that NCCL copies at once
MOST_FACTOR = 1_000_000  # also of its numerator and denominator: products fit int64
_BLOCK_CELLS = 1 << 20  # cells of matrices that are computed at a time


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Options by which a trace is rescaled, as on the command line.

    Raises
    ------
    ReplayError
        If ranks are mapped in two ways, or a rule is unknown.
    """

    fold: str = ""  # "4", "4:strided" or "nodes"
    expand: str = ""  # "128"
    ranks: str = ""  # "0,4:8"
    rank_map: str = ""  # a file, or "0,0,1,-"
    factor: Fraction = Fraction(1)  # of all bytes
    self_traffic: bool = True  # whether a rank sends to itself
    missing: str = ""  # a rule of missing.RULES; "": gaps stay
    dispatcher: str = ""  # of DISPATCHERS; "": the captured exchanges
    ranks_per_node: int = 0  # of the dispatcher; 0: the trace's nodes

    def __post_init__(self) -> None:
        if len(self.ways) > 1:
            raise ReplayError(
                "ranks are mapped in one way, but there are "
                f"{' and '.join(f'--{way}' for way in self.ways)}: give one, or a "
                "--rank-map"
            )
        if self.missing:
            check_choice("the rule", self.missing, RULES, ReplayError)
        if self.ranks_per_node < 0 or (self.ranks_per_node and not self.dispatcher):
            raise ReplayError(
                "--ranks-per-node is 1 or more, and used by a dispatcher, but is "
                f"{self.ranks_per_node} with {self.dispatcher or 'no'} --dispatcher: "
                "change them"
            )

    def __bool__(self) -> bool:
        return self != Scaling()

    @property
    def ways(self) -> dict[str, str]:
        """Options by which ranks are mapped, and their values."""
        ways = ("fold", "expand", "ranks", "rank_map")
        every = {way.replace("_", "-"): getattr(self, way) for way in ways}
        return {way: text for way, text in every.items() if text}

    def arguments(self) -> list[str]:
        """Return the equivalent options of the command line."""
        values = {
            **self.ways,
            "bytes": f"x{self.factor}" * (self.factor != 1),
            "self-traffic": "drop" * (not self.self_traffic),
            "complete-missing": self.missing,
            "dispatcher": self.dispatcher,
            "ranks-per-node": str(self.ranks_per_node or ""),
        }
        pairs = ((f"--{name}", value) for name, value in values.items() if value)
        return [word for pair in pairs for word in pair]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Bytes of all-to-alls before and after a rescaling, of those that were read."""

    rule: str  # of the rescaling
    in_common_order: bool  # whether ranks must follow one order of all calls
    left_out: int  # calls of ranks that are left out
    calls: Int64  # [O'] call of the source that each call of the result is
    sums: Int64  # [6, O] of each call of the source: see :meth:`total`

    def total(self, calls: Int64) -> list[int]:
        """Add bytes of calls of the result.

        In order: captured, rank-local ones, completed, lost, sent, rank-local ones.
        """
        return [int(n) for n in self.sums[:, self.calls[calls]].sum(axis=1)]

    def lines(self, calls: Int64) -> tuple[str, ...]:
        """Describe the rescaling, and the bytes of all-to-alls of the result."""
        captured, local, completed, lost, sent, kept = self.total(calls)
        line = (
            f"bytes of {len(calls)} all-to-alls: {byte_size(captured)} captured "
            f"({byte_size(local)} of them rank-local), "
            + f"{byte_size(completed)} completed, " * (completed > 0)
            + f"{byte_size(lost)} lost, " * (lost > 0)
            + f"{byte_size(sent)} sent ({byte_size(kept)} of them rank-local)"
        )
        left = f"operations of ranks that are left out: {self.left_out}"
        return (self.rule, line, *[left] * (self.left_out > 0))


def rescale(trace: Trace, scaling: Scaling) -> Trace:
    """Compute the trace of the same run on other ranks, or with other bytes.

    It has the groups of the source, without routings and demand, because no router ran
    on these ranks.  A rank to which several ranks are mapped issues an operation when
    the first of them did, and ends it when the last did.  Calls of ranks that are left
    out, and messages from or to these, are not in it.  Times are on rank 0's clock.
    The result is read lazily from ``trace``, which must stay open.

    Raises
    ------
    ReplayError
        If the trace's ranks cannot be mapped so.
    """
    return rescaled(trace, scaling)[0] if scaling else trace


def rescaled(trace: Trace, scaling: Scaling) -> tuple[Trace, Ledger]:
    """Rescale a trace as :func:`rescale`, and count the bytes of what is read of it."""
    if scaling.dispatcher:
        per_node = scaling.ranks_per_node
        trace = redispatch(trace, scaling.dispatcher, ranks_per_node=per_node)
    way, text = next(iter(scaling.ways.items()), ("", ""))
    ranks = rank_map(trace.meta, way, text)
    world = 1 + max(max(of, default=0) for of in ranks)
    origins: list[list[int]] = [[] for _ in range(world)]
    for old, of in enumerate(ranks):
        for new in of:
            origins[new].append(old)
    images = [_Image(ranks, group) for group in trace.groups]
    every, nodes = trace.occurrences, trace.meta.nodes
    sites = _sites(trace, origins, images)
    place = np.full(len(trace.sites), -1)
    place[[*sites.values()]] = np.arange(len(sites))
    site = place[every.site]
    calls = np.argsort(site, kind="stable")[(site < 0).sum() :]
    routed = np.array([s.operation == ROUTING for s in trace.sites], bool)
    ledger = Ledger(
        rule=f"scale: {trace.meta.world} ranks onto {world}; "
        + " ".join(scaling.arguments()),
        in_common_order=max(map(len, origins)) > 1 or bool(scaling.missing),
        left_out=int(((site < 0) & ~routed[every.site]).sum()),
        calls=calls,
        sums=np.zeros((6, len(every)), np.int64),
    )
    matrix, panels = _Reading(trace, scaling, images, ledger).panels()
    first = tuple(nodes[of[0]] for of in origins if nodes)
    meta = replace(trace.meta, nodes=first)
    if world != meta.world:
        meta = replace(meta, world=world, dp=1, tp=1, pp=1, ep=1, cp=1)
    found = Trace(
        meta=meta,
        groups=[
            replace(group, ranks=image.ranks or (0,))
            for group, image in zip(trace.groups, images, strict=True)
        ],
        sites=[*sites],
        occurrences=replace(
            every[calls],
            site=site[calls].astype(np.int32),
            matrix=matrix,
            transposed=np.zeros(len(calls), bool),
        ),
        panels=panels,
        steps=trace.steps.joined(origins),  # ranks that share one have its tokens
        file=trace.file,
    )
    return found, ledger


class _Image:
    """Members of a group of the trace, and the new ranks that carry them."""

    def __init__(self, ranks: RankMap, group: Group) -> None:
        targets = [ranks[rank] for rank in group.ranks]
        by_rank = np.argsort(group.ranks).tolist()
        self.kept = np.array([m for m in by_rank if targets[m]], np.int64)  # members
        self.parts = np.array([len(targets[m]) for m in self.kept], np.int64)
        owner = np.array([new for m in self.kept for new in targets[m]], np.int64)
        # shares of the kept members by new rank, and the first share of each of these
        self.order = np.argsort(owner, kind="stable")
        found, self.first = np.unique(owner[self.order], return_index=True)
        self.ranks: tuple[int, ...] = tuple(found.tolist())
        self.members = np.repeat(self.kept, self.parts)[self.order]
        # messages are not split: the first of a member's new ranks sends and gets them
        self.peers = {m: self.ranks.index(targets[m][0]) for m in self.kept.tolist()}

    def joined(self, shares: Int64, join: np.ufunc, axis: int = 1) -> Int64:
        """Join the shares along an axis by new rank."""
        if np.array_equal(self.first, self.order):
            return shares
        return join.reduceat(shares.take(self.order, axis), self.first, axis)


def _sites(
    trace: Trace, origins: list[list[int]], images: list[_Image]
) -> dict[Site, int]:
    """Return the new sites in an order of all ranks' programs, and what they were."""
    of_rank: list[list[int]] = [[] for _ in range(trace.meta.world)]
    for number in np.unique(trace.occurrences.site).tolist():
        site = trace.sites[number]
        members, image = trace.groups[site.group].ranks, images[site.group]
        if min(site.peers) >= 0:
            both = {*site.peers} <= image.peers.keys()
            members = tuple(members[p] for p in site.peers if both)
        for rank in members:
            if site.operation != ROUTING:
                of_rank[rank].append(number)
    programs = [[of_rank[rank] for rank in of if of_rank[rank]] for of in origins]
    order = sorted({n for of in programs for part in of for n in part})
    if max(map(len, programs)) > 1:
        parts = [merged([np.array(part) for part in of]) for of in programs]
        order = merged(parts).tolist()
    made: dict[Site, int] = {}
    for number in order:
        site = trace.sites[number]
        if min(site.peers) >= 0:
            sender, receiver = (images[site.group].peers[p] for p in site.peers)
            site = replace(site, peers=(sender, receiver))
        while site in made:  # messages between other ranks became the same
            site = replace(site, slot=site.slot + 1)
        made[site] = number
    return made


class _Reading:
    """Rows of a rescaled trace, computed from calls of its source."""

    def __init__(
        self, trace: Trace, scaling: Scaling, images: list[_Image], ledger: Ledger
    ) -> None:
        self.trace, self.scaling, self.images = trace, scaling, images
        self.ledger = ledger
        self.group = np.array([s.group for s in trace.sites], np.int64)

    def panels(self) -> tuple[Int64, dict[str, Panel]]:
        """Build the row of the bytes of each call, ``[O']``, and the panels."""
        calls, panels = self.ledger.calls, {}
        site = self.trace.occurrences.site[calls]
        width = np.array([len(i.ranks) for i in self.images])[self.group[site]]
        known = self.trace.occurrences.matrix[calls] >= 0
        square = self.trace.square[site]
        matrix = np.full(len(calls), -1)
        for size in np.unique(width).tolist():
            here = width == size
            columns = dict.fromkeys(("present", *TIMES), here)
            columns |= {"wire": here & known & square, "volume": here & known & ~square}
            for name, of in columns.items():
                at = np.flatnonzero(of)
                panels[f"call_{size}/{name}"] = self._panel(name, calls[at], size)
                if name in ("wire", "volume"):
                    matrix[at] = np.arange(len(at))
        return matrix, panels

    def _panel(self, name: str, calls: Int64, size: int) -> Panel:
        """Build a panel of calls, whose rows are computed for one group at a time."""
        group = self.group[self.trace.occurrences.site[calls]]
        shape = (size, size) if name == "wire" else (size,)
        most = max(size, int(self.trace.width.max()))
        step = max(1, _BLOCK_CELLS // most ** len(shape))
        compute = getattr(self, name, partial(self.times, name))

        def read(start: int, stop: int) -> npt.NDArray[Any]:
            out = np.empty((stop - start, *shape), np.int64)
            for begin in range(start, stop, step):
                here = group[begin : min(begin + step, stop)]
                for number in np.unique(here).tolist():
                    rows = begin + np.flatnonzero(here == number)
                    out[rows - start] = compute(self.images[number], calls[rows])
            return out

        dtype = np.uint8 if name == "present" else np.int64
        return ComputedPanel((len(calls), *shape), dtype, read)

    def wire(self, image: _Image, calls: Int64) -> Int64:
        """Compute byte matrices ``[n, W', W']``."""
        captured = known = self.trace.wire(calls)
        if rule := self.scaling.missing:
            captured, known = completed(self.trace, calls, rule)
        kept = known[:, image.kept[:, None], image.kept]
        if (image.parts > 1).any():
            kept = self._shared(kept, image.parts, calls)
        kept = image.joined(image.joined(kept, np.add), np.add, axis=2)
        if not self.scaling.self_traffic:
            kept = kept * ~np.eye(len(image.ranks), dtype=bool)
        sent = multiplied(kept, self.scaling.factor)
        before, whole, after = (m.sum(axis=(1, 2)) for m in (captured, known, kept))
        self.ledger.sums[:, calls] = (
            *(before, np.trace(captured, axis1=1, axis2=2)),
            *(whole - before, whole - after),
            *(sent.sum(axis=(1, 2)), np.trace(sent, axis1=1, axis2=2)),
        )
        return sent

    def _shared(self, wire: Int64, parts: Int64, calls: Int64) -> Int64:
        """Split rows and columns of matrices ``[n, W, W]`` among the new ranks."""
        of = [self.trace.sites[s] for s in self.trace.occurrences.site[calls]]
        back = np.array([s.phase in TRANSPOSED_PHASES for s in of])[:, None, None]
        unit = np.array([s.row_bytes or 1 for s in of])[:, None, None]
        unit = np.where((wire % unit).any(axis=(1, 2), keepdims=True), 1, unit)
        units = np.where(back, wire.transpose(0, 2, 1), wire) // unit
        rows = share(share(units, parts).transpose(0, 2, 1), parts) * unit
        return np.asarray(np.where(back, rows, rows.transpose(0, 2, 1)), np.int64)

    def volume(self, image: _Image, calls: Int64) -> Int64:
        """Compute input bytes ``[n, W']``."""
        out = np.zeros((len(calls), len(image.ranks)), np.int64)
        of = [self.trace.sites[s] for s in self.trace.occurrences.site[calls]]
        kinds = np.array([s.operation for s in of])
        for kind in np.unique(kinds).tolist():
            at = np.flatnonzero(kinds == kind)
            nbytes = self.trace.volume(calls[at])
            if kind == MESSAGE:  # not split: one rank sends it
                sender = [image.peers.get(of[n].peers[0], 0) for n in at]
                out[at, sender] = nbytes.max(axis=1)
                continue
            nbytes = nbytes[:, image.kept]
            if self.scaling.missing:
                there = known_rows(self.trace, calls[at])[:, image.kept]
                most = np.where(there, nbytes, 0).max(axis=1, keepdims=True)
                nbytes = np.where(there, nbytes, most)
            if kind in SUMMED:
                shares = share(nbytes[:, None, :], image.parts)[:, 0]
                out[at] = image.joined(shares, np.add)
            else:
                shares = nbytes.repeat(image.parts, axis=1)
                out[at] = image.joined(shares, np.maximum)
        return multiplied(out, self.scaling.factor)

    def present(self, image: _Image, calls: Int64) -> UInt8:
        """Compute whether all ranks on a new one have a record, ``[n, W']``."""
        there = self.trace.present(calls) | bool(self.scaling.missing)
        out = np.logical_and.reduceat(there[:, image.members], image.first, 1)
        sites = self.trace.occurrences.site[calls]
        for number in np.unique(sites).tolist():
            peers = self.trace.sites[number].peers
            if min(peers) >= 0:  # a message has two members
                at = np.flatnonzero(sites == number)
                out[at] = False
                for peer in peers:
                    out[at, image.peers[peer]] |= there[at, peer]
        return out * np.uint8(Presence.RECORDED)

    def times(self, name: str, image: _Image, calls: Int64) -> Int64:
        """Compute issue, start or end times, ``[n, W']``."""
        read = self.trace.times(calls)[TIMES.index(name)][:, image.members]
        if name == "end":
            return np.maximum.reduceat(read, image.first, 1)
        # less 1, UNKNOWN_TIME is the largest, not the lowest
        return np.minimum.reduceat(read - 1, image.first, 1) + 1


# ---- shares and factors ----------------------------------------------------------


def share(units: Int64, parts: Int64) -> Int64:
    """Split the last axis: member j becomes ``parts[j]`` neighbors.

    ``units`` are ``[b, n, m]``, ``parts`` ``[m]``; in the result ``[b, n, sum(parts)]``
    the shares of a member differ by 1 at most, and so do their sums over the axis of n:
    what does not divide is dealt from where the cell before in the column ended.

    Examples
    --------
    >>> share(np.array([[[5], [4], [3]]]), np.array([2])).tolist()
    [[[3, 2], [2, 2], [1, 2]]]
    """
    member = np.repeat(np.arange(len(parts)), parts)
    place = np.arange(len(member)) - (np.cumsum(parts) - parts)[member]
    whole, over = np.divmod(units, parts)
    begun = (np.cumsum(over, axis=1) - over) % parts
    turn = (place - begun[:, :, member]) % parts[member]
    return np.asarray(whole[:, :, member] + (turn < over[:, :, member]), np.int64)


def factor_of(text: str) -> Fraction:
    """Parse a factor of bytes: ``x0.1``, ``x2`` or ``x1/8``.

    Examples
    --------
    >>> factor_of("x0.1"), factor_of("x1/8")
    (Fraction(1, 10), Fraction(1, 8))
    """
    form = r"x(\d{1,6}(?:\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5})"
    found = re.fullmatch(form, text, re.ASCII)
    factor = Fraction(found[1]) if found else Fraction(0)
    if not factor or max(factor.numerator, factor.denominator) > MOST_FACTOR:
        raise ReplayError(
            "bytes are scaled by x and a factor above 0, of a numerator and a "
            f"denominator up to {MOST_FACTOR}, but --bytes is {text[:40]!r}: give x0.1 "
            "for a tenth, x2 for twice as many"
        )
    return factor


def multiplied(nbytes: Int64, factor: Fraction) -> Int64:
    """Multiply bytes by a factor.

    Multiples of 16 are rounded to such, others to whole bytes, halves up, not to 0.

    Examples
    --------
    >>> multiplied(np.array([0, 5, 15, 8, 1648]), Fraction(1, 10)).tolist()
    [0, 1, 2, 1, 160]
    """
    if factor == 1:
        return nbytes
    p, q = factor.numerator, factor.denominator
    most = int(nbytes.max(initial=0))
    if most * p > MOST_BYTES * q:
        raise ReplayError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {most} bytes "
            f"times {factor} are more: lower --bytes"
        )
    unit = np.where(nbytes % ALIGNMENT == 0, ALIGNMENT, 1)
    whole, rest = np.divmod(nbytes // unit, q)
    units = whole * p + (2 * rest * p + q) // (2 * q)
    return np.asarray(np.maximum(units, nbytes > 0) * unit, np.int64)
