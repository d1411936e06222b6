"""Find the root cause of a replay failure without a supervisor of all ranks.

Under torchrun and srun no process of moetraffic supervises every rank.  The remaining
ranks have each other's reports, and the states of the processes of their own host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moetraffic.launch.root_cause import RankState, first_failure
from moetraffic.replay.failure import RankError

_KILLED = -9


@dataclass(frozen=True, kw_only=True)
class Report:
    """Failure report that one rank stores for the other ranks."""

    rank: int
    operation: str
    message: str
    cause: str  # "mismatch", "own" or "peer", as in heartbeat.send
    blames: int  # the rank that the reporting rank considers at fault
    entered: int  # operations entered and left, as the heartbeat counts them
    seen: Mapping[str, str]  # "stopped" or "ended", of other ranks of its host


def find_root_cause(
    reports: Mapping[int, Report], missing: Collection[int], seen: Mapping[str, str]
) -> RankError:
    """Find the rank that failed first, and its operation.

    ``missing`` are ranks without a report; ``seen`` are current states of the other
    ranks of this host, as :attr:`Report.seen`.

    The error names the rank; its reporter is the lowest rank with a report.
    """
    states_seen: dict[str, str] = {}
    for report in reports.values():
        states_seen |= report.seen
    states_seen |= seen
    # the remaining ranks wait where the failed one did not arrive: the earliest of
    # them waits for it, the others for each other
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
            stopped=states_seen.get(str(rank)) == "stopped",
            # of ranks without a report, one that has ended more likely failed first
            entered=0 if states_seen.get(str(rank)) == "ended" else 1,
        )
        for rank in sorted(missing)
    ]
    found = first_failure(states)
    assert found is not None
    reason = found.reason
    if found.rank in missing and states_seen.get(str(found.rank)) == "ended":
        reason = "ended without an error report: it was killed, or crashed"
    return RankError(
        reason,
        rank=found.rank,
        operation=found.operation or waiting.operation,
        cause="peer",
        reporter=min(reports),
    )
