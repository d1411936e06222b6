"""Read the tables, demand and wire data of an open trace lazily, by occurrence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int32, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.hdf5.container import Container

from . import clock
from .choices import unpack
from .consistency import (
    clocks_valid,
    groups_valid,
    meta_rules,
    placements_valid,
    runs_valid,
    site_rules,
    violated,
    within,
)
from .iterations import iteration_range
from .model import (
    CLOCK,
    DIRECTIONS,
    MOST_ITERATIONS,
    OPERATIONS,
    PHASES,
    PLACEMENT,
    ROUTING,
    RUN,
    STEP_KINDS,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Presence,
    Program,
    Site,
    Source,
    Steps,
    sized,
)
from .panel import Panel, take
from .rows import TIMES, Rows

T = TypeVar("T", bound="TraceContents")


class TraceContents:
    """Tables and panels of a trace; base class of :class:`~moetraffic.trace.Trace`.

    Tables (groups, sites, occurrences, steps ...) are in memory; panels (demand, wire,
    times) are read on demand, so a trace may be larger than memory.

    Parameters
    ----------
    meta, groups, sites, occurrences, steps, programs
        See the classes of those names in :mod:`moetraffic.trace.model`.
    panels
        By name, for W members of a group and E experts:

        ``present_W`` ``[O_W, W]`` uint8, a row per occurrence of a group of W ranks;
        ``issue_W``, ``start_W``, ``end_W`` ``[O_W, W]`` int64 ns of each rank's clock;
        ``demand_WxE`` ``[D, W, E]`` int32 token copies, a row per routing occurrence;
        ``dropped_WxE`` likewise, of routing sites whose drops are STORED;
        ``choices_WxExS`` ``[C, W, S, B]`` uint8 bit sets of the experts of S sampled
        tokens, of routing sites that have them;
        ``wire_W`` ``[X, W, W]`` int64 bytes, all-to-all sites whose wire is STORED;
        ``volume_W`` ``[V, W]`` int64 bytes, other sites whose wire is STORED.
    placements, clocks, runs
        Structured arrays of types PLACEMENT, CLOCK and RUN.
    container
        The open file that the panels are read from; None for arrays in memory.

    Raises
    ------
    TraceError
        If the tables and panels contradict each other.
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
        runs: npt.NDArray[np.void] | None = None,
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
        self.runs = np.zeros(0, RUN) if runs is None else runs
        self.container = container
        self.rows = Rows(self.groups, self.sites, occurrences)
        if rule := violated(self._rules()):
            raise TraceError(
                f"{self.name} is inconsistent: it violates the rule that {rule}: use "
                "an intact copy, or capture again"
            )

    def _rules(self) -> Iterator[tuple[object, str]]:
        """Yield whether each rule holds, and its text; later ones rely on earlier."""
        world, groups, sites = self.meta.world, self.groups, self.sites
        which, when = self.occurrences.site, self.occurrences.iteration
        yield from meta_rules(self.meta)
        yield groups_valid(groups, world), "a group has distinct ranks of the world"
        yield all(0 <= s.group < len(groups) for s in sites), "a site refers to a group"
        yield within(which, 0, len(sites)), "an occurrence refers to a site"
        yield from site_rules(sites, groups)
        yield (
            within(when, -1, MOST_ITERATIONS),
            f"iterations lie between -1 (unknown) and {MOST_ITERATIONS}",
        )
        later = (which[1:] == which[:-1]) & (when[1:] > when[:-1])
        yield (
            ((which[1:] > which[:-1]) | later).all(),
            "occurrences are sorted by site and iteration",
        )
        yield (
            placements_valid(self.placements, groups),
            "each expert replica is placed once, on a member of its group",
        )
        yield (
            (np.diff(self.steps.iteration) > 0).all(),
            "the iterations of the steps increase",
        )
        yield (
            all(
                len(s) == len(self.steps.iteration) and (s < len(Source)).all()
                for s in (self.steps.source, self.steps.kind_source)
            ),
            "each step has the source of its boundaries and of its kind",
        )
        yield (
            all(
                0 <= p.rank < world
                and p.kind in STEP_KINDS
                and all(0 <= s < len(sites) for s in p.sites)
                for p in self.programs
            ),
            "a program lists the sites of one rank in one kind of step",
        )
        yield (
            clocks_valid(self.clocks, world),
            "a clock belongs to a rank and differs by less than a hundred years",
        )
        yield runs_valid(self.runs, len(sites)), "sums of a run are of its sites, once"
        expected = self.rows.expected()
        for panel, rows in expected.items():
            there = self.panels.get(panel)
            yield there and there.shape[0] == rows, f"{panel} has {rows} rows"
        extra = sorted(self.panels.keys() - expected.keys())
        yield not extra, f"a site refers to each panel, also to {', '.join(extra[:1])}"

    def replaced(self: T, **parts: Any) -> T:
        """Copy the trace with some tables or panels replaced, by parameter name."""
        own = {name: value for name, value in vars(self).items() if name != "rows"}
        return type(self)(**(own | parts))

    @property
    def name(self) -> str:
        """Path of the trace file, or "trace" for a trace in memory."""
        return str(self.container.path) if self.container else "trace"

    @property
    def digest(self) -> str:
        """SHA-256 of the contents of the trace file; "" for a trace in memory."""
        return self.container.digest if self.container else ""

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

    def size(self, occurrence: int) -> int:
        """Return the number of ranks W in the group of an occurrence."""
        return int(self.rows.width[self.occurrences.site[occurrence]])

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
            keep &= np.isin(when, self._iterations(kind))
        return np.flatnonzero(keep)

    # ---- panels by occurrence ---------------------------------------------------

    def present(self, occurrences: Int64) -> Bool:
        """Return whether each member rank's bytes are known, ``[n, W]``."""
        return sized(self._timed("present", occurrences))

    def recorded(self, occurrences: Int64) -> Bool:
        """Return whether each member rank recorded the call, ``[n, W]``."""
        presence = self._timed("present", occurrences)
        return np.isin(presence, (Presence.RECORDED, Presence.UNSIZED))

    def recovered(self, occurrences: Int64) -> Bool:
        """Return whether a member's bytes were recovered from its peers, ``[n, W]``.

        Rank-local (self) traffic is not recorded by any peer: where a rank's record is
        missing, it is 0.
        """
        presence = self._timed("present", occurrences)
        return np.asarray(presence == Presence.RECOVERED, bool)

    def complete(self, occurrences: Int64) -> Int64:
        """Return those of the given occurrences that every member rank recorded."""
        keep = np.zeros(len(occurrences), bool)
        widths = self.rows.width[self.occurrences.site[occurrences]]
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
        ranks = self.members(occurrences)
        read = [self._timed(name, occurrences) for name in TIMES]
        if not own_clock:
            read = [clock.to_common(self.clocks, ranks, t) for t in read]
        issue, start, end = read
        return issue, start, end

    def demand(self, occurrences: Int64) -> Int32:
        """Return token copies routed by each member to each expert, ``[n, W, E]``.

        Copies that were dropped at the capacity limit are included.
        """
        panel = self._routing_panel("demand", occurrences)
        return take(panel, self.rows.numbers("demand")[occurrences])

    def dropped(self, occurrences: Int64) -> Int32:
        """Return the routed token copies that were dropped, ``[n, W, E]`` int32.

        Raises
        ------
        TraceError
            If the number of dropped copies is unknown.
        """
        shape = self._routing_panel("demand", occurrences).shape[1:]
        sites = self.occurrences.site[occurrences]
        forms = self.rows.dropped_form[sites]
        unknown = np.isin(forms, (DroppedForm.UNKNOWN, DroppedForm.UNCOUNTED))
        if unknown.any():
            raise TraceError(
                "dropped token copies are unavailable: the router of layer "
                f"{self.sites[int(sites[unknown][0])].layer} did not report them: "
                "capture again with capture.routing(..., dropped=)"
            )
        out = np.zeros((len(occurrences), *shape), np.int32)
        stored = np.flatnonzero(forms == DroppedForm.STORED)
        if len(stored):
            panel = self._routing_panel("dropped", occurrences)
            out[stored] = take(panel, self.rows.numbers("dropped")[occurrences[stored]])
        return out

    def choices(self, occurrences: Int64) -> Bool:
        """Return the experts of sampled tokens of each member, ``[n, W, S, E]``.

        Dropped copies are included where the router reports them.  A token without
        experts is absent: a member routed fewer than S tokens, or has no record.

        Raises
        ------
        TraceError
            If the trace does not hold them, or S differs between the occurrences.
        """
        experts = self.rows.experts[self.occurrences.site[occurrences]]
        return unpack(self.choice_bits(occurrences), int(experts[0]))

    def choice_bits(self, occurrences: Int64) -> UInt8:
        """Return :meth:`choices` as bit sets, ``[n, W, S, B]`` uint8."""
        shape = self._routing_panel("demand", occurrences).shape[1:]
        sampled = np.unique(self.rows.choices[self.occurrences.site[occurrences]])
        if len(sampled) != 1 or not sampled[0]:
            raise TraceError(
                "the experts of single tokens are unavailable: capture with "
                "--token-sample"
                if not sampled[0]
                else f"routings have choices of {sampled.tolist()} tokens: read them "
                "one layer at a time"
            )
        panel = self.panels[f"choices_{shape[0]}x{shape[1]}x{sampled[0]}"]
        return take(panel, self.rows.numbers("choices")[occurrences])

    def any_dropped(self, occurrences: Int64) -> bool:
        """Return whether the demand of occurrences has or may have dropped copies."""
        forms = self.rows.dropped_form[np.unique(self.occurrences.site[occurrences])]
        return bool(np.isin(forms, (DroppedForm.UNKNOWN, DroppedForm.STORED)).any())

    # ---- relations between occurrences ------------------------------------------

    def routing_of(self, occurrences: Int64) -> Int64:
        """Return the routing occurrence that determines each exchange, ``[n]``."""
        sites = self.occurrences.site[occurrences]
        routed = np.array([s.routing for s in self.sites], np.int64)[sites]
        return self.rows.at(routed, self.occurrences.iteration[occurrences])

    def rows_of(self, panel: str) -> Int64:
        """Return each occurrence's row in the named panel, ``[O]``; -1 for none."""
        return self.rows.of(panel)

    def members(self, occurrences: Int64) -> Int64:
        """Return the world ranks of the occurrences' groups, ``[n, W]`` int64."""
        if not len(self.indices(occurrences)):
            return np.zeros((0, 0), np.int64)
        self.common_size(occurrences)
        group = np.array([s.group for s in self.sites], np.int64)
        used, which = np.unique(
            group[self.occurrences.site[occurrences]], return_inverse=True
        )
        return np.array([self.groups[g].ranks for g in used], np.int64)[which]

    def indices(self, occurrences: Int64) -> Int64:
        """Return the occurrences if they are a list of indices of this trace."""
        found, number = np.asarray(occurrences), len(self.occurrences.site)
        if (
            found.ndim == 1
            and (found.dtype.kind in "iu" or not found.size)
            and (not found.size or 0 <= found.min() <= found.max() < number)
        ):
            return occurrences
        raise TraceError(
            "occurrences are a list of indices, as Trace.find() returns it, from 0 to "
            f"{number - 1}, not {occurrences!r:.60}: for those of iteration 5 write "
            "trace.find(operation='routing', iterations='5:6')"
        )

    def common_size(self, occurrences: Int64) -> int:
        """Return the number of ranks W that the groups of all occurrences share."""
        widths = np.unique(self.rows.width[self.occurrences.site[occurrences]])
        if len(widths) != 1:
            raise TraceError(
                "occurrences that are read together must have groups of one size, but "
                f"these have {widths.tolist()} ranks: read them one size at a time"
            )
        return int(widths[0])

    def _timed(self, name: str, occurrences: Int64) -> npt.NDArray[Any]:
        if not len(self.indices(occurrences)):
            return np.zeros((0, 0), np.int64)
        width = self.common_size(occurrences)
        rows = self.rows.numbers(name)[occurrences]
        return take(self.panels[f"{name}_{width}"], rows)

    def _routing_panel(self, name: str, occurrences: Int64) -> Panel:
        """Select the panel of a routing quantity for occurrences of equal (W, E)."""
        if not len(self.indices(occurrences)):
            raise TraceError(
                "demand needs at least one routing occurrence, but none was given: "
                "the trace may have been captured without its router"
            )
        family = np.unique(self.rows.family[self.occurrences.site[occurrences]])
        if family[0] < 0:
            raise TraceError(
                "demand exists for routing occurrences only: select occurrences of "
                "operation 'routing'"
            )
        if len(family) != 1:
            raise TraceError(
                "routings that are read together must have the same ranks and "
                "experts: read them one layer or group at a time"
            )
        width, experts = divmod(int(family[0]), 1 << 32)
        return self.panels[f"{name}_{width}x{experts}"]
