"""Trace of a training run's communication: tables in memory, panels read on demand.

A panel holds one row per call of one shape: ``call_W/present``, ``call_W/issue``,
``call_W/start``, ``call_W/end`` ``[calls, W]`` of groups of W ranks, and the same
without start and end of ``routing_WxE``.  Routings of W ranks and E experts have
``demand`` ``[routings, W, E]`` and, where there are any, ``dropped`` of that shape and
``chosen`` ``[routings, W, S, k]``, the experts of S sampled tokens.  ``call_W/wire``
``[matrices, W, W]`` and ``call_W/volume`` ``[vectors, W]`` hold the distinct bytes, and
:class:`~moetraffic.trace.model.Occurrences` says which row a call has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int32, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice

from . import clock, labeled, matrix, storage
from .choices import ExpertIds
from .iterations import iteration_range
from .model import (
    ALL_TO_ALL,
    CLOCK,
    DIRECTIONS,
    OPERATIONS,
    PHASES,
    PLACEMENT,
    ROUTING,
    RUN,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Presence,
    Site,
    Steps,
    sized,
)
from .panel import ArrayPanel, Panel, count_equal, take
from .provenance import source_clause

if TYPE_CHECKING:
    import pandas
    import xarray

T = TypeVar("T", bound="Trace")
TIMES = ("issue", "start", "end")


class Trace:
    """Communication trace of a captured, imported, generated or replayed training run.

    Open a file with :meth:`open`, or make a trace of arrays with :meth:`from_arrays`.

    Parameters
    ----------
    meta, groups, sites, occurrences, steps
        See the classes of those names in :mod:`moetraffic.trace.model`.
    panels
        By name, as the description of this module lists them.
    placements, clocks, runs
        Structured arrays of types PLACEMENT, CLOCK and RUN.
    file
        The open file of the panels; None for arrays in memory.

    Raises
    ------
    TraceError
        If the tables and panels contradict each other.

    Examples
    --------
    >>> trace = Trace.from_arrays([[[[3, 1], [0, 4]]]], k=1)
    >>> trace.matrix(0, 0, "dispatch", unit="tokens").values.tolist()
    [[3, 1], [0, 4]]
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
        placements: npt.NDArray[np.void] | None = None,
        clocks: npt.NDArray[np.void] | None = None,
        runs: npt.NDArray[np.void] | None = None,
        file: storage.TraceFile | None = None,
    ) -> None:
        self.meta = meta
        self.groups = tuple(groups)
        self.sites = tuple(sites)
        self.occurrences = occurrences
        self.panels = dict(panels)
        self.steps = steps
        self.placements = np.zeros(0, PLACEMENT) if placements is None else placements
        self.clocks = np.zeros(0, CLOCK) if clocks is None else clocks
        self.runs = np.zeros(0, RUN) if runs is None else runs
        self.file = file
        in_range = all(0 <= s.group < len(self.groups) for s in self.sites)
        self._require(in_range, "a site refers to a group")
        self.table_of_site = [storage.table_of(s, self.groups) for s in self.sites]
        self.width = np.array([len(self.groups[s.group].ranks) for s in sites], int)
        """Ranks W of the group of each site, ``[S]``."""
        self.square = np.array([s.operation == ALL_TO_ALL for s in sites], bool)
        tables, table = np.unique(self.table_of_site, return_inverse=True)
        self.tables: list[str] = tables.tolist()
        self.table = table[occurrences.site] if sites else occurrences.site
        """Index into ``tables`` of each occurrence, ``[O]``."""
        self.row = count_equal(self.table)
        """Row of each occurrence in the panels of its table, ``[O]``."""
        self._validate()

    def _validate(self) -> None:
        """Check that indices lie within the tables, and that panels have their rows."""
        which, when = self.occurrences.site, self.occurrences.iteration
        for group in self.groups:
            ranks = {*group.ranks, 0, self.meta.world - 1}
            self._require(
                0 < len({*group.ranks}) == len(group.ranks)
                and 0 == min(ranks) <= max(ranks) == self.meta.world - 1,
                f"a group has distinct ranks below {self.meta.world}",
            )
        self._require(len({*self.sites}) == len(self.sites), "no site occurs twice")
        self._require(
            not len(which) or 0 <= which.min() <= which.max() < len(self.sites),
            "an occurrence refers to a site",
        )
        later = (which[1:] == which[:-1]) & (when[1:] > when[:-1])
        self._require(
            bool(((which[1:] > which[:-1]) | later).all()),
            "occurrences are sorted by site and iteration",
        )
        self._require(
            bool((np.diff(self.steps.iteration) > 0).all())
            and len(self.steps.iteration) == len(self.steps.source),
            "the iterations of the steps increase, and each has a source",
        )
        for number, name in enumerate(self.tables):
            here = self.table == number
            rows = {"present": int(here.sum()), "issue": int(here.sum())}
            more = ("start", "end") if name.startswith("call") else ("demand",)
            rows |= dict.fromkeys(more, rows["issue"])
            for column, panel in rows.items():
                self._require(
                    self._rows(f"{name}/{column}") == panel,
                    f"{name}/{column} has {panel} rows",
                )
            for column, square in (("wire", True), ("volume", False)):
                mine = here & (self.square[which] == square)
                most = int(self.occurrences.matrix[mine].max(initial=-1))
                self._require(
                    most < self._rows(f"{name}/{column}"),
                    f"{name}/{column} has {most + 1} rows",
                )

    def _rows(self, name: str) -> int:
        panel = self.panels.get(name)
        return panel.shape[0] if panel else 0

    def _require(self, valid: bool, rule: str) -> None:
        if not valid:
            raise TraceError(
                f"{self.name} is inconsistent: it violates the rule that {rule}: use "
                "an intact copy, or capture again"
            )

    def replaced(self: T, **parts: Any) -> T:
        """Copy the trace with some tables or panels replaced, by parameter name."""
        names = "meta groups sites occurrences panels steps placements clocks runs file"
        own = {name: getattr(self, name) for name in names.split()}
        return type(self)(**(own | parts))

    # ---- files and arrays -------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path | Trace) -> Trace:
        """Open a trace file; its panels stay on disk until they are read.

        A trace is returned as it is, so that functions accept both.

        Raises
        ------
        TraceError
            If the file does not exist, is damaged or is no trace.
        """
        if isinstance(path, Trace):
            return path
        if not isinstance(path, str | PathLike):
            raise TraceError(
                f"a trace is a Trace or the path of its file, not of type "
                f"{type(path).__name__}: give one, such as Trace.open('run.h5')"
            )
        return storage.load(Path(path), cls)

    @classmethod
    def from_arrays(
        cls,
        demand: npt.ArrayLike,
        *,
        placement: npt.ArrayLike | None = None,
        k: int | None = None,
        row_bytes: int | None = None,
        dropped: npt.ArrayLike | None = None,
        iterations: npt.ArrayLike | None = None,
        layers: npt.ArrayLike | None = None,
    ) -> Trace:
        """Build a trace from routed token counts, which determine all wire bytes.

        One expert-parallel group of W ranks holds E experts.  Times are unknown.

        Parameters
        ----------
        demand
            ``[T, L, W, E]`` or ``[T, L, M, W, E]`` integers: token copies that a rank
            routes to an expert, by iteration, MoE layer and micro-batch.
        placement
            ``[E]`` or ``[L, E]``: rank of each expert; by default contiguous blocks:
            rank ``floor(e W/E)`` holds expert e.
        k
            Experts per token; None: unknown, or not the same number for all tokens.
        row_bytes
            Bytes of a token copy on the wire; None: unknown, and 1 is assumed.
        dropped
            Of the shape of ``demand``: copies of it that are not sent.
        iterations, layers
            ``[T]`` and ``[L]``: their numbers, increasing; from 0 by default.

        Raises
        ------
        TraceError
            If an array has another shape, or values that are impossible.
        """
        from .routed import arrays_as_trace

        return arrays_as_trace(
            demand, placement, k, row_bytes, dropped, iterations, layers
        )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the trace to a file atomically.

        Raises
        ------
        TraceError
            If the file exists and ``force`` is not given, or cannot be written.
        """
        storage.save(self, Path(path), force=force)

    def close(self) -> None:
        """Close the file from which the panels are read."""
        if self.file is not None:
            self.file.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        meta = self.meta
        layers = len(self.layers)
        parts = [
            f"{meta.world} ranks",
            f"{layers} MoE layer{'s' * (layers != 1)}",
            f"{meta.experts} experts" * bool(meta.experts),
            f"k={meta.k}" * bool(meta.k),
            f"{len(self.iterations)} training iterations",
            f"{len(self.occurrences)} calls",
            "incomplete" * (not meta.complete),
            meta.inferred,
            source_clause(self),
        ]
        model = f" run of {meta.model}" if meta.model else " run"
        shown = ", ".join(filter(None, (f"{meta.origin}{model}", *parts)))
        return f"<Trace {self.name!r}: {shown}>"

    def _repr_html_(self) -> str:
        """Format the contents as HTML for a notebook, as ``moetraffic info`` does."""
        view = import_module("moetraffic.report.views.info")
        path = self.file.path if self.file else None
        return str(view.info(self, path)._repr_html_())

    @property
    def name(self) -> str:
        """Path of the trace file, or "trace" for a trace in memory."""
        return str(self.file.path) if self.file else "trace"

    @property
    def digest(self) -> str:
        """SHA-256 of the contents of the trace file; "" for a trace in memory."""
        return self.file.digest if self.file else ""

    # ---- iterations, layers, calls ------------------------------------------------

    @property
    def iterations(self) -> Int64:
        """Iteration numbers of the training steps, ``[n]`` int64, increasing."""
        return self.steps.of_kind("train")

    @property
    def layers(self) -> tuple[int, ...]:
        """Global indices of the layers that have a routing or an expert exchange."""
        sites = self.sites
        return tuple(
            sorted({s.layer for s in sites if s.phase or s.operation == ROUTING})
        )

    def find(
        self,
        *,
        operation: str | None = None,
        phase: str | None = None,
        layer: int | None = None,
        direction: str | None = None,
        slot: int | None = None,
        group: int | None = None,
        iterations: range | str | None = None,
        kind: str | None = "train",
    ) -> Int64:
        """Find the occurrences that match all criteria, ``[n]`` in trace order.

        Parameters
        ----------
        operation, phase, layer, direction, slot, group
            Required attributes of the site; None matches any.
        iterations
            Iterations to keep, a range or ``"10:20"``.
        kind
            Kind of step, None for any.

        Raises
        ------
        TraceError
            If the operation, phase or direction is none of the format.
        """
        known = (*OPERATIONS, *(site.operation for site in self.sites))
        for name, given, names in (
            ("operation", operation, dict.fromkeys(known)),
            ("phase", phase, (*PHASES, "")),
            ("direction", direction, (*DIRECTIONS, "")),
        ):
            if given is not None:
                check_choice(name, given, names, TraceError)
        wanted = {
            **{"operation": operation, "phase": phase, "layer": layer},
            **{"direction": direction, "slot": slot, "group": group},
        }
        fits = [
            all(v is None or getattr(site, n) == v for n, v in wanted.items())
            for site in self.sites
        ]
        keep = np.array(fits, bool)[self.occurrences.site]
        when = self.occurrences.iteration
        if (span := iteration_range(iterations)) is not None:
            keep &= (when >= span.start) & (when < span.stop)
        if kind is not None:
            keep &= np.isin(when, self.steps.of_kind(kind))
        return np.flatnonzero(keep)

    def at(self, sites: Int64, iterations: Int64) -> Int64:
        """Return the occurrences of sites in iterations, ``[n]``; -1 for none."""
        when = self.occurrences.iteration
        base = int(when.min(initial=0))
        span = int(when.max(initial=0)) - base + 1
        keys = self.occurrences.site.astype(np.int64) * span + (when - base)
        want = sites * span + (iterations - base)
        place = np.searchsorted(keys, want)
        there = (place < len(keys)) & (iterations >= base) & (iterations < base + span)
        there[there] = keys[place[there]] == want[there]
        return np.where(there, place, -1)

    def size(self, occurrence: int) -> int:
        """Return the number of ranks W in the group of an occurrence."""
        return int(self.width[self.occurrences.site[occurrence]])

    def members(self, occurrences: Int64) -> Int64:
        """Return the world ranks of the occurrences' groups, ``[n, W]`` int64."""
        width = self._common_width(occurrences)
        ranks = np.zeros((len(self.groups), width), np.int64)
        for number, group in enumerate(self.groups):
            if len(group.ranks) == width:
                ranks[number] = group.ranks
        group_of_site = np.array([s.group for s in self.sites], np.int64)
        return ranks[group_of_site[self.occurrences.site[occurrences]]]

    def order(self, rank: int) -> Int64:
        """Return the occurrences in the order in which a rank issued them, ``[n]``.

        Where a time is unknown, the order is that of the sites.
        """
        found, when = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        widths = self.width[self.occurrences.site]
        for width in np.unique(widths):
            calls = np.flatnonzero(widths == width)
            row, member = np.nonzero(
                (self.members(calls) == rank) & self.present(calls)
            )
            found.append(calls[row])
            when.append(self.times(calls, own_clock=True)[0][row, member])
        index, issued = np.concatenate(found), np.concatenate(when)
        if (issued == UNKNOWN_TIME).any():
            issued = self.occurrences.site[index].astype(np.int64)
        return index[np.lexsort((issued, self.occurrences.iteration[index]))]

    # ---- presence and times -------------------------------------------------------

    def presence(self, occurrences: Int64) -> UInt8:
        """Return the :class:`Presence` of each member's record, ``[n, W]`` uint8."""
        return self._column("present", occurrences, Presence.ABSENT, np.uint8)

    def present(self, occurrences: Int64) -> Bool:
        """Return whether each member rank's bytes are known, ``[n, W]``."""
        return sized(self.presence(occurrences))

    def complete(self, occurrences: Int64) -> Int64:
        """Return those of the given occurrences that every member rank recorded."""
        keep = np.zeros(len(occurrences), bool)
        widths = self.width[self.occurrences.site[occurrences]]
        for width in np.unique(widths):
            of = np.flatnonzero(widths == width)
            keep[of] = self.present(occurrences[of]).all(axis=1)
        return occurrences[keep]

    def times(
        self, occurrences: Int64, *, own_clock: bool = False
    ) -> tuple[Int64, Int64, Int64]:
        """Return issue, start and end times of occurrences, each ``[n, W]`` int64 ns.

        Times are on rank 0's clock, or on each rank's own; unknown is UNKNOWN_TIME.
        """
        issue, start, end = (
            self._column(name, occurrences, UNKNOWN_TIME, np.int64) for name in TIMES
        )
        if own_clock:
            return issue, start, end
        ranks = self.members(occurrences)
        issue, start, end = (
            clock.to_common(self.clocks, ranks, t) for t in (issue, start, end)
        )
        return issue, start, end

    # ---- token copies ---------------------------------------------------------------

    def demand(self, occurrences: Int64) -> Int32:
        """Return token copies routed by each member to each expert, ``[n, W, E]``.

        Copies that were dropped at the capacity limit are included.
        """
        table = self._routing_table(occurrences)
        return take(self.panels[f"{table}/demand"], self.row[occurrences])

    def dropped(self, occurrences: Int64) -> Int32:
        """Return the routed token copies that were dropped, ``[n, W, E]`` int32."""
        table = self._routing_table(occurrences)
        for number in np.unique(self.occurrences.site[occurrences]).tolist():
            if not self.sites[number].dropped.known:
                raise TraceError(
                    "dropped token copies are unavailable: the router of layer "
                    f"{self.sites[number].layer} did not report them: capture again "
                    "with capture.routing(..., dropped=)"
                )
        if panel := self.panels.get(f"{table}/dropped"):
            return take(panel, self.row[occurrences])
        shape = self.panels[f"{table}/demand"].shape[1:]
        return np.zeros((len(occurrences), *shape), np.int32)

    def kept(self, occurrences: Int64) -> Int64:
        """Return the token copies that are sent, ``[n, W, E]`` int64."""
        demand = self.demand(occurrences).astype(np.int64)
        used = np.unique(self.occurrences.site[occurrences])
        forms = {self.sites[number].dropped for number in used}
        if forms & {DroppedForm.UNKNOWN, DroppedForm.STORED}:
            demand -= self.dropped(occurrences)
        return demand

    def chosen(self, occurrences: Int64) -> ExpertIds:
        """Return the experts of sampled tokens of each member, ``[n, W, S, k]`` ids.

        Dropped copies are included where the router reports them; -1 is none.  A token
        without experts is absent: a member routed fewer than S tokens, or has no
        record.

        Raises
        ------
        TraceError
            If the trace does not hold them, or S differs between the occurrences.
        """
        table = self._routing_table(occurrences)
        used = np.unique(self.occurrences.site[occurrences]).tolist()
        sampled = sorted({self.sites[number].token_sample for number in used})
        if len(sampled) != 1 or not sampled[0]:
            raise TraceError(
                "the experts of single tokens are unavailable: capture with "
                "--token-sample"
                if not sampled[0]
                else f"routings have samples of {sampled} tokens: read them one layer "
                "at a time"
            )
        ids = take(self.panels[f"{table}/chosen"], self.row[occurrences])
        return ids[:, :, : sampled[0]]

    def holder(self, layer: int, group: int, iteration: int) -> Int64:
        """Return the group rank that holds each expert in an iteration, ``[E]``."""
        return matrix.holder(self, layer, group, iteration)

    # ---- bytes ------------------------------------------------------------------

    @property
    def has_bytes(self) -> Bool:
        """Whether the bytes of some calls of a site are known, ``[S]``."""
        known = self.occurrences.site[self.occurrences.matrix >= 0]
        return np.bincount(known, minlength=len(self.sites)).astype(bool)

    def wire(self, occurrences: Int64) -> Int64:
        """Return bytes of all-to-alls, ``[n, W, W]``: row sends, column receives."""
        rows = self._bytes("wire", occurrences)
        turned = self.occurrences.transposed[occurrences]
        if turned.all():
            return rows.transpose(0, 2, 1)
        if turned.any():
            rows = rows.copy()
            rows[turned] = rows[turned].transpose(0, 2, 1)
        return rows

    def volume(self, occurrences: Int64) -> Int64:
        """Return input buffer bytes of other collectives per member, ``[n, W]`` int64.

        All-reduce, reduce: the reduced buffer; all-gather: the rank's own part;
        reduce-scatter: all parts together; broadcast: the buffer on every member;
        send and receive: the message, at its sender.
        """
        return self._bytes("volume", occurrences)

    def _bytes(self, kind: str, occurrences: Int64) -> Int64:
        square = kind == "wire"
        width = self._common_width(occurrences)
        if not width:
            return np.zeros((0, 0, 0) if square else (0, 0), np.int64)
        sites = self.occurrences.site[occurrences]
        if (self.square[sites] != square).any():
            raise TraceError(
                "wire() reads all-to-alls and volume() the other collectives: "
                "select occurrences of one operation"
            )
        rows = self.occurrences.matrix[occurrences]
        if (rows < 0).any():
            site = self.sites[int(sites[rows < 0][0])]
            raise TraceError(
                f"the bytes of {site.operation} at layer {site.layer} are unavailable: "
                "capture them with the hook; Trace.demand() has what was routed"
            )
        return take(self.panels[f"call_{width}/{kind}"], rows)

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
        """Compute the traffic matrix between ranks of one iteration, layer and phase.

        The values are ``[W, W]`` or ``[R, R]`` int64; row sends, column receives.

        Parameters
        ----------
        iteration, layer, phase
            The expert exchange.
        micro_batch
            Its call index; None sums over the micro-batches, as the label states.
        group
            Index of the process group; None takes the only one, or, in world space,
            sums over all of them.
        space
            Whether rows and columns are the group's ranks or the world's.
        unit
            Bytes, or token copies.
        of
            ``demand``: as routed, including dropped copies; ``wire``: as sent.

        Raises
        ------
        TraceError
            If there is no such exchange, or a rank's record of it is missing.
        """
        return matrix.exchange_matrix(
            self,
            iteration,
            layer,
            phase,
            micro_batch=micro_batch,
            group=group,
            space=space,
            unit=unit,
            of=of,
        )

    # ---- other forms ------------------------------------------------------------

    def select(self, occurrences: Int64) -> Trace:
        """Extract the given occurrences; steps, and the file of the bytes, are kept."""
        keep = np.unique(occurrences)
        tables = np.array(self.tables)[self.table[keep]]
        panels = {}
        for name, panel in self.panels.items():
            table, _, column = name.partition("/")
            if column in ("wire", "volume"):
                panels[name] = panel
            elif (tables == table).any():
                rows = self.row[keep[tables == table]]
                panels[name] = ArrayPanel(take(panel, rows))
        return self.replaced(occurrences=self.occurrences[keep], panels=panels)

    def calls(self) -> pandas.DataFrame:
        """Build a pandas table with one row per call, in the trace's order.

        The columns are ``iteration``, ``micro_batch`` (call index of its site in the
        iteration), ``layer`` (-1: none), ``module`` (the layer's name), ``phase`` (""
        where it is no expert exchange), ``direction``, ``operation``, ``label``;
        ``source``, ``step_source``: how these and the iteration were determined,
        "annotated", "linked", "inferred" or "unknown"; ``group``: index into
        ``trace.groups``; ``ranks``: size of that group; ``bytes``: the sum over the
        members' input buffers, rank-local traffic included, NaN where unknown and for
        routings (ring traffic of an all-reduce of W members is 2(W-1)/W times this);
        ``issue_s``, ``start_s``: the earliest of all members, and ``end_s``: the
        latest, in seconds after the first time in the trace; NaN where unknown.
        """
        return labeled.calls_table(self)

    def demand_frame(self, occurrences: Int64 | None = None) -> pandas.DataFrame:
        """Build a pandas table of demand, with a row per routing, rank and expert.

        ``occurrences`` are ``[n]`` routings, from :meth:`find`; by default those of the
        forward pass in training iterations.  The columns are ``iteration``,
        ``micro_batch``, ``layer``, ``group`` (index into ``trace.groups``), ``src``
        (world rank), ``expert`` and ``tokens``, the copies that the rank routed to the
        expert, dropped ones included.  Ranks without a record have no row; an expert
        without tokens has one, with 0.
        """
        return labeled.demand_table(self, occurrences)

    def to_xarray(self, *, group: int | None = None) -> xarray.DataArray:
        """Build an xarray of demand by (iteration, micro_batch, layer, src, expert)."""
        return labeled.demand_array(self, group)

    # ---- rows of panels -------------------------------------------------------------

    def _common_width(self, occurrences: Int64) -> int:
        """Return the number of ranks W that the groups of all occurrences share.

        It is 0 if there are none.
        """
        given, number = np.asarray(occurrences), len(self.occurrences)
        if given.ndim != 1 or (
            given.size
            and not (
                given.dtype.kind in "iu" and 0 <= given.min() <= given.max() < number
            )
        ):
            raise TraceError(
                "occurrences are a list of indices, as Trace.find() returns it, from 0 "
                f"to {number - 1}, not {occurrences!r:.60}: for those of iteration 5 "
                "write trace.find(operation='routing', iterations='5:6')"
            )
        widths = (
            np.unique(self.width[self.occurrences.site[occurrences]]).tolist()
            if given.size
            else [0]
        )
        if len(widths) != 1:
            raise TraceError(
                "occurrences that are read together must have groups of one size, but "
                f"these have {widths} ranks: read them one size at a time"
            )
        return int(widths[0])

    def _column(
        self, name: str, occurrences: Int64, missing: int, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Read a column of presence or times, ``[n, W]``."""
        width = self._common_width(occurrences)
        out = np.full((len(occurrences), width), missing, dtype)
        table = self.table[occurrences] if width else out
        for number in np.unique(table).tolist():
            if panel := self.panels.get(f"{self.tables[number]}/{name}"):
                here = np.flatnonzero(table == number)
                out[here] = take(panel, self.row[occurrences[here]])
        return out

    def _routing_table(self, occurrences: Int64) -> str:
        """Return the table of routings of equal W and E."""
        if not self._common_width(occurrences):
            raise TraceError(
                "demand needs at least one routing occurrence, but none was given: "
                "the trace may have been captured without its router"
            )
        tables = {self.tables[t] for t in np.unique(self.table[occurrences])}
        if any(table.startswith("call") for table in tables):
            raise TraceError(
                "demand exists for routing occurrences only: select occurrences of "
                "operation 'routing'"
            )
        if len(tables) != 1:
            raise TraceError(
                "routings that are read together must have the same ranks and "
                "experts: read them one layer or group at a time"
            )
        return str(tables.pop())
