"""Check that ranks can exchange data over gloo and compare their clocks."""

from __future__ import annotations

import math
import sys

from moetraffic.launch import Heartbeat, RankEnvironment, launch

from .finding import Finding, State, finding

DEADLINE_S = 90.0
NEAR_NS = 1_000_000
"""Clock error, in ns, above which times of different hosts are hard to compare."""


def try_ranks(ranks: int, rank_env: RankEnvironment | None = None) -> list[Finding]:
    """Run an all-to-all over gloo and compare the ranks' clocks.

    If another launcher started the ranks, ``rank_env`` is the rank of this process: one
    process is run, and the ranks use the launcher's rendezvous address.
    """
    events: list[Heartbeat] = []
    outcome = launch(
        [sys.executable, "-m", "moetraffic.health.exchange"],
        ranks=ranks,
        start_deadline_s=DEADLINE_S if rank_env is None else math.inf,
        operation_deadline_s=DEADLINE_S,
        on_event=events.append,
        rank_env=rank_env,
    )
    number = ranks if rank_env is None else rank_env.world
    results = [event.fields for event in events if event.event == "step"]
    if not outcome.ok or not results:
        return [
            finding(
                *("network", "exchange", State.STOP),
                f"{number} ranks did not exchange rows over gloo: "
                f"{outcome.sentence or 'a rank ended early'}",
                "see network and memory in this table; GLOO_SOCKET_IFNAME names the "
                "interface to use",
            )
        ]
    return [
        finding(
            *("network", "exchange", State.OK),
            f"{number} ranks met and exchanged rows over gloo, in "
            f"{outcome.duration_s:.1f} s with their start",
        ),
        _clocks(int(results[0]["offset_ns"]), int(results[0]["error_ns"]), number),
    ]


def _clocks(offset_ns: int, error_ns: int, ranks: int) -> Finding:
    remedy = "the way to rank 0's store is slow: use a faster interface"
    if error_ns < 0:
        said = "a rank's clock could not be compared with rank 0's"
        remedy = "times of different hosts will be unknown"
    elif not offset_ns and not error_ns:
        said = f"{ranks} ranks read one clock"
    else:
        said = (
            f"up to {offset_ns / 1e6:.3f} ms from rank 0's, known to "
            f"{error_ns / 1e6:.3f} ms (corrected in traces)"
        )
    near = 0 <= error_ns <= NEAR_NS
    return finding("network", "clocks", State.OK if near else State.NOTE, said, remedy)
