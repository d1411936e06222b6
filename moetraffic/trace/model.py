"""Data model of a trace: groups, sites, occurrences, placements, steps, metadata.

A run is a sequence of *occurrences* of call *sites*.  A site is a call that a program
repeats (layer 3's dispatch of micro-batch 1 on one expert-parallel group); an
occurrence is one such call in one iteration.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from moetraffic.arrays import Bool, Float64, Int32, Int64, UInt8

PHASES = ("dispatch", "combine", "combine_grad", "dispatch_grad")
"""The four all-to-alls of a MoE layer and micro-batch, in time order."""

TRANSPOSED_PHASES = frozenset({"combine", "dispatch_grad"})
"""Phases whose matrix is the dispatch matrix transposed."""

UNKNOWN_TIME = int(np.iinfo(np.int64).min)
"""Value of a time that was not measured."""

ROUTING = "routing"
"""Operation of a site that records a router's decisions; nothing is sent."""

ALL_TO_ALL = "all_to_all"

OPERATIONS = (
    *(ROUTING, ALL_TO_ALL, "all_reduce", "all_gather", "reduce_scatter"),
    *("broadcast", "reduce", "gather", "scatter", "send_recv", "barrier"),
)
"""Operations of sites; imported traces may have others."""

REPEATED = "repeat captured ones"
"""What iterations and ranks of a synthetic trace do, in its provenance and in notes."""

STEP_KINDS = ("train", "evaluation", "skipped")

DIRECTIONS = ("forward", "backward", "recompute")
"""Known directions of a call; a site's is "" where it is unknown."""

MOST_BYTES = 1 << 46
"""Largest valid number of bytes of one call: sums stay in int64."""

MOST_ROW_BYTES = 1 << 31
"""Largest valid number of bytes of a row (a token copy)."""

MOST_TOKEN_SAMPLE = 1 << 16
"""Largest number of sampled tokens of a member in a micro-batch."""

MOST_ITERATIONS = 1 << 40
"""Limit of iteration numbers: their product with sites stays in int64."""


class Source(enum.IntEnum):
    """How the attributes of a call site, or a step, were determined, weakest first."""

    UNKNOWN = 0  # not determined
    INFERRED = 1  # guessed from order or bytes of the calls
    LINKED = 2  # an autograd edge, a module, router or optimizer hook
    ANNOTATED = 3  # stated by the program, or by the imported file


class Presence(enum.IntEnum):
    """Availability of a member rank's record of an occurrence."""

    ABSENT = 0  # no record
    RECORDED = 1  # the member recorded the call
    RECOVERED = 2  # bytes reconstructed from the peers' records
    UNSIZED = 3  # the member recorded the call, but not all of its bytes


def sized(presence: UInt8) -> Bool:
    """Return a mask of the members whose bytes are known, shaped as ``presence``."""
    return np.isin(presence, (Presence.RECORDED, Presence.RECOVERED))


NONE_BEFORE = -2
"""Instead of dropped copies: unknown, but the demand has all experts of all tokens."""


