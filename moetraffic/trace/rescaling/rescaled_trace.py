"""Recompute a trace for other ranks: fewer, more, or a subset; and for other bytes.

Bytes, presence and times are computed when they are read, so a trace may be larger than
memory.  What ranks are mapped to is decided by a
:class:`~moetraffic.trace.rescaling.trace_scaling.TraceScale`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64, UInt8
from moetraffic.trace.clock import earliest
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    Group,
    Occurrences,
    Presence,
    Program,
    Site,
    WireForm,
)
from moetraffic.trace.order import merged
from moetraffic.trace.panel import Panel
from moetraffic.trace.rows import TIMES
from moetraffic.trace.trace import Trace

from .trace_scaling import TraceScale

_MESSAGE = "send_recv"
_BLOCK_CELLS = 1 << 20  # cells of the source's matrices that are read at a time


def rescaled(scale: TraceScale) -> Trace:
    """Compute the trace of a scale: the same run on other ranks, with other bytes.

    It has the groups and sites of the source in the same order, without routings and
    demand, because no router ran on these ranks.  A rank to which several ranks are
    mapped issues an operation when the first of them did, and ends it when the last
    did.  Operations of ranks that are left out, and messages from or to these, are not
    in it: ``scale.ledger`` counts them, and sums all matrices that are read.

    The result is read lazily from the source, which must stay open; times are on rank
    0's clock.
    """
    trace, groups = scale.trace, scale.groups
    kept = np.array([_is_kept(scale, s) for s in trace.sites], bool)
    routes = np.array([s.operation == ROUTING for s in trace.sites], bool)
    of_site = trace.occurrences.site
    every = np.flatnonzero(kept[of_site])  # occurrences of the source that are kept
    scale.ledger.operations_left_out = int((~kept & ~routes)[of_site].sum())
    used, site = np.unique(of_site[every], return_inverse=True)
    sites: list[Site] = []
    for number in used.tolist():
        made = _site(scale, trace.sites[number])
        while made in sites:  # messages between other ranks became the same
            made = replace(made, slot=made.slot + 1)
        sites.append(made)
    sites_at = np.full(len(trace.sites), -1, np.int64)
    sites_at[used] = np.arange(len(used))
    first = [origins[0] for origins in scale.map.origins]
    nodes = trace.meta.nodes
    meta = replace(trace.meta, nodes=tuple(nodes[r] for r in first) if nodes else ())
    if scale.world != meta.world:
        meta = replace(meta, world=scale.world, dp=1, tp=1, pp=1, ep=1, cp=1)
    return Trace(
        meta=meta,
        groups=[
            Group(kind=g.kind, ranks=ranks or (0,))
            for g, ranks in zip(trace.groups, groups, strict=True)
        ],
        sites=sites,
        occurrences=Occurrences(
            iteration=trace.occurrences.iteration[every],
            site=site.reshape(-1).astype(np.int32),
            sequence=trace.occurrences.sequence[every],
        ),
        panels=_panels(scale, every, sites, site.reshape(-1)),
        # tokens are counted on each of the ranks that share one
        steps=trace.steps.joined(scale.map.origins),
        programs=_programs(trace, scale.map.origins, sites_at),
        container=trace.container,
    )


def _is_kept(scale: TraceScale, site: Site) -> bool:
    if site.operation == ROUTING or not scale.groups[site.group]:
        return False
    if site.operation != _MESSAGE or min(site.peers) < 0:
        return True
    ranks = scale.trace.groups[site.group].ranks
    return all(scale.rank(ranks[peer]) >= 0 for peer in site.peers)


def _site(scale: TraceScale, site: Site) -> Site:
    peers, image = site.peers, scale.groups[site.group]
    if site.operation == _MESSAGE and min(peers) >= 0:
        ranks = scale.trace.groups[site.group].ranks
        sender, receiver = (image.index(scale.rank(ranks[p])) for p in peers)
        peers = sender, receiver
    known = site.wire != WireForm.UNKNOWN
    return replace(
        site,
        peers=peers,
        routing=-1,
        wire=WireForm.STORED if known else WireForm.UNKNOWN,
        wire_checked=0,
        constant=(),
    )


def _programs(
    trace: Trace, origins: tuple[tuple[int, ...], ...], sites_at: Int64
) -> list[Program]:
    """Merge the programs of the ranks on one into one order of sites."""
    found = []
    for rank, of in enumerate(origins):
        for kind in dict.fromkeys(p.kind for p in trace.programs if p.rank in of):
            listed = [
                sites_at[list(p.sites)]
                for p in trace.programs
                if p.rank in of and p.kind == kind
            ]
            parts = [part[part >= 0] for part in listed]
            order = tuple(merged([p for p in parts if len(p)]).tolist())
            found.append(Program(rank=rank, kind=kind, sites=order))
    return found


# ---- panels -----------------------------------------------------------------------


class ComputedPanel:
    """Panel whose rows are computed, from some of the source's rows at a time."""

    def __init__(
        self,
        compute: Callable[[Int64], npt.NDArray[Any]],
        occurrences: Int64,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        at_once: int,
    ) -> None:
        self.shape = (len(occurrences), *shape)
        self.dtype = np.dtype(dtype)
        self._compute, self._occurrences, self._at_once = compute, occurrences, at_once

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Compute rows of the half-open range [start, stop)."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for begin in range(start, stop, self._at_once):
            end = min(begin + self._at_once, stop)
            out[begin - start : end - start] = self._compute(
                self._occurrences[begin:end]
            )
        return out


