"""Background (dense) traffic that a replay adds to every iteration of a trace.

All collectives of one iteration of a model under a parallel layout except expert
exchanges, which the trace contains: reductions of gradients, of tensor-parallel
activations, of the tied embedding and of gradient norms, and pipeline messages.  Sizes
and groups of each call are those of :func:`moetraffic.patterns.megatron_pattern` or
:func:`moetraffic.patterns.calls`.

Where they are issued, and what waits for them, :mod:`.background_order` decides.

The slowdown of expert exchanges by this traffic is measured by pairs of passes with and
without it, and with its operations but without their bytes.  Passes of a pair follow
each other on the same ranks and groups, and their order alternates (with, without,
without, with), so that drift of the machine affects both.
:func:`moetraffic.replay.results.audit.slowdown` computes a ratio and its confidence
interval from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.trace.model import ALL_TO_ALL, Site
from moetraffic.trace.order import merged

from .program import Plan, Program

if TYPE_CHECKING:
    # importing patterns is slow, and few replays have background traffic
    from moetraffic.patterns.calls import Call, Pattern

_EXCHANGES = 0  # index of the stream of expert exchanges
MAX_PAIRS = 1000

_GRID = ("tp", "pp", "dp", "cp", "ep")
_SIZES = (*_GRID, "etp", "micro-batch", "accumulation", "zero")
_WORDS: Mapping[str, tuple[str, ...]] = {
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
    kind: str  # one of moetraffic.replay.plan.program.KINDS, except all_to_all
    size: int  # bytes S, defined for each kind in moetraffic.replay.plan.program.Plan
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


@dataclass(frozen=True, kw_only=True)
class BackgroundPattern:
    """Model and parallel layout of background traffic, from command-line options.

    Raises
    ------
    ReplayError
        If an option is unknown, or its value is invalid.
    """

    layout: str  # "tp=2,pp=2,dp=2"
    model: str  # a preset
    options: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given: dict[str, str] = {}
        for part in self.layout.split(","):
            name, equals, value = part.strip().partition("=")
            number = value.isdecimal() and value.isascii() and len(value) <= 6
            words = _WORDS.get(name)
            fits = number if words is None else (value in words or not words)
            if not equals or name not in OPTIONS or name in given or not fits:
                raise ReplayError(
                    "--background takes NAME=VALUE separated by commas, each once, of "
                    f"{', '.join(OPTIONS)}, but one is {part.strip()[:40]!r}: "
                    "tp=2,pp=2,dp=2 are two ranks of each kind"
                )
            given[name] = value
        object.__setattr__(self, "options", given)

    def pattern(self) -> Pattern:
        """Build the communication pattern of one iteration, with expert exchanges.

        Raises
        ------
        LayoutError
            If the model is unknown, or the layout does not fit it.
        """
        from moetraffic.patterns import Layout, megatron_pattern, preset
        from moetraffic.patterns.calls import trained_pattern

        found, given = preset(self.model), self.options
        own = given.get("library") == "moetraffic"
        size: dict[str, Any] = {name: int(given.get(name, 1)) for name in _GRID}
        # tensor-parallel experts need sequence parallelism to hold each token once
        split = bool(found.model.experts) and size["tp"] > 1 and not own
        plan = Layout(
            **size,
            etp=int(given.get("etp", 0)),
            micro_batch=int(given.get("micro-batch", found.micro_batch)),
            accumulation=int(given.get("accumulation", size["pp"])),
            zero=int(given.get("zero", 0)),
            sequence_parallel=given.get("sequence-parallel", f"{split:d}") == "1",
            recompute=given.get("recompute", "none"),
            dtype=given.get("dtype", "bfloat16"),
        )
        if own:
            return trained_pattern(found.model, plan, found.gating)
        return megatron_pattern(found.model, plan, found.gating)

    def traffic(self, world: int) -> BackgroundTraffic:
        """Build the background traffic for a given number of replay ranks.

        Raises
        ------
        ReplayError
            If the layout has a different number of ranks, or no dense traffic.
        """
        pattern = self.pattern()
        if pattern.layout.world != world:
            sizes = ", ".join(f"{k}={v}" for k, v in self.options.items())
            raise ReplayError(
                f"dense traffic runs on the replay's {world} ranks, but {sizes} are "
                f"{pattern.layout.world}: change --background, or --fold or --expand"
            )
        return background_traffic(pattern, identity=f"{self.model} {self.layout}")

    def arguments(self) -> list[str]:
        """Return the equivalent options of ``moetraffic replay``."""
        return ["--background", self.layout, "--model", self.model]


def parse_background(layout: str, model: str) -> BackgroundPattern | None:
    """Parse ``--background`` and ``--model``; return None if both are empty.

    Raises
    ------
    ReplayError
        If only one of them is given.
    """
    if not layout and not model:
        return None
    if not layout or not model:
        raise ReplayError(
            "background traffic needs a model and a layout, but "
            f"{'--model' if layout else '--background'} is missing: give both"
        )
    return BackgroundPattern(layout=layout, model=model)


def background_traffic(pattern: Pattern, *, identity: str) -> BackgroundTraffic:
    """Extract the dense collectives of a communication pattern as background traffic.

    All ranks have one order, which preserves the order of each rank where the ranks
    agree.  They differ only in the order of pipeline messages, which are asynchronous.
    A collective's place is the mean over its ranks of the share of the pattern's expert
    exchanges before it (of all calls, where it has no exchange); calls of a micro-batch
    are critical, others (reductions of gradients) are not.

    Raises
    ------
    ReplayError
        If the pattern has no dense collective.
    """
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    operations: list[BackgroundCollective] = []
    known: dict[tuple[int, Call, int], list[int]] = {}
    orders: list[list[int]] = []
    mine: dict[tuple[int, str], tuple[int, ...]] = {}
    for kind in pattern.kinds:
        for ranks in pattern.layout.groups(kind):
            mine |= {(rank, kind): ranks for rank in ranks}
    slots: dict[tuple[int, Call], int] = {}
    places: dict[int, list[float]] = {}
    for rank in range(pattern.layout.world):
        order: list[int] = []
        seen: dict[tuple[int, Call], int] = {}
        shares = _shares(pattern, rank)
        for (call, micro_batch), share in zip(
            pattern.program(rank), shares, strict=True
        ):
            ranks = mine[rank, call.group]
            if call.operation == ALL_TO_ALL or len(ranks) == 1:
                continue
            group = groups.setdefault((call.group, ranks), len(groups))
            nth = seen.get((group, call), 0)
            seen[group, call] = nth + 1
            if (group, call, nth) not in known:
                # the call index counts calls of a site regardless of their size
                spot = group, replace(call, size=0, root=0, exact=True)
                slot = slots.get(spot, 0)
                slots[spot] = slot + 1
                made = _collectives(call, group, ranks, slot, micro_batch >= 0)
                first = len(operations)
                operations += made
                known[group, call, nth] = list(range(first, len(operations)))
            joined = [n for n in known[group, call, nth] if _joins(operations[n], rank)]
            order += joined
            for n in joined:
                places.setdefault(n, []).append(share)
        orders.append(order)
    if not operations:
        raise ReplayError(
            f"background traffic consists of dense collectives, but {pattern.name} has "
            "none in this layout: raise tp, pp or dp"
        )
    sequence = merged([np.array(order, np.int64) for order in orders]).tolist()
    place = np.maximum.accumulate([np.mean(places[n]) for n in sequence]).tolist()
    ordered = tuple(
        replace(operations[n], place=round(at, 9))
        for n, at in zip(sequence, place, strict=True)
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


def _shares(pattern: Pattern, rank: int) -> list[float]:
    """Compute the share of a rank's expert exchanges before each of its calls."""
    calls = [call for call, _ in pattern.program(rank)]
    counted = np.array([call.operation == ALL_TO_ALL for call in calls], np.int64)
    if not counted.any():
        counted[:] = 1
    before = np.cumsum(counted) - counted
    return [float(share) for share in before / counted.sum()]


