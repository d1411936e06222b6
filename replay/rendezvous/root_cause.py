"""Who failed first, found by the ranks themselves: nobody looks at all of them.

Under torchrun and srun no process of ours sees every rank.  Those that are left have
each other's reports, and look at the processes of their own host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moetraffic.launch.root_cause import RankState, first_failure
from moetraffic.replay.failure import RankError

_KILLED = -9


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank that gives up leaves for the others."""

    rank: int
    operation: str
    message: str
    cause: str  # "mismatch", "own" or "peer", as in heartbeat.send
    blames: int  # the rank that it holds to be at fault
    entered: int  # operations entered and left, as the heartbeat counts them
    seen: Mapping[str, str]  # "stopped" or "ended", of other ranks of its host


def find_root_cause(
    reports: Mapping[int, Report], missing: Collection[int], seen: Mapping[str, str]
) -> RankError:
    """The rank that failed first, and where.

    Parameters
    ----------
    reports
        By rank; at least one.
    missing
        Ranks that left no report.
    seen
        What this rank sees of its host's other ranks now, as :attr:`Report.seen`.

    Returns
    -------
    RankError
        Its reporter is the lowest rank that left a report.
    """
    sight: dict[str, str] = {}
    for report in reports.values():
        sight |= report.seen
    sight |= seen
    # those that are left wait where the culprit did not come: the earliest of them
    # waits for it, the others for each other
    waiting = min(reports.values(), key=lambda r: (r.entered, r.rank))
    states = [
        RankState(
            rank=r.rank,
            entered=r.entered,
            ready=True,
            exit_code=1,
            error={
                "cause": r.cause,
                "message": r.message,
                "operation": r.operation,
                "blames": r.blames,
            },
        )
        for r in reports.values()
    ]
    states += [
        RankState(
            rank=rank,
            operation=waiting.operation,
            killed=True,
            exit_code=_KILLED,
            stopped=sight.get(str(rank)) == "stopped",
            # of those without a word, one that is gone is the likelier culprit
            entered=0 if sight.get(str(rank)) == "ended" else 1,
        )
        for rank in sorted(missing)
    ]
    found = first_failure(states)
    assert found is not None
    reason = found.reason
    if found.rank in missing and sight.get(str(found.rank)) == "ended":
        reason = "ended without a word: it was killed, or crashed"
    return RankError(
        reason,
        rank=found.rank,
        operation=found.operation or waiting.operation,
        cause="peer",
        reporter=min(reports),
    )
