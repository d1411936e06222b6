"""Background traffic: dense collectives of tensor, pipeline and data parallelism.

A replay adds them to every iteration, in the same order on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.trace.model import Site


@dataclass(frozen=True, kw_only=True)
class BackgroundCollective:
    """Dense collective or point-to-point message of one training iteration."""

    group: int  # index into BackgroundTraffic.groups
    kind: str  # one of moetraffic.replay.plan.program.KINDS, except all_to_all
    size: int  # bytes S, defined for each kind in moetraffic.replay.plan.program.Plan
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives
    site: Site  # labels the collective; its group indexes BackgroundTraffic.groups


@dataclass(frozen=True, kw_only=True)
class BackgroundTraffic:
    """Dense collectives that a replay adds to each training iteration."""

    groups: tuple[tuple[int, ...], ...]  # world ranks of the replay, ascending
    group_kinds: tuple[str, ...]  # stream of each group: "tp", "pp", "dp"
    operations: tuple[BackgroundCollective, ...]  # same order on all ranks
    identity: str  # identifies the traffic in the digest of the plan
