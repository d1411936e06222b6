"""Trace of a training run's communication, with lazily read panels."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import TraceError
from moetraffic.tables import ShownAsTables

from . import labeled, matrix, placement, wire
from .file_format import load, save
from .model import UNKNOWN_TIME, Meta, Occurrences, Steps, WireForm
from .panel import ArrayPanel, take
from .provenance import source_clause
from .reading import TraceContents
from .routed import ASSUMED_ROWS, arrays_as_trace
from .rows import TIMES

if TYPE_CHECKING:
    import pandas
    import xarray


class Trace(ShownAsTables, TraceContents):
    """Communication trace of a captured, imported, generated or replayed training run.

    Open a file with :meth:`open`, or make a trace of arrays with :meth:`from_arrays`.

    Examples
    --------
    >>> trace = Trace.from_arrays([[[[3, 1], [0, 4]]]], k=1)
    >>> trace.matrix(0, 0, "dispatch", unit="tokens").values.tolist()
    [[3, 1], [0, 4]]
    """

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
        return load(Path(path), cls)

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
            ``[T]`` and ``[L]``: their numbers, increasing; from 0 by default.

        Returns
        -------
        Trace
            In memory, with all four phases of each layer.

        Raises
        ------
        TraceError
            If an array has another shape, or values that are impossible.
        """
        return arrays_as_trace(
            cls,
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
        save(self, Path(path), force=force)

    def close(self) -> None:
        """Close the file from which the panels are read."""
        if self.container is not None:
            self.container.close()

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
        parts += [ASSUMED_ROWS] * (ASSUMED_ROWS in meta.inferred)
        parts += ["incomplete"] * (not meta.complete)
        parts += [source_clause(self)] * bool(source_clause(self))
        model = f" run of {meta.model}" if meta.model else " run"
        return f"<Trace {self.name!r}: {meta.origin}{model}, {', '.join(parts)}>"

    # ---- bytes ------------------------------------------------------------------

    def wire(self, occurrences: Int64) -> Int64:
        """Return the bytes of all-to-alls, ``[n, W, W]``: row sends, column receives.

        Raises
        ------
        TraceError
            If an occurrence is no all-to-all, or its bytes are unknown.
        """
        return wire.wire_bytes(self, occurrences, square=True)

    def volume(self, occurrences: Int64) -> Int64:
        """Return input buffer bytes of other collectives per member, ``[n, W]`` int64.

        All-reduce, reduce: the reduced buffer; all-gather: the rank's own part;
        reduce-scatter: all parts together; broadcast: the buffer on every member;
        send and receive: the message, at its sender.
        """
        return wire.wire_bytes(self, occurrences, square=False)

    def rows_sent(
        self, occurrences: Int64, demand: Integer
    ) -> tuple[Integer, int] | None:
        """Compute the token copies of all-to-alls from demand already in memory.

        Parameters
        ----------
        occurrences
            ``[n]`` all-to-alls of one layer, group and phase.
        demand
            ``[n, W, E]`` demand of the occurrences' :meth:`routing_of`.

        Returns
        -------
        tuple or None
            ``[n, W, W]`` copies and the bytes of one, whose product is :meth:`wire`;
            None where the wire is not derived from demand, or row sizes differ.
        """
        sites = [self.sites[s] for s in np.unique(self.occurrences.site[occurrences])]
        same = len({(s.layer, s.group, s.phase, s.row_bytes) for s in sites}) == 1
        if not same or {s.wire for s in sites} != {WireForm.DEMAND}:
            return None
        routed = self.routing_of(occurrences)
        rows = wire.rows_by_demand(self, sites[0], routed, demand)
        return rows, sites[0].row_bytes

    def holder(self, layer: int, group: int, iteration: int) -> Int64:
        """Return the group rank that holds each expert in an iteration, ``[E]``.

        Raises
        ------
        TraceError
            If the placement is unknown, or experts have several replicas.
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

    def order(self, rank: int) -> Int64:
        """Return the occurrences in the order in which a rank issued them, ``[n]``."""
        sites = self.occurrences.site
        found, when = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for width in np.unique(self.rows.width):
            of = np.flatnonzero(self.rows.width[sites] == width)
            if not len(of):
                continue
            row, member = np.nonzero((self.members(of) == rank) & self.present(of))
            issue, _, _ = self.times(of, own_clock=True)
            found.append(of[row])
            when.append(issue[row, member])
        index, issued = np.concatenate(found), np.concatenate(when)
        if (issued == UNKNOWN_TIME).any():
            # by the position of each site in the rank's program; unlisted sites last
            position = np.full(len(self.sites), len(self.sites), np.int64)
            for program in self.programs:
                if program.rank == rank:
                    position[list(program.sites)] = np.arange(len(program.sites))
            issued = position[sites[index]]
        return index[np.lexsort((issued, self.occurrences.iteration[index]))]

    # ---- other forms ------------------------------------------------------------

    def select(self, occurrences: Int64) -> Trace:
        """Extract the given occurrences as a trace in memory; steps are kept."""
        every = self.occurrences
        keep = np.unique(occurrences)
        # wire that is derived from demand needs that demand
        derived = keep[self.rows.wire_form[every.site[keep]] == WireForm.DEMAND]
        if len(derived):
            keep = np.union1d(keep, self.routing_of(derived))
        panels = {}
        for name, panel in self.panels.items():
            mine = self.rows_of(name)[keep]
            panels[name] = ArrayPanel(take(panel, mine[mine >= 0]))
        return self.replaced(
            occurrences=Occurrences(
                iteration=every.iteration[keep],
                site=every.site[keep],
                sequence=every.sequence[keep],
            ),
            panels=panels,
            container=None,
        )

    def replace(
        self,
        *,
        issue: Mapping[int, Int64] | None = None,
        start: Mapping[int, Int64] | None = None,
        end: Mapping[int, Int64] | None = None,
        meta: Meta | None = None,
        steps: Steps | None = None,
        clocks: npt.NDArray[np.void] | None = None,
        runs: npt.NDArray[np.void] | None = None,
    ) -> Trace:
        """Copy the trace with other times (W -> ``[O_W, W]`` int64 ns) or meta.

        Other times are not those of the trace's ``runs``, which then are left out.
        """
        panels = dict(self.panels)
        if runs is None and not (issue or start or end):
            runs = self.runs
        for name, given in zip(TIMES, (issue, start, end), strict=True):
            for width, array in (given or {}).items():
                panels[f"{name}_{width}"] = ArrayPanel(array)
        return self.replaced(
            meta=meta or self.meta,
            panels=panels,
            steps=steps or self.steps,
            clocks=self.clocks if clocks is None else clocks,
            runs=runs,
        )

    def calls(self) -> pandas.DataFrame:
        """Build a pandas table with one row per call, in the trace's order.

        Returns
        -------
        DataFrame
            ``iteration``, ``micro_batch`` (call index of its site in the iteration),
            ``layer`` (-1: none), ``phase`` ("" where it is no expert exchange),
            ``direction`` ("" if unknown), ``operation``, ``label``: of the call's site;
            ``layer_source``, ``phase_source``, ``direction_source``, ``step_source``:
            how they and the iteration were determined, "annotated", "linked",
            "inferred" or "unknown";
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
