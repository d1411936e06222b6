"""The pattern of an iteration: which collectives each rank calls, in order, how large.

Ranks of one pipeline stage call the same collectives, each in its own groups, so a
pattern has a program a stage.  Sizes are payloads, counted as the capture's hook counts
them: the bytes of a member's input.  What travels of them between whom an algorithm
decides (:mod:`.traffic`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from .layouts.parallelism import Groups, Parallelism

TRAFFIC = ("TP", "PP", "DP", "EmbTableSync", "EP", "CP", "control")
"""Kinds of traffic; control: norms, losses, counts, of a few bytes."""

ACROSS_STAGES = frozenset({"pp", "embedding", "mp", "world", "dp_pair", "edp_pair"})
"""Kinds of groups whose members are on several stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A collective as a member of its group calls it."""

    traffic: str  # one of TRAFFIC
    group: str  # kind of process group
    operation: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv ...
    # bytes of a member's input; all-to-all: to all members together, itself included,
    # the same to each; broadcast and reduce: the buffer on every member
    size: int
    dtype: str = ""
    layer: int = -1  # global layer; -1: none
    direction: str = "forward"  # or "backward" or "recompute"
    phase: str = ""  # of an expert exchange, as a trace has them
    label: str = ""
    row_bytes: int = 0  # of a token vector in an expert exchange
    root: int = 0  # of a broadcast or reduce, as a member of the group
    peers: tuple[int, int] = (-1, -1)  # (source, destination) of a send_recv, members
    shares: tuple[float, ...] = ()  # of an expert exchange, by receiver; (): equal
    shift: int = 0  # a send_recv of every member to the one so much further
    exact: bool = True  # whether the size follows from the configuration alone

    def messages(self, members: int) -> tuple[tuple[int, int], ...]:
        """(source, destination) of a send_recv's messages, as members."""
        if self.shift:
            return tuple((i, (i + self.shift) % members) for i in range(members))
        return (self.peers,)


class Event(NamedTuple):
    """A call in a program; the micro-batch that it belongs to, -1 where to all."""

    call: Call
    micro_batch: int = -1


class Row(NamedTuple):
    """Calls of a stage that differ in their place alone."""

    call: Call  # without layer and shares
    stages: tuple[int, ...]  # whose ranks make as many
    times: int  # in an iteration, by each member
    when: str  # the call's direction, or "after backward": of no micro-batch


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The collectives of one iteration."""

    name: str  # of the model
    grid: Parallelism
    programs: tuple[tuple[Event, ...], ...]  # of each pipeline stage, in order
    # what a trace of it says beside: model's and training's fields by name of Meta
    about: tuple[tuple[str, object], ...] = ()

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """The pipeline stage of each world rank."""
        return self.grid.stage_of

    @cached_property
    def _groups(self) -> dict[tuple[str, int], Groups]:
        """Groups by kind and stage."""
        found: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for kind in self.kinds:
            for group in self.grid.groups(kind):
                for stage in {self.stage_of[rank] for rank in group}:
                    found.setdefault((kind, stage), []).append(group)
        return {place: tuple(groups) for place, groups in found.items()}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of groups that communicate."""
        return tuple(sorted({e.call.group for p in self.programs for e in p}))

    def groups(self, kind: str, stage: int) -> Groups:
        """The groups of a kind with a member on a stage."""
        return self._groups.get((kind, stage), ())

    def program(self, rank: int) -> tuple[Event, ...]:
        """What a rank calls, in order."""
        return self.programs[self.stage_of[rank]]

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """The group of a kind that a rank is in."""
        return next(g for g in self.grid.groups(kind) if rank in g)

    def calls(
        self, traffic: Sequence[str] | None = None
    ) -> Iterator[tuple[Call, Groups, int]]:
        """Each collective once: the call without its layer, the groups that make it,
        and how often each does in an iteration.

        Parameters
        ----------
        traffic
            Kinds of traffic; None takes all.
        """
        stages = self.stage_of
        for stage, program in enumerate(self.programs):
            counts: Counter[Call] = Counter()
            for call, times in Counter(e.call for e in program).items():
                if traffic is None or call.traffic in traffic:
                    counts[replace(call, layer=-1)] += times
            for call, times in counts.items():
                groups = self.groups(call.group, stage)
                if call.group in ACROSS_STAGES:
                    # the first of its members counts it; a message, its source
                    teller = max(call.peers[0], 0)
                    groups = tuple(g for g in groups if stages[g[teller]] == stage)
                if groups:
                    yield call, groups, times

    def rows(self) -> list[Row]:
        """The program in short: calls alike but for their layer, counted by stage."""
        counts: dict[tuple[Call, str], dict[int, int]] = {}
        for stage, program in enumerate(self.programs):
            for event in program:
                call = replace(event.call, layer=-1, shares=())
                ends = event.micro_batch < 0 and call.direction == "forward"
                when = "after backward" if ends else call.direction
                of_stage = counts.setdefault((call, when), {})
                of_stage[stage] = of_stage.get(stage, 0) + 1
        rows = []
        for (call, when), of_stage in counts.items():
            for times in sorted(set(of_stage.values()), reverse=True):
                same = tuple(s for s, n in of_stage.items() if n == times)
                rows.append(Row(call, same, times, when))
        return sorted(rows, key=lambda r: (TRAFFIC.index(r.call.traffic), r.stages))
