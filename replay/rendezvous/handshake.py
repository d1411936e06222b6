"""Handshake of the ranks: compare settings and plans, and check memory.

These functions compare the data of all ranks, without communication, and name the
first rank that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moetraffic.replay.failure import RankError
from moetraffic.units import byte_size

AGREEMENT = "the agreement on the plan"


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """Settings and process identity that one rank sends in the handshake."""

    terms: Mapping[str, str]  # by name, the most important first; equal on all ranks
    node: str
    pid: int
    space: str  # namespace of the pid
    nonce: str  # distinguishes this rank from one of another run


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Memory that one rank will allocate, and memory that is free on its host."""

    node: str
    pool: str  # the memory: "host", or a device
    needs: int  # bytes
    free: int  # bytes, -1 if unknown


def find_mismatch(
    handshakes: Sequence[Handshake],
) -> RankError | tuple[int, int] | None:
    """Find a rank whose settings differ from those of most other ranks.

    Returns
    -------
    RankError, tuple of int, or None
        Error that names the rank; or (usual, other) ranks if only the plans differ;
        None if all agree.
    """
    names = list(dict.fromkeys(name for o in handshakes for name in o.terms))
    for name in names:
        values = [o.terms.get(name, "none") for o in handshakes]
        if len(set(values)) == 1:
            continue
        most = Counter(values).most_common(1)[0][1]
        usual = next(v for v in values if values.count(v) == most)
        common = values.index(usual)
        other = next(r for r, v in enumerate(values) if v != usual)
        if name == "plan":
            return common, other
        return RankError(
            f"has {name} {values[other]}, while rank {common} has {usual}: give every "
            "rank the same software and the same options",
            rank=other,
            operation=AGREEMENT,
            cause="mismatch",
        )
    return None


def find_memory_shortage(needs: Sequence[MemoryNeed]) -> RankError | None:
    """Find the first rank of a host whose ranks need more memory than is free."""
    pools: dict[tuple[str, str], list[int]] = {}
    for rank, need in enumerate(needs):
        pools.setdefault((need.node, need.pool), []).append(rank)
    for (node, pool), ranks in pools.items():
        total = sum(needs[r].needs for r in ranks)
        known = [needs[r].free for r in ranks if needs[r].free >= 0]
        if known and total > min(known):
            where = node if pool == "host" else f"{pool} of {node}"
            each = (
                "its buffers need"
                if len(ranks) == 1
                else (f"its buffers and those of {len(ranks) - 1} more ranks need")
            )
            return RankError(
                f"has too little memory: {each} {byte_size(total)} on {where}, where "
                f"{byte_size(min(known))} are free: replay on more or larger hosts, or "
                "fewer bytes",
                rank=ranks[0],
                operation="start-up",
                cause="own",
            )
    return None
