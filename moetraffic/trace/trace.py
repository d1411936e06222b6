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
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int32, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.tables import ShownAsTables

from . import clock, labeled, matrix, storage
from .choices import ExpertIds, expert_mask
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


class Trace(ShownAsTables):
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
        The open file that the panels are read from; None for arrays in memory.

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
        if not all(0 <= s.group < len(self.groups) for s in self.sites):
            raise self._broken("a site refers to a group")
        self.table_of_site = [storage.table_of(s, self.groups) for s in self.sites]
        self.width = np.array([len(self.groups[s.group].ranks) for s in sites], int)
        """Ranks W of the group of each site, ``[S]``."""
        self.square = np.array([s.operation == ALL_TO_ALL for s in sites], bool)
        self._validate()

    def _validate(self) -> None:
        """Check that indices lie within the tables, and that panels have their rows."""
        which, when = self.occurrences.site, self.occurrences.iteration
        world = self.meta.world
        for group in self.groups:
            ranks = group.ranks
            if not ranks or len({*ranks}) < len(ranks) or not min(ranks) >= 0:
                raise self._broken("a group has distinct ranks")
            if max(ranks) >= world:
                raise self._broken(f"the ranks of a group are below {world}")
        if len({*self.sites}) < len(self.sites):
            raise self._broken("no site occurs twice")
        if len(which) and not 0 <= which.min() <= which.max() < len(self.sites):
            raise self._broken("an occurrence refers to a site")
        later = (which[1:] == which[:-1]) & (when[1:] > when[:-1])
        if not ((which[1:] > which[:-1]) | later).all():
            raise self._broken("occurrences are sorted by site and iteration")
        if (np.diff(self.steps.iteration) <= 0).any():
            raise self._broken("the iterations of the steps increase")
        if len(self.steps.iteration) != len(self.steps.source):
            raise self._broken("each step has a source")
        tables, table = np.unique(self.table_of_site, return_inverse=True)
        of_call = table[which] if len(self.sites) else which
        self.row = count_equal(of_call)
        """Row of each occurrence in the panels of its table, ``[O]``."""
        for number, name in enumerate(tables.tolist()):
            of = of_call == number
            names = ("present", *(TIMES if name[:4] == "call" else ("issue", "demand")))
            for column in names:
                panel = self.panels.get(f"{name}/{column}")
                if (panel.shape[0] if panel else 0) != of.sum():
                    raise self._broken(f"{name}/{column} has {of.sum()} rows")
            for square, column in ((True, "wire"), (False, "volume")):
                used = self.occurrences.matrix[of & (self.square[which] == square)]
                panel = self.panels.get(f"{name}/{column}")
                if used.max(initial=-1) >= (panel.shape[0] if panel else 0):
                    raise self._broken(f"{name}/{column} has {used.max() + 1} rows")

    def _broken(self, rule: str) -> TraceError:
        return TraceError(
            f"{self.name} is inconsistent: it violates the rule that {rule}: use an "
            "intact copy, or capture again"
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
            routes to an expert, by iteration, MoE layer and micro-batch (M = 1 if
            absent).
        placement
            ``[E]`` or ``[L, E]``: rank of each expert.  By default, rank
            ``floor(e W/E)`` holds expert e: contiguous blocks, equal if W divides E.
        k
            Experts per token; None: unknown, or not the same number for all tokens.
        row_bytes
            Bytes of a token copy on the wire; None: unknown, and 1 is assumed.
        dropped
            Of the shape of ``demand``: copies of it that are not sent.
        iterations, layers
            ``[T]`` and ``[L]``: their numbers, increasing; from 0 by default.  Numbers
            of iterations are the time of all statistics: gaps stay gaps.

        Returns
        -------
        Trace
            In memory, with all four phases of each layer.

        Raises
        ------
        TraceError
            If an array has another shape, or values that are impossible.
        """
        from .routed import arrays_as_trace

        return arrays_as_trace(
            demand,
            placement=placement,
            k=k,
            row_bytes=row_bytes,
            dropped=dropped,
            iterations=iterations,
            layers=layers,
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
        parts = [f"{meta.world} ranks", f"{len(self.layers)} MoE layer"]
        parts[-1] += "s" * (len(self.layers) != 1)
        parts += [f"{meta.experts} experts"] * bool(meta.experts)
        parts += [f"k={meta.k}"] * bool(meta.k)
        parts += [f"{len(self.iterations)} training iterations"]
        parts += [f"{len(self.occurrences)} calls"]
        parts += ["incomplete"] * (not meta.complete)
        parts += filter(None, (meta.inferred, source_clause(self)))
        model = f" run of {meta.model}" if meta.model else " run"
        return f"<Trace {self.name!r}: {meta.origin}{model}, {', '.join(parts)}>"

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
        return self._iterations("train")

    @property
    def layers(self) -> tuple[int, ...]:
        """Global indices of the layers that have a routing or an expert exchange."""
        return tuple(
            sorted({s.layer for s in self.sites if s.phase or s.operation == ROUTING})
        )

    def _iterations(self, kind: str) -> Int64:
        kinds = np.array([k == kind for k in self.steps.kind], bool)
        return np.asarray(self.steps.iteration[kinds], np.int64)

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
        """Find the occurrences that match all criteria, as indices in trace order.

        Parameters
        ----------
        operation, phase, layer, direction, slot, group
            Required attributes of the site; None matches any.
        iterations
            Iterations to keep, a range or ``"10:20"``.
        kind
            Kind of step, None for any.

        Returns
        -------
        ndarray
            ``[n]`` int64.

        Raises
        ------
        TraceError
            If the operation, phase or direction is none of the format.
        """
        own = {site.operation: None for site in self.sites}
        for name, given, known in (
            ("operation", operation, {**dict.fromkeys(OPERATIONS), **own}),
            ("phase", phase, {*PHASES, ""}),
            ("direction", direction, {*DIRECTIONS, ""}),
        ):
            if given is not None:
                check_choice(name, given, known, TraceError)
        asked = {
            "operation": operation,
            "phase": phase,
            "layer": layer,
            "direction": direction,
            "slot": slot,
            "group": group,
        }.items()
        fits = np.array(
            [all(v in (None, getattr(s, n)) for n, v in asked) for s in self.sites],
            bool,
        )
        keep = fits[self.occurrences.site]
        when = self.occurrences.iteration
        if (span := iteration_range(iterations)) is not None:
            keep &= (when >= span.start) & (when < span.stop)
        if kind is not None:
            of_kind = np.isin(when, self._iterations(kind))
            if (inside := self.occurrences.evaluation) is not None:
                of_kind = np.where(inside, kind == "evaluation", of_kind)
            keep &= of_kind
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
        if not len(self._indices(occurrences)):
            return np.zeros((0, 0), np.int64)
        self._common_width(occurrences)
        group = np.array([s.group for s in self.sites], np.int64)
        used, which = np.unique(
            group[self.occurrences.site[occurrences]], return_inverse=True
        )
        return np.array([self.groups[g].ranks for g in used], np.int64)[which]

    def order(self, rank: int) -> Int64:
        """Return the occurrences in the order in which a rank issued them, ``[n]``.

        Where a time is unknown, the order is that of the sites.
        """
        sites = self.occurrences.site
        found, when = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for width in np.unique(self.width).tolist():
            of = np.flatnonzero(self.width[sites] == width)
            if not len(of):
                continue
            row, member = np.nonzero((self.members(of) == rank) & self.present(of))
            issue, _, _ = self.times(of, own_clock=True)
            found.append(of[row])
            when.append(issue[row, member])
        index, issued = np.concatenate(found), np.concatenate(when)
        if (issued == UNKNOWN_TIME).any():
            issued = sites[index].astype(np.int64)
        return index[np.lexsort((issued, self.occurrences.iteration[index]))]

    # ---- presence and times -------------------------------------------------------

    def presence(self, occurrences: Int64) -> UInt8:
        """Return the :class:`Presence` of each member's record, ``[n, W]`` uint8."""
        return self._column("present", occurrences, Presence.ABSENT, np.uint8)

    def present(self, occurrences: Int64) -> Bool:
        """Return whether each member rank's bytes are known, ``[n, W]``."""
        return sized(self.presence(occurrences))

    def recorded(self, occurrences: Int64) -> Bool:
        """Return whether each member rank recorded the call, ``[n, W]``."""
        kinds = (Presence.RECORDED, Presence.UNSIZED)
        return np.isin(self.presence(occurrences), kinds)

    def recovered(self, occurrences: Int64) -> Bool:
        """Return whether a member's bytes were recovered from its peers, ``[n, W]``.

        Rank-local (self) traffic is not recorded by any peer: where a rank's record is
        missing, it is 0.
        """
        return np.asarray(self.presence(occurrences) == Presence.RECOVERED, bool)

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
        return (
            clock.to_common(self.clocks, ranks, issue),
            clock.to_common(self.clocks, ranks, start),
            clock.to_common(self.clocks, ranks, end),
        )

    # ---- token copies ---------------------------------------------------------------

    def demand(self, occurrences: Int64) -> Int32:
        """Return token copies routed by each member to each expert, ``[n, W, E]``.

        Copies that were dropped at the capacity limit are included.
        """
        table = self._routing_table(occurrences)
        return take(self.panels[f"{table}/demand"], self.row[occurrences])

    def dropped(self, occurrences: Int64) -> Int32:
        """Return the routed token copies that were dropped, ``[n, W, E]`` int32.

        Raises
        ------
        TraceError
            If the number of dropped copies is unknown.
        """
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

    def any_dropped(self, occurrences: Int64) -> bool:
        """Return whether the demand of occurrences has or may have dropped copies."""
        used = np.unique(self.occurrences.site[occurrences]).tolist()
        forms = {self.sites[number].dropped for number in used}
        return bool(forms & {DroppedForm.UNKNOWN, DroppedForm.STORED})

    def kept(self, occurrences: Int64) -> Int64:
        """Return the token copies that are sent, ``[n, W, E]`` int64."""
        demand = self.demand(occurrences).astype(np.int64)
        if self.any_dropped(occurrences):
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

    def choices(self, occurrences: Int64) -> Bool:
        """Return :meth:`chosen` as a mask of experts, ``[n, W, S, E]``."""
        experts = self.sites[int(self.occurrences.site[occurrences[0]])].experts
        return expert_mask(self.chosen(occurrences), experts)

    def holder(self, layer: int, group: int, iteration: int) -> Int64:
        """Return the group rank that holds each expert in an iteration, ``[E]``.

        Raises
        ------
        TraceError
            If the placement is unknown, or experts have several replicas.
        """
        return matrix.holder(self, layer, group, iteration)

    # ---- bytes ------------------------------------------------------------------

    @property
    def has_bytes(self) -> Bool:
        """Whether the bytes of some calls of a site are known, ``[S]``."""
        known = self.occurrences.site[self.occurrences.matrix >= 0]
        return np.bincount(known, minlength=len(self.sites)).astype(bool)

    def wire(self, occurrences: Int64) -> Int64:
        """Return the bytes of all-to-alls, ``[n, W, W]``: row sends, column receives.

        Raises
        ------
        TraceError
            If an occurrence is no all-to-all, or its bytes are unknown.
        """
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
        if not len(self._indices(occurrences)):
            return np.zeros((0, 0, 0) if square else (0, 0), np.int64)
        width = self._common_width(occurrences)
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

        Returns
        -------
        Matrix
            Values ``[W, W]`` or ``[R, R]`` int64; row sends, column receives.

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
        tables = np.array(self.table_of_site)[self.occurrences.site[keep]]
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

        Returns
        -------
        DataFrame
            ``iteration``, ``micro_batch`` (call index of its site in the iteration),
            ``layer`` (-1: none), ``module`` (the layer's name, "" if unknown),
            ``phase`` ("" where it is no expert exchange), ``direction`` ("" if
            unknown), ``operation``, ``label``: of the call's site;
            ``source``, ``step_source``: how these and the iteration were determined,
            "annotated", "linked", "inferred" or "unknown";
            ``group``: index into ``trace.groups``; ``ranks``: size of that group;
            ``bytes``: payload, the sum over the members' input buffers, rank-local
            traffic included, NaN where unknown and for routings (ring traffic of an
            all-reduce of W members is 2(W-1)/W times this);
            ``issue_s``, ``start_s``: the earliest of all members, and ``end_s``: the
            latest, in seconds after the first time in the trace; NaN where unknown.
        """
        return labeled.calls_table(self)

    def demand_frame(self, occurrences: Int64 | None = None) -> pandas.DataFrame:
        """Build a pandas table of demand, with a row per routing, rank and expert.

        Parameters
        ----------
        occurrences
            ``[n]`` routings, from :meth:`find`; by default those of the forward pass
            in training iterations.  ``find(operation="routing", direction="forward",
            kind=None)`` adds evaluation steps.

        Returns
        -------
        DataFrame
            ``iteration``, ``micro_batch``, ``layer``, ``group`` (index into
            ``trace.groups``), ``src`` (world rank), ``expert`` and ``tokens``, the
            copies that the rank routed to the expert, dropped ones included.  Ranks
            without a record have no row; an expert without tokens has one, with 0.
        """
        return labeled.demand_table(self, occurrences)

    def to_xarray(self, *, group: int | None = None) -> xarray.DataArray:
        """Build an xarray of demand by (iteration, micro_batch, layer, src, expert).

        Raises
        ------
        TraceError
            If the training steps differ in their calls, or a rank's record is missing.
        """
        return labeled.demand_array(self, group)

    # ---- rows of panels -------------------------------------------------------------

    def _indices(self, occurrences: Int64) -> Int64:
        """Return the occurrences if they are a list of indices of this trace."""
        given, number = np.asarray(occurrences), len(self.occurrences)
        if (
            given.ndim == 1
            and (given.dtype.kind in "iu" or not given.size)
            and (not given.size or 0 <= given.min() <= given.max() < number)
        ):
            return occurrences
        raise TraceError(
            "occurrences are a list of indices, as Trace.find() returns it, from 0 to "
            f"{number - 1}, not {occurrences!r:.60}: for those of iteration 5 write "
            "trace.find(operation='routing', iterations='5:6')"
        )

    def _common_width(self, occurrences: Int64) -> int:
        """Return the number of ranks W that the groups of all occurrences share."""
        widths = np.unique(self.width[self.occurrences.site[occurrences]])
        if len(widths) != 1:
            raise TraceError(
                "occurrences that are read together must have groups of one size, but "
                f"these have {widths.tolist()} ranks: read them one size at a time"
            )
        return int(widths[0])

    def _column(
        self, name: str, occurrences: Int64, missing: int, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Read a column of presence or times, ``[n, W]``."""
        if not len(self._indices(occurrences)):
            return np.zeros((0, 0), dtype)
        width = self._common_width(occurrences)
        sites = self.occurrences.site[occurrences]
        used = np.unique(sites).tolist()
        tables = {self.table_of_site[number] for number in used}
        if len(tables) == 1:
            panel = self.panels.get(f"{tables.pop()}/{name}")
            if panel is not None:
                return take(panel, self.row[occurrences])
        out = np.full((len(occurrences), width), missing, dtype)
        for table in tables:
            if panel := self.panels.get(f"{table}/{name}"):
                of = [n for n in used if self.table_of_site[n] == table]
                here = np.flatnonzero(np.isin(sites, of))
                out[here] = take(panel, self.row[occurrences[here]])
        return out

    def _routing_table(self, occurrences: Int64) -> str:
        """Return the table of routings of equal W and E."""
        if not len(self._indices(occurrences)):
            raise TraceError(
                "demand needs at least one routing occurrence, but none was given: "
                "the trace may have been captured without its router"
            )
        used = np.unique(self.occurrences.site[occurrences]).tolist()
        if any(self.sites[number].operation != ROUTING for number in used):
            raise TraceError(
                "demand exists for routing occurrences only: select occurrences of "
                "operation 'routing'"
            )
        tables = {self.table_of_site[number] for number in used}
        if len(tables) != 1:
            raise TraceError(
                "routings that are read together must have the same ranks and "
                "experts: read them one layer or group at a time"
            )
        return str(tables.pop())