class DroppedForm(enum.IntEnum):
    """Storage form of a routing site's dropped token copies."""

    UNKNOWN = 0
    NONE = 1  # no copy was dropped in any occurrence
    STORED = 2
    UNCOUNTED = 3  # unknown; demand is what was sent, without copies dropped before

    @property
    def known(self) -> bool:
        """Whether the number of dropped copies is known."""
        return self in (DroppedForm.NONE, DroppedForm.STORED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Process group: its kind and its ordered world ranks."""

    kind: str  # "ep", "edp", "dp", "tp", "pp", "world", "other", or "unknown" ranks
    ranks: tuple[int, ...]
    number: int = 0  # tells groups of the same kind and ranks apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Communication or routing call of a program, repeated in every iteration.

    Sites that differ only in their source are equal.
    """

    group: int  # index into Trace.groups
    operation: str  # "routing", "all_to_all", "all_reduce", "all_gather" ...
    phase: str = ""  # one of PHASES, or "" if it is no expert exchange
    layer: int = -1  # global layer, -1 for none
    direction: str = "forward"  # one of DIRECTIONS, or "" where it is unknown
    slot: int = 0  # call index within a step: the micro-batch of a MoE layer
    dtype: str = ""  # element type on the wire, as torch names it
    row_bytes: int = 0  # bytes of a row (a token copy); 0 for routing
    label: str = ""  # name of other calls ("gradient_sync", "count_exchange")
    peers: tuple[int, int] = (-1, -1)  # group ranks (source, destination) of send/recv
    experts: int = 0  # E, for routing sites
    dropped: DroppedForm = DroppedForm.UNKNOWN
    token_sample: int = 0  # sampled tokens per member whose experts are stored
    module: str = ""  # name of the module that makes the call, "" if unknown
    stage: int = -1  # pipeline stage, -1 if unknown
    source: Source = field(default=Source.UNKNOWN, compare=False)  # the weakest


class SiteNumbers:
    """Call sites, numbered in the order of their first addition.

    Sites that differ only in their source have one number, and the weakest source.
    """

    def __init__(self, sites: Iterable[Site] = ()) -> None:
        self.sites: list[Site] = []
        self._numbers: dict[Site, int] = {}
        for site in sites:
            self.add(site)

    def add(self, site: Site) -> int:
        """Add a site, and return its number."""
        number = self._numbers.setdefault(site, len(self.sites))
        if number == len(self.sites):
            self.sites.append(site)
        elif site.source < self.sites[number].source:
            self.sites[number] = replace(self.sites[number], source=site.source)
        return number


@dataclass(frozen=True, kw_only=True)
class Occurrences:
    """Single calls of all sites, sorted by site, then by iteration.

    A site occurs at most once in an iteration: a second call in the same step has
    another slot, and is therefore another site.
    """

    iteration: Int64  # [O]
    site: Int32  # [O] index into Trace.sites, which are in the programs' order
    sequence: Int64  # [O] n-th collective of its group, -1 for none
    # [O] row of the bytes in the panel ``wire`` or ``volume``; -1: unknown, routings
    matrix: Int64
    transposed: Bool  # [O] the matrix is that row transposed

    def __len__(self) -> int:
        return len(self.iteration)

    def __getitem__(self, chosen: Any) -> Occurrences:
        """Select calls by a slice, mask or indices."""
        return Occurrences(**{name: v[chosen] for name, v in vars(self).items()})


PLACEMENT = np.dtype(
    [
        ("group", "<i4"),
        ("layer", "<i4"),
        ("expert", "<i4"),
        ("replica", "<i4"),
        ("rank", "<i4"),  # world rank that holds this replica
        ("valid_from", "<i8"),  # first iteration that uses this row
    ]
)
"""A row per expert replica: (group, layer, expert, replica) -> world rank."""

CLOCK = np.dtype(
    [("rank", "<i4"), ("local_ns", "<i8"), ("offset_ns", "<i8"), ("error_ns", "<i8")]
)
"""A row per clock knot: at ``local_ns`` of the rank's clock, add ``offset_ns``
(known to within ``error_ns``) to get rank 0's clock."""

RUN = np.dtype(
    [
        ("number", "<i4"),  # of the run, from 0
        ("site", "<i4"),  # -1: the iterations, of which call_ns is the wall time
        ("calls", "<i8"),
        ("call_ns", "<i8"),
        ("transfer_ns", "<i8"),
        ("wait_ns", "<i8"),  # of all members, until the last one's call
        ("inside_ns", "<i8"),  # of all members, from call to end
        ("busy", "|u1"),  # 1 if other processes used the hosts during the runs
    ]
)
"""A row per timed run of a replay and site: sums over its calls in training steps."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Training steps, one row each; ``[S, R]`` arrays have a column per world rank.

    Unknown losses are NaN, unknown token counts -1, unknown times UNKNOWN_TIME.
    """

    iteration: Int64  # [S], strictly increasing
    kind: tuple[str, ...]  # [S], of STEP_KINDS
    loss: Float64  # [S, R]
    tokens: Int64  # [S, R] tokens that a rank trained on
    start: Int64  # [S, R] ns, the rank's own clock
    end: Int64  # [S, R] ns, the rank's own clock
    source: UInt8  # [S] Source of the step's boundaries and kind, the weaker of both

    @classmethod
    def of_training(cls, iterations: Int64, world: int, *, tokens: int = -1) -> Steps:
        """Build training steps, stated as such, whose losses and times are unknown."""
        shape = (len(iterations), world)
        return cls(
            iteration=iterations,
            kind=("train",) * len(iterations),
            loss=np.full(shape, np.nan),
            tokens=np.full(shape, tokens, np.int64),
            start=np.full(shape, UNKNOWN_TIME),
            end=np.full(shape, UNKNOWN_TIME),
            source=np.full(len(iterations), Source.ANNOTATED, np.uint8),
        )

    def of_kind(self, kind: str) -> Int64:
        """Return the iterations of the steps of a kind, ``[n]``."""
        mask = np.array([k == kind for k in self.kind], bool)
        return np.asarray(self.iteration[mask])

    def sources(self, iterations: Int64) -> UInt8:
        """Return the source of iterations ``[n]``; UNKNOWN if they are no steps."""
        known = dict(zip(self.iteration.tolist(), self.source.tolist(), strict=True))
        return np.array([known.get(i, 0) for i in iterations.tolist()], np.uint8)

    def label(self, iteration: int) -> str:
        """Name an iteration, with its kind where it is no training step."""
        at = np.flatnonzero(self.iteration == iteration)
        kind = self.kind[at[0]] if len(at) else "train"
        return f"iteration {iteration}" + f" ({kind})" * (kind != "train")

    def joined(self, origins: Sequence[Sequence[int]]) -> Steps:
        """Join the steps of the ranks that each new rank carries.

        Mean loss, summed tokens, first start, last end; UNKNOWN_TIME is the lowest of
        all times.
        """

        def by_rank(values: Any, join: Callable[..., Any]) -> Any:
            of = [join(values[:, list(ranks)], axis=1) for ranks in origins]
            return np.stack(of, axis=1)

        return replace(
            self,
            loss=by_rank(self.loss, np.mean),
            tokens=by_rank(self.tokens, np.sum),
            start=by_rank(self.start, np.min),
            end=by_rank(self.end, np.max),
        )


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Metadata of a trace: origin, model, parallel layout and software versions."""

    origin: str = "captured"  # captured, imported, generated or replayed
    model: str = ""
    router: str = ""
    dispatch: str = ""  # padded, dropped or dropless
    world: int = 1  # ranks R
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    order: str = "tp-cp-ep-dp-pp"
    layers: int = 0
    hidden: int = 0
    experts: int = 0
    k: int = 0
    capacity_factor: float = float("nan")  # NaN: unknown, or no capacity
    dtype: str = ""
    seed: int = -1
    data_seed: int = -1  # of data order and routing noise; -1: as seed, or unknown
    backend: str = ""
    schedule: str = ""  # which steps, layers, phases were inferred or are unknown
    contradiction: str = ""  # where the rows that were sent contradict the routing
    virtual: bool = False  # one process for all ranks: wire follows from routing
    complete: bool = True  # every rank's record reaches the end of the run
    missing: str = ""  # description of what is missing; "" when complete
    omitted: int = 0  # collective calls that ranks counted but could not record
    every: int = 1  # of the iterations, every N-th is recorded
    inferred: str = ""  # what an import inferred, and from what
    moetraffic: str = ""  # versions of the software that made it
    torch: str = ""
    python: str = ""
    workload: str = ""  # the workload as JSON, if it is a built-in one
    source: str = ""  # the trace or file it was made from
    repeats_from: int = -1  # first iteration that repeats captured ones; -1: none
    created: str = ""  # ISO 8601, UTC
    nodes: tuple[str, ...] = field(default=())  # node name of each world rank

    def as_dict(self) -> dict[str, Any]:
        """Return the metadata fields by name, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