def _collectives(
    call: Call, group: int, ranks: tuple[int, ...], slot: int, critical: bool
) -> list[BackgroundCollective]:
    """Convert a call to one collective, or to one message per sender-receiver pair."""
    from moetraffic.analysis.pattern_trace import call_sites

    root = ranks[call.root]
    found = []
    for site in call_sites(call, group=group, slot=slot, width=len(ranks)):
        sender = root if call.operation in ("broadcast", "scatter") else -1
        receiver = root if call.operation in ("reduce", "gather") else -1
        if call.operation == "send_recv":
            sender, receiver = (ranks[peer] for peer in site.peers)
        found.append(
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
    return found


def _joins(one: BackgroundCollective, rank: int) -> bool:
    return one.kind != "send_recv" or rank in (one.sender, one.receiver)


# ---- pairs of passes --------------------------------------------------------------


def pass_order(pairs: int) -> tuple[bool, ...]:
    """Return the order of replay passes; true marks one with background traffic.

    Raises
    ------
    ReplayError
        If there are fewer than two pairs, or too many.

    Examples
    --------
    >>> pass_order(2)
    (True, False, False, True)
    """
    if not 2 <= pairs <= MAX_PAIRS:
        raise ReplayError(
            f"an interval needs 2 to {MAX_PAIRS} pairs of passes, but --pairs is "
            f"{pairs}: change it"
        )
    orders = ((True, False), (False, True))
    return tuple(one for pair in range(pairs) for one in orders[pair % 2])


def expert_exchanges(plan: Plan) -> Plan:
    """Return a copy of a replay plan whose programs contain only expert exchanges.

    Operations, groups and streams keep their numbers, so that both plans run on one
    backend.

    Raises
    ------
    ReplayError
        If the plan has only expert exchanges, or none.
    """
    background = plan.stream != _EXCHANGES
    if not background.any() or background.all():
        raise ReplayError(
            "a slowdown compares expert exchanges with and without dense traffic, but "
            f"of {len(plan)} operations {int(background.sum())} are dense: replay "
            "both, with --background"
        )
    programs = {rank: _exchanges(program) for rank, program in plan.programs.items()}
    return replace(plan, programs=programs)


def without_bytes(plan: Plan) -> Plan:
    """Return a copy of a replay plan whose background operations have no bytes.

    It issues as many operations, with the same dependencies: a slowdown that it shows
    is by the processor, not by the network.
    """

    def emptied(program: Program) -> Program:
        kept = program.stream == _EXCHANGES
        return replace(
            program,
            send_size=np.where(kept, program.send_size, 0),
            receive_size=np.where(kept, program.receive_size, 0),
        )

    return replace(
        plan, programs={rank: emptied(p) for rank, p in plan.programs.items()}
    )


def _exchanges(program: Program) -> Program:
    keep = program.stream == _EXCHANGES
    width = np.diff(program.first)
    cells = np.repeat(keep, width)
    per_operation = (
        *("operation", "group", "stream", "kind", "send_size", "receive_size"),
        *("waits", "gap_ns", "due_ns"),
    )
    # dense operations are gone: wait for the last exchange at or before the old one
    place = np.cumsum(keep) - 1
    after = np.where(program.after >= 0, place[program.after], -1)
    return replace(
        program,
        **{name: getattr(program, name)[keep] for name in per_operation},
        first=np.concatenate([[0], np.cumsum(width[keep])]).astype(np.int64),
        send_bytes=program.send_bytes[cells],
        receive_bytes=program.receive_bytes[cells],
        after=after[keep],
    )
