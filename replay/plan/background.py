"""Background (dense) traffic that a replay adds to every iteration of a trace.

All collectives of one iteration of a model under a parallel layout except expert
exchanges, which the trace contains: reductions of gradients, of tensor-parallel
activations, of the tied embedding and of gradient norms, and pipeline messages.  Sizes
and groups of each call are those of a pattern of :mod:`moetraffic.patterns`.

In an iteration with E exchanges (of all groups, in an order common to all ranks), an
operation with place f is issued after the first floor(f E) of them: where layer and
phase stand that it belongs to, if the trace has the pattern's layers, and else at the
same share of the iteration.  It waits for what is before it on the critical path of its
rank: the exchange before it, or a *critical* operation of the background.  The exchange
after it waits for the last critical one.  Every dependency points back in one order
that all ranks share, so no rank waits for another in a cycle.

The slowdown of exchanges is measured by passes without this traffic, with it, and with
its operations at their smallest sizes.  These follow each other on the same ranks and
groups, in alternating order, so that drift of the machine affects all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.model import ALL_TO_ALL, Site
from moetraffic.trace.order import merged

from .matrices import buffers

if TYPE_CHECKING:
    # importing patterns is slow, and few replays have background traffic
    from moetraffic.patterns.calls import Call, Pattern

    from .operations import Plan
    from .program import Program

SMALLEST_BYTES = 8
"""Bytes of each member's share in the smallest operation: of every element type a
whole number.  Backends discard empty operations."""

_GRID = ("tp", "pp", "dp", "cp", "ep")
_SIZES = (*_GRID, "etp", "micro-batch", "accumulation", "zero")
_WORDS: dict[str, tuple[str, ...]] = {
    "dtype": (),
    "sequence-parallel": ("0", "1"),
    "recompute": ("none", "full"),
    "library": ("megatron", "moetraffic"),
}
OPTIONS = (*_SIZES, *_WORDS)
"""Names accepted by ``--background NAME=VALUE``, as in ``moetraffic pattern``."""


@dataclass(frozen=True, kw_only=True)
class BackgroundCollective:
    """Dense collective or point-to-point message of one training iteration."""

    group: int  # index into BackgroundTraffic.groups
    kind: str  # one of KINDS, except all_to_all
    size: int  # bytes S, as in a plan
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives
    site: Site  # labels the collective; its group indexes BackgroundTraffic.groups
    # share of the iteration's expert exchanges that come before it; never decreases
    place: float = 1.0
    critical: bool = False  # whether the next exchange waits for it


@dataclass(frozen=True, kw_only=True)
class BackgroundTraffic:
    """Dense collectives that a replay adds to each training iteration."""

    groups: tuple[tuple[int, ...], ...]  # world ranks of the replay, ascending
    group_kinds: tuple[str, ...]  # stream of each group: "tp", "pp", "dp"
    operations: tuple[BackgroundCollective, ...]  # same order on all ranks
    identity: str  # identifies the traffic in the digest of the plan


def layout_options(layout: str, model: str) -> dict[str, str]:
    """Parse the layout of background traffic: ``tp=2,pp=2,dp=2``; empty for none."""
    if not layout and not model:
        return {}
    if not layout or not model:
        raise ReplayError(
            "background traffic needs a model and a layout, but "
            f"{'--model' if layout else '--background'} is missing: give both"
        )
    given: dict[str, str] = {}
    for word in layout.split(","):
        name, equals, value = word.strip().partition("=")
        number = value.isdecimal() and value.isascii() and len(value) <= 6
        words = _WORDS.get(name)
        fits = number if words is None else (value in words or not words)
        if not equals or name not in OPTIONS or name in given or not fits:
            raise ReplayError(
                "--background takes NAME=VALUE separated by commas, each once, of "
                f"{', '.join(OPTIONS)}, but one is {word.strip()[:40]!r}: "
                "tp=2,pp=2,dp=2 are two ranks of each kind"
            )
        given[name] = value
    return given


def layout_pattern(layout: str, model: str) -> Pattern:
    """Build the communication pattern of one iteration, with expert exchanges."""
    from moetraffic.patterns import Layout, megatron_pattern, preset
    from moetraffic.patterns.calls import trained_pattern

    given, workload = layout_options(layout, model), preset(model)
    own = given.get("library") == "moetraffic"
    size: dict[str, Any] = {name: int(given.get(name, 1)) for name in _GRID}
    # tensor-parallel experts need sequence parallelism to hold each token once
    split = bool(workload.model.experts) and size["tp"] > 1 and not own
    parallelism = Layout(
        **size,
        etp=int(given.get("etp", 0)),
        micro_batch=int(given.get("micro-batch", workload.micro_batch)),
        accumulation=int(given.get("accumulation", size["pp"])),
        zero=int(given.get("zero", 0)),
        sequence_parallel=given.get("sequence-parallel", f"{split:d}") == "1",
        recompute=given.get("recompute", "none"),
        dtype=given.get("dtype", "bfloat16"),
    )
    make = trained_pattern if own else megatron_pattern
    return make(workload.model, parallelism, workload.gating)


def traffic_of(layout: str, model: str, world: int) -> BackgroundTraffic:
    """Build the background traffic for a number of ranks."""
    pattern = layout_pattern(layout, model)
    if pattern.layout.world != world:
        raise ReplayError(
            f"dense traffic runs on the replay's {world} ranks, but {layout} are "
            f"{pattern.layout.world}: change --background, or --fold or --expand"
        )
    return background_traffic(pattern, identity=f"{model} {layout}")


def background_traffic(pattern: Pattern, *, identity: str) -> BackgroundTraffic:
    """Extract the dense collectives of a communication pattern as background traffic.

    All ranks have one order, which preserves the order of each rank where the ranks
    agree.  They differ only in the order of pipeline messages, which are asynchronous.
    A collective's place is the mean over its ranks of the share of the pattern's expert
    exchanges before it (of all calls, where it has no exchange); calls of a micro-batch
    are critical, others (reductions of gradients) are not.
    """
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    operations: list[BackgroundCollective] = []
    made: dict[tuple[int, Call, int], range] = {}  # operations of a group's nth call
    slots: dict[tuple[int, Call], int] = {}
    orders: list[list[int]] = []
    places: list[list[float]] = []
    of_rank: dict[tuple[int, str], tuple[int, ...]] = {}
    for kind in pattern.kinds:
        for ranks in pattern.layout.groups(kind):
            of_rank |= {(rank, kind): ranks for rank in ranks}
    for rank in range(pattern.layout.world):
        order: list[int] = []
        seen: dict[tuple[int, Call], int] = {}
        program = list(pattern.program(rank))
        exchange = np.array([c.operation == ALL_TO_ALL for c, _ in program], bool)
        counted = exchange if exchange.any() else ~exchange
        shares = ((np.cumsum(counted) - counted) / counted.sum()).tolist()
        for (call, micro_batch), share in zip(program, shares, strict=True):
            ranks = of_rank[rank, call.group]
            if call.operation == ALL_TO_ALL or len(ranks) == 1:
                continue
            group = groups.setdefault((call.group, ranks), len(groups))
            nth = seen.get((group, call), 0)
            seen[group, call] = nth + 1
            if (group, call, nth) not in made:
                # the call index counts calls of a site regardless of their size
                spot = group, replace(call, size=0, root=0, exact=True)
                slot = slots.get(spot, 0)
                slots[spot] = slot + 1
                first = len(operations)
                operations += _collectives(call, group, ranks, slot, micro_batch >= 0)
                made[group, call, nth] = range(first, len(operations))
                places += [[] for _ in made[group, call, nth]]
            for n in made[group, call, nth]:
                ends = operations[n].sender, operations[n].receiver
                if call.operation != "send_recv" or rank in ends:
                    order.append(n)
                    places[n].append(share)
        orders.append(order)
    if not operations:
        raise ReplayError(
            f"background traffic consists of dense collectives, but {pattern.name} has "
            "none in this layout: raise tp, pp or dp"
        )
    sequence = merged([np.array(order, np.int64) for order in orders]).tolist()
    place = np.maximum.accumulate([np.mean(places[n]) for n in sequence]).tolist()
    ordered = tuple(
        replace(operations[n], place=round(p, 9))
        for n, p in zip(sequence, place, strict=True)
    )
    kinds = tuple(kind for kind, _ in groups)
    members = tuple(ranks for _, ranks in groups)
    digest = hashlib.sha256(repr((members, kinds, ordered)).encode()).hexdigest()
    return BackgroundTraffic(
        groups=members,
        group_kinds=kinds,
        operations=ordered,
        identity=f"{identity} {digest}",
    )


def _collectives(
    call: Call, group: int, ranks: tuple[int, ...], slot: int, critical: bool
) -> list[BackgroundCollective]:
    """Convert a call to one collective, or to one message per sender-receiver pair."""
    from moetraffic.analysis.pattern_trace import call_sites

    root = ranks[call.root]
    made = []
    for site in call_sites(call, group=group, slot=slot, width=len(ranks)):
        sender = root if call.operation in ("broadcast", "scatter") else -1
        receiver = root if call.operation in ("reduce", "gather") else -1
        if call.operation == "send_recv":
            sender, receiver = (ranks[peer] for peer in site.peers)
        made.append(
            BackgroundCollective(
                group=group,
                kind=call.operation,
                size=call.size,
                sender=sender,
                receiver=receiver,
                site=site,
                critical=critical,
            )
        )
    return made


# ---- order and dependencies --------------------------------------------------------


def levels(plan: Plan, common: Int64) -> Float64:
    """Compute the position of each operation among the exchanges of its iteration.

    ``common`` ``[captured]`` is the position of each captured operation in the common
    order.  The result ``[n]`` is i for exchange i, and i - 0.5 for what comes before it
    and after the exchange i - 1.
    """
    count, iteration = len(common), plan.iteration
    order = np.argsort(common)
    exchange = plan.stream[:count][order] == 0
    when = iteration[:count][order]
    passed = np.cumsum(exchange) - exchange  # exchanges before each
    within = passed - passed[np.searchsorted(when, when)]
    level = np.empty(len(plan))
    level[order] = np.where(exchange, within, within - 0.5)
    distinct, which = np.unique(iteration, return_inverse=True)
    which = which.reshape(-1)
    total = np.bincount(which[:count][order], exchange, minlength=len(distinct))
    share = plan.place[count:]
    level[count:] = np.floor(share * total[which[count:]] + 1e-6) - 0.5
    return level


def follow(plan: Plan, order: Int64, after: Int64) -> Int64:
    """Add the dependencies of background operations to those of a rank, ``[N]``.

    ``order`` ``[N]`` are the rank's operations, ``after`` ``[N]`` what captured ones
    wait for.
    """
    added = plan.occurrence[order] < 0
    iteration = plan.iteration[order]
    exchange = (plan.stream[order] == 0) & ~added
    index = np.arange(len(order))

    def last(rows: Bool) -> Int64:
        """Index of the last of these before each operation of its iteration, or -1."""
        until = np.maximum.accumulate(np.where(rows, index, -1))
        before = np.append(-1, until[:-1])[: len(order)]
        same = (before >= 0) & (iteration[before] == iteration)
        return np.asarray(np.where(same, before, -1), np.int64)

    exchanged, waited = last(exchange), last(added & plan.critical[order])
    after = np.where(added, np.maximum(exchanged, waited), after)
    return np.where(exchange & (waited > exchanged), waited, after)


# ---- passes of a comparison --------------------------------------------------------


def check_comparable(plan: Plan) -> None:
    """Check that a plan has expert exchanges and other traffic to compare them with."""
    beside = plan.stream != 0
    if not beside.any() or beside.all():
        raise ReplayError(
            "a slowdown compares expert exchanges with and without dense traffic, but "
            f"of {len(plan)} operations {int(beside.sum())} are dense: replay "
            "both, with --background"
        )


def expert_exchanges(program: Program) -> Program:
    """Return the program of the expert exchanges alone, with their dependencies."""
    keep = program.stream == 0
    width = np.diff(program.first)
    cells = np.repeat(keep, width)
    # dense operations are gone: wait for the last exchange at or before the old one
    place = np.cumsum(keep) - 1
    after = np.where(program.after >= 0, place[program.after], -1)
    columns = (
        *("operation", "group", "stream", "kind", "send_size", "receive_size"),
        *("waits", "gap_ns", "due_ns"),
    )
    return replace(
        program,
        **{name: getattr(program, name)[keep] for name in columns},
        first=np.append(0, np.cumsum(width[keep])).astype(np.int64),
        send_bytes=program.send_bytes[cells],
        receive_bytes=program.receive_bytes[cells],
        after=after[keep],
        batch=np.arange(int(keep.sum())),
    )


def smallest(plan: Plan, program: Program) -> Program:
    """Return the program with all but the expert exchanges at their smallest sizes.

    It issues as many operations, with the same dependencies: a slowdown that it shows
    is by the processor and by latency, not by bytes.
    """
    from .operations import KINDS

    sizes = np.stack([program.send_size, program.receive_size])
    width = plan.width[program.operation]
    for number in set(np.unique(program.kind).tolist()) - {0}:
        rows = np.flatnonzero((program.kind == number) & (program.stream != 0))
        calls, name = program.operation[rows], KINDS[number]
        split = name in ("reduce_scatter", "scatter")
        size = SMALLEST_BYTES * (width[rows] if split else np.ones_like(width[rows]))
        ends = plan.sender[calls], plan.receiver[calls]
        small = buffers(name, size, width[rows], program.rank, *ends)
        sizes[:, rows] = np.minimum(sizes[:, rows], small)
    return replace(program, send_size=sizes[0], receive_size=sizes[1])
