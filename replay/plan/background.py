"""Background traffic: dense collectives of tensor, pipeline and data parallelism.

They are added to every iteration of the replay, in one order on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.trace.model import Site


@dataclass(frozen=True, kw_only=True)
class BackgroundCollective:
    """One dense collective, or message, of an iteration."""

    group: int  # index into BackgroundTraffic.groups
    kind: str  # of moetraffic.replay.plan.program.KINDS, but an all-to-all
    size: int  # bytes S, as moetraffic.replay.plan.program.Plan says for the kind
    sender: int = -1  # world rank that broadcasts, scatters or sends
    receiver: int = -1  # world rank that reduces, gathers or receives
    site: Site  # names it; its group is an index into BackgroundTraffic.groups


@dataclass(frozen=True, kw_only=True)
class BackgroundTraffic:
    """Dense collectives that are added to each iteration."""

    groups: tuple[tuple[int, ...], ...]  # world ranks of the replay, ascending
    group_kinds: tuple[str, ...]  # stream of each group: "tp", "pp", "dp"
    operations: tuple[BackgroundCollective, ...]  # of an iteration, in a common order
    identity: str  # identifies them in the digest of the plan