def _panels(
    scale: TraceScale, every: Int64, sites: list[Site], site: Int64
) -> dict[str, Panel]:
    """Build the panels of the kept occurrences, by size of their new groups."""
    trace = scale.trace
    most = max((len(g.ranks) for g in trace.groups), default=1)
    width = np.array([len(scale.groups[s.group]) for s in sites], np.int64)[site]
    square = np.array([s.operation == ALL_TO_ALL for s in sites], bool)[site]
    stored = np.array([s.wire == WireForm.STORED for s in sites], bool)[site]
    rows = max(1, _BLOCK_CELLS // most)
    panels: dict[str, Panel] = {}
    for size in np.unique(width).tolist():
        here = width == size
        reading = _Reading(scale, size)
        panels[f"present_{size}"] = ComputedPanel(
            reading.presence, every[here], (size,), np.uint8, rows
        )
        for number, name in enumerate(TIMES):
            panels[f"{name}_{size}"] = ComputedPanel(
                reading.times_of(number), every[here], (size,), np.int64, rows
            )
        matrices, volumes = (
            every[here & stored & square],
            every[here & stored & ~square],
        )
        if len(matrices):
            panels[f"wire_{size}"] = ComputedPanel(
                reading.wire, matrices, (size, size), np.int64, max(1, rows // most)
            )
        if len(volumes):
            panels[f"volume_{size}"] = ComputedPanel(
                reading.volume, volumes, (size,), np.int64, rows
            )
    return panels


class _Reading:
    """Reads the source's occurrences as rows of groups with W' ranks."""

    def __init__(self, scale: TraceScale, width: int) -> None:
        self._scale, self._trace, self._width = scale, scale.trace, width

    def wire(self, occurrences: Int64) -> Int64:
        """Compute byte matrices ``[b, W', W']``."""
        out = np.empty((len(occurrences), self._width, self._width), np.int64)
        for group, at in self._by_group(occurrences):
            order = np.argsort(self._trace.groups[group].ranks)
            wire = self._trace.wire(occurrences[at])[:, order[:, None], order]
            out[at] = self._scale.matrices(group, wire, occurrences[at])
        return out

    def volume(self, occurrences: Int64) -> Int64:
        """Compute input bytes ``[b, W']``."""
        out = np.empty((len(occurrences), self._width), np.int64)
        sites = self._trace.sites
        kinds = np.array([s.operation for s in sites])[self._sites(occurrences)]
        for group, of in self._by_group(occurrences):
            order = np.argsort(self._trace.groups[group].ranks)
            for kind in np.unique(kinds[of]).tolist():
                at = of[kinds[of] == kind]
                these = occurrences[at]
                nbytes = self._trace.volume(these)
                if kind == _MESSAGE:
                    nbytes = at_sender(self._trace, these, nbytes)
                out[at] = self._scale.volumes(group, kind, nbytes[:, order], these)
        return out

    def presence(self, occurrences: Int64) -> UInt8:
        """Compute presence ``[b, W']``: of all ranks that a rank carries."""
        out = np.full((len(occurrences), self._width), Presence.RECORDED, np.uint8)
        sites = self._sites(occurrences)
        for group, at in self._by_group(occurrences):
            if not self._scale.completes:
                there = self._trace.present(occurrences[at])
                out[at] = self._joined(group, there, np.all)
            for number in np.unique(sites[at]).tolist():
                site = self._trace.sites[number]
                if site.operation == _MESSAGE and min(site.peers) >= 0:
                    mine = at[sites[at] == number]
                    out[mine] = self._message(group, site, occurrences[mine])
        return out

    def _message(self, group: int, site: Site, occurrences: Int64) -> Bool:
        """Compute the presence of the two ranks of messages, ``[b, W']``."""
        ranks, image = self._trace.groups[group].ranks, self._scale.groups[group]
        there = self._trace.present(occurrences) | self._scale.completes
        out = np.zeros((len(occurrences), self._width), bool)
        for peer in site.peers:
            out[:, image.index(self._scale.rank(ranks[peer]))] |= there[:, peer]
        return out

    def times_of(self, number: int) -> Callable[[Int64], Int64]:
        """Return what computes issue (0), start (1) or end times (2), ``[b, W']``."""

        def times(occurrences: Int64) -> Int64:
            out = np.empty((len(occurrences), self._width), np.int64)
            for group, at in self._by_group(occurrences):
                read = self._trace.times(occurrences[at])[number]
                # UNKNOWN_TIME is the lowest of all
                join = np.max if number == len(TIMES) - 1 else earliest
                out[at] = self._joined(group, read, join)
            return out

        return times

    def _joined(
        self,
        group: int,
        values: npt.NDArray[Any],
        join: Callable[..., npt.NDArray[Any]],
    ) -> npt.NDArray[Any]:
        """Join the members' values ``[b, W]`` of the ranks on one, ``[b, W']``."""
        place = {rank: at for at, rank in enumerate(self._trace.groups[group].ranks)}
        columns = []
        for new in self._scale.groups[group]:
            of = [place[old] for old in self._scale.origins(new) if old in place]
            columns.append(join(values[:, of], axis=1))
        return np.stack(columns, axis=1)

    def _sites(self, occurrences: Int64) -> Int64:
        return self._trace.occurrences.site[occurrences].astype(np.int64)

    def _by_group(self, occurrences: Int64) -> list[tuple[int, Int64]]:
        of = np.array([s.group for s in self._trace.sites], np.int64)
        group = of[self._sites(occurrences)]
        return [(g, np.flatnonzero(group == g)) for g in np.unique(group).tolist()]


def at_sender(trace: Trace, occurrences: Int64, nbytes: Int64) -> Int64:
    """Put message bytes in the sender's column, or the receiver's count if missing."""
    sites = trace.occurrences.site[occurrences]
    peers = np.array([trace.sites[s].peers for s in sites], np.int64)
    rows = np.arange(len(nbytes))
    present = trace.present(occurrences)
    size = np.where(
        present[rows, peers[:, 0]], nbytes[rows, peers[:, 0]], nbytes[rows, peers[:, 1]]
    )
    out = np.zeros_like(nbytes)
    out[rows, peers[:, 0]] = size
    return out
