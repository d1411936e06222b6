"""The Trace: what a training run put on its network, read lazily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError

from . import clock, display, matrix, placement, selection, wire
from .consistency import refuse_contradictions
from .model import (
    CLOCK,
    PLACEMENT,
    ROUTING,
    Bool,
    DroppedForm,
    Group,
    Int32,
    Int64,
    Meta,
    Occurrences,
    Presence,
    Program,
    Site,
    Steps,
)
from .panel import ArrayPanel, Panel, take
from .reconciliation import sized
from .rows import TIMES, Rows

if TYPE_CHECKING:
    import xarray

    from moetraffic.trace.hdf5.container import Container


class Trace:
    """A recorded, imported, generated or replayed run.

    Tables (groups, sites, occurrences, steps ...) are in memory; panels (demand, wire,
    times) are read when asked for, so a trace may be larger than memory.

    Parameters
    ----------
    meta, groups, sites, occurrences, steps, programs
        As the classes of those names say.
    panels
        By name, for W members of a group and E experts:

        ``present_W`` ``[O_W, W]`` uint8, one row an occurrence of a group of W ranks;
        ``issue_W``, ``start_W``, ``end_W`` ``[O_W, W]`` int64 ns of each rank's clock;
        ``demand_WxE`` ``[D, W, E]`` int32 token copies, a row a routing occurrence;
        ``dropped_WxE`` likewise, of routing sites whose drops are STORED;
        ``wire_W`` ``[X, W, W]`` int64 bytes, all-to-all sites whose wire is STORED;
        ``volume_W`` ``[V, W]`` int64 bytes, other sites whose wire is STORED.
    placements, clocks
        Structured arrays of types PLACEMENT and CLOCK.

    Raises
    ------
    TraceError
        If the parts contradict each other.
    """

    def __init__(
        self,
        *,
        meta: Meta,
        groups: Sequence[Group],
        sites: Sequence[Site],
        occurrences: Occurrences,
        panels: Mapping[str, Panel],
        steps: Steps,
        programs: Sequence[Program] = (),
        placements: npt.NDArray[np.void] | None = None,
        clocks: npt.NDArray[np.void] | None = None,
        container: Container | None = None,
    ) -> None:
        self.meta = meta
        self.groups = tuple(groups)
        self.sites = tuple(sites)
        self.occurrences = occurrences
        self.panels = dict(panels)
        self.steps = steps
        self.programs = tuple(programs)
        self.placements = np.zeros(0, PLACEMENT) if placements is None else placements
        self.clocks = np.zeros(0, CLOCK) if clocks is None else clocks
        self._container = container
        self._rows = Rows(self.groups, self.sites, occurrences)
        refuse_contradictions(self)

    # ---- files -----------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace file; its panels stay on disk until they are asked for.

        Raises
        ------
        TraceError
            If there is no such file, or it is damaged or no trace.
        """
        from moetraffic.trace.hdf5.format import load

        return load(Path(path))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the trace; the file appears whole or not at all.

        Raises
        ------
        TraceError
            If the file exists and ``force`` is not given, or the disk refuses.
        """
        from moetraffic.trace.hdf5.format import save

        save(self, Path(path), force=force)

    def close(self) -> None:
        """Close the file behind the panels."""
        if self._container is not None:
            self._container.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    _repr_html_ = display.html

    @property
    def name(self) -> str:
        """The file's path, or "trace" for one in memory."""
        return str(self._container.path) if self._container else "trace"

    # ---- what there is ---------------------------------------------------------

    @property
    def iterations(self) -> Int64:
        """Iterations of training steps, ``[n]`` int64, increasing."""
        kinds = np.array([k == "train" for k in self.steps.kind], bool)
        return np.asarray(self.steps.iteration[kinds], np.int64)

    @property
    def layers(self) -> tuple[int, ...]:
        """Global indices of the layers whose routing or expert exchange was seen."""
        return tuple(
            sorted({s.layer for s in self.sites if s.phase or s.operation == ROUTING})
        )

    def size(self, occurrence: int) -> int:
        """Ranks W of the group of an occurrence."""
        return int(self._rows.width[self.occurrences.site[occurrence]])

    def find(
        self,
        *,
        operation: str | None = None,
        phase: str | None = None,
        layer: int | None = None,
        direction: str | None = None,
        slot: int | None = None,
        group: int | None = None,
        iterations: range | None = None,
        kind: str | None = "train",
    ) -> Int64:
        """Indices of the occurrences that fit, in the trace's order.

        Parameters
        ----------
        operation, phase, layer, direction, slot, group
            What the site must have; None fits any.
        iterations
            Iterations to keep.
        kind
            Kind of step, None for any.

        Returns
        -------
        ndarray
            ``[n]`` int64.
        """
        want = {
            "operation": operation,
            "phase": phase,
            "layer": layer,
            "direction": direction,
            "slot": slot,
            "group": group,
        }
        asked = {name: value for name, value in want.items() if value is not None}
        fits = np.array(
            [all(getattr(s, n) == v for n, v in asked.items()) for s in self.sites],
            bool,
        )
        keep = fits[self.occurrences.site] if len(self.sites) else np.zeros(0, bool)
        when = self.occurrences.iteration
        if iterations is not None:
            keep &= (when >= iterations.start) & (when < iterations.stop)
        if kind is not None:
            kinds = np.array([k == kind for k in self.steps.kind], bool)
            keep &= np.isin(when, self.steps.iteration[kinds])
        return np.flatnonzero(keep)

    # ---- numbers ---------------------------------------------------------------

    def present(self, occurrences: Int64) -> Bool:
        """Whether each member's bytes in the occurrences are known, ``[n, W]``."""
        told = self._timed("present", occurrences)
        return sized(told)

    def recovered(self, occurrences: Int64) -> Bool:
        """Whether a member's bytes are what its peers received from it, ``[n, W]``.

        What a rank kept for itself no peer has seen: where that rank's record is
        missing, it is 0.
        """
        told = self._timed("present", occurrences)
        return np.asarray(told == Presence.RECOVERED, bool)

    def complete(self, occurrences: Int64) -> Int64:
        """Those of the occurrences of which every member's record exists."""
        keep = np.zeros(len(occurrences), bool)
        for width in np.unique(self._widths(occurrences)):
            of = np.flatnonzero(self._widths(occurrences) == width)
            keep[of] = self.present(occurrences[of]).all(axis=1)
        return occurrences[keep]

    def times(
        self, occurrences: Int64, *, own_clock: bool = False
    ) -> tuple[Int64, Int64, Int64]:
        """Issue, start and end of the occurrences, each ``[n, W]`` int64 ns.

        Times are on rank 0's clock, or on each rank's own; unknown is UNKNOWN_TIME.
        """
        ranks = self.members(occurrences)
        read = [self._timed(name, occurrences) for name in TIMES]
        if not own_clock:
            read = [clock.to_common(self.clocks, ranks, t) for t in read]
        issue, start, end = read
        return issue, start, end

    def demand(self, occurrences: Int64) -> Int32:
        """Token copies a member routed to an expert, ``[n, W, E]`` int32.

        Copies that were dropped later are included.
        """
        self._must_route(occurrences)
        return take(self._panel("demand", occurrences), self._rows.demand[occurrences])

    def dropped(self, occurrences: Int64) -> Int32:
        """Token copies of the demand that were dropped, ``[n, W, E]`` int32.

        Raises
        ------
        TraceError
            If it is not known what was dropped.
        """
        self._must_route(occurrences)
        sites = self.occurrences.site[occurrences]
        forms = self._rows.dropped_form[sites]
        if (forms == DroppedForm.UNKNOWN).any():
            raise TraceError(
                "dropped token copies are known where the router reported them, but "
                f"layer {self.sites[int(sites[0])].layer} did not: use demand alone"
            )
        shape = self._panel("demand", occurrences).shape[1:]
        out = np.zeros((len(occurrences), *shape), np.int32)
        stored = np.flatnonzero(forms == DroppedForm.STORED)
        if len(stored):
            rows = self._rows.dropped[occurrences[stored]]
            out[stored] = take(self._panel("dropped", occurrences), rows)
        return out

    def wire(self, occurrences: Int64) -> Int64:
        """Bytes that all-to-alls sent, ``[n, W, W]`` int64: row sends, column receives.

        Raises
        ------
        TraceError
            If an occurrence is no all-to-all, or its bytes are not known.
        """
        return wire.sent(self, self._rows, occurrences)

    def rows_sent(
        self, occurrences: Int64, demand: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.integer], int] | None:
        """Token copies that all-to-alls sent, from a demand that was read already.

        ``[n, W, W]`` copies and the bytes of one, whose product is :meth:`wire`, of
        all-to-alls of one layer, group and phase; ``demand`` ``[n, W, E]`` is that of
        their :meth:`routing_of`.  None where no demand tells the wire, or copies
        differ in size.
        """
        return wire.rows_sent(self, occurrences, demand)

    def any_dropped(self, occurrences: Int64) -> bool:
        """Whether a routing site of these has dropped copies, or may have."""
        forms = self._rows.dropped_form[np.unique(self.occurrences.site[occurrences])]
        return bool((forms != DroppedForm.NONE).any())

    def volume(self, occurrences: Int64) -> Int64:
        """Bytes of each member's input buffer, ``[n, W]`` int64, of other collectives.

        All-reduce, reduce: the reduced buffer; all-gather: the rank's own part;
        reduce-scatter: all parts together; broadcast: the buffer on every member;
        send and receive: the message, at its sender.
        """
        return wire.contributed(self, self._rows, occurrences)

    def holder(self, layer: int, group: int, iteration: int) -> Int64:
        """Group rank that holds each expert, ``[E]`` int64, in one iteration.

        Raises
        ------
        TraceError
            If the placement is not known, or experts have several replicas.
        """
        return placement.holder(self, layer, group, iteration)

    def matrix(
        self,
        iteration: int,
        layer: int,
        phase: str,
        *,
        micro_batch: int | None = None,
        group: int | None = None,
        space: Literal["group", "world"] = "group",
        unit: Literal["bytes", "tokens"] = "bytes",
        of: Literal["demand", "wire"] = "demand",
    ) -> matrix.Matrix:
        """The matrix between ranks of one iteration, layer and phase.

        Parameters
        ----------
        iteration, layer, phase
            Which exchange.
        micro_batch
            Its slot; None sums over the micro-batches, and the label says so.
        group
            Index of the process group; None takes the only one, or, in world space,
            sums over all of them.
        space
            Rows and columns are the group's ranks or the world's.
        unit
            Bytes, or token copies.
        of
            What was routed, or what was sent.

        Returns
        -------
        Matrix
            Values ``[W, W]`` or ``[R, R]`` int64; row sends, column receives.

        Raises
        ------
        TraceError
            If there is no such exchange, or a rank's record of it is missing.
        """
        return matrix.of_phase(
            self, iteration, layer, phase, micro_batch, group, space, unit, of
        )

    def order(self, rank: int) -> Int64:
        """Occurrences in the order in which a rank issued them, ``[n]`` int64."""
        return selection.in_order_of(self, rank)

    # ---- other traces ----------------------------------------------------------

    def select(self, occurrences: Int64) -> Trace:
        """The trace of these occurrences alone, in memory; steps are kept."""
        return selection.subset(self, self._rows, occurrences)

    def replace(
        self,
        *,
        issue: Mapping[int, Int64] | None = None,
        start: Mapping[int, Int64] | None = None,
        end: Mapping[int, Int64] | None = None,
        meta: Meta | None = None,
        steps: Steps | None = None,
        clocks: npt.NDArray[np.void] | None = None,
    ) -> Trace:
        """The same traffic with other times (W -> ``[O_W, W]`` int64 ns) or meta."""
        panels = dict(self.panels)
        for name, given in zip(TIMES, (issue, start, end), strict=True):
            for width, array in (given or {}).items():
                panels[f"{name}_{width}"] = ArrayPanel(array)
        return Trace(
            meta=meta or self.meta,
            groups=self.groups,
            sites=self.sites,
            occurrences=self.occurrences,
            panels=panels,
            steps=steps or self.steps,
            programs=self.programs,
            placements=self.placements,
            clocks=self.clocks if clocks is None else clocks,
            container=self._container,
        )

    def to_xarray(self, *, group: int | None = None) -> xarray.DataArray:
        """Demand as ``(iteration, micro_batch, layer, src, expert)``, token copies.

        Raises
        ------
        TraceError
            If the training steps are not all alike, or a rank's record is missing.
        """
        from .labeled import demand_array

        return demand_array(self, group)

    # ---- inside ----------------------------------------------------------------

    def routing_of(self, occurrences: Int64) -> Int64:
        """The routing occurrence that each occurrence's wire follows, ``[n]`` int64."""
        sites = self.occurrences.site[occurrences]
        routed = np.array([s.routing for s in self.sites], np.int64)[sites]
        return self._rows.at(routed, self.occurrences.iteration[occurrences])

    def occurrences_at(self, sites: Int64, iterations: Int64) -> Int64:
        """The occurrences of given sites in given iterations, ``[n]`` int64.

        Raises
        ------
        TraceError
            If one of them does not exist.
        """
        return self._rows.at(sites, iterations)

    def rows_of(self, panel: str) -> Int64:
        """Row of the named panel that each occurrence has, ``[O]``; -1 for none."""
        return self._rows.of(panel)

    def members(self, occurrences: Int64) -> Int64:
        """World rank of each member of the occurrences' groups, ``[n, W]`` int64."""
        if not len(occurrences):
            return np.zeros((0, 0), np.int64)
        self.common_size(occurrences)
        group = np.array([s.group for s in self.sites], np.int64)
        used, which = np.unique(
            group[self.occurrences.site[occurrences]], return_inverse=True
        )
        return np.array([self.groups[g].ranks for g in used], np.int64)[which]

    def _widths(self, occurrences: Int64) -> Int64:
        return self._rows.width[self.occurrences.site[occurrences]]

    def common_size(self, occurrences: Int64) -> int:
        """Ranks W of the groups of these occurrences.

        Raises
        ------
        TraceError
            If they are not all of one size.
        """
        widths = np.unique(self._widths(occurrences))
        if len(widths) != 1:
            raise TraceError(
                "occurrences are read together when their groups have one size, but "
                f"these have {widths.tolist()} ranks: read them one size at a time"
            )
        return int(widths[0])

    def _timed(self, name: str, occurrences: Int64) -> npt.NDArray[Any]:
        if not len(occurrences):
            return np.zeros((0, 0), np.int64)
        width = self.common_size(occurrences)
        return take(self.panels[f"{name}_{width}"], self._rows.time[occurrences])

    def _panel(self, name: str, occurrences: Int64) -> Panel:
        family = np.unique(self._rows.family[self.occurrences.site[occurrences]])
        if len(family) != 1:
            raise TraceError(
                "routings are read together when they have the same ranks and "
                "experts: read them one layer or group at a time"
            )
        width, experts = divmod(int(family[0]), 1 << 32)
        return self.panels[f"{name}_{width}x{experts}"]

    def _must_route(self, occurrences: Int64) -> None:
        if not len(occurrences):
            raise TraceError(
                "demand is read of at least one routing, but none was asked for: "
                "the trace may have been captured without its router"
            )
        if (self._rows.family[self.occurrences.site[occurrences]] < 0).any():
            raise TraceError(
                "demand exists where routing was seen: ask for occurrences of "
                "operation 'routing'"
            )
