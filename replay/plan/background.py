"""Dense collectives that go beside a trace's own, of tensor, pipeline, data ranks.

They accompany every iteration of the replay, in one order on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.trace.model import Site


@dataclass(frozen=True, kw_only=True)
class BackgroundCollective:
    """One collective, or message, of an iteration."""

    group: int  # index into BackgroundTraffic.groups
    kind: str  # of moetraffic.replay.plan.program.KINDS, but an all-to-all
    size: int  # bytes S, as moetraffic.replay.plan.program.Plan says for the kind
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives
    site: (
        Site  # what it is called; its group is the index into BackgroundTraffic.groups
    )


@dataclass(frozen=True, kw_only=True)
class BackgroundTraffic:
    """What goes beside each iteration."""

    groups: tuple[tuple[int, ...], ...]  # world ranks of the replay, ascending
    group_kinds: tuple[str, ...]  # of each group: "tp", "pp", "dp": its stream
    operations: tuple[
        BackgroundCollective, ...
    ]  # of an iteration, in an order good for all ranks
    identity: str  # what tells them from others; it goes into the plan's digest
